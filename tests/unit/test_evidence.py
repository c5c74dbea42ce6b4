"""The evidence that travels along: what it adds to a verdict, and that it is never taken for what was tried here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

import matrix.evidence
from matrix.cell import Cell, parse_name
from matrix.errors import UsageError
from matrix.evidence import Evidence, alike, joined, shipped
from matrix.observe import Observation
from matrix.run import recall
from matrix.store import Store
from matrix.tier import Outcome, Status, Tier
from matrix.tried import short, tried
from matrix.verdict import Verdict, judge
from tests.unit import gpu_samples
from tests.unit.gpu_samples import CELL, LOCK, probe, trial_of, visit
from tests.unit.run_fakes import AT, cell, observation
from tests.unit.test_run import _job

LATER = AT + timedelta(days=1)
PAIR = cell(verl="0.9.1", vllm="0.24.0")


def of_pair(*items: Observation) -> list[Observation]:
    """Return the observations as those of PAIR."""
    return [replace(item, question=replace(item.question, cell=PAIR.name)) for item in items]


def evidence(tmp_path: Path, *items: Observation, name: str = "gpu") -> Evidence:
    """Return the evidence of one store that holds these."""
    Store(tmp_path / name).add(*of_pair(*items))
    return Evidence([tmp_path / name])


def resolved(lock: str = LOCK) -> Observation:
    return observation(PAIR.name, Tier.RESOLVE, detail={"lock": lock})


def verdict(here: Sequence[Observation], there: Evidence | None) -> Verdict:
    return judge(PAIR, joined(PAIR, of_pair(*here), there))


def test_a_tier_that_was_not_tried_here_is_told_with_machine_and_date(tmp_path: Path) -> None:
    found = verdict([resolved(), observation(PAIR.name, Tier.SURFACE)], evidence(tmp_path, *visit()))
    assert found.status is Status.DEGRADED
    assert found.deepest is Tier.SURFACE
    assert (found.machine, found.at) == ("static", AT)
    assert found.reasons == (
        "gpu: known failure critic-fa2: what critic-fa2 is (shipped evidence, NVIDIA H200, 2026-11-30)",
        "gpu: degraded, 3 of 4 probes, NVIDIA H200, 2026-11-30, shipped evidence",
        "import: ok, NVIDIA H200, 2026-11-30, shipped evidence",
        "gpu untested, 1 of 4 probes, on the machine of the shipped evidence: needs 2 GPUs; this machine has 1 GPU",
    )
    assert [(item.tier, item.shipped) for item in found.tried] == [
        (Tier.RESOLVE, ""),
        (Tier.SURFACE, ""),
        (Tier.IMPORT, "gpu"),
        (Tier.GPU, "gpu"),
    ]
    assert [item.tier for item in found.recorded] == [Tier.IMPORT, Tier.GPU]


def test_without_evidence_a_tier_that_cannot_be_tried_says_why(tmp_path: Path) -> None:
    aside = observation(PAIR.name, Tier.GPU, Outcome.UNTESTED, "this machine has no GPU")
    found = verdict([resolved(), observation(PAIR.name, Tier.SURFACE), aside], Evidence())
    assert found.status is Status.WORKS
    assert found.reasons == ("gpu untested: this machine has no GPU",)
    with_it = verdict([resolved(), observation(PAIR.name, Tier.SURFACE), aside], evidence(tmp_path, *visit()))
    assert not any("this machine has no GPU" in reason for reason in with_it.reasons)


BAD = probe("test_x.py::test_y", Outcome.BROKEN, "dies", at=LATER)
GOOD = probe("test_x.py::test_y")
SKIPPED = probe("test_x.py::test_y", Outcome.UNTESTED, "needs 1 GPU; this machine has no GPU", at=LATER)


@pytest.mark.parametrize(
    ("here", "there", "outcome", "from_here"),
    [
        ([GOOD], [BAD], Outcome.OK, True),
        ([BAD], [GOOD], Outcome.BROKEN, True),
        ([SKIPPED], [GOOD], Outcome.OK, False),
        ([SKIPPED], [], Outcome.UNTESTED, True),
        ([SKIPPED], [SKIPPED], Outcome.UNTESTED, False),
        ([], [BAD], Outcome.BROKEN, False),
        ([], [GOOD, BAD], Outcome.BROKEN, False),
        ([], [BAD, replace(GOOD, at=AT - timedelta(days=9))], Outcome.BROKEN, False),
        # Of the set that the cell resolves to now, though it is older than that of another.
        ([], [GOOD, probe("test_x.py::test_y", Outcome.BROKEN, "dies", at=LATER, lock="sha256:2")], Outcome.OK, False),
        ([], [GOOD, SKIPPED], Outcome.OK, False),
    ],
)
def test_what_was_seen_here_goes_before_what_is_recorded(
    here: list[Observation], there: list[Observation], outcome: Outcome, from_here: bool, tmp_path: Path
) -> None:
    found = verdict([resolved(), *here], evidence(tmp_path, *there))
    (item,) = [item for item in found.evidence if item.question.tier is Tier.GPU]
    assert (item.outcome, not item.shipped) == (outcome, from_here)


def test_another_lock_is_told(tmp_path: Path) -> None:
    (gpu,) = verdict([resolved("sha256:9")], evidence(tmp_path, GOOD)).recorded
    assert gpu.other_lock
    assert gpu.line == "gpu: ok, NVIDIA H200, 2026-11-30, shipped evidence, another lock"
    (gpu,) = verdict([], evidence(tmp_path / "x", GOOD)).recorded
    assert not gpu.other_lock


def test_static_tiers_are_taken_from_the_evidence_only_where_none_was_asked(tmp_path: Path) -> None:
    static = [resolved(), observation(PAIR.name, Tier.SURFACE, Outcome.BROKEN)]
    there = evidence(tmp_path, *static, name="cpu")
    assert verdict([], there).status is Status.BROKEN
    assert verdict([], there).deepest is None
    assert verdict([], there).reasons[0] == "surface: broken for a reason (shipped evidence, 2026-11-30)"
    assert verdict([resolved(), observation(PAIR.name, Tier.SURFACE)], there).recorded == ()
    down = observation(PAIR.name, Tier.SURFACE, Outcome.UNTESTED, "the index did not answer")
    assert [item.tier for item in verdict([down], there).recorded] == [Tier.RESOLVE]


def test_a_contradiction_in_the_evidence_is_shown_as_that() -> None:
    detail = trial_of("x", "yes", "absent", "predicted and not seen")
    item = replace(of_pair(probe("test_x.py::test_y", detail=detail))[0], shipped="gpu")
    (first, *_) = judge(PAIR, [item]).reasons
    assert first == (
        "gpu: record wrong: x: predicted and not seen; affects of x: vllm (shipped evidence, NVIDIA H200, 2026-11-30)"
    )


def test_measurements_judge_nothing_and_each_fingerprint_is_kept(tmp_path: Path) -> None:
    other = {**gpu_samples.FACTS, "driver": "590.1"}
    unable = gpu_samples.threshold(found="unable", largest=None, smallest=None)
    items = [gpu_samples.machine(), gpu_samples.machine(facts=other), unable, gpu_samples.trial(0.9, 1)]
    found = verdict([resolved(), observation(PAIR.name, Tier.SURFACE)], evidence(tmp_path, *items))
    assert (found.status, found.reasons, found.recorded) == (Status.WORKS, (), ())
    assert [item.question.probe for item in found.evidence][2:] == ["machine", "machine", unable.question.probe]


def test_the_shipped_stores_are_found_and_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cpu", "gpu"):
        Store(tmp_path / name).add(*of_pair(GOOD))
    monkeypatch.setattr(matrix.evidence, "SHIPPED", tmp_path)
    assert [item.shipped for item in shipped()] == ["cpu", "gpu"]
    assert [item.shipped for item in shipped(str(tmp_path / "gpu"))] == ["gpu"]
    assert list(shipped("none")) == []
    with pytest.raises(UsageError, match="holds no evidence"):
        shipped(str(tmp_path / "nowhere"))
    monkeypatch.setattr(matrix.evidence, "SHIPPED", tmp_path / "nowhere")
    assert list(shipped()) == []


def test_the_shipped_evidence_lies_where_an_installed_package_finds_it() -> None:
    assert Path(matrix.evidence.__file__).parents[1] / "reports" / "evidence" == matrix.evidence.SHIPPED
    assert {item.shipped for item in shipped()} >= {"cpu"}


def test_lines_that_are_none_are_told(tmp_path: Path) -> None:
    there = evidence(tmp_path, GOOD)
    with (tmp_path / "gpu" / "observations.jsonl").open("a") as file:
        file.write("no observation\n")
    assert there.notes == ("1 of the lines of the evidence `gpu` passed over: not observations.",)
    assert Evidence().notes == ()


def test_a_run_and_a_report_take_the_evidence_along(tmp_path: Path) -> None:
    from matrix.run import run

    there = evidence(tmp_path / "ev", *visit())
    aside = {PAIR.name: {Tier.GPU: "this machine has no GPU"}}
    one = replace(_job(tmp_path, (PAIR,)), evidence=there, aside=aside)
    for result in (run(one), recall(one)):
        (found,) = result.verdicts
        assert [item.tier for item in found.recorded] == [Tier.IMPORT, Tier.GPU]
        assert (result.ran, result.recorded) == (1, 1)
    (bare,) = run(replace(one, evidence=None)).verdicts
    assert bare.reasons == ("gpu untested: this machine has no GPU",)
    asked = replace(one, tiers=frozenset({Tier.RESOLVE, Tier.SURFACE}), evidence=None, aside={})
    assert run(asked).verdicts[0].reasons == ()


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (cell(verl="0.9.1", vllm="0.24.0"), 1),
        (cell(verl="0.9.1", vllm="0.24.0", torch="2.11.0"), 1),
        (cell(verl="0.9.1", vllm="0.26.0"), 0),
        (cell(verl="0.9.1", vllm="0.24.0", ray="2.60.0"), 0),
        (parse_name(CELL), 0),
    ],
    ids=lambda value: value.name if isinstance(value, Cell) else str(value),
)
def test_other_cells_that_hold_the_same_versions_are_told_of(asked: Cell, told: int, tmp_path: Path) -> None:
    static = observation("verl0.9.1-vllm0.24.0-tf5.9.0", Tier.SURFACE)
    Store(tmp_path).add(*visit(), static, observation("no name of a cell", Tier.GPU, probe="compat/a.py::b"))
    lines = alike(asked, Evidence([tmp_path]))
    assert lines == told * (
        f"{CELL}, which holds these versions: gpu: degraded, 3 of 4 probes, NVIDIA H200, 2026-11-30, shipped evidence",
    )


@pytest.mark.parametrize(
    ("machine", "told"),
    [
        ("x86_64, 16 cores, 128 GiB, 1 x NVIDIA H200", "NVIDIA H200"),
        ("x86_64, 16 cores, 128 GiB, 2 x NVIDIA H200", "2 x NVIDIA H200"),
        ("x86_64, 2 cores, 24 GiB, no GPU", "x86_64, 2 cores, 24 GiB, no GPU"),
        ("static", "static"),
    ],
)
def test_a_machine_is_told_by_its_gpus(machine: str, told: str) -> None:
    assert short(machine) == told


def test_what_was_tried_is_plain_data() -> None:
    (item,) = tried([probe("a.py::b"), probe("a.py::c", Outcome.UNTESTED, "why")])
    assert item.to_json() == {
        "tier": "gpu",
        "shipped": "",
        "outcome": "ok",
        "ran": 1,
        "planned": 2,
        "machines": [gpu_samples.H200],
        "at": AT.isoformat(),
        "seconds": 1.0,
        "other_lock": False,
        "line": "gpu: ok, 1 of 2 probes, NVIDIA H200, 2026-11-30",
    }
    assert CELL


@pytest.mark.parametrize(
    ("cell_name", "disagreement"),
    [("vllm0.26.0-torch2.11.0", None), ("vllm0.24.0-torch2.11.0", "predicted and not seen")],
)
def test_what_contradicted_a_record_is_judged_by_the_record_as_it_is_now(
    tmp_path: Path, cell_name: str, disagreement: str | None
) -> None:
    told = {
        "failure": "nan-exclamation-rollouts",
        "seen": "absent",
        "predicted": "yes",
        "disagreement": "predicted and not seen",
        "proposal": "another range",
    }
    Store(tmp_path / "gpu").add(observation(cell_name, Tier.GPU, probe="compat/p", detail=told))
    (found,) = Evidence([tmp_path / "gpu"]).for_cell(cell_name)
    assert found.detail.get("disagreement") == disagreement
    assert ("proposal" in found.detail) is (disagreement is not None)
