"""Bisection: it finds the boundary, reports a range where holes hide it, and asks no more than it must."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from matrix.bisect import Answer, Bisection, Grade, bisect, grade
from matrix.cell import Axis
from matrix.errors import UnknownReleaseError, UsageError
from matrix.tier import Outcome, Tier

GRADES = {"g": Grade.GOOD, "b": Grade.BAD, "-": Grade.HOLE}


def releases(count: int) -> list[Version]:
    return [Version(f"0.{number}.0") for number in range(count)]


def world(grades: str) -> Callable[[Version], Answer[str]]:
    """Return an `ask` that answers by the letter at the version's minor number."""

    def ask(version: Version) -> Answer[str]:
        letter = grades[version.minor]
        return Answer(grade=GRADES[letter], evidence=f"evidence {version}", reason=f"why {letter}{version.minor}")

    return ask


def search(grades: str, known: str = "") -> Bisection[str]:
    versions = releases(len(grades))
    ask = world(grades)
    answers = {versions[int(at)]: ask(versions[int(at)]) for at in known}
    return bisect(Axis.VLLM, versions, versions[0], versions[-1], ask, known=answers)


TABLE: list[tuple[str, list[int]]] = [
    ("gb", [1]),
    ("ggb", [2]),
    ("gbb", [1]),
    ("ggggbbbb", [4]),
    ("ggg-bbbb", [3, 4]),
    ("gg--bbbb", [2, 3, 4]),
    ("g-g-bbbb", [3, 4]),
    ("ggggb-bb", [4]),
    ("g------b", [1, 2, 3, 4, 5, 6, 7]),
    ("gggggggb", [7]),
    ("gbbbbbbb", [1]),
]


@pytest.mark.parametrize(("grades", "candidates"), TABLE, ids=[grades for grades, _ in TABLE])
def test_the_boundary_or_the_range_that_holds_it(grades: str, candidates: list[int]) -> None:
    found = search(grades)
    assert [version.minor for version in found.candidates] == candidates
    assert found.lowest_bad.minor == candidates[-1]
    assert found.last_good.minor == candidates[0] - 1
    assert found.first_bad == (found.lowest_bad if len(candidates) == 1 else None)
    assert found.bad.evidence == f"evidence {found.lowest_bad}"
    assert not found.warnings


@st.composite
def monotone(draw: st.DrawFn) -> tuple[str, int]:
    """Return a row of grades, good then bad, with holes punched between the ends, and where bad really begins."""
    count = draw(st.integers(2, 70))
    boundary = draw(st.integers(1, count - 1))
    row = ["g"] * boundary + ["b"] * (count - boundary)
    for at in draw(st.sets(st.integers(1, count - 2), max_size=count) if count > 2 else st.just(set[int]())):
        row[at] = "-"
    return "".join(row), boundary


@given(monotone())
def test_the_true_boundary_is_always_among_the_candidates(case: tuple[str, int]) -> None:
    grades, boundary = case
    found = search(grades)
    minors = [version.minor for version in found.candidates]
    assert boundary in minors
    # A range is never wider than the holes force: all but its last release are holes, and the one before is good.
    assert {grades[at] for at in minors[:-1]} <= {"-"}
    assert (grades[minors[0] - 1], grades[minors[-1]]) == ("g", "b")
    assert found.warnings == ()


@given(monotone())
def test_questions_stay_within_the_promise_and_none_is_asked_twice(case: tuple[str, int]) -> None:
    grades, _ = case
    found = search(grades)
    between, holes = len(grades) - 2, grades.count("-")
    assert len(found.asked) <= 2 + holes + (math.floor(math.log2(between)) + 1 if between else 0)
    assert len(set(found.asked)) == len(found.asked)
    assert set(found.holes) == {version for version in found.asked if grades[version.minor] == "-"}
    assert search(grades) == found


@given(st.text("gb-", min_size=0, max_size=30))
def test_on_any_row_the_answer_is_a_real_change_from_good_to_bad(middle: str) -> None:
    grades = f"g{middle}b"
    found = search(grades)
    assert grades[found.last_good.minor] == "g"
    assert grades[found.lowest_bad.minor] == "b"
    assert set(grades[found.last_good.minor + 1 : found.lowest_bad.minor]) <= {"-"}


def test_what_is_known_is_not_asked_again() -> None:
    found = search("ggggbbbb", known="047")
    assert {version.minor for version in found.asked}.isdisjoint({0, 4, 7})
    assert found.first_bad == Version("0.4.0")


@pytest.mark.parametrize(
    ("grades", "known", "warnings"),
    [
        ("gbggggggb", "1", ("vllm 0.1.0 is bad, though 0.7.0 after it is good",)),
        ("gbbbbbbgb", "7", ("vllm 0.7.0 is good, though 0.1.0 before it is bad",)),
        ("gbbbbbbgb", "", ()),
    ],
)
def test_a_contradiction_is_told_when_it_is_seen(grades: str, known: str, warnings: tuple[str, ...]) -> None:
    assert search(grades, known).warnings == warnings


@pytest.mark.parametrize(
    ("grades", "message"),
    [
        ("bbb", "vllm 0.0.0 was said to be good, but it is bad.\nwhy b0\nName another release with --good."),
        ("ggg", "vllm 0.2.0 was said to be bad, but it is good.\nwhy g2\nName another release with --bad."),
        ("-gb", "vllm 0.0.0 was said to be good, but it cannot be judged.\nwhy -0"),
        ("gb-", "vllm 0.2.0 was said to be bad, but it cannot be judged."),
    ],
)
def test_an_end_that_is_not_what_it_was_said_to_be(grades: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        search(grades)
    assert message in str(caught.value)


def test_ends_must_exist_and_be_in_order() -> None:
    versions = releases(4)
    with pytest.raises(UnknownReleaseError, match=r"vllm==0\.9\.0 does not exist on the index") as caught:
        bisect(Axis.VLLM, versions, versions[0], Version("0.9.0"), world("gggb"))
    assert caught.value.near[0] == "0.3.0"
    for good, bad in ((3, 0), (1, 1)):
        with pytest.raises(UsageError, match="must be older than the bad one"):
            bisect(Axis.VLLM, versions, versions[good], versions[bad], world("gggb"))


def test_only_releases_between_the_ends_are_asked_about_in_version_order() -> None:
    versions: Sequence[Version] = list(reversed(releases(8)))
    found = bisect(Axis.VLLM, versions, Version("0.2"), Version("0.6"), world("bbgggbbg"))
    assert found.first_bad == Version("0.5.0")
    assert all(2 <= version.minor <= 6 for version in found.asked)


def test_the_result_reads_as_a_line_and_as_data() -> None:
    exact, ranged = search("ggb"), search("g-b")
    assert exact.line == "vllm 0.2.0 is the first bad release: why b2"
    assert ranged.line == "the first bad release of vllm is one of 0.1.0, 0.2.0; 0.2.0 is bad: why b2"
    assert ranged.data == {
        "axis": "vllm",
        "first_bad": None,
        "last_good": "0.0.0",
        "lowest_bad": "0.2.0",
        "reason": "why b2",
        "candidates": ["0.1.0", "0.2.0"],
        "holes": {"0.1.0": "why -1"},
        "asked": ["0.0.0", "0.2.0", "0.1.0"],
        "warnings": [],
    }
    assert exact.data["first_bad"] == "0.2.0"


@pytest.mark.parametrize("outcome", list(Outcome))
@pytest.mark.parametrize("tier", list(Tier))
def test_every_outcome_has_a_grade(outcome: Outcome, tier: Tier) -> None:
    clashes = outcome in (Outcome.CONFLICT, Outcome.BACKTRACKED)
    if outcome in (Outcome.OK, Outcome.DEGRADED):
        expected = Grade.GOOD
    elif outcome is Outcome.BROKEN or (clashes and tier is Tier.RESOLVE):
        expected = Grade.BAD
    else:
        expected = Grade.HOLE
    assert grade(outcome, tier) is expected
