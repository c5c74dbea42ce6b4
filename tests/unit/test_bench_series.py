"""A series of launches: its order, what is had again, what is given up, and that it goes on where it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from bench.gathered import gathered
from bench.launched import Fault, Launched, Trouble
from bench.place import Place
from bench.recipes import Kind, recipe_named
from bench.sample import Side
from bench.series import Series, run, told
from bench.toggle import Judged, Standing, toggle_named
from bench.variant import Pairing
from matrix.errors import BusyError, ToolError, UsageError
from matrix.observe import Observation
from matrix.store import Store
from tests.unit.bench_launches import CONDITIONS, OOM, kept, launcher, pairing
from tests.unit.run_fakes import AT

HUNG = Fault(trouble=Trouble.HUNG, text="it said nothing for 150 s")
Says = Callable[[Place], Fault | str | None]


@dataclass
class Fake:
    """Launches in no time: `says` gives the fault of a place, or what disturbed it; `closes` after so many."""

    says: Says = lambda _: None
    closes: int = 10**9
    seconds: float = 100.0
    closed: str = ""
    had: dict[str, Observation] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)

    def stored(self, place: Place) -> Launched | None:
        """Return what was had."""
        found = self.had.get(f"{place.pairing.name} {place.probe}")
        return None if found is None else Launched.of(found)

    def launch(self, place: Place) -> Launched:
        """Have it."""
        what = self.says(place)
        observation = kept(
            place.number,
            None if isinstance(what, Fault) else 100.0,
            fault=what if isinstance(what, Fault) else None,
            disturbed=[what] if isinstance(what, str) else [],
            name=place.pairing.name,
            kind=place.kind,
            planned=place.planned,
            warms=place.warms,
            seconds=self.seconds,
        )
        self.had[f"{place.pairing.name} {place.probe}"] = observation
        side = place.side.value if place.side is not None else "AB"
        self.order.append(f"{'w' if place.warms else ''}{side}{place.number}")
        if len(self.order) >= self.closes:
            self.closed = "a GPU was lost"
        return Launched.of(observation, recalled=False)


def series(*pairings: Pairing, launches: int = 2, extra: int = 2, warm: bool = False) -> Series:
    """Return a series of these pairings."""
    return Series(name="s", pairings=pairings or (pairing(),), launches=launches, extra=extra, warm=warm)


def had(
    fake: Fake, asked: Series, deadline: float = float("inf"), clock: Callable[[], float] = lambda: 0.0
) -> tuple[list[str], list[str]]:
    """Return the order in which launches were had, and what was told."""
    lines: list[str] = []
    for _ in run(asked, fake, tell=lines.append, deadline=deadline, clock=clock, today=lambda: AT):
        pass
    return fake.order, lines


def test_sides_take_turns() -> None:
    assert had(Fake(), series(launches=4))[0] == ["A0", "B1", "B2", "A3", "B4", "A5", "A6", "B7"]
    assert had(Fake(), series(launches=1, warm=True))[0] == ["wA0", "wB1", "A0", "B1"]
    update = pairing(recipe="update-short")
    assert had(Fake(), series(update, launches=2, warm=True))[0] == ["AB0", "AB1"]


def test_what_is_planned() -> None:
    asked = series(pairing(), pairing(name="other", recipe="update-short"), launches=2)
    places = asked.planned()
    assert [(place.pairing.name, place.side, place.number) for place in places] == [
        ("toggle", Side.A, 0), ("toggle", Side.B, 1), ("toggle", Side.B, 2), ("toggle", Side.A, 3),
        ("other", None, 0), ("other", None, 1),
    ]  # fmt: skip
    assert places[0].words == "ppo-tiny toggle 0: toggle: ppo-tiny"
    assert places[-1].words == "update-short other 1: both sides"
    assert places[0].kind is Kind.PPO


def test_a_dropped_pair_is_had_again_at_the_end() -> None:
    assert had(Fake(lambda place: OOM if place.number == 1 else None), series())[0] == [
        "A0", "B1", "B2", "A3", "B4", "A5",
    ]  # fmt: skip
    disturbed = Fake(lambda place: "throttled" if place.number in (0, 4) else None)
    assert had(disturbed, series())[0] == ["A0", "B1", "B2", "A3", "B4", "A5", "A6", "B7"]
    # No more than so many times.
    assert len(had(Fake(lambda place: "throttled"), series(extra=1))[0]) == 6
    assert len(had(Fake(lambda place: OOM if place.number == 1 else None), series(extra=0))[0]) == 4


def test_a_side_that_always_fails_is_given_up_and_the_rest_goes_on() -> None:
    bad = pairing(name="bad")
    fake = Fake(lambda place: OOM if place.pairing is bad and place.side is Side.B else None)
    order, lines = had(fake, series(bad, pairing(name="good")))
    assert order == ["A0", "B1", "B2", "A0", "B1", "B2", "A3"]
    # The sides of a given-up pairing are not had again either.
    assert lines[-9].startswith("ppo-tiny bad 3") or any(
        "side B failed 2 times of 2: out of memory" in x for x in lines
    )


def test_a_side_that_failed_once_is_not_given_up() -> None:
    fake = Fake(lambda place: HUNG if place.number in (1, 4) else None)
    assert had(fake, series(launches=3))[0] == ["A0", "B1", "B2", "A3", "B4", "A5", "A6", "B7", "A8", "B9"]


def test_a_series_goes_on_where_it_was() -> None:
    fake = Fake(lambda place: OOM if place.number == 1 else None)
    found = run(series(), fake, today=lambda: AT)
    for _ in range(3):
        next(found)
    found.close()
    assert fake.order == ["A0", "B1", "B2"]
    yielded = list(run(series(), fake, today=lambda: AT))
    assert fake.order == ["A0", "B1", "B2", "A3", "B4", "A5"]
    assert [item.recalled for item in yielded] == [True, True, True, False, False, False]
    assert [item.recalled for item in run(series(), fake, today=lambda: AT)] == [True] * 6
    # More launches of the same series keep those that were had.
    assert len(list(run(series(launches=4), fake, today=lambda: AT))) == 10
    assert fake.order[6:] == ["A6", "B7", "A8", "B9"]


def test_a_pair_begun_beyond_the_plan_is_ended() -> None:
    fake = Fake(lambda place: OOM if place.number == 1 else None)
    found = run(series(), fake, today=lambda: AT)
    for _ in range(5):
        next(found)
    found.close()
    assert fake.order[-1] == "B4"
    list(run(series(), fake, today=lambda: AT))
    assert fake.order == ["A0", "B1", "B2", "A3", "B4", "A5"]


def test_a_pair_that_would_lie_apart_is_had_again() -> None:
    fake = Fake()
    found = run(series(launches=3), fake, today=lambda: AT)
    for _ in range(3):
        next(found)
    found.close()
    tomorrow = AT + timedelta(days=1)
    lines: list[str] = []
    again = list(run(series(launches=3), fake, today=lambda: tomorrow, tell=lines.append))
    # B1 is kept, B2 stands alone: its pair is dropped, and one more is had.
    assert fake.order == ["A0", "B1", "B2", "B4", "A5", "A6", "B7"]
    assert [item.place for item in again] == [0, 1, 2, 4, 5, 6, 7]
    assert "ppo-tiny toggle 3: toggle: ppo-tiny: not had, the launch it is paired with is too long ago" in lines
    (drop,) = gathered(fake.had.values())[0].sample.drops
    assert drop.reason == "A: did not run"
    list(run(series(launches=3), fake, today=lambda: tomorrow))
    assert len(fake.order) == 7


def test_a_pair_begun_beyond_the_plan_that_would_lie_apart() -> None:
    fake = Fake(lambda place: OOM if place.number == 1 else None)
    found = run(series(), fake, today=lambda: AT)
    for _ in range(5):
        next(found)
    found.close()
    list(run(series(), fake, today=lambda: AT + timedelta(days=1)))
    assert fake.order == ["A0", "B1", "B2", "A3", "B4", "A6", "B7"]


def test_a_pair_on_two_hosts_is_had_again() -> None:
    class Moving(Fake):
        def launch(self, place: Place) -> Launched:
            Fake.launch(self, place)
            if place.number == 1:
                self.had[f"{place.pairing.name} {place.probe}"] = kept(1, conditions={**CONDITIONS, "kernel": "6.9"})
            return Launched.of(self.had[f"{place.pairing.name} {place.probe}"])

    fake = Moving()
    list(run(series(launches=1), fake, today=lambda: AT))
    assert fake.order == ["A0", "B1", "B2", "A3"]


def test_no_launch_begins_that_would_not_be_over_in_time() -> None:
    now = iter(range(0, 10_000, 100))
    order, lines = had(Fake(), series(launches=4), deadline=350.0, clock=lambda: next(now))
    assert order == ["A0", "B1", "B2"]
    assert lines[-1] == "ppo-tiny toggle 3: toggle: ppo-tiny: not had, it takes 100 s and 50 s are left"
    assert had(Fake(), series(), deadline=0.0, clock=lambda: 0.0)[0] == []


def test_what_is_kept_is_told_though_time_is_up() -> None:
    fake = Fake()
    list(run(series(), fake, today=lambda: AT))
    del fake.had["toggle launch/ppo-tiny/toggle/B/01"]
    found = [item.place for item in run(series(), fake, deadline=0.0, clock=lambda: 0.0, today=lambda: AT)]
    assert found == [0, 2, 3]


def test_a_launcher_that_is_closed_begins_nothing() -> None:
    fake = Fake(closes=2)
    order, lines = had(fake, series(pairing(), pairing(name="other")))
    assert order == ["A0", "B1"]
    assert [line for line in lines if "not had" in line] == [
        "ppo-tiny toggle 2: toggle: ppo-tiny: not had, a GPU was lost",
        "ppo-tiny other 0: other: ppo-tiny: not had, a GPU was lost",
    ]


def test_a_pairing_that_cannot_be_had_is_passed_over() -> None:
    fake = Fake()

    def launch(place: Place) -> Launched:
        if place.pairing.name == "two":
            raise BusyError("2 of 1 GPUs did not come free.")
        return Fake.launch(fake, place)

    class Busy(Fake):
        def launch(self, place: Place) -> Launched:
            return launch(place)

    lines: list[str] = []
    found = list(run(series(pairing(name="two"), pairing(), launches=1), Busy(), tell=lines.append))
    assert [item.pairing for item in found] == ["toggle", "toggle"]
    assert "ppo-tiny two: not had: 2 of 1 GPUs did not come free." in lines


def test_what_closes_the_launcher_as_it_raises_ends_the_series() -> None:
    class Closing(Fake):
        def launch(self, place: Place) -> Launched:
            self.closed = "gone"
            raise ToolError("The NVIDIA driver has stopped answering.")

    with pytest.raises(ToolError):
        list(run(series(), Closing()))


def judged(standing: Standing) -> Judged:
    """Return that a toggle does nothing."""
    return Judged(
        toggle=toggle_named("checkpointing"), release=Version("0.9.1"), standing=standing, why="nothing reads it"
    )


def test_what_is_inert_is_not_launched() -> None:
    inert = replace(pairing(name="inert"), standing=judged(Standing.INERT))
    live = replace(pairing(name="live"), standing=judged(Standing.LIVE))
    order, lines = had(Fake(), series(inert, live, launches=1))
    assert order == ["A0", "B1"]
    assert lines[0] == "ppo-tiny inert: inert, nothing reads it"
    assert len(series(inert, live, launches=1).planned()) == 2


@pytest.mark.parametrize("words", [{"name": ""}, {"name": "a/b"}, {"launches": 0}, {"extra": -1}, {"repeats": -1}])
def test_no_series(words: Mapping[str, object]) -> None:
    with pytest.raises(UsageError):
        Series(**{"name": "s", "pairings": (pairing(),), **words})  # type: ignore[arg-type]


def test_two_pairings_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="ppo-tiny toggle"):
        series(pairing(), pairing(a=("x=1",)))
    assert series(pairing(), pairing(recipe="update-short")).planned()


def test_launches_in_words() -> None:
    assert told(Launched.of(kept(0, 123.456))) == "throughput 123.46, 100 s"
    assert told(Launched.of(kept(0, None, fault=HUNG))) == "hung: it said nothing for 150 s (100 s)"
    assert told(Launched.of(kept(0, 1.0, disturbed=["x"]))) == "throughput 1, disturbed: x, 100 s"
    assert recipe_named("ppo-tiny").kind is Kind.PPO


def test_a_real_series_of_stand_ins(tmp_path: Path) -> None:
    slow = pairing(("fake.seconds=2.0",), ("fake.seconds=1.0",), name="quicker")
    dies = pairing((), ("fake.does=oom",), name="dies")
    asked = Series(name="s", pairings=(dies, slow), launches=1, extra=0)
    with launcher(tmp_path) as made:
        first = list(run(asked, made))
    with launcher(tmp_path) as made:
        assert [item.recalled for item in run(asked, made)] == [True] * 4
    assert [str(item.fault or "") for item in first] == [
        "",
        "out of memory: (WorkerDict pid=17) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "",
        "",
    ]
    found = {item.pairing: item for item in gathered(Store(tmp_path / "store")) if item.metric.name == "throughput"}
    assert found["quicker"].sample.values(Side.A) == (400.0,)
    assert found["quicker"].sample.values(Side.B) == (800.0,)
    assert found["dies"].sample.used == ()
    assert found["quicker"].reasons == ()


@given(
    launches=st.integers(1, 4),
    extra=st.integers(0, 2),
    bad=st.dictionaries(st.integers(0, 11), st.sampled_from([OOM, "throttled"]), max_size=6),
    stops=st.lists(st.integers(1, 12), max_size=3),
)
@settings(max_examples=60, deadline=None)
def test_whatever_fails_and_wherever_it_is_stopped(
    launches: int, extra: int, bad: dict[int, Fault | str], stops: list[int]
) -> None:
    asked = series(launches=launches, extra=extra)
    through, stopped = (Fake(lambda place: bad.get(place.number)) for _ in range(2))
    whole = list(run(asked, through, today=lambda: AT))
    for count in stops:
        found = run(asked, stopped, today=lambda: AT)
        for _, _ in zip(range(count), found, strict=False):
            pass
        found.close()
    list(run(asked, stopped, today=lambda: AT))
    # A run that was stopped has what one that ran through has, and no launch twice.
    assert stopped.order == through.order
    assert len(set(through.order)) == len(through.order) <= 2 * (launches + extra)
    assert [item.place for item in whole] == list(range(len(whole)))
    pairs = [item.side for item in whole[: len(whole) // 2 * 2]]
    assert all(pairs[at] is not pairs[at + 1] for at in range(0, len(pairs), 2))
    (gone,) = gathered(through.had.values()) or (None,)
    if gone is not None and gone.reasons:
        assert "throttled" in bad.values()
