"""Findings to judge by hand: ``python tests/accuracy/sample.py --seed 1 --n 120`` prints a seeded random sample.

It draws from what a home's store holds, so fill that first with the lattice and the default cells:

    python -m matrix grid --x verl --y vllm --home HOME
    python -m matrix run --home HOME
    python tests/accuracy/sample.py --home HOME --seed 1 --n 120

Only findings that can decide a verdict are drawn: certain breaks and certain degradations. One that many releases of
the target share counts once, and which of those releases it is judged with is drawn too. The sample is stratified by
kind, effect and verl release: the strata take turns, in random order, so that the rare ones are seen; it is therefore
no estimate of how often a kind occurs. Answers of older rules of the tier are left out.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from matrix.cell import Axis  # noqa: E402
from matrix.finding import Finding  # noqa: E402
from matrix.home import Home  # noqa: E402
from matrix.observe import Observation  # noqa: E402
from matrix.store import Store  # noqa: E402
from matrix.surface.check import RULES  # noqa: E402
from matrix.tier import Tier  # noqa: E402

Identity = tuple[str, str, str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A finding, and the two releases between which it stands."""

    verl: str
    target_version: str
    finding: Finding

    @property
    def identity(self) -> Identity:
        """Return what tells a finding from others, whichever release of the target it is about."""
        finding = self.finding
        symbol = finding.symbol.replace(f"=={self.target_version}", "")
        return self.verl, finding.kind, finding.effect, symbol, str(finding.used_at)

    @property
    def stratum(self) -> tuple[str, str, str]:
        """Return the stratum: kind, effect, release of verl."""
        return self.finding.kind, self.finding.effect, self.verl


def observations(home: Path, rules: int) -> Iterator[Observation]:
    """Yield the observations of tier `surface` that these rules made."""
    for item in Store(home):
        if item.question.tier is Tier.SURFACE and f" rules {rules} " in f"{item.question.tool} ":
            yield item


def deciding(items: Iterable[Observation]) -> Iterator[Drawn]:
    """Yield every finding that can decide a verdict, once for each observation that holds it."""
    for item in items:
        versions = item.detail.get("versions")
        found = item.detail.get("findings")
        if not isinstance(versions, dict) or not isinstance(found, list | tuple):
            continue
        by_module = {axis.module: str(versions[axis.value]) for axis in Axis if axis.value in versions}
        for data in found:
            finding = Finding.from_json(data)
            if finding.decides:
                version = by_module.get(finding.target, "")
                yield Drawn(verl=str(versions["verl"]), target_version=version, finding=finding)


def sample(drawn: Iterable[Drawn], n: int, seed: int) -> list[Drawn]:
    """Return at most `n` findings, no two of one identity; the same seed and store give the same sample."""
    chance = random.Random(seed)
    groups: dict[Identity, list[Drawn]] = {}
    for item in drawn:
        groups.setdefault(item.identity, []).append(item)
    strata: dict[tuple[str, str, str], list[Drawn]] = {}
    for identity in sorted(groups):
        one = chance.choice(sorted(groups[identity], key=lambda item: item.target_version))
        strata.setdefault(one.stratum, []).append(one)
    columns = [strata[key] for key in sorted(strata)]
    for column in columns:
        chance.shuffle(column)
    chosen: list[Drawn] = []
    for row in zip_longest(*columns):
        turn = [item for item in row if item is not None]
        chance.shuffle(turn)
        chosen += turn
    return chosen[:n]


def lines(chosen: Sequence[Drawn]) -> Iterator[str]:
    """Yield the text for each finding: what to look at, and what is claimed."""
    for number, item in enumerate(chosen, 1):
        finding = item.finding
        target = f"{finding.target} {item.target_version}".strip()
        path = " default-path" if finding.default_path else ""
        yield f"{number}. verl {item.verl} with {target}: {finding.kind} {finding.effect}{path} [{finding.feature}]"
        yield f"   {finding.symbol}"
        yield f"   {finding.used_at} {finding.used_at.scope}"
        yield f"   {finding.message}"


def main() -> None:
    """Print the sample."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", help="where the observations are kept")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--n", type=int, default=120)
    parser.add_argument("--rules", type=int, default=RULES, help="the rules whose answers to draw from")
    options = parser.parse_args()
    every = list(deciding(observations(Home.find(options.home).store, options.rules)))
    chosen = sample(every, options.n, options.seed)
    distinct = len({item.identity for item in every})
    sys.stdout.write(f"{len(chosen)} of {distinct} distinct findings ({len(every)} in all)\n\n")
    sys.stdout.write("\n".join(lines(chosen)) + "\n")


if __name__ == "__main__":
    main()
