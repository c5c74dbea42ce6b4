"""Promises of guides beside what was measured: judged by intervals, untested ones with their reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.claims import CLAIMS, Answer, Claim, Held, Way, answers, load_claims, table
from bench.recipes import recipe_named
from bench.toggle import load_toggles
from bench.verdicts import judge
from matrix.errors import DataError
from tests.unit.bench_gathered import some

TWICE = Claim(
    id="x", guide="A guide", section="1", says="x is twice as fast", metric="throughput", pairing="t",
    recipes=("ppo-short",), ratio=2.0,
)  # fmt: skip


def answered(claim: Claim, ratio: float, **more: object) -> Answer:
    (found,) = answers(judge([some("t", claim.metric, ratio=ratio, **more)]), [claim])  # type: ignore[arg-type]
    return found


LOWER = replace(TWICE, metric="seconds/gen", ratio=0.5)
SWAPPED = replace(TWICE, ratio=1.25, swapped=True)
MORE = replace(TWICE, ratio=None, way=Way.MORE)
LESS = replace(TWICE, metric="memory/gpu", ratio=None, way=Way.LESS)
CASES = [
    (TWICE, 2.5, 0.01, Held.EXCEEDED),
    (TWICE, 2.0, 0.01, Held.MET),
    (TWICE, 1.5, 0.01, Held.LESS),
    (TWICE, 1.0, 0.01, Held.REFUTED),
    (TWICE, 0.8, 0.01, Held.REFUTED),
    (TWICE, 1.3, 1.0, Held.INCONCLUSIVE),
    (LOWER, 0.4, 0.01, Held.EXCEEDED),
    (LOWER, 0.5, 0.01, Held.MET),
    (LOWER, 0.8, 0.01, Held.LESS),
    (LOWER, 1.2, 0.01, Held.REFUTED),
    (SWAPPED, 0.8, 0.01, Held.MET),
    (SWAPPED, 0.5, 0.01, Held.EXCEEDED),
    (SWAPPED, 1.2, 0.01, Held.REFUTED),
    (MORE, 1.1, 0.01, Held.MET),
    (MORE, 0.9, 0.01, Held.REFUTED),
    (MORE, 1.0, 0.002, Held.REFUTED),
    (MORE, 1.0, 0.2, Held.INCONCLUSIVE),
    (LESS, 0.8, 0.01, Held.MET),
    (LESS, 1.1, 0.01, Held.REFUTED),
]


@pytest.mark.parametrize(("claim", "ratio", "noise", "held"), CASES)
def test_a_promise_is_judged_by_the_interval(claim: Claim, ratio: float, noise: float, held: Held) -> None:
    found = answered(claim, ratio, noise=noise)
    assert found.held is held
    assert found.n == (6, 6)
    assert found.ratio is not None
    assert found.interval is not None
    assert found.interval[0] <= found.ratio <= found.interval[1]
    if claim.swapped and noise < 0.1:
        assert found.ratio == pytest.approx(1 / ratio, rel=0.03)


def test_what_cannot_be_judged_says_why_and_has_no_number() -> None:
    assert answered(TWICE, 2.0, reasons=["throttled"]).held is Held.INCOMPARABLE
    assert answered(TWICE, 2.0, n=2).held is Held.INCONCLUSIVE
    for one in (
        answered(TWICE, 2.0, recipe="ppo-long"),
        answered(TWICE, 2.0, device="cpu"),
        answered(replace(TWICE, recipes=(), untested="there is no such key"), 2.0),
    ):
        assert (one.held, one.ratio, one.n) == (Held.UNTESTED, None, (0, 0))
        assert one.why
    (found,) = answers([], [TWICE], {"t": "inert: nobody reads it"})
    assert found.why == "inert: nobody reads it"
    (found,) = answers(judge([some("t", "seconds/gen")]), [TWICE])
    assert "not run" in found.why


def test_a_promise_is_told_for_each_recipe_that_measured_it() -> None:
    claim = replace(TWICE, recipes=("ppo-short", "ppo-long"))
    found = answers(judge([some("t", recipe="ppo-long"), some("t")]), [claim])
    assert [one.recipe for one in found] == ["ppo-short", "ppo-long"]


def test_an_absolute_figure_is_judged_on_its_own_hardware_alone() -> None:
    claim = Claim(
        id="x", guide="g", section="1", says="fast", metric="throughput", recipes=("ppo-short",), least=4_000.0,
        hardware="NVIDIA A100.*",
    )  # fmt: skip
    a100 = ("NVIDIA A100-SXM4-80GB",)
    rows = {
        "other": answers(judge([some("t"), some("u")]), [claim]),
        "met": answers(judge([some("t", gpus=a100)]), [claim]),
        "refuted": answers(judge([some("t", gpus=a100, base=1_000)]), [claim]),
        "near": answers(judge([some("t", gpus=a100, base=4_000)]), [claim]),
    }
    assert {name: [one.held for one in found] for name, found in rows.items()} == {
        "other": [Held.UNTESTED],
        "met": [Held.MET],
        "refuted": [Held.REFUTED],
        "near": [Held.INCONCLUSIVE],
    }
    assert "NVIDIA A100; measured was 1 x NVIDIA H200" in rows["other"][0].why
    assert rows["other"][0].value == pytest.approx(5_000, rel=0.02)
    assert rows["other"][0].promised == "≥ 4000"


def test_the_table_of_promises() -> None:
    found = table(answers(judge([some("t", ratio=2.0)]), [TWICE, MORE, replace(TWICE, recipes=(), untested="no key")]))
    assert list(found["verdict"]) == ["met", "met", "untested"]
    assert list(found["promised"]) == ["throughput 2 times", "throughput more", "throughput 2 times"]
    assert list(found["n"]) == ["6+6", "6+6", ""]
    assert found["why"][2] == "no key"
    assert found["where"][0] == "ppo-short on 1 x NVIDIA H200"


def test_the_promises_that_are_shipped_name_what_there_is() -> None:
    claims = load_claims()
    toggles = {toggle.name for toggle in load_toggles()}
    for claim in claims:
        assert claim.pairing in {"", *toggles}
        for name in claim.recipes:
            recipe_named(name)
        assert claim.says.isascii()
        assert not claim.guide.isascii()
    by_id = {claim.id: claim for claim in claims}
    assert by_id["three-settings-throughput"].ratio == pytest.approx(1652 / 1176, abs=0.001)
    assert by_id["ulysses-mfu"].ratio == pytest.approx(0.052 / 0.038, abs=0.001)
    assert "Refused" in by_id["ulysses-one-card"].untested
    assert all(one.held is Held.UNTESTED and one.why for one in answers([]))


ROW = """
[[claim]]
id = "x"
guide = "g"
section = "1"
says = "x"
metric = "throughput"
"""
BROKEN = [
    ('pairing = "t"\nrecipes = ["ppo-short"]\n', "one of the three"),
    ('pairing = "t"\nratio = 2\nway = "more"\nrecipes = ["ppo-short"]\n', "one of the three"),
    ('ratio = 2\npairing = "t"\n', "names recipes"),
    ('ratio = 2\nrecipes = ["ppo-short"]\n', "is of a pairing"),
    ('least = 2\npairing = "t"\nrecipes = ["ppo-short"]\n', "is of a pairing"),
    ('least = 2\nrecipes = ["ppo-short"]\n', "goes with a least figure"),
    ('ratio = 0\nuntested = "x"\n', "above 0"),
    ('ratio = true\nuntested = "x"\n', "above 0"),
    ('way = "up"\nuntested = "x"\n', "none of more, less"),
    (f'ratio = 2\nuntested = "x"\n{ROW}ratio = 2\nuntested = "x"\n', "there twice"),
]


@pytest.mark.parametrize(("text", "said"), BROKEN)
def test_the_data_of_promises_is_checked(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "claims.toml"
    path.write_text(f'schema = 1\nchecked = 2026-01-01\n[guides]\ng = "G"\n{ROW}{text}', encoding="utf-8")
    with pytest.raises(DataError, match=said):
        load_claims(path)


def test_a_guide_that_is_not_named(tmp_path: Path) -> None:
    path = tmp_path / "claims.toml"
    path.write_text(CLAIMS.read_text(encoding="utf-8").replace('guide = "tuning"', 'guide = "other"', 1))
    with pytest.raises(DataError, match="none of tuning"):
        load_claims(path)
