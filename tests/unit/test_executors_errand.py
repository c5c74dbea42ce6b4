"""The errand and what comes back: through lines unchanged; what is remembered of it; the journal of a run."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.errors import DataError, MatrixError, NewerSchemaError, NothingRanError, ProvisionError
from matrix.executors import errand as wire
from matrix.executors import journal
from matrix.executors.errand import Errand
from matrix.executors.manner import Manner
from matrix.executors.recall import Recall
from matrix.job import Probed
from matrix.probing import machine
from matrix.probing.cellfile import by_id
from matrix.probing.machine import machine_of
from matrix.records import load_failures
from matrix.store import Store, from_line, to_line
from matrix.tier import Outcome, Tier
from tests.unit.probing_stack import prober
from tests.unit.run_fakes import AT, cell, observation

GOOD = cell(verl="0.9.1", vllm="0.24.0")
RESOLVED = observation(GOOD.name, Tier.RESOLVE, detail={"lock": "sha256:1", "versions": {"thing": "2.0"}})
MANNER = Manner(
    tiers=frozenset({Tier.IMPORT, Tier.GPU}), patterns=("ray",), memory_gib=8, keep=True, offline=True,
    index_url="https://index.example/simple", here=Path("/env/bin/python"), cell=GOOD.name,
)  # fmt: skip


@pytest.mark.parametrize(
    "errand",
    [
        Errand(cell=GOOD.name, manner=Manner(tiers=frozenset({Tier.IMPORT}))),
        Errand(
            cell=GOOD.name, manner=MANNER, resolved=RESOLVED, lock="lock-version = '1.0'\n", home=Path("/scratch"),
            known=(observation(GOOD.name, Tier.IMPORT, Outcome.BROKEN, "é\n", detail={"a": ["x" * 99] * 60}),),
        ),
    ],
)  # fmt: skip
def test_an_errand_comes_through_a_line_unchanged(errand: Errand) -> None:
    line = errand.to_line()
    assert "\n" not in line
    assert Errand.from_line(line) == errand


def test_an_observation_comes_through_a_line_with_its_large_details(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add(observation(GOOD.name, Tier.SURFACE, Outcome.BROKEN, detail={"large": "x" * 9000, "small": 1}))
    (stored,) = store
    assert from_line(to_line(stored)) == stored
    assert dict(from_line(to_line(stored)).detail) == {"large": "x" * 9000, "small": 1}


@pytest.mark.parametrize("line", ["", "[]", "{}", '{"schema": 1}', '{"schema": 1, "reads": {}, "cell": "a"}'])
def test_a_line_that_is_no_observation_is_refused(line: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of many kinds
        from_line(line)


def test_a_line_of_a_later_release_is_refused() -> None:
    with pytest.raises(NewerSchemaError):
        from_line(json.dumps({**json.loads(to_line(RESOLVED)), "schema": 99}))


def test_what_a_visit_gave_comes_through() -> None:
    probed = Probed(observations=(RESOLVED, observation(GOOD.name, Tier.IMPORT)), reused=1, asked=1)
    assert wire.read_done(json.loads(wire.done(probed))) == probed
    assert wire.read_observed(json.loads(wire.observed(RESOLVED))) == RESOLVED


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (wire.refused(ProvisionError("a", why="b", then="c")), ProvisionError),
        (wire.refused(DataError("f.toml", "x", "a", then="c")), DataError),
        (wire.refused(MatrixError("a", why="b", then="c")), MatrixError),
        (json.dumps({"error": "Path", "what": "a", "why": "b", "then": "c"}), MatrixError),
        (json.dumps({"error": "OfALaterRelease", "what": "a", "why": "b", "then": "c"}), MatrixError),
    ],
)
def test_an_error_comes_through_as_what_it_was(line: str, kind: type[MatrixError]) -> None:
    error = wire.read_refused(json.loads(line))
    assert (type(error), error.then) == (kind, "c")
    assert error.what.endswith("a")


@pytest.mark.parametrize(
    ("suits", "known"), [(lambda machine: True, True), (lambda machine: len(machine.gpus) == 1, False)]
)
def test_a_cell_that_a_machine_has_answered_is_recalled(tmp_path: Path, suits: Any, known: bool) -> None:
    from matrix.probing.folder import probes_folder

    manner = Manner(tiers=frozenset({Tier.IMPORT}), patterns=("test_package_imports[ray]",))
    recall = Recall(store=Store(tmp_path / "store"), cache=tmp_path / "cache", manner=manner)
    asked = cell(ray="2.55.0")
    resolved = observation(asked.name, Tier.RESOLVE, detail={"lock": "sha256:1", "versions": {"ray": "2.55.0"}})
    assert recall.probed(asked, resolved, suits) is None
    made = prober(tmp_path, probes_folder(), store=recall.store, failures=by_id(load_failures()))
    subject = made.subject(asked, "sha256:1", {"ray": "2.55.0"})
    from matrix.probing.lines import PlannedProbe

    probe = PlannedProbe(test="test_install.py::test_package_imports[ray]", tier=Tier.IMPORT)
    heard: list[Path] = []
    made.heed = heard.append
    made._remember(subject, [probe], [])
    strange = observation(asked.name, Tier.IMPORT, probe="install", reads={"machine": "a strange one"})
    recall.store.add(strange, replace(RESOLVED, question=made.question(subject, probe), at=AT))
    assert heard[0].is_file()
    found = recall.probed(asked, resolved, suits)
    assert (found is not None) is known
    if found is not None:
        assert (found.reused, [item.question.probe for item in found.observations]) == (1, [probe.probe])


@given(
    st.lists(st.sampled_from(["NVIDIA H200", "NVIDIA A100-SXM4-80GB", "Tesla T4"]), max_size=4),
    st.sampled_from(["x86_64", "aarch64"]),
)
def test_a_class_of_machines_is_read_back(gpus: list[str], architecture: str) -> None:
    made = machine.Machine(architecture=architecture, gpus=tuple(sorted(gpus)), cores=1)
    assert machine_of(made.kind) == made


@pytest.mark.parametrize("kind", ["", "x86_64", "x86_64, GPUs", "static"])
def test_what_is_no_class_of_machines_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="no class"):
        machine_of(kind)


def test_a_run_that_was_cut_short_is_found_again(tmp_path: Path) -> None:
    made = journal.begin(tmp_path, {"cells": ["a*"]}, clock=lambda: AT)
    made.lost("a", "its machine was lost")
    found = journal.unfinished(tmp_path)
    assert (found.words, found.begun, found.losses) == ({"cells": ["a*"]}, AT, {"a": ["its machine was lost"]})
    found.end()
    with pytest.raises(NothingRanError, match="no run to go on with"):
        journal.unfinished(tmp_path)
    journal.Journal(begun=AT).lost("a", "kept nowhere")
    assert journal.begin(tmp_path, {}).begun.tzinfo is UTC


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 1, "losses": [], "words": {}}', '{"schema": "x"}'])
def test_a_file_that_is_no_journal_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / journal.NAME).write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match="no journal"):
        journal.unfinished(tmp_path)


def test_a_journal_of_a_later_release_is_refused_and_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(NothingRanError, match="Nothing was begun"):
        journal.unfinished(tmp_path)
    (tmp_path / journal.NAME).write_text('{"schema": 2}', encoding="utf-8")
    with pytest.raises(NewerSchemaError):
        journal.unfinished(tmp_path)
