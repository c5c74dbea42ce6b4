"""The tier's face: questions, observations, many cells at once, staleness, agreement with uv."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from packaging.version import Version

from matrix.cell import Axis, Cell, OpenAxis, Pin, Platform
from matrix.errors import CorruptFileError, IndexUnreachableError, MatrixError, ToolError, UnknownReleaseError
from matrix.observe import Observation
from matrix.resolve import DecidedBy, Fact, Resolver, sample_agreement
from matrix.resolve.outcome import in_one_line
from matrix.tier import Outcome, Tier
from tests.unit.fakes import FakeIndex, FakeRelease
from tests.unit.local_index import LocalIndex
from tests.unit.resolve_fakes import FakeSolver

NOW = datetime(2026, 11, 30, tzinfo=UTC)
VERLS = ("0.1", "0.2", "0.3", "0.4")
VLLMS = ("1.0", "1.0.post1", "2.0", "3.0")


def packages() -> dict[str, dict[str, FakeRelease]]:
    return {
        "verl": {version: FakeRelease(requires=["numpy<2"] if version < "0.3" else ["numpy"]) for version in VERLS},
        "vllm": {
            "1.0": FakeRelease(requires=["cv"]),
            "1.0.post1": FakeRelease(requires=["cv"]),
            "2.0": FakeRelease(requires=["cv>=4.13"]),
            "3.0": FakeRelease(requires=["numpy>=2"]),
        },
        "cv": {"4.0": FakeRelease(), "4.13": FakeRelease(requires=["numpy>=2"])},
        "numpy": {"1.26": FakeRelease(), "2.1": FakeRelease()},
    }


def cell(verl: str, vllm: str) -> Cell:
    return Cell(pins=(Pin(axis=Axis.VERL, version=Version(verl)), Pin(axis=Axis.VLLM, version=Version(vllm))))


CELLS = [cell(verl, vllm) for verl in VERLS for vllm in VLLMS]


def resolver(
    folder: Path, solver: FakeSolver | None = None, *, at: datetime = NOW, index_url: str | None = None
) -> Resolver:
    solver = solver or FakeSolver(FakeIndex(packages()))
    return Resolver(index=solver.index, cache_dir=folder, solver=solver, clock=lambda: at, index_url=index_url)


def drained(answers: Iterator[Observation]) -> tuple[list[Observation], MatrixError | None]:
    """Return what came, and the error that ended it."""
    found = []
    try:
        for answer in answers:
            found.append(answer)  # noqa: PERF402 - what came before an error is kept
    except MatrixError as error:
        return found, error
    return found, None


def test_an_observation_says_what_was_asked_and_found(tmp_path: Path) -> None:
    found = resolver(tmp_path).resolve(cell("0.1", "3.0"))
    assert (found.outcome, found.question.tier, found.question.probe) == (Outcome.CONFLICT, Tier.RESOLVE, "resolve")
    assert found.at == NOW
    assert found.reason == "verl 0.1 requires numpy<2; vllm 3.0 requires numpy>=2; no release of numpy meets both"
    chain = found.detail["chain"]
    assert isinstance(chain, list)
    assert [Fact.from_json(item).source for item in chain] == [
        "verl-0.1-py3-none-any.whl METADATA",
        "vllm-3.0-py3-none-any.whl METADATA",
        "index: numpy",
    ]


def test_a_question_rests_on_the_pinned_releases_uv_and_our_data(tmp_path: Path) -> None:
    asked = resolver(tmp_path).question(cell("0.1", "9.9"))
    assert set(asked.reads) == {"uv", "sdists.toml", "verl 0.1", "vllm 9.9"}
    assert asked.reads["vllm 9.9"] == "absent"
    assert asked.reads["verl 0.1"].startswith("sha256:")
    assert asked.cell == "verl0.1-vllm9.9"


def changed(edit: Mapping[str, Mapping[str, FakeRelease]]) -> FakeSolver:
    return FakeSolver(FakeIndex({name: {**releases, **edit.get(name, {})} for name, releases in packages().items()}))


@pytest.mark.parametrize(
    ("edit", "same"),
    [
        ({"vllm": {"4.0": FakeRelease()}}, True),
        ({"numpy": {"3.0": FakeRelease()}}, True),
        ({"vllm": {"3.0": FakeRelease(yanked="bad")}}, False),
        ({"vllm": {"3.0": FakeRelease(tags=["py3-none-any", "cp312-cp312-linux_x86_64"])}}, False),
        ({"verl": {"0.1": FakeRelease(requires=["numpy"])}}, False),
    ],
)
def test_only_a_change_of_a_pinned_release_changes_the_question(
    tmp_path: Path, edit: Mapping[str, Mapping[str, FakeRelease]], same: bool
) -> None:
    one = cell("0.1", "3.0")
    before, after = resolver(tmp_path).question(one), resolver(tmp_path, changed(edit)).question(one)
    assert (before.key == after.key) is same


def test_another_uv_and_another_index_are_other_questions(tmp_path: Path) -> None:
    one = cell("0.1", "3.0")
    usual = resolver(tmp_path).question(one)
    solver = FakeSolver(FakeIndex(packages()), version="uv 9.9.9")
    assert resolver(tmp_path, solver).question(one).key != usual.key
    other = resolver(tmp_path, index_url="https://user:secret@mirror.invalid/simple").question(one)
    assert other.key != usual.key
    assert "secret" not in str(other)
    assert resolver(tmp_path, index_url="https://pypi.org/simple/").question(one).key == usual.key


@pytest.mark.parametrize(
    ("asked", "age", "stale"),
    [
        (cell("0.3", "1.0"), timedelta(hours=23), False),
        (cell("0.3", "1.0"), timedelta(hours=25), True),
        (cell("0.1", "3.0"), timedelta(hours=25), True),
        (cell("0.1", "9.9"), timedelta(days=99), False),
        (replace(cell("0.3", "1.0"), as_of=NOW), timedelta(days=99), False),
    ],
)
def test_an_answer_ages_where_it_rests_on_the_rest_of_the_index(
    tmp_path: Path, asked: Cell, age: timedelta, stale: bool
) -> None:
    answer = resolver(tmp_path).resolve(asked)
    assert resolver(tmp_path, at=NOW + age).is_stale(asked, answer) is stale


def test_a_lock_is_read_back_by_its_observation(tmp_path: Path) -> None:
    one = resolver(tmp_path)
    answer = one.resolve(cell("0.3", "1.0"))
    text = one.lock(answer)
    assert 'name = "verl"\nversion = "0.3"' in text
    one.locks.path(str(answer.detail["lock"])).unlink()
    with pytest.raises(CorruptFileError):
        one.lock(answer)
    with pytest.raises(KeyError):
        one.lock(one.resolve(cell("0.1", "3.0")))


@pytest.mark.parametrize("workers", [1, 3])
def test_many_cells_have_the_answers_they_have_alone(tmp_path: Path, workers: int) -> None:
    many = {answer.question.cell: answer for answer in resolver(tmp_path / "many").resolve_many(CELLS, workers=workers)}
    assert set(many) == {one.name for one in CELLS}
    alone = resolver(tmp_path / "alone")
    for one in CELLS:
        answer = alone.resolve(one, shortcuts=False)
        assert (many[one.name].outcome, many[one.name].detail.get("lock")) == (
            answer.outcome,
            answer.detail.get("lock"),
        )


def test_many_cells_share_their_work(tmp_path: Path) -> None:
    solver = FakeSolver(FakeIndex(packages()))
    decided = [DecidedBy(str(answer.detail["decided_by"])) for answer in resolver(tmp_path, solver).resolve_many(CELLS)]
    assert decided.count(DecidedBy.REQUIREMENTS) == 2
    assert decided.count(DecidedBy.CORE) == 1
    assert decided.count(DecidedBy.SHARED) == 8
    pairs = [problem for problem in solver.asked if len(problem.requirements) == 2 and not problem.no_deps]
    assert sum("vllm==" in " ".join(problem.requirements) for problem in pairs) == decided.count(DecidedBy.UV) == 5
    assert solver.index.asked["metadata:verl-0.1-py3-none-any.whl"] >= 1


def test_a_cell_that_fails_does_not_cost_the_others_their_answers(tmp_path: Path) -> None:
    solver = FakeSolver(FakeIndex(packages()), errors={"vllm==2.0": ToolError("uv crashed.")})
    answers, error = drained(resolver(tmp_path, solver).resolve_many(CELLS))
    assert isinstance(error, ToolError)
    assert {answer.question.cell for answer in answers} == {one.name for one in CELLS if "vllm2.0" not in one.name}


def test_an_unknown_package_is_told_after_the_others(tmp_path: Path) -> None:
    odd = Cell(pins=(Pin(axis=Axis.RAY, version=Version("1")),))
    answers, error = drained(resolver(tmp_path).resolve_many([odd, *CELLS]))
    assert isinstance(error, UnknownReleaseError)
    assert len(answers) == len(CELLS)


@pytest.mark.parametrize("where", ["uv", "index"])
def test_an_unreachable_index_ends_it_at_once_and_is_no_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    failure = IndexUnreachableError("The index did not answer.")
    solver = FakeSolver(FakeIndex(packages()), errors={"vllm==1.0": failure} if where == "uv" else {})
    if where == "index":

        def unreachable(file: object) -> object:
            raise failure

        monkeypatch.setattr(solver.index, "metadata", unreachable)
    answers, error = drained(resolver(tmp_path, solver).resolve_many(CELLS, workers=1))
    assert isinstance(error, IndexUnreachableError)
    assert all(answer.detail["decided_by"] != "uv" or answer.outcome is not Outcome.CONFLICT for answer in answers)
    assert solver.stopped == 1


def test_leaving_early_stops_what_runs(tmp_path: Path) -> None:
    solver = FakeSolver(FakeIndex(packages()))
    answers = resolver(tmp_path, solver).resolve_many(CELLS, workers=1)
    next(answers)
    answers.close()  # type: ignore[attr-defined]
    assert solver.stopped == 1
    assert len(solver.asked) < len(CELLS)


def test_no_cells_no_answers(tmp_path: Path) -> None:
    assert list(resolver(tmp_path).resolve_many([])) == []


def test_agreement_with_uv_over_all_shortcuts(tmp_path: Path) -> None:
    found = sample_agreement(resolver(tmp_path), CELLS, 99, seed=1)
    assert (found.decided, found.asked, found.disagreements) == (11, 11, ())
    assert sample_agreement(resolver(tmp_path), CELLS, 3, seed=1).asked == 3


@pytest.mark.parametrize(
    ("edit", "word"),
    [
        ({"numpy": {"1.26": FakeRelease(), "2.1": FakeRelease(), "1.27": FakeRelease()}}, "the lock differs"),
        ({"cv": {"4.0": FakeRelease(requires=["none"]), "4.13": FakeRelease(requires=["none"])}}, "uv: conflict"),
    ],
)
def test_a_disagreement_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edit: Mapping[str, Mapping[str, FakeRelease]], word: str
) -> None:
    solver = FakeSolver(FakeIndex(packages()))
    one = resolver(tmp_path, solver)
    resolve = one.resolve

    def later(asked: Cell, *, shortcuts: bool = True) -> object:
        solver.index = changed(edit).index
        return resolve(asked, shortcuts=shortcuts)

    monkeypatch.setattr(one, "resolve", later)
    found = sample_agreement(one, CELLS, 99, seed=1)
    assert any(word in line for line in found.disagreements)


def test_the_real_uv_end_to_end(tmp_path: Path) -> None:
    """The wheels of a folder; the pins' metadata by the fake index, everything else by uv."""
    local = LocalIndex(tmp_path / "simple")
    for name, releases in packages().items():
        for version, release in releases.items():
            local.wheel(name, version, release.requires)
    index = FakeIndex(packages())
    one = Resolver(index=index, cache_dir=tmp_path / "cache", index_url=local.url)
    found = sample_agreement(one, CELLS, 99, seed=1)
    assert (found.decided, found.asked, found.disagreements) == (11, 11, ())
    assert one.resolve(cell("0.1", "1.0")).detail["versions"] == {"verl": "0.1", "vllm": "1.0"}
    open_cell = Cell(pins=(Pin(axis=Axis.VLLM, version=Version("2.0")),), open_axes=(OpenAxis(axis=Axis.VERL),))
    assert one.resolve(open_cell).detail["versions"] == {"verl": "0.4", "vllm": "2.0"}
    other = replace(cell("0.3", "1.0"), platform=Platform(python="3.13", glibc="2.28"))
    assert one.resolve(other).outcome is Outcome.OK


def test_a_long_chain_is_cut_in_the_one_line_and_nowhere_else() -> None:
    facts = [Fact(text=f"f{at}", source="s") for at in range(9)]
    assert in_one_line(facts) == "f0; f1; f2; f3; f4; and 4 more facts"
    assert in_one_line(facts[:2]) == "f0; f1"
