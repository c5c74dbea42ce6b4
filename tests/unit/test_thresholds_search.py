"""The search: it finds the edge, confirms both ends, names what flickers, and shows where more is not worse."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.thresholds.ladder import FINENESS, fractions, ladder
from matrix.thresholds.search import EnoughError, Found, Search, search
from matrix.thresholds.trial import Ending, Trial

VALUES = ladder(1, 1024)


class Cliff:
    """A card on which values up to `edge` survive; what is asked of it is counted."""

    def __init__(self, edge: float, *, part: str = "actor update", limit: int = 1000) -> None:
        self.edge = edge
        self.part = part
        self.limit = limit
        self.asked: list[tuple[float, bool]] = []

    def survives(self, value: float, fresh: bool) -> bool:
        return value <= self.edge

    def __call__(self, value: float, fresh: bool) -> Trial:
        if len(self.asked) >= self.limit:
            raise EnoughError("the time was up")
        self.asked.append((value, fresh))
        if self.survives(value, fresh):
            return Trial(value=value, ending=Ending.PASS, fresh=fresh, seconds=1.0)
        return Trial(value=value, ending=Ending.FAIL, fresh=fresh, part=self.part, how="OutOfMemoryError")


class Flicker(Cliff):
    """A cliff at which some values survive every other time only."""

    def __init__(self, edge: float, flickering: Sequence[float]) -> None:
        super().__init__(edge)
        self.flickering = flickering

    def survives(self, value: float, fresh: bool) -> bool:
        if value in self.flickering:
            return sum(asked == value for asked, _ in self.asked) % 2 == 1
        return value <= self.edge


@given(edge=st.integers(0, 1100), guess=st.none() | st.integers(1, 1100), repeats=st.integers(1, 3))
def test_edge_is_found_wherever_it_is_and_whatever_was_guessed(edge: int, guess: int | None, repeats: int) -> None:
    cliff = Cliff(edge)
    found = search(VALUES, cliff, predicted=guess, repeats=repeats)
    below = [value for value in VALUES if value <= edge]
    above = [value for value in VALUES if value > edge]
    assert found.largest_pass == (below[-1] if below else None)
    assert found.smallest_fail == (above[0] if above else None)
    assert found.found is (Found.THRESHOLD if below and above else Found.ALL_PASS if below else Found.ALL_FAIL)
    for value in (found.largest_pass, found.smallest_fail):
        if value is not None:
            assert sum(trial.fresh for trial in found.of(value)) == repeats
    assert not found.flaky


@given(edge=st.integers(20, 900), off=st.floats(-0.05, 0.05))
def test_near_prediction_needs_few_trials(edge: int, off: float) -> None:
    cliff = Cliff(edge)
    search(VALUES, cliff, predicted=edge * (1 + off), repeats=1)
    blind = Cliff(edge)
    search(VALUES, blind, repeats=1)
    assert len(cliff.asked) <= 9
    assert len(blind.asked) <= 8 + 2 + 2


@given(
    edge=st.integers(2, 60),
    flickering=st.lists(st.integers(1, 60), max_size=3, unique=True),
    guess=st.none() | st.integers(1, 64),
)
def test_flickering_values_never_count_as_surviving(edge: int, flickering: list[int], guess: int | None) -> None:
    found = search(ladder(1, 64), Flicker(edge, flickering), predicted=guess, repeats=2)
    assert found.largest_pass not in flickering or len(found.of(found.largest_pass)) < 2
    assert all(trial.passed for trial in found.of(found.largest_pass))
    if found.found is Found.THRESHOLD:
        assert not all(trial.passed for trial in found.of(found.smallest_fail))
        assert set(found.flaky) <= set(flickering)


def test_edge_that_flickers_moves_down_to_what_held_every_time() -> None:
    found = search(ladder(1, 64), Flicker(20, [19, 20]), repeats=2)
    assert (found.found, found.largest_pass, found.smallest_fail) == (Found.THRESHOLD, 18, 19)
    assert 19 in found.flaky


class Residue(Cliff):
    """A used process holds more than a fresh one, so that the edge lies lower there."""

    def survives(self, value: float, fresh: bool) -> bool:
        return value <= (self.edge if fresh else self.edge - 5)


def test_fresh_process_outranks_a_used_one() -> None:
    found = search(ladder(1, 64), Residue(30), repeats=1)
    assert (found.largest_pass, found.smallest_fail, found.flaky) == (30, 31, ())


class Islands(Cliff):
    """Values survive on islands."""

    def __init__(self, *islands: tuple[int, int]) -> None:
        super().__init__(0)
        self.islands = islands

    def survives(self, value: float, fresh: bool) -> bool:
        return any(low <= value <= high for low, high in self.islands)


@pytest.mark.parametrize(
    ("islands", "guess", "reason"),
    [
        ([(20, 30)], 30, "30 survives and 15 does not, though it is less"),
        ([(1, 30), (38, 64)], 30, "41 survives and 31 does not, though it is less"),
    ],
)
def test_pass_above_a_fail_is_no_threshold(islands: list[tuple[int, int]], guess: int, reason: str) -> None:
    found = search(ladder(1, 64), Islands(*islands), predicted=guess, repeats=1)
    assert found.found is Found.NOT_MONOTONE
    assert found.line == f"not monotone: {found.reason}"
    assert (found.largest_pass, found.smallest_fail) == (None, None)
    assert found.found.answers


@pytest.mark.parametrize("guess", [None, 20])
def test_window_is_searched_for_its_upper_end(guess: int | None) -> None:
    found = search((5, 10, 15, 20, 25, 30, 35), Islands((10, 25)), predicted=guess, repeats=1)
    assert (found.found, found.largest_pass, found.smallest_fail) == (Found.THRESHOLD, 25, 30)


def test_far_values_are_tried_in_the_process_of_the_lower_end() -> None:
    cliff = Cliff(300)
    search(VALUES, cliff, predicted=290, repeats=1)
    assert cliff.asked[-4:] == [(296, True), (148, False), (400, False), (304, True)]


def test_death_before_the_knob_counts_tries_the_smallest_at_once() -> None:
    cliff = Cliff(0, part="trainer init")
    found = search(VALUES, cliff, predicted=300, repeats=1)
    assert [value for value, _ in cliff.asked][:2] == [280, 1]
    assert found.line == "all fail: 1, the smallest, ends in OutOfMemoryError in trainer init"


def test_unable_trial_ends_the_search_with_its_reason() -> None:
    def ask(value: float, fresh: bool) -> Trial:
        return Trial(value=value, ending=Ending.UNABLE, how="ImportError", text="Traceback\n\nImportError: no verl\n")

    found = search(VALUES, ask)
    assert (found.found, found.reason) == (Found.UNABLE, "128: ImportError: no verl")
    assert not found.found.answers
    silent = search((1,), lambda value, fresh: Trial(value=value, ending=Ending.UNABLE, how="exit code 1"))
    assert silent.reason == "1: exit code 1: nothing was said"


@pytest.mark.parametrize("limit", range(8))
def test_search_that_is_cut_short_keeps_what_it_has_and_goes_on(limit: int) -> None:
    whole = Cliff(300)
    expected = search(VALUES, whole, predicted=290, repeats=2)
    stored: dict[tuple[float, bool], list[Trial]] = {}

    def recall(value: float, fresh: bool, number: int) -> Trial | None:
        known = stored.get((value, fresh), [])
        return known[number] if number < len(known) else None

    first = Cliff(300, limit=limit)
    cut = search(VALUES, _storing(first, stored), predicted=290, repeats=2, recall=recall)
    assert cut.found is Found.CUT_SHORT
    assert cut.reason.startswith("the time was up; so far ")
    second = Cliff(300)
    again = search(VALUES, _storing(second, stored), predicted=290, repeats=2, recall=recall)
    assert (again.largest_pass, again.smallest_fail) == (expected.largest_pass, expected.smallest_fail)
    assert again.recalled == limit
    assert len(second.asked) == len(whole.asked) - limit


def _storing(cliff: Cliff, stored: dict[tuple[float, bool], list[Trial]]) -> Callable[[float, bool], Trial]:
    def ask(value: float, fresh: bool) -> Trial:
        trial = cliff(value, fresh)
        stored.setdefault((value, fresh), []).append(trial)
        return trial

    return ask


@pytest.mark.parametrize(
    ("edge", "line"),
    [
        (300, "296 survives, 304 does not: OutOfMemoryError in actor update"),
        (2000, "1024, the largest that was to be tried, survives"),
        (0, "all fail: 1, the smallest, ends in OutOfMemoryError in actor update"),
    ],
)
def test_result_is_told_in_a_line(edge: int, line: str) -> None:
    found: Search = search(VALUES, Cliff(edge), repeats=1)
    assert found.line == line


@pytest.mark.parametrize("values", [(), (2, 1), (1, 1)])
def test_values_that_do_not_rise_are_refused(values: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="rising values"):
        search(values, Cliff(1))


@given(
    unit=st.integers(1, 2048), low=st.integers(1, 50), span=st.integers(0, 3000)
)  # fmt: skip
def test_ladder_rises_in_units_and_no_step_is_wide(unit: int, low: int, span: int) -> None:
    values = ladder(low * unit, (low + span) * unit, unit)
    assert values[0] == low * unit
    assert values[-1] == (low + span) * unit
    assert all(value % unit == 0 for value in values)
    for lower, higher in itertools.pairwise(values):
        assert lower < higher <= max(lower + unit, lower * (1 + 1 / FINENESS))


def test_ladder_of_a_thousand_is_short() -> None:
    assert len(VALUES) < 200
    assert VALUES[:66] == (*range(1, 65), 66, 68)


@pytest.mark.parametrize(("low", "high", "unit"), [(0, 4, 1), (4, 2, 1), (3, 8, 2), (2, 7, 2), (1, 2, 0)])
def test_ladder_that_leads_nowhere_is_refused(low: int, high: int, unit: int) -> None:
    with pytest.raises(ValueError, match="no ladder"):
        ladder(low, high, unit)


def test_fractions_are_round() -> None:
    assert fractions(0.05, 0.3, 0.05) == (0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
