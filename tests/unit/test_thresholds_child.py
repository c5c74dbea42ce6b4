"""The children: a real process that stands in for a trial's script, and every way in which one can end."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from matrix.thresholds import child as module
from matrix.thresholds.child import Child, Errands, Pair
from matrix.thresholds.trial import Ending, Part, Trial, shown

SCRIPT = """
import json, os, signal, subprocess, sys, time
out = open(sys.argv[sys.argv.index("--out") + 1], "a")

def tell(event, **more):
    out.write(json.dumps({"event": event, "at": 0, **more}) + "\\n")
    out.flush()

tell("start", script="fake", pid=os.getpid())
if "--broken" in sys.argv:
    tell("unable", kind="ImportError", text="ImportError: no verl")
    sys.exit(2)
if "--mute" in sys.argv:
    sys.exit(4)
tell("ready", context="--context" in sys.argv)
for line in sys.stdin:
    errand = json.loads(line)
    value, name = errand["value"], errand["trial"]
    tell("trial", trial=name)
    tell("part", trial=name, part="trainer init")
    tell("part end", trial=name, part="trainer init", ended="passed", seconds=0.5,
         peaks={"reserved": 100, "overhead": 10}, device_total=1000)
    tell("part", trial=name, part="actor update")
    if value == 90:
        print("about to die", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if value == 91:
        os.kill(os.getpid(), signal.SIGSEGV)
    if value == 92:
        sys.exit(5)
    if value == 93:
        time.sleep(60)
    if value == 94:
        subprocess.Popen(["sleep", "60"])
    if value == 95:
        sys.exit(0)
    died = value > 50
    tell("part end", trial=name, part="actor update", ended="died" if died else "passed", seconds=1.0,
         peaks={"reserved": 300 + int(value), "allocated": 200, "overhead": 10}, rows=int(value))
    tell("trial end", trial=name, outcome="fail" if died else "pass", how="OutOfMemoryError" if died else "",
         part="actor update" if died else "", text="torch.OutOfMemoryError" if died else "", seconds=1.5,
         engine={"kv": 3})
    if died:
        sys.exit(3)
"""


@pytest.fixture
def errands(tmp_path: Path) -> Errands:
    script = tmp_path / "fake.py"
    script.write_text(SCRIPT, encoding="utf-8")
    return Errands(argv=[sys.executable, "-I", str(script)], env={"PATH": os.environ["PATH"]}, work=tmp_path)


def run(pair: Pair, value: float, *, fresh: bool = False) -> Trial:
    return pair.run(value, {"trial": f"t{value}{time.monotonic_ns()}", "value": value}, fresh=fresh)


def test_survivor_and_dead_are_told_with_their_parts(errands: Errands) -> None:
    pair = Pair(errands=errands)
    try:
        passed, died = run(pair, 7), run(pair, 60)
    finally:
        pair.end()
    assert (passed.ending, passed.fresh, passed.how, passed.peak) == (Ending.PASS, True, "", 317)
    assert [part.name for part in passed.parts] == ["trainer init", "actor update"]
    assert passed.parts[1].more == {"rows": 7}
    assert passed.more == {"engine": {"kv": 3}}
    assert (died.ending, died.fresh, died.part, died.how) == (
        Ending.FAIL, False, "actor update", "OutOfMemoryError",
    )  # fmt: skip
    assert died.seconds == 1.5
    assert not died.parts[1].ended


def test_process_is_kept_while_it_passes_and_left_when_it_dies(errands: Errands) -> None:
    pair = Pair(errands=errands)
    try:
        assert [run(pair, value).fresh for value in (1, 2, 60, 3, 4)] == [True, False, False, True, False]
        assert run(pair, 5, fresh=True).fresh
        assert run(pair, 6, fresh=True).fresh
        assert not run(pair, 7).fresh
    finally:
        pair.end()


def test_one_stands_by_only_where_it_may(errands: Errands) -> None:
    alone = Pair(errands=errands, stands_by=False)
    try:
        run(alone, 1)
        assert alone._next is None
    finally:
        alone.end()
    ready = Pair(errands=errands)
    try:
        ready.prepare()
        first = ready._next
        run(ready, 1)
        assert ready._working is first
        assert ready._next is not None
        assert ready._next.lives
    finally:
        ready.end()
    assert first is not None
    assert not first.lives


def test_nobody_stands_by_where_an_import_takes_memory(errands: Errands) -> None:
    heavy = Errands(argv=[*errands.argv, "--context"], env=errands.env, work=errands.work)
    pair = Pair(errands=heavy)
    try:
        assert run(pair, 1).passed
        assert pair._next is None
        assert not pair.stands_by
        assert run(pair, 2, fresh=True).fresh
    finally:
        pair.end()


def test_child_that_never_gets_ready_says_nothing(errands: Errands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "START_S", 0.0)
    child = Child(errands, 1)
    assert child.ready() == {}
    child.end()


@pytest.mark.parametrize(
    ("value", "how"), [(90, "killed"), (91, "SIGSEGV"), (92, "exit code 5")],
)  # fmt: skip
def test_child_that_dies_is_a_failure_of_the_part_it_was_in(errands: Errands, value: int, how: str) -> None:
    pair = Pair(errands=errands, stands_by=False)
    try:
        trial = run(pair, value)
    finally:
        pair.end()
    assert (trial.ending, trial.part, trial.how) == (Ending.FAIL, "actor update", how)
    assert [part.name for part in trial.parts] == ["trainer init"]
    assert ("about to die" in trial.text) == (value == 90)


def test_child_that_ends_well_without_an_answer_says_nothing_of_memory(errands: Errands) -> None:
    pair = Pair(errands=errands, stands_by=False)
    try:
        trial = run(pair, 95)
    finally:
        pair.end()
    assert (trial.ending, trial.how) == (Ending.UNABLE, "exit code 0")


@pytest.mark.parametrize(("flag", "how"), [("--broken", "ImportError"), ("--mute", "exit code 4")])
def test_child_that_cannot_start_is_unable(errands: Errands, flag: str, how: str) -> None:
    broken = Errands(argv=[*errands.argv, flag], env=errands.env, work=errands.work)
    pair = Pair(errands=broken, stands_by=False)
    try:
        trial = run(pair, 1)
    finally:
        pair.end()
    assert (trial.ending, trial.how) == (Ending.UNABLE, how)


def test_child_that_hangs_is_ended_and_told(errands: Errands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "START_S", 0.3)
    quick = Errands(argv=errands.argv, env=errands.env, work=errands.work, limit_s=0.3)
    pair = Pair(errands=quick, stands_by=False)
    try:
        trial = run(pair, 93)
    finally:
        pair.end()
    assert (trial.ending, trial.part, trial.how) == (Ending.FAIL, "actor update", "hang")


def test_what_a_child_started_goes_with_it(errands: Errands) -> None:
    child = Child(errands, 1)
    child.run(94, {"trial": "t", "value": 94})
    group = child._process.pid
    child.end()
    living = [
        entry
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and _group(entry) == group
    ]  # fmt: skip
    assert not living
    with pytest.raises(ProcessLookupError):
        os.kill(child._process.pid, 0)


def _group(entry: Path) -> int:
    """Return the process group of a living process, 0 for none."""
    try:
        fields = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[2]) if fields[0] not in ("Z", "X") else 0


def test_signal_without_a_name_is_told_by_its_number() -> None:
    assert module._how_ended(-signal.SIGKILL) == "killed"
    assert module._how_ended(-63) == "signal 63"


def test_trial_survives_a_round_trip() -> None:
    part = Part(name="values", ended=True, seconds=1.0, peaks={"allocated": 5}, more={"rows": 3})
    trial = Trial(
        value=0.4,
        ending=Ending.FAIL,
        fresh=True,
        part="values",
        how="hang",
        text="x",
        seconds=2.0,
        parts=(part,),
        more={"a": 1},
    )
    assert Trial.from_json(json.loads(json.dumps(trial.to_json()))) == trial
    assert trial.peak == 5
    assert Trial(value=1, ending=Ending.PASS).peak == 0
    assert [shown(value) for value in (0.45, 64.0, 1e6)] == ["0.45", "64", "1000000"]
