"""What is told of a log: verl's real healthy run, simulated ones, each fault from its step on, and the statistics."""

from __future__ import annotations

import io
import itertools
import json
import math
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.errors import UsageError
from matrix.gravity import Gravity
from matrix.health import plot
from matrix.health.diagnosis import Diagnosis, diagnose, examine
from matrix.health.episode import Baseline, against_baseline, episodes, noise, rolling_median, scale
from matrix.health.history import Run, collect
from matrix.health.lines import LoggedStep, Notes, logged_steps
from matrix.health.meanings import MEANINGS
from matrix.health.names import SPELLINGS, Metric
from matrix.health.symptom import Kind, Symptom
from tests.accuracy.health import real
from tests.accuracy.health.simulate import FAULTS, FORMS, Steps, healthy, shape, written
from tests.unit.cli_stack import said


def _run(text: str) -> Run:
    (run,) = collect(logged_steps(io.BytesIO(text.encode()), Notes()))
    return run


def _of(rows: Steps) -> Run:
    (run,) = collect(LoggedStep(step=at, values=row, line=at) for at, row in enumerate(rows, 1))
    return run


def _constant(steps: int = 40, **other: float) -> Steps:
    """Return steps that never change, but for a slow wave that gives them noise."""
    return [{name.replace("__", "/"): value * (1 + 0.02 * math.sin(at)) for name, value in other.items()}
            for at in range(steps)]  # fmt: skip


def _found(run: Run, vocabulary: int = 0) -> list[Symptom]:
    return examine(run, vocabulary)


def test_the_real_healthy_run_is_healthy() -> None:
    found = _found(_run(real.console()))
    assert [(item.kind, item.gravity, item.since) for item in found] == [(Kind.GRADIENT_SPIKES, Gravity.NOTE, 23)]


@pytest.mark.parametrize("form", FORMS)
def test_simulated_healthy_logs_are_healthy(form: str) -> None:
    for number in range(12):
        rng = random.Random(f"healthy {number}")
        rows = healthy(rng, shape(rng))
        assert [item for item in _found(_run(written(rows, form))) if item.fails] == []


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_told_with_its_first_step(name: str) -> None:
    fault, kind = FAULTS[name]
    rng = random.Random("faulty")
    drawn = shape(rng, steps=90)
    rows = healthy(rng, drawn)
    for row in rows:
        row.setdefault("actor/kl_loss", 0.01)
        row.setdefault("critic/vf_loss", 0.1)
    fault(rng, rows, 50)
    found = [item for item in _found(_run(written(rows, "plain"))) if item.kind == kind and item.fails]
    assert found, name
    assert 45 <= found[0].since <= 75
    assert found[0].until is None or kind == "kl-runaway"
    assert found[0].causes
    assert found[0].look
    assert found[0].limit


GAPS = {
    "negative k3": ({"rollout_corr__k3_kl": -0.5}, Kind.IMPOSSIBLE),
    "no correlation": ({"training__rollout_actor_probs_pearson_corr": 0.3}, Kind.ROLLOUT_GAP),
    "a small gap": ({"training__rollout_probs_diff_mean": 0.03}, Kind.ROLLOUT_GAP),
    "few samples": ({"rollout_corr__rollout_is_eff_sample_size": 0.2}, Kind.EFFECTIVE_SAMPLES),
    "aborted": ({"response__aborted_ratio": 0.8}, Kind.ABORTED),
    "rate 0": ({"actor__lr": 0.0}, Kind.NO_RATE),
    "fraction above 1": ({"actor__pg_clipfrac": 1.5}, Kind.IMPOSSIBLE),
    "critic explains nothing": ({"critic__vf_explained_var": -0.5}, Kind.VALUE_USELESS),
    "squared returns": (
        {"critic__vf_loss": 9.0, "critic__returns__max": 1.0, "critic__returns__min": 0.0}, Kind.VALUE_LOSS_RISE,
    ),
    "half clipped all along": ({"response_length__clip_ratio": 0.8}, Kind.LENGTH_CLIPPED),
    "high kl all along": ({"critic__kl": 3.0}, Kind.KL_HIGH),
}  # fmt: skip


@pytest.mark.parametrize(("values", "kind"), GAPS.values(), ids=GAPS.keys())
def test_what_is_wrong_from_the_first_step(values: dict[str, float], kind: Kind) -> None:
    assert [item.kind for item in _found(_of(_constant(40, **values)))] == [kind]


def test_a_kl_from_rollout_to_trainer_that_jumps() -> None:
    rows = _constant(60, rollout_corr__k3_kl=0.001)
    for row in rows[30:]:
        row["rollout_corr/k3_kl"] = 0.2
    (found,) = _found(_of(rows))
    assert (found.kind, found.since) == (Kind.ROLLOUT_GAP, 31)


def test_a_clipped_fraction_that_jumps_is_a_warning() -> None:
    rows = _constant(60, actor__pg_clipfrac=0.002)
    for row in rows[30:]:
        row["actor/pg_clipfrac"] = 0.3
    (found,) = _found(_of(rows))
    assert (found.kind, found.gravity, found.since) == (Kind.CLIPPED, Gravity.WARNING, 31)


def test_an_error_that_is_over_is_a_warning_with_its_end() -> None:
    rows = _constant(80, actor__ppo_kl=0.001)
    for row in rows[20:30]:
        row["actor/ppo_kl"] = 0.5
    (found,) = _found(_of(rows))
    assert (found.gravity, found.since, found.until) == (Gravity.WARNING, 21, 31)


def test_many_stretches_alike_are_told_as_few() -> None:
    rows = _constant(400, actor__ppo_kl=0.001)
    for at, row in enumerate(rows):
        if at % 40 > 30:
            row["actor/ppo_kl"] = 0.5
    found = _found(_of(rows))
    assert len(found) == 3
    assert found[-1].message.endswith("; 7 more such stretches after it")
    assert found[-1].until is None


def test_entropy_against_the_vocabulary() -> None:
    rows = _constant(30, actor__entropy=6.0)
    assert _found(_of(rows)) == []
    assert [item.kind for item in _found(_of(rows), 500)] == [Kind.ENTROPY_RISE]
    assert {item.kind for item in _found(_of(rows), 100)} == {Kind.ENTROPY_RISE, Kind.IMPOSSIBLE}
    assert _found(_of(rows[:4])) == []


def test_zero_gradient_of_three_decimals_is_said_to_be_so() -> None:
    text = "".join(f"step:{at} - actor/grad_norm:0.000 - actor/lr:0.000\n" for at in range(20))
    (found,) = _found(_run(text))
    assert found.gravity is Gravity.WARNING
    assert "three decimals" in found.message


def _scores(values: list[float]) -> Run:
    return _of([
        {"critic/score/mean": value, "critic/score/max": 1.0, "critic/score/min": 0.0} for value in values
    ])  # fmt: skip


def _noisy(level: float, count: int, slope: float = 0.0) -> list[float]:
    rng = random.Random(level)
    return [level + slope * at + rng.gauss(0, 0.02) for at in range(count)]


FLAT = {
    "never, long": (_noisy(0.2, 250), [(Gravity.WARNING, 1)]),
    "never, shorter": (_noisy(0.2, 80), [(Gravity.NOTE, 1)]),
    "too short to say": (_noisy(0.2, 40), []),
    "rising": (_noisy(0.2, 90, 0.004), []),
    "rose, then stood": (_noisy(0.1, 40, 0.01) + _noisy(0.5, 80), [(Gravity.NOTE, 41)]),
    "solved": ([0.97 + 0.001 * (at % 3) for at in range(90)], []),
}


@pytest.mark.parametrize(("values", "expected"), FLAT.values(), ids=FLAT.keys())
def test_a_flat_score(values: list[float], expected: list[tuple[Gravity, int]]) -> None:
    assert [(item.gravity, item.since) for item in _found(_scores(values))] == expected


def test_a_falling_length_with_a_better_score_is_none() -> None:
    rows: Steps = [{"response_length/mean": 1000.0, "critic/score/mean": 0.1} for _ in range(20)]
    rows += [{"response_length/mean": 100.0, "critic/score/mean": 0.5} for _ in range(20)]
    assert _found(_of(rows)) == []
    for row in rows:
        row.pop("critic/score/mean")
    assert [item.kind for item in _found(_of(rows))] == [Kind.LENGTH_COLLAPSE]
    assert _found(_of(rows[15:22])) == []


def test_longer_responses_are_not_slow_steps() -> None:
    rows: Steps = []
    for at in range(60):
        length = 200.0 * (1 + (at > 30))
        row = {"response_length/mean": length, "prompt_length/mean": 0.0, "timing_s/step": 10 * (1 + (at > 30))}
        rows.append({name: value * (1 + 0.01 * math.sin(at)) for name, value in row.items()})
    assert _found(_of(rows)) == []
    for row in rows[40:]:
        row["timing_s/step"] *= 3
    assert [(item.kind, item.since) for item in _found(_of(rows))] == [(Kind.SLOWER, 41)]


def test_seconds_without_any_length_are_judged_alone() -> None:
    rows: Steps = [{"timing/gen": 10.0 + 0.1 * math.sin(at)} for at in range(40)]
    for row in rows[30:]:
        row["timing/gen"] = 30.0
    assert [item.kind for item in _found(_of(rows))] == [Kind.SLOWER]


NOT_FINITE = {
    "actor/pg_loss": (3, Gravity.ERROR),
    "actor/grad_norm": (1, Gravity.WARNING),
    "critic/grad_norm": (2, Gravity.ERROR),
    "response_length_non_aborted/mean": (2, Gravity.NOTE),
    "perf/mfu/actor": (2, Gravity.WARNING),
}


@pytest.mark.parametrize(("name", "count", "gravity"), [(name, *rest) for name, rest in NOT_FINITE.items()])
def test_not_finite(name: str, count: int, gravity: Gravity) -> None:
    rows = _constant(30, actor__ppo_kl=0.0)
    for row in rows[10 : 10 + count]:
        row[name] = math.nan
    (found,) = _found(_of(rows))
    assert (found.kind, found.gravity, found.since) == (Kind.NOT_FINITE, gravity, 11)


def test_every_kind_has_its_meaning_and_every_metric_its_names() -> None:
    assert MEANINGS.keys() == set(Kind)
    assert all(causes and look for causes, look in MEANINGS.values())
    assert SPELLINGS.keys() == set(Metric)


@given(st.lists(st.booleans(), max_size=60))
def test_episodes_are_apart_and_begin_and_end_at_odd_places(odd: list[bool]) -> None:
    found = episodes(odd)
    for item in found:
        assert odd[item.start]
        assert item.start <= item.told
        assert item.end is None or (odd[item.end - 1] and item.end > item.told - 6)
    for before, after in itertools.pairwise(found):
        assert before.end is not None
        assert before.end <= after.told


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=80), st.integers(1, 9))
def test_the_rolling_median_is_the_median_of_the_last(values: list[float], window: int) -> None:
    import statistics

    expected = [statistics.median(values[max(0, at - window + 1) : at + 1]) for at in range(len(values))]
    assert rolling_median(values, window) == expected


def test_a_baseline_stands_still_while_a_change_lasts() -> None:
    def is_odd(value: float, base: Baseline) -> bool:
        return value > 3 * base.median

    odd, baselines = against_baseline([1.0] * 30 + [10.0] * 60, is_odd)
    assert odd == [False] * 30 + [True] * 60
    assert baselines[5] is None
    assert baselines[-1] is not None
    assert baselines[-1].median == 1.0


def test_noise_is_that_of_the_steps_and_not_of_the_trend() -> None:
    rng = random.Random(1)
    values = [0.01 * at + rng.gauss(0, 1) for at in range(4000)]
    assert noise(values) == pytest.approx(1, abs=0.1)
    assert scale([rng.gauss(5, 2) for _ in range(4000)]) == pytest.approx(2, abs=0.2)
    assert noise([1.0]) == 0


@pytest.fixture
def sick(tmp_path: Path) -> Path:
    rng = random.Random("sick")
    rows = healthy(rng, shape(rng, steps=60))
    for row in rows[30:]:
        row["actor/entropy"] = 0.001
    path = tmp_path / "sick.log"
    path.write_text(written(rows, "numpy") + "step:61 - actor/pg_lo\n", encoding="utf-8")
    return path


def test_the_command_line(sick: Path, tmp_path: Path) -> None:
    heard = said("health", str(sick), "--plot", str(tmp_path / "deep" / "x.html"))
    assert heard.code == 1
    assert "warning: actor/entropy since step 31: entropy fell" in heard.out
    assert "may come from: " in heard.out
    assert "look at: " in heard.out
    assert "1 damaged or cut-off lines" in heard.out
    assert "unhealthy: 0 errors, 1 warning, " in heard.out
    page = (tmp_path / "deep" / "x.html").read_text(encoding="utf-8")
    assert "<svg" in page
    assert "entropy fell" in page


def test_the_command_line_on_a_healthy_log(tmp_path: Path) -> None:
    path = tmp_path / "real.log"
    path.write_text(real.console() + real.console(), encoding="utf-8")
    heard = said("health", str(path))
    assert heard.code == 0
    assert "run 2: 61 steps, 0 to 60; numbers have three decimals" in heard.out
    assert heard.out.endswith("healthy as far as judged: 0 errors, 0 warnings, 2 notes\n")
    assert "(run 2)" in plot.drawing(diagnose(path), ".svg")


def test_a_short_log_with_a_restart_says_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "short.log"
    steps = [1, 2, 3, 2, 3]
    path.write_text("".join(f"step:{at} - actor/pg_loss:0.5\n" for at in steps), encoding="utf-8")
    heard = said("health", str(path))
    assert "1 restart at step 2" in heard.out
    assert "too short for a baseline" in heard.out


def test_json_can_be_read_back(sick: Path) -> None:
    heard = said("health", str(sick), "--json")
    data = json.loads(heard.out)
    assert (heard.code, data["schema"], data["healthy"]) == (1, 1, False)
    assert {item["metric"] for item in data["symptoms"] if item["gravity"] != "note"} == {"actor/entropy"}
    assert data["runs"][0]["steps"] == 60


REFUSED = {
    "no suffix": (["x.log", "--plot", "picture"], 2),
    "pdf": (["x.log", "--plot", "picture.pdf"], 2),
    "no log": (["nothing.log"], 2),
    "no name": ([""], 2),
}


@pytest.mark.parametrize(("words", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_words_that_make_no_sense(words: list[str], code: int) -> None:
    assert said("health", *words).code == code


def test_a_plot_that_cannot_be_written(sick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    assert said("health", str(sick), "--plot", str(tmp_path / "file" / "x.svg")).code == 2

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    assert said("health", str(sick), "--plot", str(tmp_path / "x.svg")).code == 8


def test_long_series_are_drawn_with_their_spikes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plot, "MOST_POINTS", 10)
    rows = _constant(200, actor__grad_norm=1.0)
    rows[77]["actor/grad_norm"] = 50.0
    run = _of(rows)
    points = plot._thinned(run.series(Metric.ACTOR_GRADIENT))
    assert len(points) < 20
    assert (78, 50.0) in points


def test_a_drawing_of_another_kind_is_refused(sick: Path) -> None:
    found: Diagnosis = diagnose(sick)
    with pytest.raises(UsageError, match="draws SVG or HTML"):
        plot.drawing(found, ".png")
