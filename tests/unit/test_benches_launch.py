"""Whole launches of the cheap benches over real processes whose worker computes nothing: every way one can end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

COMPAT = Path(__file__).parents[1] / "compat"
if str(COMPAT) not in sys.path:
    sys.path.insert(0, str(COMPAT))

from benches import conduct, rollout, update  # noqa: E402
from benches import plan as plans  # noqa: E402
from benches.conduct import Launch  # noqa: E402
from ppo import tree  # noqa: E402
from workload import gsm8k  # noqa: E402

from tests.unit import benches_side  # noqa: E402
from tests.unit.benches_side import lines, result  # noqa: E402

BENCHES: dict[str, Any] = {"update": update.Updates, "rollout": rollout.Rollouts}


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals and orphans stay those of the test runner."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(tree, "adopt_orphans", lambda: None)
    monkeypatch.setattr(tree, "end", lambda _: [])


def launch(folder: Path, kind: str = "update", common: tuple[str, ...] = (), **more: Any) -> tuple[int, Path]:
    out = folder / "out"
    file = benches_side.plan(folder, kind, common=list(common), **more)
    argv = ["--plan", str(file), "--out", str(out), "--device", "cpu"]
    return conduct.main(kind, benches_side.script(folder), BENCHES[kind], argv), out


def test_trainer_that_can_be_switched_is_one_process(tmp_path: Path) -> None:
    code, out = launch(tmp_path)
    found, samples = result(out), lines(out)
    assert (code, found["ended"], found["interleaved"]) == (0, "passed", "repeat")
    assert found["had"] == {"off": 4, "on": 4}
    assert (found["switch"]["proved"], found["switch"]["differ"]) == (True, ["update_critic", "update_actor"])
    assert found["numerics"]["within"] is True
    assert found["numerics"]["update_actor"]["grad_norm"] == [3.0, 3.0]
    assert len(samples) == (2 + 8) * 4
    assert len({sample["more"]["pid"] for sample in samples}) == 1
    places = [(one["variant"], one["place"]) for one in samples if one["phase"] == "values"]
    assert places[:6] == [("off", -2), ("on", -1), ("off", 0), ("on", 1), ("on", 2), ("off", 3)]
    # A pair has the same data, the next one others.
    assert [one["more"]["seed"] for one in samples if one["phase"] == "values"][2:6] == [17, 17, 18, 18]
    assert samples[0]["numerics"] == {"loss": None, "finite": False}
    assert list(found["reached"])[:2] == ["model", "built side"]


def test_what_cannot_be_switched_takes_a_process_each(tmp_path: Path) -> None:
    code, out = launch(tmp_path, common=("blocking=x.y",), gpus=2)
    found, samples = result(out), lines(out)
    assert (code, found["interleaved"], "x.y" in found["why"]) == (0, "process", True)
    assert len({sample["more"]["pid"] for sample in samples}) == 2
    # Two ranks: the slower one's seconds, the larger memory, the first one's numerics.
    assert (samples[0]["seconds"], samples[0]["memory"]) == (1.5, {"allocated": 11})
    assert samples[0]["more"]["by_rank"] == [0.5, 1.5]
    assert "switch" not in found


@pytest.mark.parametrize(
    ("common", "why"),
    [
        ((f"free={5 << 30}",), "one side takes 97280 MiB, and 5120 are left beside it"),
        (("dies_in_build=on", "mark=MARK"), "died of memory (OutOfMemoryError)"),
    ],
)
def test_sides_that_do_not_fit_run_one_after_the_other(common: tuple[str, ...], why: str, tmp_path: Path) -> None:
    given = tuple(word.replace("MARK", str(tmp_path / "mark")) for word in common)
    code, out = launch(tmp_path, common=("blocking=x.y", *given))
    found = result(out)
    assert (code, found["interleaved"], why in found["why"]) == (0, "chunk", True)
    order = [one["variant"] for one in lines(out) if one["phase"] == "values" and not one["warm_up"]]
    assert order == ["off"] * 2 + ["on"] * 4 + ["off"] * 2
    assert found["had"] == {"off": 4, "on": 4}
    assert found["numerics"]["within"] is True


def test_switch_that_is_not_seen_takes_a_process_each(tmp_path: Path) -> None:
    code, out = launch(tmp_path, common=("unseen=on",))
    assert (code, result(out)["interleaved"]) == (0, "process")
    assert "was not seen in" in result(out)["why"]


def test_gradients_that_differ_are_told(tmp_path: Path) -> None:
    _, out = launch(tmp_path, common=("differs=1",), repeats=1)
    told = result(out)["numerics"]
    assert told["within"] is False
    assert told["update_actor"]["relative"] == pytest.approx(1 / 3)
    assert told["update_actor"]["floor"] == 0.0


def test_side_alone_has_nobody_to_be_compared_with(tmp_path: Path) -> None:
    code, out = launch(tmp_path, on=None)
    found = result(out)
    assert (code, found["interleaved"], found["had"]) == (0, "none", {"off": 4})
    assert "numerics" not in found


@pytest.mark.parametrize("sleeps", [True, False])
def test_engines_take_turns_and_one_sleeps_where_it_can(sleeps: bool, tmp_path: Path) -> None:
    code, out = launch(tmp_path, "rollout", ("blocking=a.b", *(("sleeps=1",) if sleeps else ())), repeats=2)
    found, samples = result(out), lines(out)
    assert (code, found["interleaved"], found["had"]) == (0, "process", {"off": 2, "on": 2})
    assert found["alive"] == ("one awake, the other asleep" if sleeps else "both awake")
    assert {one["phase"] for one in samples} == ({"gen", "sleep", "wake_up"} if sleeps else {"gen"})
    assert found["numerics"]["gen"]["agree"] == 1.0


def test_engine_alone(tmp_path: Path) -> None:
    code, out = launch(tmp_path, "rollout", on=None, repeats=1, gpus=2)
    assert (code, result(out)["interleaved"], len(lines(out))) == (0, "none", 2)


DEATHS = [
    ("oom", "OutOfMemoryError", "out of memory"),
    ("kill", "SIGKILL", "the last words"),
    ("exit", "exit code 7", "the last words"),
    ("wrong", "RuntimeError", "RuntimeError: wrong"),
]


@pytest.mark.parametrize(("how", "kind", "text"), DEATHS)
def test_death_leaves_what_was_had_and_says_where(how: str, kind: str, text: str, tmp_path: Path) -> None:
    code, out = launch(tmp_path, common=("dies_at=on.update_actor", f"how={how}", "after=20"))
    found, samples = result(out), lines(out)
    assert (code, found["ended"]) == (1, "faulted")
    fault = found["fault"]
    assert (fault["where"], fault["variant"], fault["kind"]) == ("update_actor", "on", kind)
    assert text in fault["text"]
    assert (samples[-1]["place"], samples[-1]["phase"]) == (fault["place"], "update_critic")
    assert found["had"]["off"] >= 1


@pytest.mark.parametrize(
    ("common", "more", "where", "said"),
    [
        (("inert=1",), {}, "plan", "do not differ in anything that this bench runs (c.d)"),
        ((), {"repeats": 0}, "plan", "repeats is a number of 1 or more"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    common: tuple[str, ...], more: dict[str, Any], where: str, said: str, tmp_path: Path
) -> None:
    code, out = launch(tmp_path, common=common, **more)
    found = result(out)
    assert (code, found["ended"], found["fault"]["where"]) == (2, "refused", where)
    assert said in found["fault"]["text"]


def test_side_that_cannot_import_says_so(tmp_path: Path) -> None:
    code, out = launch(tmp_path, common=("broken=1",))
    assert (code, result(out)["fault"]["kind"]) == (1, "ImportError")


def test_limit_ends_a_side_that_hangs(tmp_path: Path) -> None:
    code, out = launch(tmp_path, common=("dies_at=off.values", "how=hang", "after=8"), limit=4, seconds=3)
    found = result(out)
    assert (code, found["ended"], found["fault"]["where"]) == (124, "limit", "values")
    assert lines(out)


def test_no_block_begins_that_would_end_too_late(tmp_path: Path) -> None:
    code, out = launch(tmp_path, common=("slow=0.05",), repeats=40, seconds=3.0)
    found = result(out)
    assert (code, found["ended"]) == (0, "cut")
    assert found["had"]["off"] == found["had"]["on"] >= 2
    assert found["had"]["off"] % 2 == 0
    assert found["seconds"] < 8


def test_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    argv = ["--plan", str(tmp_path / "none.json"), "--out", str(tmp_path / "out")]
    assert conduct.main("update", benches_side.script(tmp_path), update.Updates, argv) == 2
    assert result(tmp_path / "out")["fault"]["kind"] == "FileNotFoundError"


def test_fault_of_the_bench_itself_is_on_record(tmp_path: Path) -> None:
    class Wrong(update.Updates):
        def __init__(self, launch: Launch) -> None:
            raise KeyError("mine")

    argv = ["--plan", str(benches_side.plan(tmp_path)), "--out", str(tmp_path / "out"), "--device", "cpu"]
    assert conduct.main("update", benches_side.script(tmp_path), Wrong, argv) == 1
    assert (result(tmp_path / "out")["fault"]["where"], result(tmp_path / "out")["fault"]["kind"]) == (
        "conduct", "KeyError",
    )  # fmt: skip


SIGNALLED = """
import sys
sys.path.insert(0, {compat!r})
from pathlib import Path
from benches import conduct, update
sys.exit(conduct.main("update", Path({script!r}), update.Updates, sys.argv[1:]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_launch_that_is_ended(number: signal.Signals, tmp_path: Path) -> None:
    file = benches_side.plan(tmp_path, common=["slow=0.3"], repeats=40)
    out = tmp_path / "out"
    text = SIGNALLED.format(compat=str(COMPAT), script=str(benches_side.script(tmp_path)))
    argv = [sys.executable, "-c", text, "--plan", str(file), "--out", str(out), "--device", "cpu"]
    process = subprocess.Popen(argv, env=dict(os.environ), start_new_session=True)
    try:
        deadline = time.monotonic() + 30
        while not lines(out) and time.monotonic() < deadline:
            time.sleep(0.05)
        side = lines(out)[0]["more"]["pid"]
        process.send_signal(number)
        code = process.wait(20)
    finally:
        process.kill()
        process.wait()
    deadline = time.monotonic() + 10
    while _lives(side) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _lives(side)
    found = result(out)
    if number is signal.SIGTERM:
        assert (code, found["ended"], found["code"], found["left_behind"]) == (143, "signal", 143, [])
    else:
        # Nobody could write how it ended; what it says is what was true.
        assert found["ended"] == "running"


def _lives(pid: int) -> bool:
    return tree._state(pid)[0] not in ("", "Z")


def test_prompts_are_as_long_as_those_of_a_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Words:
        """A tokenizer whose tokens are words; the real one takes a package that only cells have."""

        @classmethod
        def from_file(cls, path: str) -> Words:
            assert path == str(tmp_path / "tokenizer.json")
            return cls()

        def encode(self, text: str) -> SimpleNamespace:
            return SimpleNamespace(ids=text.split())

    monkeypatch.setitem(sys.modules, "tokenizers", SimpleNamespace(Tokenizer=Words))
    template = "{% for message in messages %}<s> {{ message['content'] }} {% endfor %}"
    template += "{% if add_generation_prompt %}>>{% endif %}"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}), encoding="utf-8")
    plan = plans.made({"lengths": "data", "batch": 8, "prompt": 60}, "update")
    texts = [row["prompt"][0]["content"] for row in gsm8k.rows("train", 8, plan.seed, set())]
    # Two words of the template around each.
    assert conduct.prompt_lengths(plan, tmp_path) == [min(60, len(text.split()) + 2) for text in texts]
    assert conduct.prompt_lengths(plans.made({}, "update"), tmp_path) is None


def test_model_that_was_written_for_the_launch_goes_with_it(tmp_path: Path) -> None:
    _, out = launch(tmp_path, model=None, shape="tiny", repeats=1, warm_up=0)
    assert result(out)["ended"] == "passed"
    assert not (out / "model").exists()
    assert not (out / "sketches").exists()
