"""A night after a night: what is new, what was fixed, what was flaky, what did not run, each with its cause."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from matrix.cell import Cell
from matrix.errors import IndexUnreachableError, NoSpaceError, ToolError
from matrix.job import Versions
from matrix.nightly.cause import Label
from matrix.nightly.comparison import Kind
from matrix.nightly.lattice import recorded
from matrix.nightly.record import Night
from matrix.observe import Question
from matrix.tier import Outcome, Status, Tier
from tests.unit.fakes import FakeIndex, FakeRelease
from tests.unit.nightly_fakes import NAME, Nights, axes, lock_text
from tests.unit.run_fakes import FakeChecker, cell

OTHER = "verl0.9.1-vllm0.26.0"


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    return Nights(folder=tmp_path)


def test_a_first_night_has_nothing_to_compare_with_and_is_kept(nights: Nights) -> None:
    nights.checker.outcomes = {"0.26.0": Outcome.BROKEN}
    held = nights.hold()
    assert held.comparison.before is None
    assert nights.kinds(held) == {NAME: "unchanged", OTHER: "still failing"}
    assert (held.counts, held.new_failures) == (True, 0)
    assert nights.archive.latest()[0] == held.night


def test_a_night_with_nothing_new_asks_nothing_and_says_so(nights: Nights) -> None:
    nights.hold()
    asked = len(nights.resolver.asked), len(nights.checker.asked)
    held = nights.hold()
    assert (len(nights.resolver.asked), len(nights.checker.asked)) == asked
    assert set(nights.kinds(held).values()) == {"unchanged"}
    assert held.comparison.before is not None


def test_a_new_failure_is_tried_twice_before_it_is_called_one(nights: Nights) -> None:
    nights.hold()
    nights.resolver.reads["vllm 0.24.0"] = "sha256:2"
    nights.resolver.outcomes = {NAME: [Outcome.CONFLICT]}
    before = len(nights.resolver.asked)
    held = nights.hold()
    (shift,) = held.comparison.of(Kind.NEW_FAILURE)
    assert (shift.before, shift.now, shift.retry) == (Status.WORKS, Status.CONFLICT, "tried twice, bad both times")
    assert nights.resolver.asked[before:].count(NAME) == 2
    assert "note verl0.9.1-vllm0.24.0 would be a new failure: tried once more" in nights.heard.lines
    assert held.new_failures == 1


def test_what_fails_once_and_not_again_is_flaky_and_no_failure(nights: Nights) -> None:
    nights.hold()
    nights.resolver.reads["vllm 0.24.0"] = "sha256:2"
    nights.resolver.outcomes = {NAME: [Outcome.CONFLICT, Outcome.OK]}
    held = nights.hold()
    (shift,) = held.comparison.of(Kind.FLAKY)
    assert (shift.now, held.new_failures) == (Status.WORKS, 0)
    assert shift.retry == "tried twice, and the tries disagree: resolve conflict, then ok"
    assert shift.turns[0].line == "resolve: ok → ok (tried twice: conflict, then ok)"
    assert nights.kinds(nights.hold())[NAME] == "unchanged"


def test_a_second_try_that_cannot_be_made_leaves_the_first_and_says_why(nights: Nights) -> None:
    nights.hold()
    nights.resolver.reads["vllm 0.24.0"] = "sha256:2"
    nights.resolver.outcomes = {NAME: [Outcome.CONFLICT, ToolError("uv is gone.")]}
    held = nights.hold()
    (shift,) = held.comparison.of(Kind.NEW_FAILURE)
    assert (shift.retry, shift.now) == ("", Status.CONFLICT)
    (note,) = held.comparison.notes
    assert note.startswith(f"{NAME} could not be tried again: ")
    assert "uv is gone." in note


def test_a_full_disk_at_the_second_try_ends_the_night(nights: Nights) -> None:
    nights.hold()
    nights.resolver.reads["vllm 0.24.0"] = "sha256:2"
    nights.resolver.outcomes = {NAME: [Outcome.CONFLICT, NoSpaceError("full")]}
    with pytest.raises(NoSpaceError, match="full"):
        nights.hold()
    assert len(nights.archive.files) == 1


def test_what_failed_and_does_not_any_more_is_fixed_and_says_why(nights: Nights) -> None:
    nights.resolver.outcomes = {NAME: [Outcome.CONFLICT]}
    nights.hold()
    nights.resolver.outcomes = {}
    nights.resolver.tool = "resolve-3"
    held = nights.hold()
    (shift,) = held.comparison.of(Kind.FIXED)
    assert shift.cause is not None
    assert (shift.name, shift.cause.label) == (NAME, Label.OURS)
    assert shift.cause.line == "ours: the tool: resolve-2 → resolve-3"


def test_what_fails_on_both_nights_still_fails(nights: Nights) -> None:
    nights.resolver.outcomes = {NAME: [Outcome.CONFLICT]}
    nights.hold()
    held = nights.hold()
    assert nights.kinds(held)[NAME] == "still failing"
    assert held.new_failures == 0


def _unreadable(cell: Cell, versions: Versions) -> Question:
    raise ToolError("cannot be read.")


def test_a_night_without_an_answer_is_not_the_one_that_is_compared_with(nights: Nights) -> None:
    nights.checker.outcomes = {"0.24.0": Outcome.BROKEN}
    nights.hold()
    nights.resolver.reads["x"] = "2"
    nights.resolver.outcomes = {NAME: [ToolError("uv is gone.")]}
    nights.checker.errors = {"0.24.0": ToolError("cannot be read.")}
    nights.checker.question = _unreadable  # type: ignore[method-assign]
    held = nights.hold()
    assert nights.kinds(held)[NAME] == "not run"
    (shift,) = (shift for shift in held.comparison.of(Kind.NOT_RUN) if shift.name == NAME)
    assert "uv is gone." in " ".join(shift.why)
    del nights.checker.question
    nights.checker.errors, nights.resolver.outcomes = {}, {}
    again = nights.hold()
    # Broken before the night in which nothing was tried, and broken now: nothing new.
    assert nights.kinds(again)[NAME] == "still failing"
    assert again.new_failures == 0


def test_an_index_that_does_not_answer_ends_the_night_and_keeps_none(nights: Nights) -> None:
    nights.resolver.outcomes = {name: [IndexUnreachableError("down")] for name in (NAME, OTHER)}
    nights.tiers = frozenset({Tier.RESOLVE})
    with pytest.raises(IndexUnreachableError):
        nights.hold()
    assert nights.archive.files == ()


def test_an_interrupted_night_is_told_and_not_kept(nights: Nights) -> None:
    nights.hold()
    nights.resolver.reads["x"] = "2"
    nights.heard.interrupt_at = len(nights.heard.lines) + 1
    held = nights.hold()
    assert (held.result.interrupted, held.counts) == (True, False)
    assert len(nights.archive.files) == 1


VLLM = "vllm 0.24.0"
CAUSES: list[tuple[dict[str, object], dict[str, object], Label, str]] = [
    ({"reads": {"uv": "0.13.9"}}, {"reads": {"uv": "0.14.0"}}, Label.OURS, "uv 0.13.9 → 0.14.0"),
    ({"reads": {"sdists.toml": "1"}}, {"reads": {"sdists.toml": "2"}}, Label.OURS, "our data sdists.toml"),
    ({"reads": {}}, {"reads": {"index": "sha256:x"}}, Label.INDEX, "another index is asked"),
    ({"reads": {VLLM: "absent"}}, {"reads": {VLLM: "sha256:1"}}, Label.RELEASE, f"{VLLM} is on the index now"),
    ({"reads": {VLLM: "sha256:1"}}, {"reads": {VLLM: "absent"}}, Label.INDEX, f"{VLLM} is gone from the index"),
    ({"reads": {VLLM: "sha256:1"}}, {"reads": {VLLM: "sha256:2"}}, Label.INDEX, f"{VLLM}: its files differ"),
    ({"reads": {}}, {"reads": {VLLM: "sha256:2"}}, Label.OURS, f"whether {VLLM} is read"),
    ({"tool": "resolve-2"}, {"tool": "resolve-3"}, Label.OURS, "the tool: resolve-2 → resolve-3"),
    ({"reads": {"uv": "1", VLLM: "a"}}, {"reads": {"uv": "2", VLLM: "b"}}, Label.UNKNOWN, "inputs of 2 kinds differ"),
]


@pytest.mark.parametrize(("before", "now", "label", "words"), CAUSES)
def test_the_cause_is_what_was_read_differently(
    nights: Nights, before: dict[str, object], now: dict[str, object], label: Label, words: str
) -> None:
    for name, value in before.items():
        setattr(nights.resolver, name, value)
    nights.hold()
    for name, value in now.items():
        setattr(nights.resolver, name, value)
    nights.resolver.outcomes = {NAME: [Outcome.CONFLICT]}
    (shift,) = nights.hold().comparison.of(Kind.NEW_FAILURE)
    assert shift.cause is not None
    assert shift.cause.label is label
    assert words in shift.cause.line


def test_a_set_that_cannot_be_had_any_more_is_the_index_s_doing_where_a_release_of_it_was_yanked(
    nights: Nights,
) -> None:
    nights.index = FakeIndex({"numpy": {"2.3.0": FakeRelease()}, "torch": {"2.11.0": FakeRelease()}})
    nights.locks = {"sha256:lock": lock_text(numpy="2.3.0 aa", torch="2.11.0 bb")}
    nights.hold()
    nights.index = FakeIndex({"numpy": {"2.3.0": FakeRelease(yanked="bad wheels")}, "torch": {}})
    nights.resolver.outcomes = {NAME: [Outcome.CONFLICT]}
    # As the resolver's answer has become too old to be taken again: it reads the same, and says something else.
    for path in (nights.folder / "store").glob("*.jsonl"):
        path.unlink()
    (shift,) = nights.hold().comparison.of(Kind.NEW_FAILURE)
    assert shift.cause is not None
    assert shift.cause.label is Label.INDEX
    assert [fact.what for fact in shift.cause.facts] == [
        "numpy 2.3.0, which it resolved to, was yanked (bad wheels)",
        "torch 2.11.0, which it resolved to, is gone from the index",
    ]


def test_the_cause_is_unknown_where_nothing_that_was_recorded_differs(nights: Nights) -> None:
    nights.index = FakeIndex({"torch": {"2.11.0": FakeRelease()}})
    nights.hold()
    for path in (nights.folder / "store").glob("*.jsonl"):
        path.unlink()
    nights.resolver.outcomes = {NAME: [Outcome.CONFLICT]}
    (shift,) = nights.hold().comparison.of(Kind.NEW_FAILURE)
    assert shift.cause is not None
    assert shift.cause.line == "unknown: nothing that was recorded differs"


def test_a_new_release_that_is_bad_names_the_first_bad_one_from_stored_answers(nights: Nights) -> None:
    nights.hold()
    nights.cells = (*nights.cells, cell(verl="0.9.1", vllm="0.27.0"))
    nights.new = {"verl0.9.1-vllm0.27.0": "vllm 0.27.0"}
    nights.snapshot = {"lattice": recorded(nights.axes)}
    nights.hold()  # a night with the lattice, in which 0.27.0 works
    nights.cells = (*nights.cells[:2], cell(verl="0.9.1", vllm="0.28.0"))
    nights.new = {"verl0.9.1-vllm0.28.0": "vllm 0.28.0"}
    nights.axes = axes(vllm=("0.24.0", "0.25.0", "0.26.0", "0.27.0", "0.28.0"))
    nights.snapshot = {"lattice": recorded(nights.axes)}
    nights.checker.outcomes = {"0.28.0": Outcome.BROKEN}
    held = nights.hold()
    (shift,) = held.comparison.of(Kind.NEW_FAILURE)
    assert shift.before is None
    assert shift.cause is not None
    assert shift.cause.line == "release changed: vllm 0.28.0 is new on the index"
    assert shift.boundary == (
        "vllm 0.28.0 is the first bad release (last good: 0.27.0; from stored answers, tier surface)"
    )
    assert held.comparison.dropped == ("verl0.9.1-vllm0.27.0",)


def test_a_cell_that_the_plan_expects_to_be_bad_is_no_news(nights: Nights) -> None:
    nights.hold()
    nights.cells = (*nights.cells, cell(verl="0.9.1", vllm="0.28.0"))
    nights.expected = {"verl0.9.1-vllm0.28.0": Status.BROKEN}
    nights.checker.outcomes = {"0.28.0": Outcome.BROKEN}
    held = nights.hold()
    assert nights.kinds(held)["verl0.9.1-vllm0.28.0"] == "still failing"
    assert held.new_failures == 0


def test_a_feature_that_is_lost_is_a_new_failure(nights: Nights) -> None:
    nights.hold()
    for path in (nights.folder / "store").glob("*.jsonl"):
        path.unlink()
    nights.checker.outcomes = {"0.26.0": Outcome.DEGRADED}
    (shift,) = nights.hold().comparison.of(Kind.NEW_FAILURE)
    assert (shift.name, shift.before, shift.now) == (OTHER, Status.WORKS, Status.DEGRADED)


def _down() -> dict[str, str]:
    raise IndexUnreachableError("down")


@pytest.mark.parametrize(
    ("pages", "note"),
    [
        (lambda: {"vllm": "1"}, ()),
        (lambda: {"vllm": "2"}, ("The index changed under the run: vllm.",)),
        (_down, ("Whether the index changed under the run is not known: down",)),
    ],
)
def test_an_index_that_changes_under_the_run_is_told(nights: Nights, pages: object, note: tuple[str, ...]) -> None:
    nights.snapshot = {"pages": {"vllm": "1"}}
    nights.pages = pages  # type: ignore[assignment]
    notes = nights.hold().comparison.notes
    assert len(notes) == len(note)
    assert all(told.startswith(word) for told, word in zip(notes, note, strict=True))


def test_a_full_disk_at_the_record_of_a_night_leaves_the_nights_before(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    nights.hold()
    kept = nights.archive.files[0].read_bytes()

    def full(*args: object, **more: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("matrix.nightly.archive.replace_file", full)
    with pytest.raises(NoSpaceError, match="record of this night"):
        nights.hold()
    assert [path.read_bytes() for path in nights.archive.files] == [kept]


def test_the_sets_of_a_night_are_kept_package_by_package_and_by_version_where_the_lock_is_gone(nights: Nights) -> None:
    nights.locks = {"sha256:lock": lock_text(numpy="2.3.0 aa")}
    night = nights.hold().night
    assert list(night.locks["sha256:lock"]) == ["numpy"]
    assert night.locks["sha256:lock"]["numpy"].startswith("2.3.0 ")
    nights.locks = {}
    assert nights.hold().night.locks["sha256:lock"] == {"torch": "2.11.0"}


def test_a_night_reads_back_as_it_was(nights: Nights) -> None:
    nights.resolver.outcomes = {NAME: [Outcome.CONFLICT]}
    nights.hold()
    night = nights.hold().night
    assert Night.from_json(json.loads(json.dumps(night.to_json()))) == night


def test_a_version_that_the_resolver_moved_names_the_first_bad_release_by_the_two_nights(nights: Nights) -> None:
    nights.axes = axes(transformers=("5.9.0", "5.10.0", "5.11.0"))
    nights.checker = Reading(transformers="5.9.0")
    nights.hold()
    nights.checker = Reading(transformers="5.11.0", outcomes={"0.24.0": Outcome.BROKEN})
    held = nights.hold()
    (shift,) = held.comparison.of(Kind.NEW_FAILURE)
    assert shift.cause is not None
    assert shift.cause.line == "release changed: transformers 5.9.0 → 5.11.0"
    assert shift.boundary == (
        "the first bad release of transformers is one of 5.10.0, 5.11.0; 5.11.0 is bad "
        "(last good: 5.9.0; by the two nights)"
    )


def test_where_two_axes_moved_no_release_is_named(nights: Nights) -> None:
    nights.axes = axes(transformers=("5.9.0", "5.10.0"), torch=("2.11.0", "2.12.0"))
    nights.checker = Reading(transformers="5.9.0", torch="2.11.0")
    nights.hold()
    nights.checker = Reading(transformers="5.10.0", torch="2.12.0", outcomes={"0.24.0": Outcome.BROKEN})
    (shift,) = nights.hold().comparison.of(Kind.NEW_FAILURE)
    assert shift.boundary == ""


class Reading(FakeChecker):
    """A checker that reads these releases besides, as a lock has them."""

    def __init__(self, outcomes: Mapping[str, Outcome] | None = None, **versions: str) -> None:
        super().__init__(outcomes=outcomes or {})
        self.files = {f"{name}-{version}-py3-none-any.whl": version for name, version in versions.items()}

    def question(self, cell: Cell, versions: Versions) -> Question:
        return replace(super().question(cell, versions), reads=self.files)
