"""The section on benches: JSON, Markdown, the view with its plots; nothing of a CPU beside a GPU, all of it escaped."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from packaging.version import Version

from bench import plain
from bench.recipes import recipe_named
from bench.record import comparisons, idle, standings, why
from bench.sample import Side
from bench.toggle import Judged, Standing, toggle_named
from bench.variant import of_settings
from bench.verdicts import judge
from matrix.observe import Observation
from matrix.tier import Outcome, Tier
from reports import benches, benches_page
from reports.plot import _Linear, _Log, intervals, launches, tone
from tests.unit.bench_gathered import AT, held, some

EVIL = '<script>alert("1")</script>&\'|\x1bx'


def section(*items: Any, monkeypatch: pytest.MonkeyPatch, observations: tuple[Observation, ...] = ()) -> dict[str, Any]:
    monkeypatch.setattr(benches, "gathered", lambda _: items)
    found = benches.of_observations(observations)
    assert found is not None
    return json.loads(json.dumps(found, allow_nan=False))  # type: ignore[no-any-return]


def sample(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    return section(
        some("checkpointing-critic", ratio=0.9),
        some("checkpointing-critic", "seconds/update_critic", ratio=1.2, base=2.0),
        some("chunked-prefill", ratio=1.0, noise=0.03, faults={3: EVIL}),
        some("chunked-prefill", "throughput/gen", recipe="rollout-short", n=20),
        some("chunked-prefill", "throughput/gen"),
        some("tiny", device="cpu", recipe="ppo-tiny", reasons=[EVIL], numerics=held(6, 3.0)),
        monkeypatch=monkeypatch,
    )


def test_the_section_holds_samples_intervals_verdicts_and_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    data = sample(monkeypatch)
    assert [group["device"] for group in data["groups"]] == ["cuda", "cpu"]
    gpu, cpu = data["groups"]
    first = gpu["pairings"][0]["judgements"][0]
    assert (first["verdict"], first["main"], len(first["launches"])) == ("slower", True, 12)
    assert first["low"] < first["ratio"] < first["high"]
    assert [one["pairing"] for one in cpu["pairings"]] == ["tiny"]
    assert cpu["pairings"][0]["judgements"][0]["ratio"] is None
    assert cpu["gpu_minutes"] == 0
    assert gpu["startup"] == pytest.approx(0.6)
    assert [one["metric"] for one in data["agreement"]] == ["throughput/gen"]
    claims = {one["id"]: one for one in data["claims"]}
    assert claims["no-checkpointing-critic"]["ratio"] == pytest.approx(1 / 1.2, rel=0.02)
    assert claims["ulysses-one-card"]["verdict"] == "untested"
    assert claims["ulysses-one-card"]["ratio"] is None
    assert data["gpu_minutes"] == pytest.approx(sum(one["gpu_minutes"] for one in gpu["pairings"]), abs=0.2)


def test_nothing_of_benches_has_no_section() -> None:
    assert benches.of_observations([]) is None


def test_markdown_keeps_its_table_whatever_a_log_says(monkeypatch: pytest.MonkeyPatch) -> None:
    text = benches.markdown(sample(monkeypatch))
    assert "### On a CPU" in text
    rows = [line for line in text.splitlines() if line.startswith("| ch")]
    assert len(rows) == 3
    assert all(line.count(" | ") == 7 for line in rows)


def test_the_view_escapes_everything_and_brings_no_script_and_no_style(monkeypatch: pytest.MonkeyPatch) -> None:
    data = sample(monkeypatch)
    html = benches_page.markup(data)
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert not re.search(r"\s(style|on\w+|id|fill|stroke)=", html)
    assert "#/cell/verl0.9.1-vllm0.24.0" in html
    plots = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert len(plots) == 2 + 4
    for plot in plots:
        root = ET.fromstring(plot)
        assert root.attrib["aria-label"]
        for node in root.iter():
            assert not any("nan" in value.lower() or "inf" in value.lower().split() for value in node.attrib.values())
    # No figure of the CPU stands in the GPU's part.
    gpu_part = html.split("On a CPU")[0]
    assert "tiny" not in gpu_part


def test_a_section_without_agreement_or_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    item = replace(some("x", faults=dict.fromkeys(range(12), "hung"), numerics={}), startup=None, says={}, cells={})
    html = benches_page.markup(section(item, monkeypatch=monkeypatch))
    assert "no launch has a figure" in html
    assert "Do the cheap benches agree" not in html


def standing(name: str, what: Standing, why_: str) -> Any:
    toggle, recipe = toggle_named(name), recipe_named("ppo-short")
    made = of_settings(name, recipe, "verl0.9.1", (), ())
    return replace(made, standing=Judged(toggle=toggle, release=Version("0.9.1"), standing=what, why=why_))


def test_what_was_not_run_is_kept_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pairings = [
        standing("ulysses-critic-old-key", Standing.INERT, "the critic stays at 1"),
        standing("checkpointing-critic", Standing.REFUSED, "no key"),
        standing("chunked-prefill", Standing.LIVE, ""),
    ]
    kept = standings(pairings, "static", AT)
    assert [item.outcome for item in kept] == [Outcome.UNTESTED] * 2
    assert all(item.question.measures and item.question.tier is Tier.BENCH for item in kept)
    assert [one.standing for one in idle([*kept, *kept])] == ["inert", "refused"]
    data = section(monkeypatch=monkeypatch, observations=kept)
    assert data["groups"] == []
    claims = {one["id"]: one for one in data["claims"]}
    assert claims["no-checkpointing-critic"]["why"] == "refused: no key"
    html = benches_page.markup(data)
    assert "the critic stays at 1" in html
    assert "### Not run" in benches.markdown(data)


def test_comparisons_are_kept_for_those_who_know_no_statistics() -> None:
    worse = some("x", "memory/gpu", ratio=1.2, base=40)
    paired = judge([some("x", ratio=0.9), worse, some("y", numerics=held(6, 3.0))])
    kept = comparisons(paired, AT)
    by_probe = {item.question.probe: item for item in kept}
    speed = by_probe["compare/ppo-short/x/throughput"].detail["comparison"]
    assert isinstance(speed, dict)
    assert (speed["verdict"], speed["kind"], speed["better"]) == ("slower", "speed", "higher")
    memory = by_probe["compare/ppo-short/x/memory/gpu"].detail["comparison"]
    assert isinstance(memory, dict)
    assert (memory["kind"], memory["verdict"]) == ("memory", "slower")
    gap = by_probe["compare/ppo-short/y/gap_k3"].detail["comparison"]
    assert isinstance(gap, dict)
    assert (gap["kind"], gap["beyond_tolerance"], gap["verdict"]) == ("numerics", True, "moved")
    assert all(item.question.measures and not item.answers for item in kept)
    assert idle(kept) == ()
    assert len({item.question.key for item in kept}) == len(kept)
    assert "ratio 0." in by_probe["compare/ppo-short/x/throughput"].reason
    cpu = comparisons(judge([some("x", device="cpu", recipe="ppo-tiny")]), AT)
    assert {item.detail["comparison"]["kind"] for item in cpu} == {"exercise"}  # type: ignore[index]
    (lost,) = judge([some("x", reasons=["another GPU"])])
    assert why(lost.main[0].comparison) == "throughput: incomparable, another GPU"
    json.dumps([dict(item.detail) for item in kept], allow_nan=False)


def test_axes_mark_round_values_and_hold_what_they_show() -> None:
    for low, high in ((1.0, 1.0), (0.98, 1.02), (0.5, 2.0), (0.001, 900.0), (1.3, 1.35)):
        axis = _Log(low, high, 0, 100)
        assert 0 <= axis.at(low) <= axis.at(high) <= 100
        assert 1 <= len(axis.ticks()) <= 9 or low > 1
    for low, high in ((5.0, 5.0), (0.0, 1.0), (4_900.0, 5_300.0), (-1.0, 0.0), (0.0, 0.0)):
        line = _Linear(low, high, 100, 0)
        assert 100 >= line.at(low) >= line.at(high) >= 0
        assert 2 <= len(line.ticks()) <= 8


def test_plots_of_rows_with_and_without_an_interval() -> None:
    rows: list[dict[str, Any]] = [
        {"name": "x" * 60, "verdict": "faster", "ratio": 1.2, "low": 1.1, "high": 1.3, "n": [6, 6]},
        {"name": "few", "verdict": "inconclusive", "ratio": 1.1, "low": None, "high": None, "n": [2, 2]},
        {"name": "none", "verdict": "incomparable", "ratio": None, "low": None, "high": None, "n": [0, 0]},
    ]
    plot = str(intervals(rows, 0.02, "label"))
    assert plot.count("b-dot") == 2
    assert "…" in plot
    assert "ratio 1.2000, 95 % interval 1.1000 to 1.3000, n = 6+6, faster" in plot
    assert intervals([], 0.02, "nothing")
    assert tone("no such word") == "s-untested"
    row = {"place": 0, "side": "A", "value": 5.0, "fault": "", "raw": [9.0, 5.0, None, 5.1]}
    shown = str(launches({"launches": [row], "dropped": 1, "unit": "s", "a": None, "b": {"median": 5.0}}, "x"))
    assert shown.count("b-step") == 2
    assert shown.count("b-median") == 1


def test_sides_are_named_by_their_letters() -> None:
    assert plain._sides({Side.A: "a"}) == {"A": "a", "B": ""}
