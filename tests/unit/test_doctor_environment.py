"""An environment asked and checked: packages, libraries, devices, machine; a model imported as vLLM's child does."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import struct
import sys
from collections import namedtuple
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.version import Version

import matrix.doctor.devices as devices
import matrix.doctor.machine as machine
from matrix.doctor import inside
from matrix.doctor.checkup import Check, Grade, checks_json, checks_text, ok, sick, unknown
from matrix.doctor.child import inspect_model, model_module
from matrix.doctor.devices import check_devices, read_driver, torch_cuda
from matrix.doctor.elf import NotElfError, offered, read_library
from matrix.doctor.environment import Environment, Installed, Module, ask, environment_of
from matrix.doctor.libraries import check_libraries
from matrix.doctor.machine import Machine, check_leftovers, check_limits, check_room
from matrix.doctor.packages import check_installation, check_records, check_requirements
from matrix.errors import ToolError, UsageError
from matrix.failure import Reach, Severity
from tests.unit.doctor_case import AXES, CLASH, environment, failure


def grades(checks: Iterable[Check]) -> list[tuple[Grade, str]]:
    return [(check.grade, check.what) for check in checks]


def only(checks: Iterable[Check]) -> Check:
    (found,) = checks
    return found


# ---------------------------------------------------------------- asking


def test_this_environment_answers_without_importing_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "verl").mkdir()
    (tmp_path / "verl" / "__init__.py").write_text("raise SystemExit('imported')")
    variables = {"PATH": os.environ["PATH"], "NCCL_DEBUG": "INFO", "HF_HUB_TOKEN": "secret"}
    found = ask(sys.executable, folder=tmp_path, variables=variables)
    assert found.python.release == sys.version_info[:3]
    assert found.versions["pytest"] is not None
    assert found.dist("no-such") is None
    assert found.modules["verl"].origin == tmp_path / "verl" / "__init__.py"
    assert found.modules["verl"].found == (tmp_path / "verl",)
    assert found.variables == {"NCCL_DEBUG": "INFO"}
    shadowed = [check for check in check_installation(found) if "verl is imported from" in check.what]
    assert only(shadowed).grade is Grade.BAD


def test_what_runs_inside_says_the_same_when_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "verl.py").write_text("")
    (tmp_path / "vllm").mkdir()
    (tmp_path / "bad-1.dist-info").mkdir()
    (tmp_path / "bad-1.dist-info" / "direct_url.json").write_text("{")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(Path.cwd())
    monkeypatch.setattr(sys, "argv", ["-", str(tmp_path)])
    inside.main()
    found = environment_of(json.loads(capsys.readouterr().out))
    assert found.folder == tmp_path
    assert found.modules["verl"].origin == tmp_path / "verl.py"
    assert found.modules["vllm"].namespace
    assert found.modules["vllm"].origin == tmp_path / "vllm"
    assert found.versions["pytest"] is not None


def test_a_folder_stands_for_its_interpreter(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    assert ask(str(tmp_path)).python.release == sys.version_info[:3]


def test_what_is_no_interpreter_or_does_not_answer(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no interpreter"):
        ask(str(tmp_path / "python"))
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    fake.chmod(0o755)
    with pytest.raises(ToolError, match="broken") as caught:
        ask(str(fake))
    assert "code 3" in caught.value.why
    fake.write_text("not a program")
    with pytest.raises(ToolError, match="cannot be run"):
        ask(str(fake))


def test_a_distribution_without_metadata_is_seen(tmp_path: Path) -> None:
    (tmp_path / "half-1.0.dist-info").mkdir()
    (tmp_path / "whole-1.0.dist-info").mkdir()
    (tmp_path / "whole-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: whole\nVersion: 1.0\n")
    (tmp_path / "whole-1.0.dist-info" / "direct_url.json").write_text(
        '{"url": "file:///srv/whole", "dir_info": {"editable": true}}'
    )
    found = ask(sys.executable, variables={"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)})
    half, whole = found.dist("half"), found.dist("whole")
    assert half is not None
    assert half.version is None
    assert whole is not None
    assert whole.editable == "file:///srv/whole"
    told = [check.what for check in check_installation(found)]
    assert any("half-1.0.dist-info has no readable metadata" in text for text in told)
    assert any("whole 1.0 is editable: its code is /srv/whole, which is gone" in text for text in told)


# ---------------------------------------------------------------- packages


def test_records_that_apply(tmp_path: Path) -> None:
    held = environment(tmp_path, {"vllm": "0.9.2", "transformers": "4.57.6"})
    certain = dataclasses.replace(CLASH, default_path=True, feature="")
    found = list(check_records(held, (certain, failure("other", "x" * 20, needs="a moon")), AXES))
    assert [(check.grade, check.what.split(":")[0]) for check in found] == [
        (Grade.BAD, "config-clash"),
        (Grade.WARN, "other"),
    ]
    assert "transformers==4.53.3" in found[0].then
    assert "Only if: a moon." in found[1].why
    metadata = failure("resolver", "x" * 20, testable=Reach.METADATA)
    assert only(check_records(held, (metadata,), AXES)).grade is Grade.OK


def test_a_record_about_a_missing_module_is_disproved_by_the_module(tmp_path: Path) -> None:
    queue = failure("queue", "No module named 'transfer_queue'", exception="ModuleNotFoundError")
    there = Module(name="transfer_queue", origin=tmp_path / "a.py", found=())
    packages = {"vllm": "0.9.2"}
    held = environment(tmp_path, packages, modules={"transfer_queue": there})
    assert only(check_records(held, (queue,), AXES)).grade is Grade.OK
    assert only(check_records(environment(tmp_path, packages), (queue,), AXES)).grade is Grade.WARN


def test_requirements_of_the_installed_set(tmp_path: Path) -> None:
    requires = {
        "vllm": ("torch==2.8.0", "numpy; extra == 'x'", "absent>=1", "ray>=2 ; python_version < '3.8'", "!!"),
        "zlib-ng": tuple(f"absent{at}" for at in range(20)),
    }
    held = environment(tmp_path, {"vllm": "0.9.2", "torch": "2.7.0+cu128", "zlib-ng": "1"}, requires=requires)
    found = [check.what for check in check_requirements(held)]
    assert found[:2] == [
        "vllm 0.9.2 requires torch==2.8.0; 2.7.0+cu128 is installed",
        "vllm 0.9.2 requires absent>=1; absent is not installed",
    ]
    assert found[-1] == "10 more are not met"
    fine = environment(tmp_path, {"vllm": "0.9.2", "torch": "2.8.0+cu128"}, requires={"vllm": ("torch==2.8.0",)})
    assert only(check_requirements(fine)).what == "the requirements of 2 packages are met"


def test_copies_and_leftovers(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "python3.12" / "site-packages"
    second = Installed(name="vllm", version=Version("0.8.5"), where=site / "vllm-0.8.5.dist-info")
    held = environment(tmp_path, {"vllm": "0.9.2"}, extra=(second, second))
    (site / "~llm").mkdir()
    found = grades(check_installation(held))
    assert found[0][0] is Grade.BAD
    assert found[0][1].startswith("vllm is installed 3 times: 0.9.2 in")
    assert (Grade.WARN, "~llm is left over from an interrupted uninstallation") in found
    gone = dataclasses.replace(held, purelib=tmp_path / "none", distributions=())
    assert only(check_installation(gone)).grade is Grade.OK


def test_where_a_module_comes_from(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "python3.12" / "site-packages"

    def check(origin: Path | None, packages: dict[str, str], *, namespace: bool = False) -> list[tuple[Grade, str]]:
        module = Module(name="verl", origin=origin, found=(), namespace=namespace)
        return grades(check_installation(environment(tmp_path, packages, modules={"verl": module})))

    assert check(site / "verl" / "__init__.py", {"verl": "0.9.1"})[0][0] is Grade.OK
    assert "cannot be found by an import" in check(None, {"verl": "0.9.1"})[0][1]
    assert "a namespace without __init__.py" in check(tmp_path / "verl", {"verl": "0.9.1"}, namespace=True)[0][1]
    assert "no such package is installed" in check(tmp_path / "verl" / "__init__.py", {})[0][1]
    assert check(None, {})[0][0] is Grade.OK
    assert check(Path("/opt/other/verl.py"), {})[0][0] is Grade.OK
    source = tmp_path / "source"
    source.mkdir()
    editable = Installed(
        name="verl", version=Version("0.9.1"), where=site / "verl.dist-info", editable=f"file://{source}"
    )
    held = environment(tmp_path, extra=(editable,), modules={"verl": Module(name="verl", origin=source, found=())})
    assert grades(check_installation(held)) == [
        (Grade.WARN, f"verl 0.9.1 is editable: its code is {source}"),
    ]


# ---------------------------------------------------------------- ELF


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


# ---------------------------------------------------------------- devices

ROWS = "0, NVIDIA H200, 580.65.06, 12, 143771, 9.0\n1, NVIDIA H200, 580.65.06, 90000, 143771, 9.0\nnonsense\n"
BANNER = "| NVIDIA-SMI 580.65.06   Driver Version: 580.65.06   CUDA Version: {} |"


@pytest.mark.parametrize(
    ("torch", "driver", "grade"),
    [
        ("13.0", "13.0", Grade.OK),
        ("13.0", "12.8", Grade.BAD),
        ("12.9", "12.4", Grade.WARN),
        (None, "13.0", Grade.UNKNOWN),
    ],
)
def test_torch_s_cuda_against_the_driver_s(tmp_path: Path, torch: str | None, driver: str, grade: Grade) -> None:
    held = environment(tmp_path, {"torch": "2.11.0", "nvidia-nccl-cu13": "2.28.9"})
    (held.purelib / "torch").mkdir()
    (held.purelib / "torch" / "version.py").write_text(f"cuda: Optional[str] = {torch!r}\n")
    found = grades(check_devices(held, read_driver(ROWS, BANNER.format(driver))))
    assert found[0] == (Grade.OK, f"2 GPU(s): NVIDIA H200; driver 580.65.06, CUDA up to {driver}")
    assert found[1] == (Grade.WARN, "memory in use on GPU 1 (90000 of 143771 MiB)")
    assert found[2][0] is grade
    assert found[3] == (Grade.OK, "nvidia-nccl-cu13 2.28.9 (0 library file(s))")


def test_no_gpu_is_said(tmp_path: Path) -> None:
    held = environment(tmp_path, {"nvidia-nccl-cu12": "2.27", "nvidia-nccl-cu13": "2.28"})
    found = grades(check_devices(held, "there is no NVIDIA driver here"))
    assert found[0] == (Grade.UNKNOWN, "no GPU was looked at: there is no NVIDIA driver here")
    assert found[1][0] is Grade.BAD
    assert read_driver("", "") == "nvidia-smi shows no GPU"
    assert torch_cuda(held) is None
    with_torch = environment(tmp_path, {"torch": "2.11.0"})
    assert torch_cuda(with_torch) is None
    (with_torch.purelib / "torch").mkdir()
    (with_torch.purelib / "torch" / "version.py").write_text("cuda = '13.0'\n")
    assert [grade for grade, _ in grades(check_devices(with_torch, "none"))] == [Grade.UNKNOWN, Grade.UNKNOWN]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("exit 9", "nvidia-smi failed: code 9"),
        ("echo No devices; exit 6", "nvidia-smi failed: No devices"),
        ('case "$1" in --q*) echo "0, GPU, 580.1, 1, 2, 9.0";; *) echo "CUDA Version: 13.0";; esac', ""),
        ("sleep 30", "nvidia-smi did not answer within 30 s: a GPU or the driver hangs"),
    ],
)
def test_nvidia_smi_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, expected: str) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(devices, "TIMEOUT_S", 0.5 if "sleep" in script else 30.0)
    found = devices.ask_driver()
    if expected:
        assert found == expected
    else:
        assert isinstance(found, devices.Driver)
        assert found.cuda == Version("13.0")


def test_no_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert isinstance(devices.ask_driver(), str)
    broken = tmp_path / "nvidia-smi"
    broken.write_text("no program")
    broken.chmod(0o755)
    assert str(devices.ask_driver()).startswith("nvidia-smi cannot be run")


# ---------------------------------------------------------------- the machine

Usage = namedtuple("Usage", "total used free")
GIB = 1 << 30


def fake_machine(tmp_path: Path, **variables: str) -> Machine:
    for name in ("proc", "cgroup", "tmp"):
        (tmp_path / name).mkdir(exist_ok=True)
    return Machine(
        proc=tmp_path / "proc",
        cgroup=tmp_path / "cgroup",
        shm=tmp_path / "shm",
        tmp=tmp_path / "tmp",
        variables=variables,
    )


@pytest.mark.parametrize(
    ("free", "total", "expected"),
    [
        (50, 100, [Grade.OK, Grade.OK, Grade.OK]),
        (4, 100, [Grade.BAD, Grade.BAD, Grade.OK]),
        (0, 0.06, None),
        (1, 4, None),
    ],
)
def test_disks_and_shared_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: float, total: float, expected: list[Grade] | None
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(total * GIB, 0, free * GIB))
    found = [check.grade for check in check_room(fake_machine(tmp_path), tmp_path)]
    assert found[3] is Grade.UNKNOWN
    if expected is not None:
        assert found[:3] == expected
    else:
        assert found[2] is (Grade.BAD if total < 1 else Grade.WARN)


def test_memory_and_the_container_s_limit(tmp_path: Path) -> None:
    here = fake_machine(tmp_path)
    (here.proc / "meminfo").write_text(f"MemTotal: {64 * GIB // 1024} kB\nMemAvailable: {32 * GIB // 1024} kB\n")
    found = list(check_room(here, tmp_path / "none"))
    assert found[0].grade is Grade.UNKNOWN
    assert found[2].what.startswith("there is no ")
    assert found[3].what == "32.0 GiB of 64.0 GiB of memory available"
    (here.cgroup / "memory.max").write_text(f"{16 * GIB}\n")
    (here.cgroup / "memory.current").write_text(f"{GIB}\n")
    limited = list(check_room(here, tmp_path))[3]
    assert limited.grade is Grade.WARN
    assert "this container may use 16.0 GiB and uses 1.0" in limited.what
    (here.cgroup / "memory.max").write_text("max\n")
    assert list(check_room(here, tmp_path))[3].grade is Grade.OK


@pytest.mark.parametrize(("soft", "grade"), [(-1, Grade.OK), (1 << 40, Grade.OK), (1024, Grade.WARN)])
def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, soft: int, grade: Grade) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (soft, soft))
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    here = fake_machine(tmp_path)
    found = list(check_limits(here))
    assert [check.grade for check in found] == [grade, grade, grade, Grade.OK]
    (here.cgroup / "pids.max").write_text("100\n")
    (here.cgroup / "cpu.max").write_text("400000 100000\n")
    found = list(check_limits(here))
    assert found[3].what == "this container may have 100 processes and threads"
    assert found[4].what == "64 processors are seen, 4 may be used"
    (here.cgroup / "cpu.max").write_text("max 100000\n")
    assert list(check_limits(here))[4].grade is Grade.OK


def test_leftovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_taken", lambda port: False)
    here = fake_machine(tmp_path)
    assert only(check_leftovers(here)).grade is Grade.OK
    (here.tmp / "ray" / "session_2026-01-01").mkdir(parents=True)
    assert "1 old ray sessions" in only(check_leftovers(here)).what
    for pid, command in ((11, b"/x/raylet\0--a"), (12, b"VLLM::EngineCore\0"), (13, b"vim\0raylet.log"), (14, b"")):
        (here.proc / str(pid)).mkdir()
        (here.proc / str(pid) / "cmdline").write_bytes(command)
    (here.proc / "15").mkdir()
    (here.proc / str(os.getpid())).mkdir()
    (here.proc / str(os.getpid()) / "cmdline").write_bytes(b"main_ppo")
    found = [check.what for check in check_leftovers(here)]
    assert found == ["1 of `VLLM` run here (pid 12)", "1 of `raylet` run here (pid 11)"]
    monkeypatch.setattr(machine, "_taken", lambda port: port == 6379)
    assert "ports in use: 6379 (ray's head (GCS))" in [check.what for check in check_leftovers(here)]


def test_an_address_at_which_nothing_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_PORTS", {})
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert machine._taken(port)
        assert only(check_leftovers(fake_machine(tmp_path, RAY_ADDRESS=f"127.0.0.1:{port}"))).grade is Grade.OK
    dead = only(check_leftovers(fake_machine(tmp_path, RAY_ADDRESS=f"ray://127.0.0.1:{port}")))
    assert (dead.grade, dead.then) == (Grade.BAD, "unset RAY_ADDRESS")
    assert not machine._taken(port)
    assert only(check_leftovers(fake_machine(tmp_path, RAY_ADDRESS="auto"))).grade is Grade.OK


# ---------------------------------------------------------------- checks as text and JSON


def test_checks_are_told() -> None:
    checks = [
        ok("a", "fine"),
        Check(topic="b", grade=Grade.BAD, what="broken", why="because", then="mend"),
        unknown("a", "?"),
    ]
    text = checks_text("Head", checks)
    assert text.splitlines()[0] == "Head"
    assert "  ✕ broken\n      because\n      mend" in text
    assert text.endswith("3 checks: 1 ok, 0 warn, 1 bad, 1 unknown.")
    assert sick(checks)
    assert not sick(checks[:1])
    data = checks_json({"python": "x"}, checks)
    assert data["counts"] == {"ok": 1, "warn": 0, "bad": 1, "unknown": 1}
    assert data["python"] == "x"


def test_of_many_conditional_records_the_lesser_ones_are_counted() -> None:
    checks = [
        Check(topic="a", grade=Grade.WARN, what="high"),
        *(Check(topic="a", grade=Grade.WARN, what=f"low {at}", minor=True) for at in range(3)),
    ]
    short, whole = checks_text("Head", checks, every=False), checks_text("Head", checks)
    assert "low" not in short
    assert "  … and 3 more of lesser weight, each under a condition: --all\n" in short
    assert short.endswith("4 checks: 0 ok, 4 warn, 0 bad, 0 unknown.")
    assert "low 2" in whole
    assert "--all" not in whole


@pytest.mark.parametrize(("severity", "needs", "minor"), [("high", "a moon", False), ("low", "a moon", True)])
def test_a_record_under_a_condition_is_minor_unless_severe(
    tmp_path: Path, severity: str, needs: str, minor: bool
) -> None:
    held = environment(tmp_path, {"vllm": "0.9.2"})
    found = only(check_records(held, (failure("one", "x" * 20, needs=needs, severity=Severity(severity)),), AXES))
    assert (found.grade, found.minor) == (Grade.WARN, minor)


# ---------------------------------------------------------------- the child

REGISTRY = '_MODELS = {"Qwen2ForCausalLM": ("qwen2", "Qwen2"), "Far": ("else.where", "Far"), "Odd": (1, 2), **{}}\n'


@pytest.fixture
def stack(tmp_path: Path) -> Environment:
    models = tmp_path / "vllm" / "model_executor" / "models"
    models.mkdir(parents=True)
    for folder in (tmp_path / "vllm", tmp_path / "vllm" / "model_executor", models):
        (folder / "__init__.py").write_text("")
    (models / "registry.py").write_text(REGISTRY)
    (models / "good.py").write_text("")
    (models / "qwen2.py").write_text(
        "raise ValueError(\"'aimv2' is already used by a Transformers config, pick another name.\")\n"
    )
    held = environment(
        tmp_path,
        {"vllm": "0.9.2", "transformers": "4.57.6"},
        modules={"vllm": Module(name="vllm", origin=tmp_path / "vllm" / "__init__.py", found=())},
    )
    return dataclasses.replace(held, executable=Path(sys.executable))


def test_the_module_of_an_architecture(stack: Environment, tmp_path: Path) -> None:
    assert model_module(stack, "Qwen2ForCausalLM") == ("vllm.model_executor.models.qwen2", ("Qwen2",))
    assert model_module(stack, "Far") == ("else.where", ("Far",))
    assert model_module(stack, "vllm.model_executor.models.good") == ("vllm.model_executor.models.good", ())
    with pytest.raises(UsageError, match="Qwen2ForCausalLM"):
        model_module(stack, "Qwen2ForCausalML")
    with pytest.raises(UsageError, match="There is no vllm"):
        model_module(environment(tmp_path), "x")
    (tmp_path / "vllm" / "model_executor" / "models" / "registry.py").write_text("(")
    with pytest.raises(UsageError, match="has no model"):
        model_module(stack, "Qwen2ForCausalLM")


def test_the_child_s_own_error_is_shown(stack: Environment) -> None:
    found = inspect_model(stack, "Qwen2ForCausalLM", (CLASH,), AXES)
    assert not found.works
    assert found.diagnosis.root is not None
    assert found.diagnosis.root.failure is CLASH
    assert inspect_model(stack, "good", (CLASH,), AXES).works
    with pytest.raises(ToolError, match="cannot be run"):
        inspect_model(dataclasses.replace(stack, executable=Path("/none")), "good", (), AXES)


def test_a_child_that_hangs_is_stopped(stack: Environment, tmp_path: Path) -> None:
    (tmp_path / "vllm" / "model_executor" / "models" / "good.py").write_text("import time\ntime.sleep(60)\n")
    found = inspect_model(stack, "good", (CLASH,), AXES, timeout_s=1.0)
    assert (found.code, found.works) == (None, False)
