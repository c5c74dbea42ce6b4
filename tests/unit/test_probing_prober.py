"""Probes that really run: what each says, what is kept, and what is left when one of them misbehaves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from matrix.cell import parse_name
from matrix.errors import ToolError
from matrix.job import Probed
from matrix.observe import Observation
from matrix.probing.lines import NOT_BEGUN, PlannedProbe
from matrix.probing.prober import Prober, matches
from matrix.probing.session import Limits
from matrix.store import Store
from matrix.tier import Outcome, Tier
from tests.unit.probing_stack import FAULTS, PLAIN, QUICK, RECORDS, environment, folder_of, prober, running

CELL = parse_name("verl0.9.1-vllm0.24.0")


def _run(made: Prober, told: list[str] | None = None) -> dict[str, Observation]:
    held = environment()
    probed = made.run(made.subject(CELL, held.lock, held.installed), held, (told if told is not None else []).append)
    return _by_name(probed)


def _by_name(probed: Probed) -> dict[str, Observation]:
    return {item.question.probe.rpartition("::")[2] or item.question.probe: item for item in probed.observations}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Observation]:
    home = tmp_path_factory.mktemp("plain")
    os.environ["SECRET_OF_THE_CALLER"] = "1"
    try:
        return _run(prober(home, folder_of(home / "probes", test_plain=PLAIN)))
    finally:
        del os.environ["SECRET_OF_THE_CALLER"]


@pytest.mark.parametrize(
    ("probe", "outcome", "tier", "reason"),
    [
        ("test_passes", Outcome.OK, Tier.IMPORT, ""),
        ("test_fails", Outcome.BROKEN, Tier.IMPORT, "one is not two"),
        ("test_fails_in_a_feature", Outcome.DEGRADED, Tier.IMPORT, "no such thing"),
        ("test_is_about_another_package", Outcome.UNTESTED, Tier.IMPORT, "no-such-package is not installed"),
        ("test_on_gpus", Outcome.UNTESTED, Tier.GPU, "needs 2 GPUs; this machine has no GPU"),
        ("test_behaves", Outcome.OK, Tier.BEHAVE, ""),
    ],
)
def test_a_plain_probe(plain: dict[str, Observation], probe: str, outcome: Outcome, tier: Tier, reason: str) -> None:
    seen = plain[probe]
    assert (seen.outcome, seen.question.tier) == (outcome, tier), seen.reason
    assert reason in seen.reason
    assert bool(seen.reason) == (outcome is not Outcome.OK)
    assert seen.machine == "x86_64, 2 cores, 8 GiB, no GPU"


def test_what_a_probe_measured_and_whom_its_failure_hurts_is_kept(plain: dict[str, Observation]) -> None:
    assert plain["test_passes"].detail["measured"] == 3
    findings = plain["test_fails_in_a_feature"].detail["findings"]
    assert isinstance(findings, list)
    assert [(item["feature"], item["default_path"]) for item in findings] == [("plain", False)]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Observation]:
    home = tmp_path_factory.mktemp("records")
    return _run(prober(home, folder_of(home / "probes", test_records=RECORDS)))


@pytest.mark.parametrize(
    ("probe", "outcome", "disagreement", "reason"),
    [
        ("test_yes_seen", Outcome.DEGRADED, None, "known failure yes-seen: title of yes-seen"),
        ("test_no_seen", Outcome.DEGRADED, "seen and not predicted", "known failure no-seen: title of no-seen"),
        ("test_yes_absent", Outcome.OK, "predicted and not seen", ""),
        ("test_no_absent", Outcome.OK, None, ""),
        ("test_other", Outcome.BROKEN, "another reason", "KeyError: something else"),
        ("test_judges_nothing", Outcome.BROKEN, "another reason", "judged nothing"),
        ("test_quiet", Outcome.DEGRADED, None, "known failure quiet: title of quiet"),
    ],
)
def test_a_trial_of_a_known_failure(
    records: dict[str, Observation], probe: str, outcome: Outcome, disagreement: str | None, reason: str
) -> None:
    seen = records[probe]
    assert (seen.outcome, seen.detail.get("disagreement")) == (outcome, disagreement)
    assert reason in seen.reason
    assert seen.detail["way_out"] == ["thing<1"]


@pytest.mark.parametrize(
    ("probe", "proposal"),
    [
        ("test_yes_absent", 'affects of yes-seen: thing = ">=1,!=2.0"'),
        ("test_no_seen", 'affects of no-seen: thing: take 2.0 into "<1"'),
    ],
)
def test_an_edited_range_is_proposed_where_a_record_is_wrong(
    records: dict[str, Observation], probe: str, proposal: str
) -> None:
    assert records[probe].detail["proposal"] == proposal


def test_a_number_that_json_does_not_have_is_kept_as_a_word(records: dict[str, Observation]) -> None:
    assert (records["test_no_absent"].detail["nan"], records["test_no_absent"].detail["gap"]) == ("nan", 0.1)


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Observation], Path]:
    home = tmp_path_factory.mktemp("faults")
    return _run(prober(home, folder_of(home / "probes", test_faults=FAULTS))), home


@pytest.mark.parametrize(
    ("probe", "outcome", "reason"),
    [
        ("test_before", Outcome.OK, ""),
        ("test_dies", Outcome.DEGRADED, "took its process down (SIGSEGV)"),
        ("test_hangs", Outcome.DEGRADED, "hung: it was ended 1 s after it began"),
        ("test_eats_memory", Outcome.DEGRADED, "GiB of memory, more than the 0.6 GiB allowed; ended"),
        ("test_leaves_a_daemon", Outcome.DEGRADED, "left processes that had to be ended: python"),
        ("test_exits", Outcome.DEGRADED, "took its process down (exit code 3)"),
        ("test_after", Outcome.OK, ""),
    ],
)
def test_a_probe_that_misbehaves_ends_in_an_outcome_and_the_others_go_on(
    faults: tuple[dict[str, Observation], Path], probe: str, outcome: Outcome, reason: str
) -> None:
    seen = faults[0][probe]
    assert seen.outcome is outcome, seen.reason
    assert reason in seen.reason


def test_nothing_is_left_of_probes_that_misbehave(faults: tuple[dict[str, Observation], Path]) -> None:
    assert running("time.sleep(600)") == []
    assert running(str(faults[1])) == []


def test_what_is_stored_is_not_run_again_and_needs_no_environment(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "probes", test_plain=PLAIN, test_records=RECORDS)
    first = prober(tmp_path, folder, patterns=("test_passes", "yes-seen"))
    told: list[str] = []
    held = environment()
    subject = first.subject(CELL, held.lock, held.installed)
    assert first.recall(subject) is None
    assert set(_run(first, told)) == {
        "test_passes",
        "test_yes_seen",
        "test_yes_absent",
        "test_other",
        "test_judges_nothing",
    }
    assert len(told) == 5
    second = prober(tmp_path, folder, patterns=("test_passes", "yes-seen"))
    again = second.recall(subject)
    assert again is not None
    assert again.reused == len(again.observations) == 5
    assert prober(tmp_path, folder, patterns=("test_fails",)).recall(subject) is None
    assert prober(tmp_path, folder, patterns=("test_passes",), again=True).recall(subject) is None


def test_a_run_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "probes", test_plain=PLAIN)
    chosen = ("test_passes", "test_fails", "test_behaves")
    made = prober(tmp_path, folder, patterns=chosen)
    held = environment()

    def stop(text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made.run(made.subject(CELL, held.lock, held.installed), held, stop)
    # What had ended by the time of the interrupt is kept, whether or not it was told of.
    kept = len(Store(tmp_path / "store"))
    assert kept >= 1
    assert running(str(tmp_path)) == []
    told: list[str] = []
    assert len(_run(prober(tmp_path, folder, patterns=chosen), told)) == 4
    assert len(told) == 4 - kept


@pytest.mark.parametrize(
    ("change", "asked"),
    [
        ("nothing", False),
        ("the probe's file", True),
        ("the kit", True),
        ("a record's range", True),
        ("a record's title of another probe", False),
        ("the lock", True),
        ("the machine", True),
    ],
)
def test_what_a_stored_answer_depends_on(tmp_path: Path, change: str, asked: bool) -> None:
    from dataclasses import replace

    from packaging.specifiers import SpecifierSet

    from matrix.probing.machine import Machine
    from tests.unit.probing_stack import CPU, FAILURES

    probe = PlannedProbe(test="test_records.py::test_yes_seen", tier=Tier.IMPORT, failure="yes-seen")
    held = environment()
    before = prober(tmp_path, folder_of(tmp_path / "a", test_records=RECORDS))
    key = before.question(before.subject(CELL, held.lock, held.installed), probe).key
    folder = folder_of(tmp_path / "b", test_records=RECORDS + ("\n" if change == "the probe's file" else ""))
    if change == "the kit":
        (folder / "kit" / "trial.py").write_text("# other", encoding="utf-8")
    failures, machine = dict(FAILURES), CPU
    if change == "a record's range":
        failures["yes-seen"] = replace(failures["yes-seen"], affects={"thing": SpecifierSet("<1")})
    if change == "a record's title of another probe":
        failures["no-seen"] = replace(failures["no-seen"], title="other")
    if change == "the machine":
        machine = Machine(architecture="x86_64", gpus=("NVIDIA H200",))
    after = prober(tmp_path, folder, failures=failures, machine=machine)
    lock = "sha256:2" if change == "the lock" else held.lock
    assert (after.question(after.subject(CELL, lock, held.installed), probe).key != key) is asked


def test_a_file_of_probes_that_cannot_be_read_is_told_of(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "probes", test_plain=PLAIN, test_lost="import no_such_module_anywhere")
    seen = _run(prober(tmp_path, folder, patterns=("test_passes",)))
    assert seen["test_passes"].outcome is Outcome.OK
    lost = seen["compat/test_lost.py"]
    assert lost.outcome is Outcome.UNTESTED
    assert "No module named 'no_such_module_anywhere'" in lost.reason


def test_an_environment_that_the_probes_changed_is_red(tmp_path: Path) -> None:
    sets = iter([{"thing": "2.0"}, {"thing": "2.1"}])
    folder = folder_of(tmp_path / "probes", test_plain=PLAIN)
    seen = _run(prober(tmp_path, folder, patterns=("test_passes",), frozen=lambda python: next(sets)))
    assert seen["compat/frozen"].outcome is Outcome.BROKEN
    assert "the probes changed the environment" in seen["compat/frozen"].reason


@pytest.mark.parametrize(
    ("limits", "outcome"),
    [(Limits(start_s=60, whole_s=0.0, poll_s=0.02, leave_s=0.1), Outcome.UNTESTED)],
)
def test_what_there_is_no_time_left_for_is_untested_and_asked_again(
    tmp_path: Path, limits: Limits, outcome: Outcome
) -> None:
    folder = folder_of(tmp_path / "probes", test_plain=PLAIN)
    seen = _run(prober(tmp_path, folder, patterns=("test_behaves", "test_passes"), limits=limits))
    assert {item.outcome for item in seen.values()} == {outcome}
    assert all(item.detail.get(NOT_BEGUN) for item in Store(tmp_path / "store"))
    again = _run(prober(tmp_path, folder, patterns=("test_behaves", "test_passes")))
    assert {item.outcome for item in again.values()} == {Outcome.OK}


def test_a_pytest_that_does_not_start_is_a_tools_error(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "probes", test_plain=PLAIN)
    (folder / "pytest.ini").write_text("[pytest]\nminversion = 1000\n", encoding="utf-8")
    with pytest.raises(ToolError, match="found no probe"):
        _run(prober(tmp_path, folder))


def test_quick_limits_are_below_the_usual_ones() -> None:
    assert QUICK.memory < Limits.usual().memory <= 16 * 2**30


@pytest.mark.parametrize(
    ("pattern", "chosen"),
    [("test_a.py", True), ("test_a.py::*", True), ("*[x]", False), ("*::test_b", True), ("rec", True), ("re", False)],
)
def test_a_pattern_chooses_by_glob_by_part_or_by_record(pattern: str, chosen: bool) -> None:
    assert matches(pattern, PlannedProbe(test="test_a.py::test_b", tier=Tier.IMPORT, failure="rec")) is chosen


def test_the_installation_check_comes_first_and_shallow_tiers_before_deep_ones(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "probes", test_a=PLAIN, test_install="def test_first():\n    pass\n")
    held, told = environment(), list[str]()
    made = prober(tmp_path, folder, patterns=("test_first", "test_a.py::test_passes", "test_behaves"))
    made.run(made.subject(CELL, held.lock, held.installed), held, told.append)
    assert [line.split("::")[1].split()[0] for line in told] == ["test_first", "test_passes", "test_behaves"]


def test_what_is_untested_is_told_in_one_line(tmp_path: Path) -> None:
    skipping = "import pytest\n\n\n@pytest.mark.parametrize('case', range(7))\ndef test_skips(case):\n"
    skipping += "    pytest.skip(f'no reason {case // 2}')\n"
    told: list[str] = []
    _run(prober(tmp_path, folder_of(tmp_path / "probes", test_skips=skipping)), told)
    assert told == ["untested 7: 2 no reason 0; 2 no reason 1; 2 no reason 2; 1 for other reasons"]
