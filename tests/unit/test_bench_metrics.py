"""Figures of a launch: a real one on an H200, samples shaped as three releases write them, and broken files."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from packaging.version import Version

from bench.flops import Lengths, Phase, Summary
from bench.metrics import Launch, meaning, read_launch, read_outcome
from bench.peaks import Ceiling, Numbers
from bench.verl_flops import Span, formula_of
from matrix.errors import DataError, UsageError
from matrix.memory.shape import shape_named

GOLDEN = Path(__file__).parent / "golden" / "bench"
RAW = Path(__file__).parents[2] / "reports" / "evidence" / "gpu" / "raw"


def told(release: str, *, gpus: int = 1, steps: int = 2, **more: object) -> dict[str, object]:
    plan = {"shape": "tiny", "steps": steps, "more": list(more.pop("words", []))}  # type: ignore[call-overload]
    gpu = {"release": release, "devices": ["NVIDIA H200"] * gpus, "plan": plan, "peak": 5, "left": 0}
    return {"code": 0, "seconds": 60.0, "device": "cuda", "gpu": gpu, **more}


def launch(tmp_path: Path, lines: Path | str, result: object) -> Launch:
    path, metrics = tmp_path / "result.json", tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(result), encoding="utf-8")
    if isinstance(lines, Path):
        return read_launch(lines, path)
    metrics.write_text(lines, encoding="utf-8")
    return read_launch(metrics, path)


def test_a_real_launch_on_an_h200() -> None:
    ceiling = Ceiling(flops=700e12, numbers=Numbers.BF16, how="none was measured there; a number for this test")
    found = read_launch(RAW / "ppo-A.metrics.jsonl", RAW / "ppo-A.json", ceiling=ceiling)
    assert (found.outcome.release, found.outcome.gpus) == (Version("0.9.1"), ("NVIDIA H200",))
    assert (found.troubles, found.faults, found.warm) == ((), (), (1,))
    assert [step.number for step in found.steady] == [2, 3]
    second = found.steady[0]
    assert second.throughput == pytest.approx(4464.9105)
    assert second.rollout_seconds == pytest.approx(4.0663 + 0.2691, abs=1e-3)
    assert second.unaccounted == pytest.approx(0.1167, abs=1e-3)
    assert second.numerics["gap_kl"] == pytest.approx(0.0018953, rel=1e-4)
    assert second.memory["actor"].allocated == pytest.approx(26.9134, abs=1e-3)
    assert set(second.phases) == set(Phase) - {Phase.REFERENCE}
    update = second.phases[Phase.UPDATE_ACTOR]
    assert update.throughput == pytest.approx(46_778 / 2.01667, rel=1e-4)
    assert update.flops is not None
    assert update.flops.uncertainty < 0.0005
    assert update.mfu is not None
    assert update.mfu.peak is not None
    assert update.mfu.peak == pytest.approx(0.0706, abs=1e-4)
    assert update.mfu.ceiling == pytest.approx(update.mfu.peak * 989.5 / 700)
    assert update.verl_mfu == pytest.approx(0.10098, abs=1e-5)
    assert second.phases[Phase.GENERATION].throughput == pytest.approx(128 * 256 / 4.066275, rel=1e-4)
    # The first step holds what compiles and starts, and no part of verl's times tells it.
    assert found.steps[0].unaccounted > 10


@pytest.mark.parametrize(("role", "phase"), [("actor", Phase.UPDATE_ACTOR), ("critic", Phase.UPDATE_CRITIC)])
def test_verls_mfu_on_an_h200_is_at_least_its_formula_over_the_whole_update(role: str, phase: Phase) -> None:
    found = read_launch(RAW / "ppo-A.metrics.jsonl", RAW / "ppo-A.json")
    shape = shape_named("qwen2.5-0.5b")
    for step, line in zip(found.steps, (RAW / "ppo-A.metrics.jsonl").read_text("utf-8").splitlines(), strict=True):
        values = json.loads(line)["data"]
        prompt, response = (
            Summary(mean=values[f"{part}/mean"], low=values[f"{part}/min"], high=values[f"{part}/max"])
            for part in ("prompt_length", "response_length")
        )
        lengths = Lengths.summarised(128, prompt, response)
        lowest = formula_of(Version("0.9.1")).mfu(
            shape, lengths, seconds=step.seconds[phase.value], gpus=1, gpu="NVIDIA H200", batches=2
        )
        # What Ray and the passing of data take is in our seconds of an update and in none of verl's mini-batches.
        assert 0.8 < lowest / values[f"perf/mfu/{role}"] < 1.0 or step.number == 1


MEANINGS = [
    ("0.6.1", "gen", False, ["actor"], Span.UPDATE),
    ("0.7.0", "gen", False, ["actor"], Span.UPDATE),
    ("0.7.1", "update_weights", True, ["actor"], Span.UPDATE),
    ("0.8.0", "update_weights", True, ["actor", "critic"], Span.MINI_BATCH),
    ("0.9.1", "update_weights", True, ["actor", "critic"], Span.MINI_BATCH),
]


@pytest.mark.parametrize(("release", "syncs", "saves", "memory", "span"), MEANINGS)
def test_what_names_mean(release: str, syncs: str, saves: bool, memory: list[str], span: Span) -> None:
    means = meaning(Version(release))
    assert (means.syncs_in, means.saves_inside, list(means.memory), means.mfu_span) == (syncs, saves, memory, span)
    assert not means.validates_inside


def test_a_release_without_a_file_logger_is_refused() -> None:
    with pytest.raises(UsageError, match=r"0\.5\.0 has no file logger"):
        meaning(Version("0.5.0"))


def test_a_log_of_061(tmp_path: Path) -> None:
    found = launch(tmp_path, GOLDEN / "0.6.1.metrics.jsonl", told("0.6.1", steps=3, words=["critic.ppo_epochs=2"]))
    assert found.faults == ("step 3 is not finite: actor/grad_norm",)
    step = found.steady[0]
    # The checkpoint is no part of the step, and sending the weights is a part of generation.
    assert step.unaccounted == pytest.approx(8.0 - 7.6)
    assert step.rollout_seconds == 4.0
    assert list(step.memory) == ["actor"]
    assert step.memory["actor"].reserved == 14.0
    assert math.isnan(found.steps[2].numerics["actor_grad_norm"])
    critic, actor = step.phases[Phase.UPDATE_CRITIC].flops, step.phases[Phase.UPDATE_ACTOR].flops
    assert critic is not None
    assert actor is not None
    assert critic.attention == 2 * actor.attention


def test_a_log_of_071(tmp_path: Path) -> None:
    found = launch(
        tmp_path, GOLDEN / "0.7.1.metrics.jsonl", told("0.7.1", words=["actor_rollout_ref.actor.ppo_epochs=3"])
    )
    assert (found.faults, found.troubles) == ((), ())
    step = found.steady[0]
    assert step.unaccounted == pytest.approx(8.0 - 7.7)
    assert step.rollout_seconds == 3.5
    # Legacy workers count nothing there, and verl logs 0.
    assert step.phases[Phase.OLD_LOG_PROB].verl_mfu is None
    critic, actor = step.phases[Phase.UPDATE_CRITIC].flops, step.phases[Phase.UPDATE_ACTOR].flops
    assert critic is not None
    assert actor is not None
    assert critic.attention == actor.attention


def test_a_log_of_080_on_two_gpus(tmp_path: Path) -> None:
    found = launch(tmp_path, GOLDEN / "0.8.0.metrics.jsonl", told("0.8.0", gpus=2, steps=3))
    assert [str(trouble) for trouble in found.troubles] == ["line 1: step 0 has no timing: not a step of training"]
    assert found.faults == ("step 2 is not finite: rollout_corr/kl",)
    step = found.steady[1]
    assert {name: memory.allocated for name, memory in step.memory.items()} == {"actor": 13.0, "critic": 12.0}
    assert step.phases[Phase.OLD_LOG_PROB].verl_mfu == 0.03
    assert step.phases[Phase.VALUES].throughput == pytest.approx(288 / 0.4 / 2)


STEP = {
    "timing_s/step": 2.0,
    "timing_s/gen": 1.0,
    "perf/total_num_tokens": 36,
    "perf/throughput": 18.0,
    **{f"{part}_length/{name}": 18.0 for part in ("prompt", "response") for name in ("mean", "min", "max")},
}


def line(step: object, data: object = None, **changed: object) -> str:
    return json.dumps({"step": step, "data": {**STEP, **changed} if data is None else data}) + "\n"


BROKEN = [
    (line(1) + line(2)[:40], "line 2: it is half a line: writing stopped in it"),
    (line(1) + "{}}\n" + line(2), "line 2: it is not JSON"),
    (line(1) + "[1]\n", "line 2: it is not of the form"),
    (line(1) + line(True), "line 2: it is not of the form"),
    (line(1) + line(2, data=3), "line 2: it is not of the form"),
    (line(1) + "\n" + line(1), "line 3: step 1 is there again"),
    (line(1) + line(4), "steps are missing: 2, 3"),
    (line(1, **{"perf/throughput": 9.0}), "verl's throughput is 9, tokens by time and GPUs 18"),
    (line(1, **{"prompt_length/mean": 30.0}), "lengths of its sequences are not told"),
    (line(1, **{"perf/total_num_tokens": 50, "perf/throughput": 25.0}), "no whole number of sequences"),
    (line(1, note="hello"), "not numbers: note"),
]


@pytest.mark.parametrize(("lines", "said"), BROKEN)
def test_broken_lines_are_told_and_the_others_read(lines: str, said: str, tmp_path: Path) -> None:
    found = launch(tmp_path, lines, told("0.9.1"))
    assert said in "\n".join(map(str, found.troubles))
    assert found.steps[0].number == 1


def test_a_log_without_lengths_has_no_flops(tmp_path: Path) -> None:
    data = {name: value for name, value in STEP.items() if "length" not in name}
    found = launch(tmp_path, line(1, data=data), told("0.9.1"))
    figure = found.steps[0].phases[Phase.GENERATION]
    assert (figure.flops, figure.mfu) == (None, None)
    assert math.isnan(figure.throughput)


def test_a_gpu_that_is_not_known_has_no_mfu(tmp_path: Path) -> None:
    result = told("0.9.1")
    result["gpu"] = {**result["gpu"], "devices": ["Some GPU"]}  # type: ignore[dict-item]
    mfu = launch(tmp_path, line(1) + line(2), result).steps[0].phases[Phase.GENERATION].mfu
    assert mfu is not None
    assert mfu.peak is None


def test_a_model_that_is_not_known_has_no_flops(tmp_path: Path) -> None:
    result = told("0.9.1", code=1)
    result["gpu"] = {"release": "0.9.1", "devices": [], "plan": {"steps": 4}}
    found = launch(tmp_path, line(1), result)
    assert found.steps[0].phases[Phase.GENERATION].flops is None
    assert found.faults == ("it ended with 1", "1 of 4 steps were logged", "no step is left without warm-up")


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_launch(tmp_path / "none.jsonl", RAW / "ppo-A.json")
    with pytest.raises(DataError, match="is empty"):
        launch(tmp_path, " \n", told("0.9.1"))


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "cannot be read"), ("{", "not the result"), ("[]", "not the result"), ('{"code": 0}', "is missing"),
     ('{"code": 0, "seconds": 1, "gpu": {"release": "new"}}', "not the result")],
)  # fmt: skip
def test_a_result_that_is_none_is_refused(text: str | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=said):
        read_outcome(path)
