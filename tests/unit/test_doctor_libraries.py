"""The doctor on compiled extensions: symbols, libraries and programs that are or are not there."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from matrix.doctor.checkup import Grade
from matrix.doctor.elf import NotElfError, offered, read_library
from matrix.doctor.libraries import check_libraries
from tests.unit.doctor_case import environment, grades, only


def library(
    path: Path, *, undefined: tuple[str, ...] = (), defined: tuple[str, ...] = (), needed: tuple[str, ...] = ()
) -> Path:
    """Write an ELF64 file with these dynamic symbols: header, strings, symbols, dynamic section, three sections."""
    strings, offsets = b"\0", {}
    for text in (*undefined, *defined, *needed, "$ORIGIN:/opt/lib", "weak", path.name):
        offsets[text] = len(strings)
        strings += text.encode() + b"\0"
    symbols = struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)
    symbols += b"".join(struct.pack("<IBBHQQ", offsets[text], 1 << 4, 0, 0, 0, 0) for text in undefined)
    symbols += struct.pack("<IBBHQQ", offsets["weak"], 2 << 4, 0, 0, 0, 0)
    symbols += b"".join(struct.pack("<IBBHQQ", offsets[text], 1 << 4, 0, 7, 0, 0) for text in defined)
    dynamic = b"".join(struct.pack("<qQ", 1, offsets[text]) for text in needed)
    dynamic += struct.pack("<qQqQqQ", 29, offsets["$ORIGIN:/opt/lib"], 14, offsets[path.name], 0, 0)
    at = 64
    parts, headers = b"", struct.pack("<IIQQQQIIQQ", *[0] * 10)
    for kind, link, data in ((3, 0, strings), (11, 1, symbols), (6, 1, dynamic)):
        headers += struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, at + len(parts), len(data), link, 0, 0, 0)
        parts += data
    head = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 0, at + len(parts), 0, 64, 0, 0, 64, 4, 0
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head + parts + headers)
    return path


def test_symbols_of_an_elf_file(tmp_path: Path) -> None:
    path = library(tmp_path / "a.so", undefined=("_ZN3c10x",), defined=("_ZN2aty",), needed=("libc10.so",))
    read = read_library(path)
    assert read.undefined == {"_ZN3c10x"}
    assert (read.needed, read.search, read.soname) == (("libc10.so",), ("$ORIGIN", "/opt/lib"), "a.so")
    assert offered(path, {"_ZN2aty", "_ZN3c10x"}) == {"_ZN2aty"}


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"text" * 100, b"\x7fELF\x02\x01\x01" + b"\xff" * 200])
def test_what_is_no_elf_file(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.so"
    path.write_bytes(data)
    with pytest.raises(NotElfError):
        read_library(path)


def test_this_interpreter_s_own_extensions_can_be_read() -> None:
    import _ctypes

    read = read_library(Path(_ctypes.__file__))
    assert "PyLong_FromLong" in read.undefined
    assert offered(Path(_ctypes.__file__), {"PyInit__ctypes"}) == {"PyInit__ctypes"}


def test_extensions_built_for_another_torch(tmp_path: Path) -> None:
    held = environment(tmp_path, {"torch": "2.11.0", "vllm": "0.24.0"})
    site = held.purelib
    library(site / "torch" / "lib" / "libc10.so", defined=("_ZN3c105there",))
    (site / "torch" / "lib" / "libtext.so").write_text("text")
    library(site / "vllm" / "_C.abi3.so", undefined=("_ZN3c105there", "malloc"), needed=("libc10.so",))
    assert "1 extensions built against torch find" in only(check_libraries(held)).what
    old = ("_ZN3c105ErrorC2ENS_14SourceLocationESs", "_ZN3c104gone", "_ZN3c105gone5", "_ZN3c106gone_6")
    library(site / "flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so", undefined=old, needed=("libtorch.so",))
    found = only(check_libraries(held))
    assert found.grade is Grade.BAD
    assert "and 1 more" in found.what
    assert "old C++ ABI" in found.why
    new = ("_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_string",)
    library(site / "flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so", undefined=new, needed=("libc10.so",))
    assert "It is built with the C++11 ABI" in only(check_libraries(held)).why


def test_cuda_libraries_that_are_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = environment(tmp_path, {"torch": "2.11.0"})
    site = held.purelib
    library(site / "torch" / "lib" / "libc10.so")
    library(site / "vllm" / "_C.so", needed=("libc10.so", "libcudart.so.99"))
    assert only(check_libraries(held)).what == "libcudart.so.99 is in no installed package, and _C.so needs it"
    folder = tmp_path / "cuda"
    library(folder / "libcudart.so.99")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    assert only(check_libraries(held)).grade is Grade.OK


def test_libraries_that_cannot_be_checked(tmp_path: Path) -> None:
    held = environment(tmp_path)
    assert only(check_libraries(held)).what == "no extensions that are built against torch"
    broken = held.purelib / "vllm" / "_C.so"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"\x7fELF")
    assert only(check_libraries(held)).grade is Grade.UNKNOWN
    library(held.purelib / "torch" / "lib" / "libc10.so")
    assert "cut short" in only(check_libraries(held)).what


def test_ray_s_programs(tmp_path: Path) -> None:
    held = environment(tmp_path, {"ray": "2.49.2"})
    raylet = held.purelib / "ray" / "core" / "src" / "ray" / "raylet" / "raylet"
    gcs = held.purelib / "ray" / "core" / "src" / "ray" / "gcs" / "gcs_server"
    for path in (raylet, gcs):
        path.parent.mkdir(parents=True)
    raylet.write_text("x")
    raylet.chmod(0o644)
    found = grades(check_libraries(held))
    assert found[0] == (Grade.BAD, "ray's raylet may not be executed (mode 644)")
    assert found[1] == (Grade.BAD, "ray's gcs_server is not there")
    raylet.chmod(0o755)
    assert grades(check_libraries(held))[0][0] is Grade.OK
