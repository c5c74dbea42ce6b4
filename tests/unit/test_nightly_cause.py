"""The cause of a change, input by input: what the index, a release, the machine or we ourselves changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from matrix.nightly.cause import Cause, Fact, Label, Nights, cause_of, differing, facts_of, newly_there, versions_read
from matrix.nightly.record import Slot
from matrix.tier import Outcome, Tier
from tests.unit.nightly_fakes import night, record, slot

WHEEL, OTHER = "vllm-0.24.0-cp38-abi3-manylinux_2_31_x86_64.whl", "vllm-0.24.0-cp312-cp312-manylinux_2_35_x86_64.whl"
TF = "transformers-{}-py3-none-any.whl"


def facts(before: Slot, now: Slot, **snapshots: tuple[Any, Any]) -> list[tuple[Label, str]]:
    """Return the facts of a change; `releases=(before, now)` and the like are what the two snapshots hold."""
    locks = snapshots.pop("locks", ({}, {}))
    was: dict[str, Any]
    has: dict[str, Any]
    was, has = ({name: held[at] for name, held in snapshots.items()} for at in (0, 1))
    nights = Nights(before=night(locks=locks[0], **was), now=night(locks=locks[1], **has))
    return [(fact.label, fact.what) for fact in facts_of(nights, before, now)]


def surface(reads: Mapping[str, str]) -> Slot:
    return slot(Tier.SURFACE, reads=reads)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({WHEEL: "a"}, {WHEEL: "a"}, []),
        ({WHEEL: "a"}, {WHEEL: "b"}, [(Label.INDEX, f"other bytes under the name of {WHEEL}")]),
        ({WHEEL: "a"}, {OTHER: "b"}, [(Label.INDEX, "another file of vllm 0.24.0")]),
        ({TF.format("5.9.0"): "a"}, {TF.format("5.10.0"): "b"}, [(Label.RELEASE, "transformers 5.9.0 → 5.10.0")]),
        ({}, {TF.format("5.9.0"): "a"}, [(Label.RELEASE, "transformers none → 5.9.0")]),
        ({"verl.toml": "1"}, {"verl.toml": "2"}, [(Label.OURS, "our data verl.toml")]),
        (
            {TF.format("5.9.0"): "a", "verl.toml": "1"},
            {TF.format("5.10.0"): "b", "verl.toml": "2"},
            [(Label.RELEASE, "transformers 5.9.0 → 5.10.0"), (Label.OURS, "our data verl.toml")],
        ),
    ],
)
def test_a_surface_check_names_the_files_it_read(
    before: dict[str, str], now: dict[str, str], expected: list[tuple[Label, str]]
) -> None:
    assert facts(surface(before), surface(now)) == expected


def test_the_versions_that_a_check_read_are_those_of_its_files() -> None:
    read = versions_read(surface({TF.format("5.9.0"): "a", WHEEL: "b", "verl.toml": "c"}))
    assert {axis.value: str(version) for axis, version in read.items()} == {"vllm": "0.24.0", "transformers": "5.9.0"}
    assert "vllm" not in {axis.value for axis in versions_read(surface({WHEEL: "a", "vllm-0.25.0.tar.gz": "b"}))}


RELEASE = "vllm 0.24.0"


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ({"yanked": None, "files": {"a": "1"}}, {"yanked": "bad", "files": {"a": "1 yanked"}}, "yanked (bad)"),
        ({"yanked": None, "files": {"a": "1"}}, {"yanked": "", "files": {"a": "1 yanked"}}, "yanked"),
        ({"yanked": "bad", "files": {"a": "1 yanked"}}, {"yanked": None, "files": {"a": "1"}}, "no longer yanked"),
        ({"files": {"a": "1"}}, {"files": {"a": "1", "b": "2"}}, "added: b"),
        ({"files": {"a": "1", "b": "2"}}, {"files": {"a": "1"}}, "gone: b"),
        ({"files": {"a": "1"}}, {"files": {"a": "2"}}, "other bytes: a"),
        ({"files": {"a": "1 metadata 7"}}, {"files": {"a": "1 metadata 8"}}, "other metadata: a"),
        ({"files": {"a": "1"}}, {"files": {f"x{n}": "1" for n in range(5)}}, "added: x0, x1, x2 and 2 more; gone: a"),
        ({}, {}, "its files differ"),
    ],
)
def test_what_became_of_a_pinned_release_is_told_from_what_the_index_had(
    before: dict[str, Any], now: dict[str, Any], words: str
) -> None:
    releases = ({RELEASE: before}, {RELEASE: now})
    was, has = (slot(Tier.RESOLVE, reads={RELEASE: digest}) for digest in ("sha256:1", "sha256:2"))
    assert facts(was, has, releases=releases) == [(Label.INDEX, f"{RELEASE}: {words}")]


def resolved(lock: str) -> Slot:
    return slot(Tier.RESOLVE, lock=lock)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({"numpy": "1 aa"}, {"numpy": "2 bb"}, [(Label.RELEASE, "the set moved: numpy 1 → 2")]),
        ({"numpy": "1 aa"}, {"numpy": "1 bb"}, [(Label.INDEX, "other files of numpy 1")]),
        ({}, {"numpy": "1 aa"}, [(Label.RELEASE, "the set moved: numpy none → 1")]),
        ({"numpy": "1 aa"}, {"numpy": "1 aa"}, []),
        (
            {f"p{n:02}": "1 a" for n in range(10)},
            {f"p{n:02}": "2 b" for n in range(10)},
            [(Label.RELEASE, "the set moved: " + ", ".join(f"p{n:02} 1 → 2" for n in range(8)) + " and 2 more")],
        ),
    ],
)
def test_two_sets_differ_by_versions_or_by_files(
    before: dict[str, str], now: dict[str, str], expected: list[tuple[Label, str]]
) -> None:
    locks = ({"sha256:a": before}, {"sha256:b": now})
    assert facts(resolved("sha256:a"), resolved("sha256:b"), locks=locks) == expected
    assert facts(resolved("sha256:a"), resolved("sha256:a"), locks=locks) == []
    assert facts(resolved("sha256:x"), resolved("sha256:y"), locks=locks) == []


UNKEPT = "another set is installed; what differs was not kept"


def deep(reads: Mapping[str, str] | None = None, **more: Any) -> Slot:
    return slot(Tier.IMPORT, probe="compat/test_a.py::test_a", reads=reads or {}, **{"machine": "m", **more})


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (deep({"machine": "no GPU"}), deep({"machine": "1 x H200"}), [(Label.MACHINE, "no GPU → 1 x H200")]),
        (deep({"probes": "1"}), deep({"probes": "2"}), [(Label.OURS, "the probe: probes")]),
        (deep({"record a-b": "1"}), deep({"record a-b": "2"}), [(Label.OURS, "the record of the failure: a-b")]),
        (deep({"lock": "a"}), deep({"lock": "b"}), [(Label.RELEASE, "the set moved: numpy 1 → 2")]),
        (deep({"lock": "x"}), deep({"lock": "y"}), [(Label.UNKNOWN, UNKEPT)]),
        (deep(machine="2 cores"), deep(machine="4 cores"), [(Label.MACHINE, "2 cores → 4 cores")]),
        (deep(fingerprint="1"), deep(fingerprint="2"), [(Label.MACHINE, "the fingerprint of the GPU machine")]),
        (deep(), deep(), []),
        (deep(tool="1"), deep(tool="2"), [(Label.OURS, "the tool: 1 → 2")]),
        (deep(shipped="h200", machine="H200"), deep(machine="m"), [(Label.MACHINE, "H200 (shipped evidence) → m")]),
        (deep(shipped="h200", at="1"), deep(shipped="h200", at="2"), [(Label.OURS, "the evidence that is shipped")]),
        (deep(shipped="h200", at="1"), deep(shipped="h200", at="1"), []),
    ],
)  # fmt: skip
def test_an_installed_probe_depends_on_the_set_the_machine_and_the_probe(
    before: Slot, now: Slot, expected: list[tuple[Label, str]]
) -> None:
    locks = ({"a": {"numpy": "1 aa"}}, {"b": {"numpy": "2 bb"}})
    assert facts(before, now, locks=locks) == expected


def test_a_machine_whose_driver_changed_is_told_by_its_facts() -> None:
    was, has = {"driver": "580.65", "gpus": ["H200"]}, {"driver": "580.95", "gpus": ["H200"]}
    assert facts(deep(), deep(), machine=(was, has)) == [(Label.MACHINE, "driver 580.65 → 580.95")]
    # What is read and never run does not depend on the machine.
    assert facts(surface({WHEEL: "a"}), surface({WHEEL: "a"}), machine=(was, has)) == []


def test_what_differs_between_two_mappings_is_told_with_both_values() -> None:
    assert differing({"a": 1, "b": ["x", "y"], "c": 3}, {"a": 1, "b": [], "d": "z"}) == (
        "b x, y → none",
        "c 3 → none",
        "d none → z",
    )


@pytest.mark.parametrize(
    ("labels", "label", "line"),
    [
        ([], Label.UNKNOWN, "unknown: nothing that was recorded differs"),
        ([Label.INDEX], Label.INDEX, "index changed: fact 0"),
        ([Label.INDEX, Label.INDEX], Label.INDEX, "index changed: fact 0; fact 1"),
        (
            [Label.INDEX, Label.OURS],
            Label.UNKNOWN,
            "unknown: inputs of 2 kinds differ (index changed, ours): fact 0; fact 1",
        ),
    ],
)
def test_a_cause_is_one_kind_or_unknown(labels: list[Label], label: Label, line: str) -> None:
    cause = cause_of([Fact(label=label, what=f"fact {number}") for number, label in enumerate(labels)])
    assert (cause.label, cause.line) == (label, line)
    assert cause.to_json()["line"] == line


THERE: dict[str, Any] = {"lattice": {"vllm": {"0.24.0": {}}, "verl": {"0.9.1": {}}}}
NOT_YET: dict[str, Any] = {"lattice": {"vllm": {}, "verl": {"0.9.1": {}}}}


@pytest.mark.parametrize(
    ("new", "before", "now", "line"),
    [
        ("vllm 0.24.0", NOT_YET, THERE, "release changed: vllm 0.24.0 is new on the index"),
        ("verl 0.9.1", NOT_YET, THERE, "release changed: vllm 0.24.0 is new on the index"),
        ("", NOT_YET, THERE, "release changed: vllm 0.24.0 is new on the index"),
        ("vllm 0.24.0", THERE, THERE, "release changed: vllm 0.24.0 is among the newest now"),
        # A version that no lattice holds may have been there all the time.
        ("", NOT_YET, NOT_YET, "unknown: nothing that was recorded differs"),
        ("vllm 0.24.0", {}, {}, "unknown: nothing that was recorded differs"),
        ("", {"data": {"cells": "1"}}, {"data": {"cells": "2"}}, "ours: the cells that are planned"),
        ("", {"asked": {"cells": ["a"]}}, {"asked": {"cells": []}}, "ours: what was selected"),
        ("", {}, {}, "unknown: nothing that was recorded differs"),
    ],
)
def test_a_cell_that_was_not_there_before_is_there_for_a_reason(
    new: str, before: dict[str, Any], now: dict[str, Any], line: str
) -> None:
    nights = Nights(before=night(**before), now=night(**now))
    cause: Cause = newly_there(nights, record(slot(outcome=Outcome.BROKEN), new=new))
    assert cause.line == line
