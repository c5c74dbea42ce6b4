"""How the records stand by what was observed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from matrix.failure import Failure, Family, Reach
from matrix.observe import Observation, Question
from matrix.standing import Standing, by_family, stands
from matrix.tier import Outcome, Tier
from tests.unit.failure_samples import AIMV2, changed

YES = {"failure": AIMV2.id, "seen": "reproduced"}
NOT = {"failure": AIMV2.id, "seen": "absent"}
AGAINST = {"failure": AIMV2.id, "seen": "absent", "disagreement": "predicted and not seen"}
WIDER = {"failure": AIMV2.id, "seen": "reproduced", "disagreement": "seen and not predicted"}
OTHER = {"failure": AIMV2.id, "seen": "other", "disagreement": "another reason"}
SKIPPED = {"failure": AIMV2.id, "seen": ""}


def _seen(cell: str, detail: Mapping[str, object], probe: str = "p") -> Observation:
    question = Question(cell=cell, probe=probe, tier=Tier.IMPORT, tool="t", reads={})
    at = datetime(2026, 11, 30, tzinfo=UTC)
    return Observation(question=question, outcome=Outcome.OK, detail=detail, at=at)


@pytest.mark.parametrize(
    ("seen", "standing", "line"),
    [
        ([], Standing.UNTESTED, ""),
        ([("a", SKIPPED)], Standing.UNTESTED, ""),
        ([("a", {})], Standing.UNTESTED, ""),
        ([("a", NOT)], Standing.ABSENT, "its probe ran only where it is not predicted"),
        ([("a", NOT), ("b", YES), ("c", YES)], Standing.REPRODUCED, "b, c"),
        ([("a", YES), ("b", AGAINST)], Standing.REFUTED, "b"),
        ([("a", AGAINST), ("a", YES)], Standing.REPRODUCED, "a"),
        ([("a", WIDER), ("b", OTHER)], Standing.REFUTED, "a"),
        ([("a", YES), ("b", OTHER)], Standing.UNSETTLED, "b"),
    ],
)
def test_a_record_stands_by_the_latest_of_each_probe_and_cell(
    seen: list[tuple[str, dict[str, object]]], standing: Standing, line: str
) -> None:
    (found,) = stands([AIMV2], [_seen(cell, detail) for cell, detail in seen])
    assert (found.standing, found.line) == (standing, line)


@pytest.mark.parametrize(
    ("failure", "standing"),
    [
        (changed(testable=Reach.GPU, probe="", unprobed="needs a GPU"), Standing.ELSEWHERE),
        (changed(testable=Reach.GPUS), Standing.ELSEWHERE),
        (changed(probe="", unprobed="needs a hub"), Standing.UNPROBED),
    ],
)
def test_what_cannot_be_tried_here_says_why(failure: Failure, standing: Standing) -> None:
    (found,) = stands([failure], [])
    assert found.standing is standing
    assert found.line == (failure.unprobed or "takes several GPUs, and nothing is recorded of one")
    assert found.told == f"{standing}: {found.line}"


def test_a_standing_tells_where_and_when_and_whether_that_was_elsewhere() -> None:
    failure = changed()
    here = _seen("cell-b", YES)
    h200 = "x86_64, 1 x NVIDIA H200"
    there = [replace(_seen(name, YES), shipped="gpu", machine=h200) for name in ("cell-c", "cell-a")]
    (found,) = stands([failure], [here, *there])
    told = found.told
    assert told.startswith("reproduced on cell-a, cell-c (NVIDIA H200, ")
    assert told.endswith(")")
    assert told.count("shipped evidence") == 1
    assert "; cell-b (" in told


def test_families_are_counted() -> None:
    other = changed(id="x", family=Family.RAY)
    counts = by_family(stands([AIMV2, other], [_seen("a", YES)]))
    assert counts[Family.INSPECT][Standing.REPRODUCED] == 1
    assert counts[Family.RAY][Standing.UNTESTED] == 1
    assert sum(sum(row.values()) for row in counts.values()) == 2


INSIDE, OUTSIDE = "vllm0.9.2-tf4.57.6", "vllm0.24.0-tf5.9.0"
"""A cell that the record's ranges hold, and one that they do not."""


@pytest.mark.parametrize(
    ("cell", "detail", "standing"),
    [
        (OUTSIDE, AGAINST, Standing.ABSENT),
        (INSIDE, WIDER, Standing.REPRODUCED),
        (INSIDE, AGAINST, Standing.REFUTED),
        (OUTSIDE, WIDER, Standing.REFUTED),
        (OUTSIDE, YES, Standing.REFUTED),
        (INSIDE, NOT, Standing.REFUTED),
        ("vllm0.9.2", AGAINST, Standing.REFUTED),
        ("vllm0.9.2", NOT, Standing.ABSENT),
    ],
)
def test_a_range_that_was_put_right_since_is_judged_anew(
    cell: str, detail: dict[str, object], standing: Standing
) -> None:
    (found,) = stands([AIMV2], [_seen(cell, detail)])
    assert found.standing is standing
