from __future__ import annotations

import importlib.util
import struct
import sys
from pathlib import Path

import pytest

ELF = Path(__file__).parents[1] / "compat" / "kit" / "elf.py"
_SPEC = importlib.util.spec_from_file_location("kit_elf", ELF)
assert _SPEC is not None
assert _SPEC.loader is not None
elf = importlib.util.module_from_spec(_SPEC)
sys.modules["kit_elf"] = elf
_SPEC.loader.exec_module(elf)

DEFINED, UNDEFINED, WEAK = (1, 0x10), (0, 0x10), (0, 0x20)
CHECK = "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jb"
STORAGE = "_ZNK3c1011StorageImpl27throw_data_ptr_access_errorEv"


def library(path: Path, **symbols: tuple[int, int]) -> Path:
    """Write a shared object that has nothing but these dynamic symbols: (section, info) by name."""
    names, entries = b"\0", [struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)]
    for name, (section, info) in symbols.items():
        entries.append(struct.pack("<IBBHQQ", len(names), info, 0, section, 0, 0))
        names += name.encode() + b"\0"
    table = b"".join(entries)
    sections = [
        struct.pack("<IIQQQQIIQQ", *[0] * 10),
        struct.pack("<IIQQQQIIQQ", 0, 11, 0, 0, 64, len(table), 2, 0, 8, 24),
        struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, 64 + len(table), len(names), 0, 0, 1, 0),
    ]
    start = 64 + len(table) + len(names)
    head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack("<HHIQQQ", 3, 62, 1, 0, 0, start)
    head += struct.pack("<IHHHHHH", 0, 64, 0, 0, 64, len(sections), 0)
    path.write_bytes(head + table + names + b"".join(sections))
    return path


def test_symbols_are_defined_or_wanted_and_weak_ones_neither(tmp_path: Path) -> None:
    found = elf.read_symbols(library(tmp_path / "a.so", here=DEFINED, there=UNDEFINED, maybe=WEAK))
    assert found.defined == {"here"}
    assert found.wanted == {"there"}


@pytest.mark.parametrize(
    ("wanted", "defined", "missing"),
    [
        ([CHECK], [], {CHECK}),
        ([CHECK], [CHECK], set()),
        ([CHECK.replace("_jb", "_ib")], [CHECK], {CHECK.replace("_jb", "_ib")}),
        ([STORAGE], [], {STORAGE}),
        (["_ZN5torch3fooEv", "_ZN2at3barEv"], ["_ZN2at3barEv"], {"_ZN5torch3fooEv"}),
        (["cudaMalloc", "_ZNSt6vectorEv", "PyLong_FromLong"], [], set()),
        ([], [], set()),
    ],
)
def test_what_torch_does_not_define(tmp_path: Path, wanted: list[str], defined: list[str], missing: set[str]) -> None:
    extension = library(tmp_path / "extension.so", **dict.fromkeys(wanted, UNDEFINED))
    torch = library(tmp_path / "torch.so", **dict.fromkeys(defined, DEFINED))
    assert elf.unresolved(extension, [torch, library(tmp_path / "empty.so")]) == missing


@pytest.mark.parametrize("data", [b"", b"#!/bin/sh\n", b"\x7fELF\x01\x01", b"\x7fELF\x02\x02"])
def test_another_file_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(elf.NotElfError, match="no 64-bit little-endian ELF"):
        elf.read_symbols(tmp_path / "file")


@pytest.mark.skipif(sys.platform != "linux", reason="reads an extension of this Python")
def test_a_real_extension() -> None:
    import _json

    found = elf.read_symbols(Path(_json.__file__))
    assert "PyInit__json" in found.defined
    assert any(name.startswith("Py") for name in found.wanted)
