"""One launch, from its command to its observation: stand-ins run in its place, and the GPUs are fake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import kept
from bench.errand import Limits, limits_of, release_of
from bench.launched import Trouble
from bench.launcher import Ended
from bench.sample import Side
from bench.telemetry import ABSENT, Seen
from bench.variant import of_cells
from matrix.errors import ToolError, UsageError
from matrix.gpus.nvml import GIB, NoDriverError
from matrix.observe import Observation
from matrix.store import Store
from matrix.tier import Outcome, Tier
from tests.unit.bench_launches import (
    FakeDriver,
    FakeGauges,
    environment,
    launcher,
    on_gpus,
    pairing,
    place,
)


def alive(pid: int) -> bool:
    """Return whether a process runs, other than as one that is only not yet read."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_launch_is_kept_with_all_that_its_figures_rest_on(tmp_path: Path) -> None:
    tell, child = tmp_path / "tell", tmp_path / "child"
    found = pairing((f"fake.tell={tell}", f"fake.child={child}", "fake.seconds=2.0"))
    with launcher(tmp_path) as made:
        ended = made.launch(place(found))
    assert ended.fault is None
    assert ended.figures["throughput"].value == 400.0
    assert ended.figures["throughput"].raw == pytest.approx((800 / 6, 400.0, 400.0))
    assert ended.figures["throughput/gen"].value == pytest.approx(128.0)
    assert ended.measured.numerics[Side.A]["actor_grad_norm"] == (1.5, 1.5, 1.5)
    window = ended.measured.window
    assert window is not None
    assert window[1] - window[0] == pytest.approx(2.0, abs=0.02)
    (machine, launch) = Store(tmp_path / "store")
    assert (machine.question.probe, machine.question.tier) == ("machine", Tier.BENCH)
    assert launch.question.probe == "launch/ppo-tiny/toggle/A/00"
    assert launch.question.measures
    assert launch.outcome is Outcome.OK
    detail = launch.detail
    assert detail["telemetry"] == {key: {"absent": "no GPU was granted"} for key in ("whole", "window")}
    assert detail["disturbed"] == []
    assert detail["fingerprint"] == machine.detail["fingerprint"]
    assert [row["step"] for row in rows(launch)] == [1, 2, 3]
    result = detail["result"]
    assert isinstance(result, dict)
    # Processes by number, and whatever else is not on the list, stay behind.
    assert "parts" not in result
    assert "gpu" not in result
    assert not alive(int(child.read_text()))


def rows(launch: Observation) -> list[Any]:
    """Return the lines that a launch's figures were made of."""
    found = launch.detail["rows"]
    assert isinstance(found, list)
    return found


def test_the_environment_holds_nothing_of_the_callers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("RAY_ADDRESS", "elsewhere")
    tell = tmp_path / "tell"
    with launcher(tmp_path) as made:
        made.launch(place(pairing((f"fake.tell={tell}",))))
    told = json.loads(tell.read_text())
    env = told["env"]
    assert not {"PYTHONDONTWRITEBYTECODE", "RAY_ADDRESS", "VERL_MATRIX_HOME"} & set(env)
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert env["TRITON_CACHE_DIR"].startswith(str(tmp_path / "cache" / "bench"))
    assert not Path(env["HOME"]).exists()
    words = told["argv"]
    assert words[words.index("--set") + 1] == "trainer.save_freq=-1"
    assert words[words.index("--limit") + 1] == "60"


@pytest.mark.parametrize(
    ("does", "trouble", "text"),
    [
        ("oom", Trouble.MEMORY, "CUDA out of memory"),
        ("dies", Trouble.KILLED, "by signal 9"),
        ("fails", Trouble.FAILED, "exit code 3: ValueError: no such thing"),
        ("nan", Trouble.NOT_FINITE, "step 2: actor/grad_norm"),
        ("stops", Trouble.SHORT, "2 of 3 steps were logged"),
        ("silent", Trouble.SHORT, "result.json"),
    ],
)
def test_a_launch_that_ends_badly_is_kept_as_such(tmp_path: Path, does: str, trouble: Trouble, text: str) -> None:
    with launcher(tmp_path) as made:
        ended = made.launch(place(pairing((f"fake.does={does}",))))
    assert ended.fault is not None
    assert (ended.fault.trouble, text in ended.fault.text) == (trouble, True), ended.fault
    stored = list(Store(tmp_path / "store"))[-1]
    assert stored.outcome is Outcome.BROKEN
    assert stored.reason == str(ended.fault)
    assert ("CUDA out of memory" in str(stored.detail.get("text"))) is (does == "oom")


def test_a_launch_that_says_nothing_more_is_ended(tmp_path: Path) -> None:
    child = tmp_path / "child"
    found = pairing(("fake.does=hangs", f"fake.child={child}"))
    start = time.monotonic()
    with launcher(tmp_path, limits=Limits(whole_s=60.0, still_s=1.0)) as made:
        ended = made.launch(place(found))
    assert time.monotonic() - start < 30
    assert str(ended.fault) == "hung: it said nothing for 1 s"
    assert not alive(int(child.read_text()))


def test_a_launch_is_had_once(tmp_path: Path) -> None:
    asked = place()
    with launcher(tmp_path) as made:
        assert made.stored(asked) is None
        first = made.launch(asked)
        again = made.launch(asked)
        assert (first.recalled, again.recalled) == (False, True)
        assert again.figures == first.figures
        assert again.measured == first.measured
        other = made.launch(place(number=1, side=Side.B))
    assert other.place == 1
    assert len(list(Store(tmp_path / "store"))) == 3


def test_the_first_launch_finds_cold_caches_and_has_no_start_up(tmp_path: Path) -> None:
    with launcher(tmp_path) as made:
        first, second = (made.launch(place(number=number)) for number in (0, 3))
    assert (first.figures["start-up"].value, first.figures["start-up"].fault) == (None, "its caches were cold")
    assert second.figures["start-up"].value == 2.0


def test_warming_takes_as_few_steps_as_there_can_be(tmp_path: Path) -> None:
    with launcher(tmp_path) as made:
        ended = made.launch(place(warms=True))
    assert ended.warms
    assert ended.observation.question.probe == "launch/ppo-tiny/toggle/warm/00"
    assert [row["step"] for row in rows(ended.observation)] == [1]


def test_a_launch_on_a_gpu_is_watched(tmp_path: Path) -> None:
    tell = tmp_path / "tell"
    found = on_gpus(a=(f"fake.tell={tell}", "fake.sleep=301"))
    with launcher(tmp_path, driver=FakeDriver(held=[0, 0])) as made:
        ended = made.launch(place(found))
    assert ended.fault is None
    assert json.loads(tell.read_text())["env"]["CUDA_VISIBLE_DEVICES"] == "0"
    detail = ended.observation.detail
    assert detail["gpus"] == ["NVIDIA H200"]
    assert detail["gpu_left_mib"] == 0
    assert ended.disturbed == ()
    assert ended.gpu_seconds == ended.seconds
    conditions = detail["conditions"]
    assert isinstance(conditions, dict)
    assert conditions["gpus"][0]["power_limit_w"] == 700.0
    assert conditions["driver"] == "580.1"
    assert detail["workload"] == {"kind": "ppo", "model": "tiny", "prompts": 8, "steps": 3}
    assert ended.figures["memory/gpu"].value == 5.0
    assert "uuid" not in json.dumps(conditions).lower()


def test_a_throttled_launch_and_one_in_company_say_so(tmp_path: Path) -> None:
    gauges = FakeGauges(reasons=0x20 | 0x4, holding=[999_999])
    with launcher(tmp_path, gauges=gauges, driver=FakeDriver(held=[300 << 20])) as made:
        ended = made.launch(place(on_gpus()))
    assert "1 other process on the GPU before it began" in ended.disturbed
    assert "300 MiB of the GPU were in use before it began" in ended.disturbed
    # The steps that count lie in the future of a launch that is over at once, so that no sample is of them.
    whole = ended.observation.detail["telemetry"]
    assert isinstance(whole, dict)
    assert whole["whole"]["gpus"][0]["reasons"]["thermal, by software"] == 1.0


def test_a_lost_gpu_ends_the_launch_and_the_series(tmp_path: Path) -> None:
    with launcher(tmp_path, gauges=FakeGauges(lost_after=3)) as made:
        ended = made.launch(place(on_gpus(a=("fake.does=hangs",))))
        assert str(ended.fault) == "GPU lost: GPU is lost"
        assert "a GPU was lost" in made.closed
        with pytest.raises(ToolError, match="Nothing more is launched: a GPU was lost"):
            made.launch(place(on_gpus(), number=3))
        # What is kept is still told.
        assert made.launch(place(on_gpus(a=("fake.does=hangs",)))).recalled


def test_memory_that_does_not_come_back_closes_the_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("matrix.gpus.settling.PATIENCE_S", 0.2)
    monkeypatch.setattr("bench.lane.Settling", _hasty)
    with launcher(tmp_path, driver=FakeDriver(held=[0, 0, 2 * GIB])) as made:
        ended = made.launch(place(on_gpus()))
        assert ended.observation.detail["gpu_left_mib"] == 2048
        assert made.closed == "2048 MiB were left on the GPU after ppo-fake toggle 0: toggle: ppo-fake"


def _hasty(**more: Any) -> Any:
    from matrix.gpus.settling import Settling

    return Settling(**more, patience_s=0.2)


def test_both_sides_in_one_launch(tmp_path: Path) -> None:
    found = pairing(("a=1",), ("a=2",), recipe="update-short")
    with launcher(tmp_path) as made:
        ended = made.launch(place(found, side=None, repeats=3))
    assert ended.fault is None
    assert ended.side is None
    repeats = ended.measured.repeats["throughput/update_actor"]
    assert [(item.place, item.side.value, item.value) for item in repeats] == [
        (0, "A", 500.0), (1, "B", 400.0), (2, "B", 400.0), (3, "A", 500.0), (4, "B", 400.0), (5, "A", 500.0),
    ]  # fmt: skip
    assert ended.measured.numerics[Side.A] == {"actor_grad_norm": (1.25,) * 3, "policy_loss": pytest.approx(
        (float("nan"),) * 3, nan_ok=True)}  # fmt: skip
    assert ended.measured.within is True
    plan = ended.observation.detail["plan"]
    assert isinstance(plan, dict)
    assert (plan["off"], plan["on"], plan["repeats"], plan["lengths"]) == (["a=1"], ["a=2"], 3, "data")
    assert any(word.startswith("actor_rollout_ref.actor.ppo_mini_batch_size") for word in plan["common"])


def test_a_fault_in_a_launch_of_both_sides_keeps_what_came_before(tmp_path: Path) -> None:
    found = pairing((), ("fake.does=oom",), recipe="update-short")
    with launcher(tmp_path) as made:
        ended = made.launch(place(found, side=None))
    assert ended.fault is not None
    assert ended.fault.trouble is Trouble.MEMORY
    repeats = ended.measured.repeats["throughput/update_actor"]
    assert [(item.place, item.value is None, "out of memory" in item.fault) for item in repeats] == [
        (0, False, False), (1, False, False), (2, True, True),
    ]  # fmt: skip


def test_two_cells_in_one_launch_name_both_interpreters(tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.symlink_to(sys.executable)
    cells = {"a": environment("a"), "b": replace(environment("b", verl="0.8.0"), python=other)}
    found = of_cells("cells", pairing(recipe="update-short").recipe, "a", "b")
    with launcher(tmp_path, cells=cells) as made:
        ended = made.launch(place(found, side=None, repeats=1))
    plan = ended.observation.detail["plan"]
    assert isinstance(plan, dict)
    assert plan["python"] == {"off": sys.executable, "on": str(other)}
    assert plan["common"] == []
    assert plan["off"] != plan["on"]
    assert {"lock A", "lock B", "variant A", "variant B"} <= set(ended.observation.question.reads)


def test_a_cell_without_an_environment_or_verl(tmp_path: Path) -> None:
    with launcher(tmp_path) as made, pytest.raises(UsageError, match="There is no environment of other"):
        made.launch(place(pairing(cell="other")))
    with pytest.raises(UsageError, match="has no verl"):
        release_of(environment(torch="2.11.0"))


@pytest.mark.parametrize(
    ("recipe", "whole", "still"),
    [("ppo-tiny", 1800, 900), ("ppo-short", 300 + 6 * 49.152, 150), ("update-short", 600, 240)],
)
def test_limits(recipe: str, whole: float, still: float) -> None:
    found = limits_of(place(pairing(recipe=recipe)))
    assert found.whole_s == pytest.approx(whole)
    assert found.still_s == still


TOOL = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.unit.bench_launches import launcher, pairing, place
with launcher(Path({folder!r})) as made:
    made.launch(place(pairing({words!r})))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_tool_that_is_killed_leaves_nothing_and_loses_only_that_launch(tmp_path: Path, number: int) -> None:
    child, tell = tmp_path / "child", tmp_path / "tell"
    words = ("fake.does=hangs", f"fake.child={child}", f"fake.tell={tell}")
    root = str(Path(__file__).parents[2])
    with launcher(tmp_path) as made:
        made.launch(place(number=3))
    code = TOOL.format(root=root, folder=str(tmp_path), words=words)
    tool = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stderr=subprocess.DEVNULL)
    _until(lambda: child.exists() and child.read_text() != "", 30)
    pids = [int(child.read_text()), json.loads(tell.read_text())["pid"]]
    scratch = Path(json.loads(tell.read_text())["env"]["HOME"]).parent
    assert all(alive(pid) for pid in pids)
    os.kill(tool.pid, number)
    tool.wait(60)
    _until(lambda: not any(alive(pid) for pid in pids) and not scratch.exists(), 60)
    stored = [item.question.probe for item in Store(tmp_path / "store") if item.question.probe != "machine"]
    assert stored == ["launch/ppo-tiny/toggle/B/03"] or stored == ["launch/ppo-tiny/toggle/A/03"]


def _until(done: Any, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("limits", "does", "text"),
    [
        (Limits(whole_s=0.5, still_s=60.0), "hangs", "it was not over after 0 s"),
        (Limits(whole_s=60.0, still_s=60.0, wait_s=0.3), "waits", "it did not begin in 0 s"),
    ],
)
def test_a_launch_that_is_not_over_or_never_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: Limits, does: str, text: str
) -> None:
    monkeypatch.setattr("bench.launcher.GRACE_S", 0.1)
    with launcher(tmp_path, limits=limits) as made:
        ended = made.launch(place(pairing((f"fake.does={does}",))))
    assert str(ended.fault) == f"hung: {text}"


def test_a_driver_that_has_stopped_answering_before_a_launch(tmp_path: Path) -> None:
    class Gone(FakeDriver):
        def versions(self) -> dict[str, str]:
            raise NoDriverError("driver not loaded")

    with launcher(tmp_path, driver=Gone()) as made, pytest.raises(ToolError, match="has stopped answering"):
        made.launch(place(on_gpus()))
    assert list(Store(tmp_path / "store")) == []


def test_another_number_of_cards_is_another_lane(tmp_path: Path) -> None:
    with launcher(tmp_path, driver=FakeDriver(count=2)) as made:
        one = made.lane_of(place(on_gpus()))
        assert made.lane_of(place(on_gpus(), number=3)) is one
        two = made.lane_of(place(on_gpus(gpus=2)))
    assert (one.visible, two.visible) == ("0", "0,1")


def test_what_is_to_be_known_of_a_launch() -> None:
    names = ("power_w", "sm_mhz", "memory_mhz", "used_mib", "busy", "celsius")
    columns = {f"{name}/0": [1.0, 1.0] for name in names} | {"at": [1.0, 2.0], "reasons/0": [4.0, 0.0]}
    seen = Seen(columns=columns, gpus=1)
    facts = {"cpu": {"cores": 2}}
    ended = Ended(code=0, over="", seconds=1.0, start=0.0, seen=seen, facts=facts,
                  result={"load": [3.4, 1.0], "ended": "cut", "interleaved": "chunk", "why": "memory"})  # fmt: skip
    assert kept.notes(place(number=3), ended) == [
        "launch 3: at its power cap 50% of the time",
        "launch 3: the load was 3.4 on 2 cores before it began",
        "launch 3: its sides ran in blocks, a process a side: memory",
        "launch 3: cut short by its seconds",
    ]
    assert kept.notes(place(on_gpus()), replace(ended, seen=ABSENT, result={"load": [3.4, 1.0]})) == []


def test_numbers_that_json_has_not() -> None:
    assert kept.finite({"a": [1.0, float("nan"), {"b": (float("inf"), "x", None)}]}) == {
        "a": [1.0, None, {"b": [None, "x", None]}]
    }
