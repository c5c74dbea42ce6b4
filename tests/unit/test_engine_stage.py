"""How the stage of the rollout engine looks at a GPU and at processes, and how probes read what it left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

COMPAT = Path(__file__).parents[1] / "compat"


@pytest.fixture(autouse=True)
def _paths(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(COMPAT))
    monkeypatch.syspath_prepend(str(COMPAT / "subjects"))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name == "kit" or name.startswith(("kit.", "engine_")):
            del sys.modules[name]


class Nvml:
    """As much of NVML as is asked: one GPU whose memory in use is a list of readings, the last of which stays."""

    def __init__(self, *readings: int, text: bool = True) -> None:
        self.readings, self.text = list(readings), text
        self.asked: list[object] = []

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:  # noqa: N802
        self.asked.append(number)
        return number

    def nvmlDeviceGetHandleByUUID(self, name: object) -> object:  # noqa: N802
        if isinstance(name, str) and not self.text:
            raise TypeError("bytes wanted")
        self.asked.append(name)
        return name

    def nvmlDeviceGetMemoryInfo(self, _: object) -> Any:  # noqa: N802
        now = self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]
        return SimpleNamespace(used=now, total=100)


@pytest.mark.parametrize(
    ("visible", "text", "asked"),
    [
        (None, True, 0),
        ("", True, 0),
        ("3", True, 3),
        ("2,5", True, 2),
        ("GPU-1f", True, "GPU-1f"),
        ("GPU-1f", False, b"GPU-1f"),
    ],
)
def test_the_first_gpu_that_may_be_used_is_read(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, text: bool, asked: object
) -> None:
    import engine_gpu

    nvml = Nvml(7, text=text)
    monkeypatch.setattr(engine_gpu, "pynvml", lambda: nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert (engine_gpu.used(), engine_gpu.total()) == (7, 100)
    assert nvml.asked == [asked, asked]


@pytest.mark.parametrize(("readings", "within", "now"), [((9, 9, 1), 5.0, 1), ((1,), 0.0, 1), ((9,), 0.2, 9)])
def test_memory_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, readings: tuple[int, ...], within: float, now: int
) -> None:
    import engine_gpu

    nvml = Nvml(*readings)
    monkeypatch.setattr(engine_gpu, "pynvml", lambda: nvml)
    found, spent = engine_gpu.settled(5, within)
    assert found == now
    assert spent < within + 1


def test_what_a_scene_left_is_found_and_ended() -> None:
    import engine_gpu

    child = subprocess.Popen(
        [sys.executable, "-c", "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"],
        stdin=subprocess.PIPE,
    )
    deadline = time.monotonic() + 10
    while len(engine_gpu.descendants(child.pid)) < 1 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert child.pid in engine_gpu.descendants(os.getpid())
    (grandchild,) = engine_gpu.descendants(child.pid)
    assert engine_gpu.end_descendants(child.pid) == 1
    assert not Path(f"/proc/{grandchild}/cmdline").exists()
    child.kill()
    child.wait()
    assert child.stdin is not None
    child.stdin.close()


def record(**more: Any) -> Any:
    from kit.cell import Record

    return Record(
        **{"id": "a-record", "applies": "no", "exception": "RuntimeError", "pattern": "out of memory", **more}
    )


def read(monkeypatch: pytest.MonkeyPatch, found: Any, *records: Any) -> Any:
    """Return a cell with these records whose stage found this part."""
    import kit.rollout
    from kit.cell import Cell

    told = SimpleNamespace(part=lambda name: found)
    monkeypatch.setattr(kit.rollout, "stage", lambda *_, **__: told)
    return Cell(name="a-cell", records={one.id: one for one in records})


def test_data_of_a_section_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from kit.rollout import measured
    from kit.stage import Part

    assert measured(read(monkeypatch, Part("it", reached=True, data={"a": 1})), "it") == {"a": 1}


FAULT = "RuntimeError: out of memory\n"


@pytest.mark.parametrize(
    ("part", "applies", "raised", "words"),
    [
        ({"reached": False, "fault": "x\n[engine ended before it]"}, "no", "Skipped", "not reached"),
        ({"reached": True, "fault": FAULT}, "yes", "Skipped", "hidden by a-record"),
        ({"reached": True, "fault": FAULT}, "no", "AssertionError", "RuntimeError: out of memory"),
    ],
)
def test_a_section_without_data_is_told_of(
    monkeypatch: pytest.MonkeyPatch, part: dict[str, Any], applies: str, raised: str, words: str
) -> None:
    from kit.rollout import measured
    from kit.stage import Part

    cell = read(monkeypatch, Part("it", **part), record(applies=applies))
    with pytest.raises((AssertionError, pytest.skip.Exception), match=words) as caught:
        measured(cell, "it")
    assert caught.type.__name__ == raised


@pytest.mark.parametrize(
    ("fault", "applies", "others", "seen"),
    [
        (None, "no", [], "absent"),
        (FAULT, "yes", [], "reproduced"),
        ("KeyError: 1", "no", [{"id": "other", "applies": "yes", "exception": "KeyError", "pattern": "1"}], "skipped"),
        ("KeyError: 1", "no", [{"id": "other", "applies": "no", "exception": "KeyError", "pattern": "1"}], "other"),
    ],
)
def test_a_section_is_judged(
    monkeypatch: pytest.MonkeyPatch, fault: str | None, applies: str, others: list[dict[str, Any]], seen: str
) -> None:
    from kit.rollout import judge
    from kit.stage import Part
    from kit.trial import DisagreementError, Trial

    own = record(applies=applies)
    found = Part("it", reached=True, fault=fault, seconds=2.5, found={"kept": 1})
    trial = Trial(read(monkeypatch, found, own, *(record(**one) for one in others)), own)
    if seen == "skipped":
        with pytest.raises(pytest.skip.Exception, match="hidden by other"):
            judge(trial, found)
    elif seen == "other":
        with pytest.raises(DisagreementError):
            judge(trial, found)
    else:
        judge(trial, found)
        assert trial.seen == seen
    assert trial.detail["kept"] == 1
    assert trial.detail["seconds"] == 2.5


class Cuda:
    """As much of `torch.cuda` as imports ask of: it makes a context for every question."""

    def __init__(self) -> None:
        self.context = False
        self.current_device: Any = lambda: self._asked(3)
        self.get_device_name: Any = lambda _=None: self._asked("torch's name")
        self.get_device_capability: Any = lambda _=None: self._asked((8, 0))
        self._lazy_init: Any = self.begin

    def begin(self) -> None:
        self.context = True

    def is_initialized(self) -> bool:
        return self.context

    def _asked(self, answer: Any) -> Any:
        self._lazy_init()
        return answer


@pytest.mark.parametrize("name", ["NVIDIA H200", b"NVIDIA H200"])
def test_imports_are_answered_without_a_context(monkeypatch: pytest.MonkeyPatch, name: str | bytes) -> None:
    import engine_gpu

    cuda = Cuda()
    given = cuda.current_device
    nvml = Nvml(7)
    monkeypatch.setattr(nvml, "nvmlDeviceGetName", lambda _: name, raising=False)
    monkeypatch.setattr(nvml, "nvmlDeviceGetCudaComputeCapability", lambda _: (9, 0), raising=False)
    monkeypatch.setattr(engine_gpu, "pynvml", lambda: nvml)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    with engine_gpu.answered_by_nvml() as touched:
        kept = cuda.get_device_capability
        assert (cuda.current_device(), cuda.get_device_name(0), cuda.get_device_capability(0)) == (
            0,
            "NVIDIA H200",
            (9, 0),
        )
        assert not cuda.context
        assert touched == []
        cuda._lazy_init()
        assert cuda.current_device() == 3
        assert len(touched) == 1
        assert "test_imports_are_answered" in touched[0]
    assert kept() == (8, 0)
    assert cuda.current_device is given
    assert cuda._lazy_init == cuda.begin


@pytest.mark.parametrize(("fails", "may"), [(False, True), (True, False)])
def test_a_fork_tries_the_gpu(monkeypatch: pytest.MonkeyPatch, fails: bool, may: bool) -> None:
    import engine_gpu

    def zeros(*_: Any, **__: Any) -> Any:
        if fails:
            raise RuntimeError("cannot re-initialize CUDA in forked subprocess")
        return SimpleNamespace(sum=lambda: SimpleNamespace(item=lambda: 0.0))

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(zeros=zeros))
    assert engine_gpu.fork_may_use_cuda() is may


@pytest.mark.parametrize("holder", ["print('held', flush=True); input()", "raise SystemExit('no GPU here')"])
def test_ballast_is_held_by_another_process(monkeypatch: pytest.MonkeyPatch, holder: str) -> None:
    import engine_gpu

    before = set(engine_gpu.descendants(os.getpid()))
    monkeypatch.setattr(engine_gpu, "_HOLDER", holder)
    monkeypatch.setattr(engine_gpu, "pynvml", lambda: Nvml(7))
    if holder.startswith("raise"):
        with pytest.raises(RuntimeError, match="5 bytes could not be taken"), engine_gpu.ballast(5):
            pass
    else:
        with engine_gpu.ballast(5) as used:
            assert used == 7
    assert set(engine_gpu.descendants(os.getpid())) <= before
