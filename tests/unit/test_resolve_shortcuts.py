"""Shortcuts and conflict cores: what they say, and that they never say more than is so."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from matrix.resolve.case import PIN, Demand, demands_of
from matrix.resolve.cores import Core, Cores, find_core
from matrix.resolve.shortcuts import Versions, refute
from matrix.resolve.solver import Answer, Refused, Solved

KNOWN = {
    "torch": ["2.4.0", "2.4.0.post1", "2.5.0rc1", "2.5.0", "2.6.0"],
    "numpy": ["1.26.0", "2.0.0", "2.1.0"],
    "only-pre": ["1.0rc1"],
}


def versions_of(package: str) -> Sequence[Version] | None:
    return [Version(text) for text in KNOWN[package]] if package in KNOWN else None


def demands(holder: str, *requirements: str) -> list[Demand]:
    return demands_of([Requirement(text) for text in requirements], holder=holder, source=f"{holder}.whl")


@pytest.mark.parametrize(
    ("stated", "pins", "facts", "lasting"),
    [
        (["torch==2.4.0"], {"torch": "2.6.0"}, ["a requires torch==2.4.0", "the cell pins torch 2.6.0"], True),
        (["torch>=2.5"], {"torch": "2.6.0rc1"}, None, False),
        (["torch==2.6.0"], {"torch": "2.6.0+cu124"}, None, False),
        (["torch @ https://x/t.whl"], {"torch": "2.6.0"}, None, False),
        (["numpy<2", "numpy>=2"], {}, ["a requires numpy<2", "b requires numpy>=2", "no release of numpy meets both"],
         False),
        (["numpy<2", "numpy>=1"], {}, None, False),
        (["numpy<2", "numpy<2"], {}, None, False),
        (["numpy", "numpy>=3"], {}, None, False),
        (["torch>2.4.0", "torch<2.5.0"], {},
         ["a requires torch>2.4.0", "b requires torch<2.5.0", "no release of torch meets both"], False),
        (["torch>2.4.0", "torch<=2.5.0"], {}, None, False),
        (["torch>2.5.0rc1,<2.6", "torch<2.5"], {}, ["a requires torch<2.6,>2.5.0rc1", "b requires torch<2.5",
                                                    "no release of torch meets both"], False),
        (["only-pre>=1.0rc1", "only-pre<2"], {}, None, False),
        (["unknown<1", "unknown>1"], {}, None, False),
        (["numpy>=3", "numpy>=1"], {}, ["a requires numpy>=3", "no release of numpy meets that"], False),
        (["numpy!=2.0.0", "numpy!=2.1.0", "numpy!=1.26.0"], {},
         ["a requires numpy!=2.0.0", "b requires numpy!=2.1.0", "c requires numpy!=1.26.0",
          "no release of numpy meets them all"], False),
        ([], {"torch": "2.6.0"}, None, False),
    ],
)  # fmt: skip
def test_refute(stated: list[str], pins: dict[str, str], facts: list[str] | None, lasting: bool) -> None:
    asked = [demand for holder, text in zip("abc", stated, strict=False) for demand in demands(holder, text)]
    found = refute(asked, {name: Version(text) for name, text in pins.items()}, Versions(versions_of))
    assert (None if found is None else [fact.text for fact in found.facts]) == facts
    assert found is None or found.lasting is lasting


def test_pages_are_read_only_where_two_demands_meet_and_once() -> None:
    read: list[str] = []

    def note(package: str) -> Sequence[Version] | None:
        read.append(package)
        return versions_of(package)

    versions = Versions(note)
    for _ in range(2):
        refute([*demands("a", "numpy<2", "torch>1"), *demands("b", "numpy>=1", "other>1")], {}, versions)
    assert read == ["numpy"]


OPERATORS = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
NUMBERS = st.sampled_from(["1.26.0", "2.0.0", "2.1.0", "2.0.0rc1", "3.0"])
SPECIFIERS = st.lists(st.tuples(OPERATORS, NUMBERS).map("".join), max_size=3).map(",".join)


@given(st.lists(SPECIFIERS, min_size=1, max_size=4), st.sampled_from([None, "1.26.0", "2.0.0", "2.1.0"]))
def test_a_refuted_set_has_no_version_and_a_set_without_one_is_refuted(texts: list[str], pinned: str | None) -> None:
    stated = [demand for at, text in enumerate(texts) for demand in demands(f"h{at}", f"numpy{text}")]
    candidates = [Version(pinned)] if pinned else [Version(text) for text in KNOWN["numpy"]]
    possible = [v for v in candidates if all(d.specifier.contains(v, prereleases=True) for d in stated)]
    pins = {"numpy": Version(pinned)} if pinned else {}
    refuted = refute(stated, pins, Versions(versions_of)) is not None
    if refuted:
        assert possible == []
    # One demand alone, and demands all spelled alike, are left to uv.
    elif len({str(d.specifier) for d in stated if d.specifier}) > 1:
        assert possible != []


# --- cores ---


def asker(*conflicts: set[str]) -> tuple[list[tuple[str, ...]], object]:
    """Return a solver that refuses whatever holds one of the conflicts, and the list of what it was asked."""
    asked: list[tuple[str, ...]] = []

    def ask(requirements: tuple[str, ...]) -> Answer:
        asked.append(requirements)
        held = [conflict for conflict in conflicts if conflict <= set(requirements)]
        if not held:
            return Solved(lock="", dependants=None)
        words = " and ".join(f"you require {requirement}" for requirement in requirements)
        return Refused(text=f"Because x>=4 depends on numpy>=2 and {words}, we can conclude that no.")

    return asked, ask


TEXT = "Because cv>=4 depends on numpy>=2 and v==1 depends on cv>=4, we can conclude … verl depends on numpy<2"


def test_a_core_is_the_fewest_requirements_that_are_refused() -> None:
    _, ask = asker({"numpy<2", "cv>=4"})
    stated = [*demands("verl 1", "numpy<2", "ray>=2"), *demands("v 1", "cv>=4", "numpy", "torch==2")]
    pinned = demands_of([Requirement("v==1"), Requirement("verl==1")], holder=PIN, source="cell")
    core = find_core(TEXT, stated, pinned, ask)  # type: ignore[arg-type]
    assert core is not None
    assert [fact.text for fact in (demand.fact for demand in core.demands)] == [
        "verl 1 requires numpy<2",
        "v 1 requires cv>=4",
    ]
    assert [str(fact) for fact in core.facts] == ["x>=4 depends on numpy>=2 [uv]"]


def test_a_pin_stays_in_the_core_where_it_is_needed() -> None:
    _, ask = asker({"numpy<2", "v==1"})
    pinned = demands_of([Requirement("v==1"), Requirement("verl==1")], holder=PIN, source="cell")
    core = find_core(TEXT, demands("verl 1", "numpy<2"), pinned, ask)  # type: ignore[arg-type]
    assert core is not None
    assert [demand.requirement for demand in core.demands] == ["v==1", "numpy<2"]


@pytest.mark.parametrize(
    "stated",
    [
        [],
        demands("a", "numpy<2"),
        demands("a", "numpy @ https://x/n.whl"),
        demands("a", *[f"numpy>={at}" for at in range(40)]),
    ],
)
def test_no_core_where_the_demands_do_not_suffice(stated: list[Demand]) -> None:
    _, ask = asker({"numpy<2", "other"}, {f"numpy>={at}" for at in range(40)})
    assert find_core(TEXT, stated, [], ask) is None  # type: ignore[arg-type]


def core(*requirements: str) -> Core:
    return Core(demands=tuple(demands("first", *requirements)), facts=(), text="t")


@pytest.mark.parametrize(
    ("stated", "pinned", "matches"),
    [
        (demands("b", "numpy<2", "torch[x]>=2.5"), [], True),
        (demands("b", "numpy<1.27", "torch[x]>=2.6"), [], True),
        (demands("b", "numpy<2.1", "torch[x]>=2.6"), [], False),
        (demands("b", "numpy<2", "torch>=2.5"), [], False),
        (demands("b", "numpy<2", "torch[x,y]>=2.5"), [], True),
        (demands("b", "numpy<2"), [], False),
        (demands("b", "torch[x]>=2.5"), ["numpy==1.26.0"], True),
        (demands("b", "torch[x]>=2.5"), ["numpy==2.0.0"], False),
        (demands("b", "torch[x]>=2.5", "numpy @ https://x/n.whl"), [], False),
    ],
)
def test_a_core_matches_what_lets_in_no_more(stated: list[Demand], pinned: list[str], matches: bool) -> None:
    cores = Cores(Versions(versions_of))
    cores.add(core("numpy<2", "torch[x]>=2.5"))
    pins = demands_of([Requirement(text) for text in pinned], holder=PIN, source="cell")
    found = cores.match(stated, pins)
    assert (found is not None) is matches
    assert found is None or {demand.holder for demand in found.demands} <= {"b", PIN}


@pytest.mark.parametrize(
    ("holder", "requirement", "matches"),
    [
        (PIN, "torch==2.5.0rc1", False),
        (PIN, "torch==2.6.0", True),
        ("the override", "torch==2.6.0", False),
        ("the override", "torch>=2.5.0rc1", True),
        ("another release", "torch==2.5.0rc1", True),
    ],
)
def test_the_users_own_words_may_let_in_what_a_dependency_does_not(
    holder: str, requirement: str, matches: bool
) -> None:
    cores = Cores(Versions(versions_of))
    cores.add(core("torch>=2.5.0rc1"))
    source = "cell" if holder != "another release" else "x.whl"
    stated = demands_of([Requirement(requirement)], holder=holder, source=source)
    assert (cores.match(stated, []) is not None) is matches


def test_a_core_of_a_package_that_is_gone_matches_by_its_words_only() -> None:
    cores = Cores(Versions(versions_of))
    cores.add(core("gone<1"))
    assert cores.match(demands("b", "gone<1"), []) is not None
    assert cores.match(demands("b", "gone<0.5"), []) is None


def test_no_specifier_lets_every_version_in() -> None:
    allowed = Versions(versions_of).allowed("numpy", SpecifierSet())
    assert allowed == frozenset(Version(text) for text in KNOWN["numpy"])
