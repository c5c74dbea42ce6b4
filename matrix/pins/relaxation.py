"""Where nothing qualifies: the chain of facts that shows it, and the smallest relaxations that do resolve.

A relaxation is resolved, and its code compared, before it is told: none is a guess.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from matrix.cell import Axis, Cell
from matrix.nearness import near_versions
from matrix.pins.bounds import stated_in
from matrix.pins.candidates import with_override
from matrix.pins.choice import Choice, candidates_of, change, first_of, repaired
from matrix.pins.doubts import aimed_at, no_release
from matrix.pins.judge import Judge
from matrix.pins.option import Option
from matrix.pins.policy import Policy
from matrix.pins.stack import exact
from matrix.tier import Outcome, Tier

SHOWN = 5
"""So many relaxations are told at most."""
_ROUNDS = 6
_STATED = re.compile(
    r"^(?P<holder>[A-Za-z0-9][\w.-]*?)(?:==| )(?P<version>\d\S*) (?:requires|depends on) (?P<what>\S.*)$"
)


class Ease(StrEnum):
    """What a relaxation gives up."""

    TIER = "less proof"
    WANT = "another version than wanted"
    VERL = "another release of verl"
    STATEMENT = "a statement of yours"
    FEATURE = "a feature"
    OVERRIDE = "the metadata"
    FAILURE = "a known failure is accepted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxation:
    """One thing to give up, with the set that it gives: `words` for people, `flags` for the command line."""

    ease: Ease
    words: str
    flags: str
    option: Option
    against: tuple[str, ...] = ()

    @property
    def rank(self) -> tuple[object, ...]:
        """Return what to sort by, the best first: nothing against it, then the deepest evidence, then its kind."""
        tier = self.option.proof.tier
        order = tuple(Ease).index(self.ease)
        return bool(self.against), -1 - (tier.depth if tier is not None else -1), order, len(self.option.overrides)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """That no set qualifies: the shortest chain of facts, of which set it speaks, and what would do instead."""

    about: str
    chain: tuple[str, ...]
    relaxations: tuple[Relaxation, ...]

    def to_json(self, policy: Policy) -> dict[str, object]:
        """Return plain JSON data."""
        return {
            "about": self.about,
            "chain": list(self.chain),
            "relaxations": [
                {
                    "ease": item.ease.value,
                    "words": item.words,
                    "flags": item.flags,
                    "against": list(item.against),
                    "set": item.option.to_json(policy),
                }
                for item in self.relaxations
            ],
        }


def nothing(judge: Judge, choice: Choice) -> Nothing:
    """Return why nothing qualifies, and the relaxations that resolve, the best evidence first."""
    about, chain = _chain(judge, choice)
    found: dict[str, Relaxation] = {}
    for relaxation in _relaxations(judge, choice):
        kept = found.get(relaxation.option.cell.name)
        if kept is None or relaxation.rank < kept.rank:
            found[relaxation.option.cell.name] = relaxation
    ranked = sorted(found.values(), key=lambda item: item.rank)
    return Nothing(about=about, chain=chain, relaxations=tuple(ranked[:SHOWN]))


def _chain(judge: Judge, choice: Choice) -> tuple[str, tuple[str, ...]]:
    """Return of which set the chain speaks ("" where there is none), and its facts.

    It is of the nearest set that resolves, else the shortest conflict.
    """
    absent = tuple(no_release(judge.ground))
    if absent:
        return "", absent
    near = [option for option in choice.options if option.resolves]
    if near:
        best = min(near, key=lambda option: (len(option.against(judge.policy)), change(option, judge.ground)))
        return best.cell.name, best.against(judge.policy)
    refused = [(option, facts) for option in choice.options if (facts := facts_of(option))]
    if refused:
        option, facts = min(
            refused, key=lambda pair: (not _lacks_nothing(pair[0]), len(pair[1]), len(pair[0].cell.pins))
        )
        return option.cell.name, tuple(f"{text} [{source}]" for text, source in facts)
    return "", ("no release of the axes fits what is stated and wanted",)


def facts_of(option: Option) -> tuple[tuple[str, str], ...]:
    """Return the facts of the resolver that refute a set, each with its source; none where it was not refuted."""
    resolved = option.verdict.observation(Tier.RESOLVE)
    if resolved is None or resolved.outcome in (Outcome.OK, Outcome.UNTESTED):
        return ()
    chain = resolved.detail.get("chain")
    rows = [row for row in chain if isinstance(row, Mapping)] if isinstance(chain, list | tuple) else []
    return tuple((str(row.get("text", "")), str(row.get("source", ""))) for row in rows)


def _relaxations(judge: Judge, choice: Choice) -> Iterator[Relaxation]:
    yield from _of_policy(judge, choice)
    yield from _of_want(judge)
    yield from _of_absent(judge)
    yield from _of_verl(judge)
    yield from _of_statements(judge)
    fitting = [option for option in choice.options if option.resolves and not option.unmet]
    if not fitting:
        yield from _of_metadata(judge, choice)
    if all(option.kept.against for option in fitting):
        yield from _of_failures(judge, choice)


def _of_policy(judge: Judge, choice: Choice) -> Iterator[Relaxation]:
    """Yield what a less strict policy would let in: a shallower tier, another GPU, without a feature, slower."""
    policy = judge.policy
    if not choice.resolvable:
        return
    if policy.asked or policy.gpu:
        eased = replace(policy, asked=False, gpu="")
        best = _best(replace(judge, policy=eased), deep=True)
        if best is not None:
            tier = best.proof.tier
            flags = f"--min-tier {tier}" if tier is not None else "without --min-tier"
            flags += ", without --gpu" if policy.gpu else ""
            where = " and any GPU" if policy.gpu else ""
            proof = f"tried at {tier}" if tier is not None else "resolved and compared, and not tried on a machine"
            yield Relaxation(ease=Ease.TIER, words=f"be content with what was {proof}{where}", flags=flags, option=best)
    for feature in policy.uses:
        rest = tuple(word for word in policy.uses if word != feature)
        best = _best(replace(judge, policy=replace(policy, uses=rest)))
        if best is not None:
            flags = f"--uses {','.join(rest)}" if rest else "without --uses"
            yield Relaxation(ease=Ease.FEATURE, words=f"go without {feature}", flags=flags, option=best)
    if policy.max_slowdown is not None:
        best = _best(replace(judge, policy=replace(policy, max_slowdown=None)))
        if best is not None:
            yield Relaxation(
                ease=Ease.WANT, words="accept the loss of throughput", flags="without --max-slowdown", option=best
            )


def _best(judge: Judge, *, deep: bool = False) -> Option | None:
    """Return the set that is best by evidence, else the newest, of those that qualify; None where none does."""
    options = candidates_of(judge)
    ordered = sorted(options, key=lambda option: (_depth(option) if deep else 0, option.newness), reverse=True)
    return first_of(ordered, judge)


def _depth(option: Option) -> int:
    return option.proof.tier.depth if option.proof.tier is not None else -1


def _of_want(judge: Judge) -> Iterator[Relaxation]:
    """Yield the nearest version that can be had instead of each that is wanted."""
    ground = judge.ground
    for axis in Axis:
        wanted = ground.wanted(axis)
        if wanted is None:
            continue
        aimed, have = aimed_at(wanted), ground.have(axis)
        for text in _sides(aimed, have) if aimed is not None else ():
            best = _best(_moved(judge, to={**ground.want.to, axis.value: SpecifierSet(text)}))
            if best is not None:
                version = best.versions[axis.value]
                words = f"settle for {axis.value} {version} instead of {wanted}"
                flags = f"--to {axis.value}=={version}"
                yield Relaxation(ease=Ease.WANT, words=words, flags=flags, option=best)
                break


def _of_absent(judge: Judge) -> Iterator[Relaxation]:
    """Yield the nearest release of verl that there is, where people name one that there is not."""
    ground = judge.ground
    have, known = ground.have(Axis.VERL), ground.releases(Axis.VERL)
    if have is None or have in known or ground.wanted(Axis.VERL) is not None:
        return
    for near in near_versions(have, known)[:2]:
        best = _best(_moved(judge, to={**ground.want.to, Axis.VERL.value: SpecifierSet(f"=={near}")}), deep=True)
        if best is not None:
            words = f"take verl {near}, as there is no {have}"
            yield Relaxation(ease=Ease.VERL, words=words, flags=f"--to verl=={near}", option=best)
            return


def _sides(aimed: Version, have: Version | None) -> tuple[str, ...]:
    """Return the ranges in which the nearest to a version is looked for: below it and above what is had, then above."""
    floor = f">{have}," if have is not None and have < aimed else ""
    return f"{floor}<{aimed}", f">{aimed}"


def _of_verl(judge: Judge) -> Iterator[Relaxation]:
    """Yield the nearest later release of verl with which the want can be had."""
    ground = judge.ground
    have = ground.have(Axis.VERL)
    if have is None or ground.wanted(Axis.VERL) is not None:
        return
    later = [release for release in ground.releases(Axis.VERL) if release > have]
    for version in dict.fromkeys([*later[:2], *later[-1:]]):
        to = {**ground.want.to, Axis.VERL.value: SpecifierSet(f"=={version}")}
        best = _best(_moved(judge, to=to), deep=True)
        if best is not None:
            words = f"move verl from {have} to {version}"
            yield Relaxation(ease=Ease.VERL, words=words, flags=f"--to verl=={version}", option=best)
            return


def _of_statements(judge: Judge) -> Iterator[Relaxation]:
    """Yield what giving up a range of people's own would let in."""
    ground = judge.ground
    for axis in Axis:
        ranges = [item for item in ground.stack.about(axis.value) if item.binds and exact(item.specifier) is None]
        if not any(item.specifier for item in ranges):
            continue
        eased = replace(judge, ground=replace(ground, stack=ground.stack.without(axis.value)))
        best = _best(eased)
        if best is not None:
            stated = "; ".join(f"{item.where}: {item.text}" for item in ranges)
            after = best.versions.get(axis.value)
            words = f"give up {stated} (it would be {after})"
            yield Relaxation(ease=Ease.STATEMENT, words=words, flags=f"change {ranges[-1].where}", option=best)


def _moved(judge: Judge, *, to: Mapping[str, SpecifierSet]) -> Judge:
    return replace(judge, ground=replace(judge.ground, want=replace(judge.ground.want, to=to)))


def _of_metadata(judge: Judge, choice: Choice) -> Iterator[Relaxation]:
    """Yield the overrides with which the sets that are refuted in the fewest facts resolve."""
    refused = [option for option in choice.options if facts_of(option) and _lacks_nothing(option)]
    by_newness = sorted(refused, key=lambda option: (-len(option.cell.pins), _pinned(option)))
    told: set[tuple[str, ...]] = set()
    for option in dict.fromkeys(option.cell.name for option in [*by_newness[:1], *by_newness[-1:]]):
        start = next(other for other in refused if other.cell.name == option)
        found = overridden(judge, start)
        if found is None or found.overrides in told:
            continue
        told.add(found.overrides)
        best = _mended(judge, found)
        if best.unmet:
            continue
        facts = "; ".join(text for text, _ in facts_of(start)[:2])
        flags = " ".join(f"--override '{text}'" for text in best.overrides)
        words = f"override {', '.join(best.overrides)} against: {facts}"
        yield Relaxation(ease=Ease.OVERRIDE, words=words, flags=flags, option=best, against=best.against(judge.policy))


def _pinned(option: Option) -> tuple[Version, ...]:
    return tuple(pin.version for pin in option.cell.pins)


def _mended(judge: Judge, option: Option) -> Option:
    """Return the option, or one beside it that avoids known failures which speak against it, with its code compared."""
    others = [other for other in judge.options(list(repaired([option], judge.ground))) if other.resolves]
    looked = [judge.looked_at(one) for one in (*others, option)]
    return min(looked, key=lambda one: len(one.against(judge.policy)))


def _lacks_nothing(option: Option) -> bool:
    """Return whether every pin of a set can be had, so that only requirements are in its way."""
    return option.verdict.resolvable in (Outcome.CONFLICT, Outcome.BACKTRACKED)


def overridden(judge: Judge, option: Option) -> Option | None:
    """Return a refuted set with the overrides that let it resolve, each an exact version; None where none was found."""
    cell = option.cell
    given_up: dict[str, str] = {}
    for _ in range(_ROUNDS):
        (now,) = judge.options([cell])
        if now.resolves:
            return _narrowed(judge, now, given_up)
        way = _way_round(facts_of(now), cell)
        if way is None:
            return None
        given_up[way.package] = way.holder
        cell = with_override(cell, way.override)
    return None


def _narrowed(judge: Judge, option: Option, given_up: Mapping[str, str]) -> Option:
    """Return the set with each override at an exact version that keeps what everybody else says of the package.

    An override silences all, so what the others of the set require is read from their metadata and put back.
    """
    cell = option.cell
    pins = {pin.package for pin in cell.pins}
    for package, holder in given_up.items():
        if package in pins:
            continue
        bounds = stated_in(package, option.versions, judge.index, judge.sdists, cell.platform)
        kept = SpecifierSet()
        for bound in bounds:
            if bound.holder.partition(" ")[0] != holder:
                kept &= bound.specifier
        version = option.versions.get(package)
        if kept and version is not None and not kept.contains(version):
            (narrower,) = judge.options([with_override(cell, f"{package}{kept}")])
            option, cell = (narrower, narrower.cell) if narrower.resolves else (option, cell)
    exactly = [f"{name}=={option.versions[name]}" for name in given_up if name in option.versions]
    (exact_one,) = judge.options([with_override(cell, *exactly)]) if exactly else (option,)
    return exact_one if exact_one.resolves else option


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """An override, its package, and whose statement it gives up."""

    override: str
    package: str
    holder: str


def _way_round(facts: Sequence[tuple[str, str]], cell: Cell) -> _Way | None:
    """Return the override that takes one statement of a chain away, verl's own first; None where there is none.

    What the others of the chain say of that package is kept; a pin of the cell is kept as it is.
    """
    before = {Requirement(text).name for text in (cell.deviation.overrides if cell.deviation else ())}
    pins = {pin.package: pin.version for pin in cell.pins}
    by_package: dict[str, list[tuple[str, Requirement]]] = {}
    for text, _ in facts:
        match = _STATED.match(text)
        requirement = _requirement(match["what"]) if match else None
        if match is not None and requirement is not None:
            by_package.setdefault(str(canonicalize_name(requirement.name)), []).append((match["holder"], requirement))
    # Where only one statement of a package is told, it leads to the next fact and is none to give up, but verl's.
    ordered = sorted(by_package, key=lambda name: (not _of_verl_itself(by_package[name]), -len(by_package[name])))
    for package in ordered:
        if package in before:
            continue
        rows = by_package[package]
        given_up = next((row for row in rows if row[0] == "verl"), rows[0])
        if package in pins:
            return _Way(override=f"{package}=={pins[package]}", package=package, holder=given_up[0])
        kept = SpecifierSet()
        for row in rows:
            if row is not given_up:
                kept &= row[1].specifier
        text = f"{package}{kept}" if kept else f"{package}>=0"
        return _Way(override=text, package=package, holder=given_up[0])
    return None


def _of_verl_itself(rows: Sequence[tuple[str, Requirement]]) -> bool:
    return any(holder == "verl" for holder, _ in rows)


def _requirement(text: str) -> Requirement | None:
    try:
        return Requirement(text)
    except InvalidRequirement:
        return None


def _of_failures(judge: Judge, choice: Choice) -> Iterator[Relaxation]:
    """Yield the set that only known failures speak against, the fewest of them."""
    ordered = sorted((option for option in choice.options if option.resolves), key=lambda option: option.newness)
    near = [option for option in reversed(ordered) if option.kept.against and not option.proof.breaks]
    if not near:
        return
    best = judge.looked_at(min(near, key=lambda option: len(option.kept.against)))
    if best.proof.breaks or best.unmet:
        return
    names = [item.id for item in best.kept.against]
    ways = "; ".join(item.way_out[0] for item in best.kept.against[:2])
    words = f"accept {', '.join(names)} (way out: {ways})"
    yield Relaxation(ease=Ease.FAILURE, words=words, flags="", option=best, against=best.against(judge.policy))
