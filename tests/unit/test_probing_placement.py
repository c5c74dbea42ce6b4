"""Probes on GPUs, with real pytest and a made-up driver: who sees which, what is left, what ends, what is kept."""

from __future__ import annotations

import functools
import json
import sys
import threading
import time
from pathlib import Path

import pytest

from matrix.errors import NothingRanError
from matrix.gpus.inventory import Inventory
from matrix.gpus.need import Need
from matrix.gpus.nvml import MIB, Told
from matrix.gpus.pool import Pool
from matrix.gpus.settling import Settling
from matrix.observe import Observation
from matrix.probing import forced as forcing
from matrix.probing.forced import Forced, force
from matrix.probing.lines import EndedProbe, PlannedProbe
from matrix.probing.machine import Machine
from matrix.probing.outcome import said
from matrix.probing.placement import Placement
from matrix.probing.prober import Prober
from matrix.probing.session import GIB, Limits
from matrix.tier import Outcome, Tier
from tests.unit.gpu_fakes import FakeDriver, held_by_files, inventory, many
from tests.unit.probing_stack import QUICK, environment, folder_of, prober
from tests.unit.run_fakes import cell

NAME = Path(sys.executable).name
CELL = cell(verl="0.9.1")
HEAD = """
import os, signal, subprocess, sys, time
from pathlib import Path
import pytest

HELD = Path({held!r})

def hold(mib, seconds, *, lost=False):
    words = [str(HELD.parent / "holder.py"), str(mib << 20), str(seconds), str(HELD)]
    env = {{"PATH": "/usr/bin:/bin"}} if lost else None
    child = subprocess.Popen([sys.executable, *words], start_new_session=True, env=env)
    while not (HELD / str(child.pid)).is_file():
        time.sleep(0.01)
    time.sleep(0.15)
    return child
"""
HOLDER = """
import os, pathlib, sys, time
path = pathlib.Path(sys.argv[3], str(os.getpid()))
path.with_name("part").write_text(sys.argv[1])
path.with_name("part").rename(path)
time.sleep(float(sys.argv[2]))
"""
SEEN = """
def test_plain_sees_none():
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "" and "VERL_MATRIX_GO" not in os.environ

@pytest.mark.tier("gpu")
def test_one():
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0" and os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"

@pytest.mark.gpus(2)
def test_two():
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"

@pytest.mark.gpus(3)
def test_three():
    pass

@pytest.mark.gpus(1, capability="10.0")
def test_newer():
    pass

@pytest.mark.gpus(1, memory_gib=180)
def test_larger():
    pass

@pytest.mark.gpu
def test_skips():
    pytest.skip("not now")
"""
LEAVES = """
pytestmark = pytest.mark.gpu

def test_clean():
    child = hold(700, 60)
    child.kill()
    child.wait()

def test_child_is_left():
    hold(300, 60)

def test_after():
    pass

def test_hidden_child_is_left():
    child = hold(200, 60, lost=True)
    child.returncode = 0
    os.kill(os.getpid(), signal.SIGKILL)

@pytest.mark.limit(1)
def test_hangs():
    hold(100, 60)
    time.sleep(60)

def test_in_its_own_process():
    (HELD / str(os.getpid())).write_text(str(50 << 20))

def test_last():
    pass
"""
STUCK = """
pytestmark = pytest.mark.gpu

def test_before():
    pass

def test_stuck():
    (HELD / "1").write_text(str(5 << 20))

def test_not_any_more():
    pass
"""


def _prober(home: Path, driver: FakeDriver, **files: str) -> Prober:
    held = home / "held"
    held.mkdir()
    (home / "holder.py").write_text(HOLDER, encoding="utf-8")
    head = HEAD.format(held=str(held))
    folder = folder_of(home / "probes", **{name: head + text for name, text in files.items()})
    driver.held = held_by_files(held)
    found = inventory(*driver.told)
    placement = Placement(
        pool=Pool(inventory=found, folder=home / "leases"),
        driver=driver,
        warm=lambda visible: None,
        settling=functools.partial(Settling, patience_s=1.0, still_s=0.3),
    )
    machine = Machine(architecture="x86_64", gpus=found.names, cores=2, memory_gib=8)
    return prober(home, folder, placement=placement, machine=machine, tiers=frozenset({Tier.IMPORT, Tier.GPU}))


def _run(made: Prober) -> dict[str, Observation]:
    subject = made.subject(CELL, "sha256:1", {"thing": "2.0"})
    probed = made.run(subject, environment(), lambda text: None)
    return {item.question.probe.rpartition("::")[2]: item for item in probed.observations}


def test_each_probe_sees_what_it_needs_and_the_machine_is_told_once(tmp_path: Path) -> None:
    made = _prober(tmp_path, FakeDriver(told=many(2)), test_seen=SEEN)
    found = _run(made)
    reasons = {name: item.reason for name, item in found.items() if item.outcome is not Outcome.OK}
    assert reasons == {
        "test_three": "needs 3 GPUs; this machine has 2 GPUs",
        "test_newer": "needs compute capability 10.0; NVIDIA H200 has 9.0",
        "test_larger": "needs 180 GiB; NVIDIA H200 has 141 GiB",
        "test_skips": "not now",
    }
    machine = found["machine"]
    assert (machine.question.tier, machine.outcome) == (Tier.GPU, Outcome.OK)
    facts = machine.detail["facts"]
    assert isinstance(facts, dict)
    assert facts["installed"] == {"thing": "2.0", "pytest": "8.0"}
    digest = machine.detail["fingerprint"]
    assert [found[name].detail["fingerprint"] for name in ("test_one", "test_two")] == [digest, digest]
    assert found["test_two"].detail["gpu"] == ["NVIDIA H200", "NVIDIA H200"]
    assert found["test_one"].detail["gpu_left_mib"] == 0
    assert "fingerprint" not in found["test_plain_sees_none"].detail
    held = machine.detail["held_s"]
    assert isinstance(held, float)
    assert held >= 0
    again = made.recall(made.subject(CELL, "sha256:1", {"thing": "2.0"}))
    assert again is not None
    assert [item.question.probe for item in again.observations][-1] == "machine"


def test_what_a_probe_leaves_is_ended_and_proved_gone(tmp_path: Path) -> None:
    driver = FakeDriver(told=many(1))
    made = _prober(tmp_path, driver, test_leaves=LEAVES)
    found = _run(made)
    told = {name: (item.outcome, item.reason) for name, item in found.items() if name != "machine"}
    left = "left processes that had to be ended: "
    assert told.pop("test_child_is_left") == (Outcome.DEGRADED, f"{left}{NAME} holder.py")
    assert told.pop("test_in_its_own_process") == (Outcome.DEGRADED, f"{left}{NAME} pytest")
    assert told.pop("test_hidden_child_is_left")[1] == "took its process down (SIGKILL)"
    assert told.pop("test_hangs")[1].startswith("hung: it was ended")
    assert set(told.values()) == {(Outcome.OK, "")}
    assert set(told) == {"test_clean", "test_after", "test_last"}
    details = {name: item.detail for name, item in found.items() if name != "machine"}
    assert {detail["gpu_left_mib"] for detail in details.values()} == {0}
    assert {detail["gpu_base_mib"] for detail in details.values()} == {4}
    assert details["test_clean"]["gpu_peak_mib"] == 704
    assert details["test_hidden_child_is_left"]["gpu_ended"] == [f"{NAME} holder.py"]
    assert details["test_hangs"]["gpu_peak_mib"] == 104


def test_memory_that_does_not_come_back_is_red_and_the_gpu_is_used_no_further(tmp_path: Path) -> None:
    made = _prober(tmp_path, FakeDriver(told=many(1)), test_stuck=STUCK)
    found = _run(made)
    stuck, after = found["test_stuck"], found["test_not_any_more"]
    assert found["test_before"].outcome is Outcome.OK
    assert (stuck.outcome, stuck.detail["gpu_left_mib"]) == (Outcome.BROKEN, 5)
    assert stuck.reason.startswith("left 5 MiB on the GPU, which did not come back; left processes")
    assert stuck.detail["findings"]
    assert after.outcome is Outcome.UNTESTED
    assert after.reason == "test_stuck.py::test_stuck left 5 MiB on the GPU, which did not come back"
    assert [item.reason for item in made.store.find(probe="*not_any_more")] == [after.reason]
    (tmp_path / "held" / "1").unlink()
    made.patterns = ("not_any_more",)
    assert _run(made)["test_not_any_more"].outcome is Outcome.OK


def test_what_others_hold_is_told(tmp_path: Path) -> None:
    made = _prober(tmp_path, FakeDriver(told=many(1)), test_seen=SEEN)
    made.patterns = ("test_one",)
    (tmp_path / "held" / "1").write_text(str(3000 * MIB))
    found = _run(made)
    assert found["test_one"].detail["gpu_others_mib"] == 3004
    assert found["test_one"].outcome is Outcome.OK


@pytest.mark.parametrize("when", ["at once", "before a probe", "after a probe"])
def test_a_driver_that_falls_silent_ends_the_gpu_part_with_that_reason(tmp_path: Path, when: str) -> None:
    driver = FakeDriver(told=many(1))
    made = _prober(tmp_path, driver, test_stuck=STUCK)
    answer, asked = driver.held, [0]

    def used(index: int) -> int:
        asked[0] += 1
        begun = asked[0] > 1
        if (when == "before a probe" and begun) or (when == "after a probe" and asked[0] > 2):
            driver.silent = "GPU is lost"
        return answer(index)

    driver.held = used
    driver.silent = "Driver Not Loaded" if when == "at once" else ""
    found = _run(made)
    last = found["test_not_any_more"]
    assert last.outcome is Outcome.UNTESTED
    said_so = "no NVIDIA driver answers: Driver Not Loaded" if when == "at once" else "GPU is lost"
    assert said_so in last.reason


def test_a_probe_that_is_none_says_so_when_it_is_collected(tmp_path: Path) -> None:
    wrong = "@pytest.mark.tier('behave')\n@pytest.mark.gpus(1)\ndef test_a():\n    pass\n"
    made = _prober(tmp_path, FakeDriver(told=many(1)), test_wrong=wrong)
    with pytest.raises(Exception, match="sees"):
        _run(made)


def test_a_pool_that_is_stopped_ends_the_probes_of_another_thread(tmp_path: Path) -> None:
    slow = "@pytest.mark.gpu\ndef test_slow():\n    hold(10, 60)\n    time.sleep(60)\n"
    made, ended = _prober(tmp_path, FakeDriver(told=many(1)), test_slow=slow), []

    def visit() -> None:
        try:
            _run(made)
        except KeyboardInterrupt:
            ended.append("interrupted")

    thread = threading.Thread(target=visit)
    thread.start()
    deadline = time.monotonic() + 60
    while not any((tmp_path / "held").iterdir()) and time.monotonic() < deadline:
        time.sleep(0.02)
    made.placement.stop()
    thread.join(30)
    assert ended == ["interrupted"]
    assert held_by_files(tmp_path / "held")(0) == 4 * MIB
    assert not made.placement.pool.granted()


def test_probes_whose_needs_the_same_gpus_meet_share_a_grant() -> None:
    told = [*many(2), Told(index=2, uuid="GPU-x", name="NVIDIA T4", memory=15 * GIB, capability=(7, 5))]
    placement = Placement(pool=Pool(inventory=inventory(*told)), driver=FakeDriver())

    def probe(name: str, **more: object) -> PlannedProbe:
        return PlannedProbe(test=name, tier=Tier.GPU, **{"gpus": 1, **more})  # type: ignore[arg-type]

    groups = placement._groups(
        [probe("a", gpu_memory=40.0), probe("b", gpus=2), probe("c", capability="9.0"), probe("d", gpu_memory=80.0)]
    )
    assert [(need, [item.test for item in group]) for need, group in groups] == [
        (Need(gpus=1, capability=(9, 0), memory_gib=80.0), ["a", "c", "d"]),
        (Need(gpus=2), ["b"]),
    ]
    assert placement.width == 3
    assert Placement(pool=Pool(inventory=Inventory()), driver=FakeDriver()).width == 1


def test_the_memory_of_a_probe_on_a_gpu_is_most_of_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("matrix.probing.processes.available_bytes", lambda: 100 * GIB)
    assert Limits(memory=16 * GIB).on_gpu().memory == 80 * GIB
    assert Limits(memory=16 * GIB).on_gpu().floor == 5 * GIB
    assert Limits(memory=20 * GIB, asked=True).on_gpu().memory == 20 * GIB
    monkeypatch.setattr("matrix.probing.processes.available_bytes", lambda: 0)
    assert Limits(memory=16 * GIB).on_gpu().memory == 16 * GIB


def test_memory_of_the_host_that_no_process_has_is_watched_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pins = "@pytest.mark.gpu\ndef test_pins():\n    hold(1, 60)\n    time.sleep(60)\n\n"
    made = _prober(
        tmp_path, FakeDriver(told=many(1)), test_pins=f"{pins}@pytest.mark.gpu\ndef test_after():\n    pass\n"
    )
    held = tmp_path / "held"

    def available() -> int:
        return 2 * GIB if held_by_files(held, 0)(0) else 100 * GIB

    monkeypatch.setattr("matrix.probing.processes.available_bytes", available)
    found = _run(made)
    assert found["test_pins"].reason == "2.0 GiB of the host's memory were left, less than 5.0 GiB; ended"
    assert found["test_after"].outcome is Outcome.OK


def test_what_was_lost_for_good_is_told_with_what_else_was_found() -> None:
    probe = PlannedProbe(test="test_a.py::test_a", tier=Tier.GPU, gpus=1)
    ended = EndedProbe(test=probe.test, outcome="failed", reason="no", detail={"gpu_left_mib": 3})
    found = said(probe, ended, None, {})
    assert (found.outcome, found.reason) == (Outcome.BROKEN, "left 3 MiB on the GPU, which did not come back; no")


FORCED = """
pytestmark = pytest.mark.gpu

def test_killed():
    child = hold(100, 60)
    child.kill()
    child.wait()

def test_holds_nothing():
    pass

def test_hangs_for_ever():
    hold(100, 60)
    os.kill(os.getpid(), signal.SIGKILL)

def test_goes_wrong():
    hold(100, 60).kill()
    assert False, "it did not die"

def test_killed_while_it_starts():
    pass

@pytest.mark.needs("no-such-package")
def test_cannot():
    pass
"""


def _forced(home: Path, monkeypatch: pytest.MonkeyPatch, *patterns: str, count: int = 1) -> list[Forced]:
    made = _prober(home, FakeDriver(told=many(count)))
    (made.folder / "gpu_failures").mkdir()
    text = HEAD.format(held=str(home / "held")) + FORCED
    (made.folder / "gpu_failures" / "forced_failures.py").write_text(text, encoding="utf-8")
    monkeypatch.setattr(forcing, "probes_folder", lambda: made.folder)
    return force(environment().python, patterns=patterns, placement=made.placement, limits=QUICK)


def test_forced_failures_tell_whether_they_happened_and_what_they_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {item.name: item for item in _forced(tmp_path, monkeypatch)}
    assert {name: (item.told, item.as_meant, item.left_mib) for name, item in found.items()} == {
        "test_killed": ("passed", True, 0),
        "test_holds_nothing": ("passed", False, 0),
        "test_hangs_for_ever": ("killed", True, 0),
        "test_goes_wrong": ("failed", False, 0),
        "test_killed_while_it_starts": ("passed", True, 0),
        "test_cannot": ("untested", False, 0),
    }
    assert found["test_holds_nothing"].reason == "held 0 MiB where it should have held 32 at least"
    assert json.loads(json.dumps(found["test_killed"].to_json()))["peak_mib"] == 104


def test_only_those_that_are_named_are_forced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [item.name for item in _forced(tmp_path, monkeypatch, "killed_while")] == ["test_killed_while_it_starts"]


@pytest.mark.parametrize(("patterns", "count", "why"), [((), 0, "has no GPU"), (("zzz",), 1, "No name matches")])
def test_where_none_can_be_forced_nothing_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patterns: tuple[str, ...], count: int, why: str
) -> None:
    with pytest.raises(NothingRanError, match=why):
        _forced(tmp_path, monkeypatch, *patterns, count=count)
