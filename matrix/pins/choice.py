"""The choice: which of the options are worth choosing, under which labels; and why none is, where none is."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from matrix.cell import Axis, Cell
from matrix.failure import Failure
from matrix.pins.candidates import Ground, lattice, recorded, with_pin
from matrix.pins.judge import Judge
from matrix.pins.option import Option
from matrix.plan import load_cells
from matrix.tier import Tier

LOOKS = 6
"""So many candidates for one label have their code compared, one after the other, before the label is given up."""
_REPAIRS, _WAYS, _ROUNDS = 6, 4, 2


class Label(StrEnum):
    """Why a set is worth choosing; a set may have several."""

    PROVEN = "newest proven"
    RESOLVABLE = "newest resolvable"
    SMALLEST = "smallest change"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A set worth choosing, with its labels."""

    labels: tuple[Label, ...]
    option: Option

    @property
    def folder(self) -> str:
        """Return the name of the folder that its files go to."""
        return self.labels[0].replace(" ", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What came out of the candidates: the sets worth choosing, none where nothing qualifies.

    `options` are all that were judged, newest first; `resolvable` counts those that resolve.
    """

    chosen: tuple[Chosen, ...]
    options: tuple[Option, ...]

    @property
    def resolvable(self) -> int:
        """Return how many of the candidates resolve."""
        return sum(option.resolves for option in self.options)

    @property
    def proven(self) -> Chosen | None:
        """Return the set that is proven, None where none is."""
        return next((item for item in self.chosen if Label.PROVEN in item.labels), None)


def choose(judge: Judge, more: Iterable[str] = ()) -> Choice:
    """Return the sets worth choosing of the lattice and of the recorded cells; `more` are names of cells besides.

    Raises what asking raises (`Judge.options`).
    """
    options = candidates_of(judge, more)
    newest = sorted(options, key=_newest, reverse=True)
    nearest = sorted(options, key=lambda option: change(option, judge.ground))
    _look_ahead(judge, newest, nearest)
    proven = first_of((option for option in newest if option.proven(judge.policy)), judge)
    resolvable = first_of(newest, judge)
    smallest = first_of(nearest, judge)
    found: dict[str, tuple[list[Label], Option]] = {}
    for label, option in ((Label.PROVEN, proven), (Label.RESOLVABLE, resolvable), (Label.SMALLEST, smallest)):
        if option is not None:
            exact = judge.as_tried(option) if label is Label.PROVEN else option
            found.setdefault(option.cell.name, ([], exact))[0].append(label)
    chosen = [Chosen(labels=tuple(labels), option=judge.completed(option)) for labels, option in found.values()]
    known = judge.options(option.cell for option in newest)
    return Choice(chosen=tuple(chosen), options=known)


def _look_ahead(judge: Judge, newest: Sequence[Option], nearest: Sequence[Option]) -> None:
    """Have the code of the likeliest sets compared at once, side by side, where it was not yet."""
    first = (
        next((option for option in newest if option.proven(judge.policy)), None),
        next((option for option in newest if option.qualifies(judge.policy)), None),
        next((option for option in nearest if option.qualifies(judge.policy)), None),
    )
    cells = {option.cell.name: option.cell for option in first if option is not None and not option.looked}
    if cells:
        judge.options(cells.values(), (Tier.RESOLVE, Tier.SURFACE))


def candidates_of(judge: Judge, more: Iterable[str] = ()) -> tuple[Option, ...]:
    """Return all candidates, judged by their metadata and by what is recorded of them; none where there is none."""
    ground = judge.ground
    planned = (item.cell.name for item in load_cells())
    # What was only resolved here says no more than the lattice does, and may be an experiment.
    tried = (item.question.cell for item in judge.job.store if item.question.tier.is_deep)
    frames = recorded(dict.fromkeys([*more, *judge.evidence.cells, *tried, *planned]), ground)
    cells = [*frames, *lattice(ground, frames)]
    if not cells:
        return ()
    options = judge.options(cells)
    found = {option.cell.name: option for option in options}
    for _ in range(_ROUNDS):
        # What avoids one failure may bring another in.
        mended = [cell for cell in repaired(tuple(found.values()), ground) if cell.name not in found]
        found |= {option.cell.name: option for option in (judge.options(mended) if mended else ())}
    return tuple(found.values())


def repaired(options: Sequence[Option], ground: Ground) -> Iterable[Cell]:
    """Yield cells that avoid what speaks against the newest and nearest options, by other versions of what is open.

    verl and vllm stay. Of a failure that can be avoided in several ways each is tried; together a few of them.
    """
    resolved = [option for option in options if option.resolves and option.kept.against]
    newest = sorted(resolved, key=lambda option: option.newness, reverse=True)[:_REPAIRS]
    nearest = sorted(resolved, key=lambda option: change(option, ground))[:_REPAIRS]
    for option in {one.cell.name: one for one in (*newest, *nearest)}.values():
        ways = [found for failure in option.kept.against if (found := _ways(failure, option, ground))]
        together = list(itertools.islice(itertools.product(*ways), _WAYS)) if ways else []
        # One that leads nowhere must not keep the others from being avoided.
        alone = [(way,) for found in ways for way in found] if len(ways) > 1 else []
        for chosen in [*together, *alone[:_WAYS]]:
            cell = option.cell
            for package, wanted in chosen:
                cell = _with(cell, package, wanted, option, ground)
            if cell.name != option.cell.name:
                yield cell


def _ways(failure: Failure, option: Option, ground: Ground) -> list[tuple[str, SpecifierSet]]:
    """Return the packages of a set, other than verl and vllm, by which a failure can be avoided, with the range."""
    fixed = (Axis.VERL.value, Axis.VLLM.value, "python")
    mended = {name: within for name, within in failure.mended.items() if name in option.versions}
    found = [(name, within) for name, within in mended.items() if name not in fixed]
    axes = {axis.value: axis for axis in Axis}
    for name, affected in failure.affects.items():
        if name in axes and name not in (*fixed, *mended) and name in option.versions:
            outside = [one for one in ground.releases(axes[name]) if not affected.contains(one, prereleases=True)]
            below = [one for one in outside if one < option.versions[name]]
            if outside:
                found.append((name, SpecifierSet(f"=={(below or outside)[-1]}")))
    return found


def _with(cell: Cell, package: str, wanted: SpecifierSet, option: Option, ground: Ground) -> Cell:
    """Return the cell with a package in a range: an axis pinned to its nearest release there, another one added."""
    axis = next((axis for axis in Axis if axis.value == package), None)
    if axis is None:
        others = tuple(text for text in cell.added if canonicalize_name(Requirement(text).name) != package)
        return replace(cell, added=(*others, f"{package}{wanted}"))
    asked = ground.wanted(axis)
    allowed = ground.bound(axis) if asked is None else asked
    fits = [
        release for release in ground.releases(axis)
        if wanted.contains(release, prereleases=True) and allowed.contains(release, prereleases=True)
    ]  # fmt: skip
    below = [release for release in fits if release < option.versions[package]]
    return with_pin(cell, axis, (below or fits)[-1]) if fits else cell


def first_of(options: Iterable[Option], judge: Judge) -> Option | None:
    """Return the first option that qualifies after its code was compared; None where none of the first few does."""
    looks = 0
    for stale in options:
        option = judge.known(stale)
        if not option.qualifies(judge.policy):
            continue
        looked = judge.looked_at(option)
        if looked.qualifies(judge.policy):
            return looked
        looks += 1
        if looks == LOOKS:
            return None
    return None


def _newest(option: Option) -> tuple[object, ...]:
    """Return what to sort by: newness; of the same versions what keeps no break, deviates from nothing, is tried."""
    return option.newness, -len(option.kept.present), not option.overrides, _depth(option)


def _depth(option: Option) -> int:
    return -1 if option.proof.tier is None else option.proof.tier.depth


def change(option: Option, ground: Ground) -> tuple[int, ...]:
    """Return how much an option changes: axes moved, releases passed over; then breaks kept, other packages, depth."""
    moved = [item for item in option.changes if item.before is not None]
    steps = sum(_steps(Axis(item.package), item.before, item.after, ground) for item in moved)
    return len(moved), steps, len(option.kept.present), option.more_changes, -_depth(option)


def _steps(axis: Axis, before: Version | None, after: Version | None, ground: Ground) -> int:
    """Return how many releases of an axis lie between two versions."""
    if before is None or after is None:
        return 0
    low, high = sorted((Version(before.public), Version(after.public)))
    return sum(low < version <= high for version in ground.releases(axis))
