"""The verdict: each rule of docs/architecture.md as a row of a table."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.cell import Axis, Cell, Deviation, OpenAxis
from matrix.errors import NothingRanError
from matrix.finding import Effect, Finding, Kind
from matrix.observe import Observation, Question
from matrix.tier import Outcome, Status, Tier
from matrix.verdict import Verdict, deviation_words, exit_code, judge
from tests.unit.run_fakes import AT, cell, finding, observation

PAIR = cell(verl="0.9.1", vllm="0.24.0")
NO_DEPS = cell(Deviation(no_deps=True, reason="as verl's image"), verl="0.9.1", vllm="0.24.0")
OVERRIDE = cell(Deviation(overrides=("numpy<2",)), verl="0.9.1", vllm="0.24.0")
OK, CONFLICT, BACKTRACKED, UNAVAILABLE = Outcome.OK, Outcome.CONFLICT, Outcome.BACKTRACKED, Outcome.UNAVAILABLE
BROKEN, DEGRADED, UNTESTED = Outcome.BROKEN, Outcome.DEGRADED, Outcome.UNTESTED


def _judged(resolve: Outcome | None, surface: Outcome | None, of: Cell = PAIR) -> Verdict:
    seen = []
    if surface is not None:
        seen.append(observation(of.name, Tier.SURFACE, surface))
    if resolve is not None:
        seen.append(observation(of.name, Tier.RESOLVE, resolve))
    return judge(of, seen)


@pytest.mark.parametrize(
    ("resolve", "surface", "status", "deepest", "of"),
    [
        (OK, OK, Status.WORKS, Tier.SURFACE, PAIR),
        (OK, None, Status.UNTESTED, Tier.RESOLVE, PAIR),
        (OK, UNTESTED, Status.UNTESTED, Tier.RESOLVE, PAIR),
        (UNTESTED, OK, Status.WORKS, Tier.SURFACE, PAIR),
        (None, OK, Status.WORKS, Tier.SURFACE, PAIR),
        (OK, BROKEN, Status.BROKEN, Tier.SURFACE, PAIR),
        (OK, DEGRADED, Status.DEGRADED, Tier.SURFACE, PAIR),
        (CONFLICT, OK, Status.CONFLICT, Tier.SURFACE, PAIR),
        (CONFLICT, BROKEN, Status.CONFLICT, Tier.SURFACE, PAIR),
        (BACKTRACKED, OK, Status.CONFLICT, Tier.SURFACE, PAIR),
        (UNAVAILABLE, UNTESTED, Status.CONFLICT, Tier.RESOLVE, PAIR),
        (UNTESTED, UNTESTED, Status.UNTESTED, None, PAIR),
        (None, None, Status.UNTESTED, None, PAIR),
        (CONFLICT, OK, Status.WORKS, Tier.SURFACE, NO_DEPS),
        (CONFLICT, BROKEN, Status.BROKEN, Tier.SURFACE, NO_DEPS),
        (CONFLICT, None, Status.UNTESTED, Tier.RESOLVE, NO_DEPS),
        (UNAVAILABLE, OK, Status.CONFLICT, Tier.SURFACE, NO_DEPS),
        (CONFLICT, OK, Status.CONFLICT, Tier.SURFACE, OVERRIDE),
    ],
)
def test_status(
    resolve: Outcome | None, surface: Outcome | None, status: Status, deepest: Tier | None, of: Cell
) -> None:
    verdict = _judged(resolve, surface, of)
    assert (verdict.status, verdict.deepest) == (status, deepest)
    # Both axes are always there, whatever the status.
    assert (verdict.resolvable, verdict.works) == (resolve or UNTESTED, surface or UNTESTED)


IMPORT, FEATURE = Effect.BREAKS_IMPORT, Effect.BREAKS_FEATURE


@pytest.mark.parametrize(
    ("outcome", "findings", "status", "features"),
    [
        (BROKEN, [finding(IMPORT)], Status.BROKEN, ()),
        (BROKEN, [finding(IMPORT, certain=False)], Status.WORKS, ()),
        (BROKEN, [finding(IMPORT, certain=False), finding(FEATURE, feature="fp8")], Status.DEGRADED, ("fp8",)),
        (BROKEN, [finding(IMPORT), finding(FEATURE, feature="lora")], Status.BROKEN, ("lora",)),
        (DEGRADED, [finding(FEATURE, feature="b"), finding(Effect.DEGRADES, feature="a")], Status.DEGRADED, ("a", "b")),
        (DEGRADED, [finding(FEATURE, feature="b", certain=False)], Status.WORKS, ()),
        (DEGRADED, [finding(Effect.GUARDED, feature="b")], Status.WORKS, ()),
        (DEGRADED, [finding(IMPORT)], Status.DEGRADED, ()),
        (BROKEN, [replace(finding(FEATURE, feature="trainer"), default_path=True)], Status.BROKEN, ("trainer",)),
        (BROKEN, [replace(finding(IMPORT, feature="a"), kind=Kind.PACKAGE_ABSENT)], Status.WORKS, ()),
        (BROKEN, [], Status.BROKEN, ()),
        (OK, [finding(IMPORT, certain=False)], Status.WORKS, ()),
    ],
)
def test_only_certain_findings_decide(
    outcome: Outcome, findings: list[Finding], status: Status, features: tuple[str, ...]
) -> None:
    seen = [
        observation(PAIR.name, Tier.RESOLVE),
        observation(PAIR.name, Tier.SURFACE, outcome, findings=findings),
    ]
    verdict = judge(PAIR, seen)
    assert (verdict.status, verdict.features) == (status, features)
    if status is Status.WORKS and outcome is not OK:
        assert verdict.reasons == (f"surface: not certain, so it decides nothing: {outcome} for a reason",)


@pytest.mark.parametrize(
    ("resolve", "surface", "of", "reasons"),
    [
        (OK, OK, PAIR, ()),
        (CONFLICT, BROKEN, PAIR, ("resolve: conflict for a reason", "surface: broken for a reason")),
        (UNTESTED, BROKEN, PAIR, ("surface: broken for a reason", "resolve untested: untested for a reason")),
        (OK, None, PAIR, ("it resolves; whether the code fits was not tried (no deeper tier was asked)",)),
        (OK, UNTESTED, PAIR, ("it resolves; whether the code fits was not tried (untested for a reason)",)),
        (CONFLICT, UNTESTED, PAIR, ("resolve: conflict for a reason", "surface untested: untested for a reason")),
        (
            CONFLICT,
            UNTESTED,
            NO_DEPS,
            (
                "it may be installed so; whether the code fits was not tried (untested for a reason)",
                "resolve: conflict for a reason (set aside: installed with --no-deps)",
                "deviation: no-deps (as verl's image)",
            ),
        ),
        (None, None, PAIR, ("nothing was asked",)),
        (UNTESTED, None, PAIR, ("resolve: untested for a reason",)),
        (OK, OK, OVERRIDE, ("deviation: override numpy<2",)),
        (
            CONFLICT,
            OK,
            NO_DEPS,
            (
                "resolve: conflict for a reason (set aside: installed with --no-deps)",
                "deviation: no-deps (as verl's image)",
            ),
        ),
    ],
)
def test_reasons(resolve: Outcome | None, surface: Outcome | None, of: Cell, reasons: tuple[str, ...]) -> None:
    assert _judged(resolve, surface, of).reasons == reasons


def test_the_latest_answer_of_each_probe_counts() -> None:
    old = observation(PAIR.name, Tier.RESOLVE, CONFLICT, at=AT - timedelta(days=1))
    new = observation(PAIR.name, Tier.RESOLVE, OK)
    for seen in itertools.permutations([old, new]):
        assert judge(PAIR, seen).evidence == (new,)


def test_deeper_tiers_count_and_name_their_machine() -> None:
    seen = [
        observation(PAIR.name, Tier.GPU, BROKEN, probe="ppo-step", machine="1x H200", at=AT + timedelta(hours=1)),
        observation(PAIR.name, Tier.GPU, OK, probe="a-import", machine="1x H200"),
        observation(PAIR.name, Tier.RESOLVE),
    ]
    verdict = judge(PAIR, seen)
    assert (verdict.status, verdict.deepest, verdict.machine) == (Status.BROKEN, Tier.GPU, "1x H200")
    assert verdict.at == AT + timedelta(hours=1)
    worst = verdict.observation(Tier.GPU)
    assert worst is not None
    assert worst.question.probe == "ppo-step"
    assert verdict.observation(Tier.BENCH) is None


@given(
    st.lists(st.tuples(st.sampled_from([Tier.RESOLVE, Tier.SURFACE, Tier.GPU]), st.sampled_from(Outcome)), max_size=6)
)
def test_a_verdict_never_hides_a_break_and_never_invents_one(seen: list[tuple[Tier, Outcome]]) -> None:
    shown = [observation(PAIR.name, tier, outcome, probe=str(number)) for number, (tier, outcome) in enumerate(seen)]
    verdict = judge(PAIR, shown)
    outcomes = {outcome for _, outcome in seen}
    assert (verdict.deepest is None) == (outcomes <= {UNTESTED})
    if verdict.status is Status.WORKS:
        assert verdict.works is OK
        assert verdict.resolvable in (OK, UNTESTED)
    assert (verdict.status in (Status.BROKEN, Status.CONFLICT)) <= bool(outcomes - {OK, UNTESTED})


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([(OK, OK)], 0),
        ([(OK, OK), (OK, DEGRADED), (UNTESTED, UNTESTED)], 0),
        ([(OK, None)], 0),
        ([(OK, UNTESTED), (None, None)], 0),
        ([(OK, OK), (OK, BROKEN)], 1),
        ([(OK, None), (CONFLICT, None)], 1),
        ([(CONFLICT, OK)], 1),
        ([(UNTESTED, UNTESTED)], None),
        ([(None, None), (UNTESTED, None)], None),
        ([], None),
    ],
)
def test_exit_code(outcomes: list[tuple[Outcome | None, Outcome | None]], code: int | None) -> None:
    verdicts = [_judged(resolve, surface) for resolve, surface in outcomes]
    if code is None:
        cells = "cell was" if len(outcomes) == 1 else "cells were"
        with pytest.raises(NothingRanError, match=f"0 of {len(outcomes)} {cells} tried") as caught:
            exit_code(verdicts)
        assert caught.value.exit_code == 10
    else:
        assert exit_code(verdicts) == code


def test_json_shows_both_axes_the_deviation_and_the_evidence() -> None:
    of = replace(NO_DEPS, as_of=AT, reason="what the image has", open_axes=(OpenAxis(axis=Axis.RAY),))
    seen = [observation(of.name, Tier.RESOLVE, CONFLICT), observation(of.name, Tier.SURFACE, OK)]
    data = judge(of, seen).to_json()
    assert (data["status"], data["resolvable"], data["works"], data["deepest"]) == (
        "works",
        "conflict",
        "ok",
        "surface",
    )
    assert data["axes"] == {"verl": "0.9.1", "vllm": "0.24.0"}
    assert (data["open"], data["deviation"]) == (["ray"], "no-deps (as verl's image)")
    assert (data["as_of"], data["why_here"]) == (AT.isoformat(), "what the image has")
    evidence = data["evidence"]
    assert isinstance(evidence, list)
    assert [item["key"] for item in evidence] == [item.question.key for item in judge(of, seen).evidence]
    nothing = judge(of, []).to_json()
    assert (nothing["deepest"], nothing["at"], nothing["machine"]) == (None, None, "")


@pytest.mark.parametrize(
    ("of", "surface", "locked", "unlooked"),
    [
        (PAIR, {"verl": "0.9.1", "vllm": "0.24.0"}, None, "torch transformers flash-attn ray tensordict"),
        (PAIR, {"verl": "0.9.1", "vllm": "0.24.0", "ray": "2"}, None, "torch transformers flash-attn tensordict"),
        (PAIR, {"verl": "0.9.1", "vllm": "0.24.0", "ray": "2"}, {"vllm": "0.24.0", "ray": "2", "numpy": "1"}, ""),
        (PAIR, {"verl": "0.9.1", "vllm": "0.24.0"}, {"ray": "2"}, "torch transformers flash-attn ray tensordict"),
        (
            NO_DEPS,
            {"verl": "0.9.1", "vllm": "0.24.0"},
            {"verl": "0.9.1", "vllm": "0.24.0"},
            "torch transformers flash-attn ray tensordict",
        ),
        (PAIR, None, {"ray": "2"}, ""),
    ],
)
def test_what_was_not_looked_at_is_known(
    of: Cell, surface: dict[str, str] | None, locked: dict[str, str] | None, unlooked: str
) -> None:
    seen = []
    if surface is not None:
        seen.append(observation(of.name, Tier.SURFACE, OK, detail={"versions": surface}))
    if locked is not None:
        seen.append(observation(of.name, Tier.RESOLVE, OK, detail={"versions": locked}))
    assert " ".join(judge(of, seen).unlooked) == unlooked


def test_what_an_environment_lacked_is_a_deviation_wherever_the_cell_is_shown() -> None:
    question = Question(cell=PAIR.name, probe="install", tier=Tier.IMPORT, tool="t", reads={})
    left_out = {"tilelang": "0.1.9", "flashinfer-python": "0.6.12"}
    machine = "x86_64, 16 cores, 126 GiB, 1 x NVIDIA H200"
    seen = Observation(question=question, outcome=Outcome.OK, detail={"left_out": left_out}, machine=machine, at=AT)
    whole = Observation(question=question, outcome=Outcome.OK, detail={"left_out": {}}, at=AT)
    words = "on NVIDIA H200 without flashinfer-python 0.6.12, tilelang 0.1.9"
    assert deviation_words(PAIR, [seen, whole, seen]) == words
    assert f"deviation: {words}" in judge(PAIR, [seen]).reasons
    assert deviation_words(PAIR, [whole]) == ""
    both = replace(PAIR, deviation=Deviation(no_deps=True, reason="as the image is"))
    assert deviation_words(both, [seen]) == f"no-deps (as the image is); {words}"


def test_that_a_cell_could_be_installed_is_no_pass() -> None:
    """Seen in the evidence of an H200: installed, and each probe of it untested; it was shown as `works`."""
    installed = observation(PAIR.name, Tier.IMPORT, OK, probe="install")
    untested = observation(PAIR.name, Tier.GPU, UNTESTED, probe="test_distributed.py::test_sum_over_two_gpus")
    verdict = judge(PAIR, [installed, untested])
    assert (verdict.status, verdict.works, verdict.deepest) == (Status.UNTESTED, UNTESTED, None)
    assert {item.outcome for item in verdict.tried} == {UNTESTED}
    imported = observation(PAIR.name, Tier.IMPORT, OK, probe="test_install.py::test_imports")
    assert judge(PAIR, [installed, imported]).status is Status.WORKS
    # That it cannot be installed is an answer.
    refused = observation(PAIR.name, Tier.IMPORT, BROKEN, probe="install")
    assert judge(PAIR, [refused]).status is Status.BROKEN
