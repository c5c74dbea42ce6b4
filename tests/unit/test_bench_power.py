"""Plans: the table of docs/statistics.md, against the very verdicts, and against what no test can beat."""

from __future__ import annotations

import math
import random
import re
from pathlib import Path

import pytest
from scipy import stats as scipy_stats

from bench.comparison import Verdict, compare
from bench.power import MOST, launches_for, noise_of, plan, power_at
from bench.sample import Sample, Side
from tests.unit.bench_worlds import NOISE, THROUGHPUT, lognormal, stragglers, tried

PAGE = Path(__file__).parents[2] / "docs" / "statistics.md"


def table() -> list[tuple[int, float, float, int]]:
    """Return the rows of the power table: n, then the per cents for a noise of 1 %."""
    page = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| ([\d.]+|none) \| ([\d.]+) \| (\d+) \|$", page, re.MULTILINE)
    return [
        (int(n), math.nan if show == "none" else float(show), float(same), int(sure)) for n, show, same, sure in rows
    ]


def test_the_power_table_of_the_page_is_reproduced() -> None:
    rows = table()
    assert [row[0] for row in rows] == [3, 4, 5, 6, 8, 10, 15, 20]
    for n, shown, same, sure in rows:
        found = plan(int(n), NOISE, 0.02)
        per_cent = math.nan if found.detectable is None else 100 * (found.detectable - 1)
        assert per_cent == pytest.approx(shown, abs=0.02, nan_ok=True)
        assert found.least_margin is not None
        assert 100 * found.least_margin == pytest.approx(same, abs=0.02)
        assert 100 * found.equivalent == pytest.approx(sure, abs=1)


@pytest.mark.parametrize(("n", "ratio"), [(5, 1.025), (6, 1.02), (10, 1.012)])
def test_power_is_what_verdicts_do(n: int, ratio: float) -> None:
    source, runs = random.Random(20), 300
    said = [compare(tried(lognormal(source, 2 * n), ratio=ratio), margin=0.001).verdict for _ in range(runs)]
    share = said.count(Verdict.FASTER) / runs
    assert share == pytest.approx(power_at(n, NOISE, ratio), abs=0.08)
    assert power_at(n, NOISE, 1 / ratio) == pytest.approx(power_at(n, NOISE, ratio))


@pytest.mark.parametrize("n", [6, 8, 10, 20])
def test_no_plan_promises_more_than_the_t_test_could_hold(n: int) -> None:
    """For lognormal noise no unbiased test beats Student's, and this one is to come within 15 % of it."""
    found = plan(n, NOISE, 0.02).detectable
    assert found is not None
    degrees = 2 * n - 2
    effects = [step / 1000 for step in range(500, 4000)]
    critical = scipy_stats.t.ppf(0.975, degrees)
    best = next(x for x in effects if scipy_stats.nct.sf(critical, degrees, x * math.sqrt(n / 2)) >= 0.8)
    assert 0.96 * best <= math.log(found) / NOISE <= 1.15 * best


@pytest.mark.parametrize(
    ("n", "family", "notes"),
    [
        (1, 1, ["1 launches a side can show no difference", "1 launches a side can show no equivalence"]),
        (3, 1, ["3 launches a side can show no difference: 20 ways to exchange the labels: p is never below 0.1"]),
        (5, 10, ["5 launches a side can show no difference", "5 launches a side can show no equivalence"]),
        (8, 1, []),
    ],
)
def test_what_cannot_be_shown_is_said_before_it_is_run(n: int, family: int, notes: list[str]) -> None:
    found = plan(n, NOISE, 0.05, family=family)
    assert len(found.notes) == len(notes)
    assert all(note.startswith(begin) for note, begin in zip(found.notes, notes, strict=True))
    assert (found.detectable is None) == bool(notes)


def test_a_margin_finer_than_the_launches_are_is_said() -> None:
    found = plan(6, 0.03, 0.02)
    assert found.notes == ("sameness within 2.00% would mostly go unshown; within 5.94% it would be shown",)
    assert found.equivalent < 0.3


def test_plans_scale_with_noise_and_grow_with_families() -> None:
    one, two = plan(8, 0.01, 0.02), plan(8, 0.02, 0.02)
    assert one.detectable is not None
    assert two.detectable is not None
    assert math.log(two.detectable) == pytest.approx(2 * math.log(one.detectable))
    family = plan(8, 0.01, 0.02, family=5).detectable
    assert family is not None
    assert family > one.detectable


def test_launches_for() -> None:
    needed = launches_for(1.02, NOISE)
    assert needed is not None
    assert power_at(needed, NOISE, 1.02) >= 0.8 > power_at(needed - 1, NOISE, 1.02)
    assert launches_for(1 / 1.02, NOISE) == needed
    assert launches_for(1.405, NOISE) == 4
    assert launches_for(1.0001, NOISE) is None


@pytest.mark.parametrize(
    ("n", "noise", "margin", "more"),
    [
        (0, 0.01, 0.02, {}),
        (MOST + 1, 0.01, 0.02, {}),
        (5, 0.0, 0.02, {}),
        (5, 0.01, 0.0, {}),
        (5, 0.01, 0.02, {"family": 0}),
        (5, 0.01, 0.02, {"power": 1.0}),
        (5, 0.01, 0.02, {"alpha": 0.6}),
    ],
)
def test_arguments_that_make_no_sense(n: int, noise: float, margin: float, more: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"a plan is for|alpha lies"):
        plan(n, noise, margin, **more)  # type: ignore[arg-type]


def test_noise_is_measured_and_its_bound_holds_in_four_of_five() -> None:
    source = random.Random(4)
    found = [noise_of(tried(lognormal(source, 12), ratio=1.4)) for _ in range(600)]
    noises = [one for one in found if one is not None]
    assert len(noises) == 600
    assert {one.degrees for one in noises} == {6}
    mean_square = sum(one.value**2 for one in noises) / 600
    assert math.sqrt(mean_square) == pytest.approx(NOISE, rel=0.05)
    assert sum(one.high > NOISE for one in noises) / 600 == pytest.approx(0.8, abs=0.04)


def test_noise_of_pairs_of_one_block_and_of_nothing() -> None:
    values = [0.0, 0.1, 0.3, 0.1, 0.0, 0.0, 0.0, 0.1] * 3
    whole = tried(values)
    pairs = Sample(metric=THROUGHPUT, launches=tuple(x for x in whole.launches if x.place % 4 < 2))
    assert [len(block.a) for block in pairs.blocks] == [1] * 6
    measured = noise_of(pairs)
    assert measured is not None
    assert measured.degrees == 5
    assert noise_of(tried([0.0, 0.1])) is None
    apart = noise_of(Sample.separate(THROUGHPUT, [1.0, 1.1], [2.0]))
    assert apart is not None
    assert apart.degrees == 1
    assert apart.value == pytest.approx(math.log(1.1) / math.sqrt(2))
    assert apart.high == pytest.approx(apart.value / scipy_stats.chi2.ppf(0.2, 1) ** 0.5)
    assert noise_of(Sample(metric=THROUGHPUT, launches=())) is None


def test_stragglers_cost_more_launches_than_planned() -> None:
    """What the page says of heavy tails: a plan made for the noise without them promises too much."""
    source = random.Random(8)
    said = [compare(tried(stragglers(source, 16), ratio=1.05), margin=0.001).verdict for _ in range(100)]
    assert said.count(Verdict.FASTER) / 100 < 0.6 < power_at(8, NOISE, 1.05)
    assert Side.A.other is Side.B
