"""Comparing the statements of a repository with each other: which pairs are meant to hold at once, and do not.

The rules, from the surest: what one command, one extra or one lock installs; what one image or job installs, where a
later command replaces what an earlier one did; what a place says that installs the project, against the project's own
metadata; two declarations of the same metadata; requirements files, pages and other extras, which may differ on
purpose.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from matrix.drift.contradiction import Contradiction, Kind, Sureness
from matrix.drift.installation import METADATA, Installation, Project, installations, project_of
from matrix.drift.ranges import disjoint
from matrix.statements.repository import Repository
from matrix.statements.statement import Force, Source, Statement


def compare(repository: Repository) -> tuple[Contradiction, ...]:
    """Return the contradictions within the repository, the surest first, each pair of places once."""
    project = project_of(repository.reading)
    found: list[Contradiction] = []
    found += _declarations(project)
    found += _extras(project, repository.reading.apart)
    found += _locks(repository, project)
    for installation in installations(repository, project):
        found += _within(installation, project)
    found += _loose(repository, project)
    return distinct(found)


def distinct(found: Iterable[Contradiction]) -> tuple[Contradiction, ...]:
    """Return them in order, the surest of those about the same two statements; equal ones elsewhere become `also`."""
    best: dict[tuple[object, ...], Contradiction] = {}
    for item in sorted(found, key=lambda one: one.order):
        places = frozenset({item.first.place, item.second.place if item.second is not None else None})
        best.setdefault((item.package, places, item.kind in _ABOUT_RELEASES), item)
    return _folded(best.values())


_ABOUT_RELEASES = (Kind.ABSENT, Kind.YANKED, Kind.REQUIRES)


def _folded(found: Iterable[Contradiction]) -> tuple[Contradiction, ...]:
    """Return them with those of one statement against several that say the same made one."""
    from dataclasses import replace

    kept: dict[tuple[object, ...], Contradiction] = {}
    for item in found:
        second = item.second
        said = (str(second.specifier), second.package, second.place.file) if second is not None else None
        key = (item.kind, item.package, item.first.place, item.first.text, item.sureness, said)
        if key in kept and second is not None:
            kept[key] = replace(kept[key], also=tuple(dict.fromkeys((*kept[key].also, second.place))))
        else:
            kept[key] = item
    return tuple(sorted(kept.values(), key=lambda one: one.order))


def clash(first: Statement, second: Statement, sureness: Sureness, together: str) -> Contradiction | None:
    """Return the contradiction between two statements on one package, None where a version satisfies both."""
    if first.package != second.package or _never_at_once(first, second):
        return None
    if not disjoint(first.specifier, second.specifier):
        return None
    pinned = first if first.pin is not None else second if second.pin is not None else None
    both_pinned = first.pin is not None and second.pin is not None
    kind = Kind.DISJOINT if both_pinned or pinned is None else Kind.OUTSIDE
    if both_pinned:
        why = f"{first.pin} and {second.pin} are two versions of {first.package}"
    elif pinned is not None:
        other = second if pinned is first else first
        why = f"{pinned.pin} is not in {other.specifier}"
    else:
        why = f"no version is both in {first.specifier} and in {second.specifier}"
    if first.vague or second.vague:
        tests = any(item.vague and item.force is not Force.BASE for item in (first, second))
        sureness = Sureness.POSSIBLE if tests else sureness.weaker
    return Contradiction(
        kind=kind, package=first.package, first=first, second=second, sureness=sureness, together=together, why=why
    )


def _never_at_once(first: Statement, second: Statement) -> bool:
    """Return whether their markers exclude each other as far as the usual ones tell (platform, machine, python)."""
    if first.marker is None and second.marker is None:
        return False
    from matrix.drift.markers import ENVIRONMENTS

    return not any(first.holds(environment) and second.holds(environment) for environment in ENVIRONMENTS)


def _pairs(
    firsts: Iterable[Statement], seconds: Sequence[Statement], sureness: Sureness, together: str
) -> Iterator[Contradiction]:
    for first in firsts:
        for second in seconds:
            if first is not second and (found := clash(first, second, sureness, together)) is not None:
                yield found


def _declarations(project: Project) -> Iterator[Contradiction]:
    """Yield where setup.py and pyproject.toml disagree on what the project asks for."""
    live: dict[str, list[Statement]] = {"": list(project.core)}
    live.update({f"extra {name}": list(items) for name, items in project.extras.items()})
    everything = [item for items in live.values() for item in items]
    for item in project.dead:
        others = [one for one in live.get(item.scope, ()) if one.package == item.package]
        where = item.scope or "the dependencies"
        ignored = f"both declare {where}, and setuptools takes pyproject.toml's"
        yield from _pairs([item], others, Sureness.CERTAIN, ignored)
        for one in others:
            if one.extras != item.extras and not disjoint(one.specifier, item.specifier):
                yield _other_extras(item, one, ignored)
        elsewhere = [one for one in everything if one.package == item.package and one.specifier]
        if not others and elsewhere and all(disjoint(item.specifier, one.specifier) for one in elsewhere):
            together = f"setup.py and pyproject.toml declare the same project; only setup.py has {where} with it"
            yield from _pairs([item], elsewhere, Sureness.LIKELY, together)


def _other_extras(item: Statement, other: Statement, together: str) -> Contradiction:
    mine, theirs = (", ".join(one.extras) or "none" for one in (item, other))
    return Contradiction(
        kind=Kind.EXTRAS,
        package=item.package,
        first=item,
        second=other,
        sureness=Sureness.LIKELY,
        together=together,
        why=f"{item.place.file} asks for extras {mine}, {other.place.file} for {theirs}",
    )


def _extras(project: Project, apart: frozenset[frozenset[str]]) -> Iterator[Contradiction]:
    """Yield where an extra contradicts the core that is always installed with it, itself, or another extra."""
    core = list(project.core)
    yield from _unordered(core, Sureness.CERTAIN, "both are among the dependencies")
    whole = {name: project.with_extras((name,)) for name in project.extras}
    for name, items in whole.items():
        for found in _pairs(items, core, Sureness.CERTAIN, f"extra {name} is installed with the dependencies"):
            yield overridden(found, project)
        for found in _unordered(items, Sureness.CERTAIN, f"both are asked for by extra {name}"):
            yield overridden(found, project)
    names = list(whole)
    for at, name in enumerate(names):
        for other in names[at + 1 :]:
            if frozenset({f"extra {name}", f"extra {other}"}) not in apart:
                together = f"extras {name} and {other} may be asked for at once"
                yield from _pairs(whole[name], whole[other], Sureness.POSSIBLE, together)
    for item in project.overrides:
        together = "uv takes the override in place of it; pip and what is published do not"
        for found in _pairs([item], core, Sureness.LIKELY, together):
            yield found


def overridden(found: Contradiction, project: Project) -> Contradiction:
    """Return it as less sure where `[tool.uv]` overrides the package: with uv there is a version, with pip none."""
    from dataclasses import replace

    over = next((item for item in project.overrides if item.package == found.package), None)
    if over is None:
        return found
    note = f"; uv overrides it at {over.place} ({over.text}), pip does not"
    return replace(found, sureness=found.sureness.weaker, together=found.together + note)


def _unordered(items: Sequence[Statement], sureness: Sureness, together: str) -> Iterator[Contradiction]:
    for at, item in enumerate(items):
        yield from _pairs([item], items[at + 1 :], sureness, together)


def _locks(repository: Repository, project: Project) -> Iterator[Contradiction]:
    """Yield what a lock holds that the project's own statements exclude; of several versions one must fit."""
    locked: dict[tuple[str, str], list[Statement]] = {}
    for item in repository.reading.statements:
        if item.source is Source.LOCK:
            locked.setdefault((item.place.file, item.package), []).append(item)
    overridden = {item.package for item in project.overrides}
    asked = [*project.core, *(item for items in project.extras.values() for item in items)]
    for (file, package), held in locked.items():
        for item in asked:
            if item.package != package or package in overridden or item.url:
                continue
            if all(clash(one, item, Sureness.CERTAIN, "") for one in held):
                together = f"{file} locks what {item.place.file} asks for"
                yield from _pairs(held[:1], [item], Sureness.CERTAIN, together)


def _within(installation: Installation, project: Project) -> Iterator[Contradiction]:
    """Yield what one place installs that does not fit: within a command, with what it takes in, with the project."""
    own = installation.own
    told = Sureness.LIKELY if installation.source is Source.DOCS else Sureness.CERTAIN
    effective = list(installation.effective.values())
    yield from _replaced(installation)
    metadata = [item for item in installation.taken_in if item.source in METADATA]
    files = [item for item in installation.taken_in if item.source not in METADATA]
    yield from _pairs(effective, files, told.weaker if own else told, f"{installation.name} installs both")
    if installation.project is not None:
        no_deps = installation.project.no_deps
        how = "installs the project, without its dependencies" if no_deps else "installs the project"
        sureness = told.weaker if no_deps else told
        for found in _pairs([*effective, *files], metadata, sureness, f"{installation.name} {how}"):
            yield overridden(found, project) if not no_deps else found
    elif installation.source in (Source.DOCKERFILE, Source.CONDA) and not _is_of_another_release(installation):
        pinned = [item for item in effective if item.specifier]
        together = f"{installation.name} is built for the project, and does not install it"
        sureness = Sureness.LIKELY if _is_for_many(installation, project) else Sureness.POSSIBLE
        yield from _pairs(pinned, project.core, sureness, together)


def _is_for_many(installation: Installation, project: Project) -> bool:
    """Return whether it pins several of the packages that the project asks for, so that it is the project's image."""
    asked = {item.package for item in project.core}
    return len(asked & set(installation.effective)) >= 2


def _is_of_another_release(installation: Installation) -> bool:
    """Return whether the path names a version (`verl0.4-cu124/…`): kept for an older release of the project."""
    path = installation.name.rpartition("/")[0]
    return bool(re.search(r"(?:^|/)(?:v\d|[a-z]+[-_]?v?\d+\.\d)", path)) or "deprecate" in path


def _replaced(installation: Installation) -> Iterator[Contradiction]:
    """Yield what one command asks for twice, and what a later command replaces."""
    for at, item in enumerate(installation.own):
        for later in installation.own[at + 1 :]:
            if later.force is Force.REMOVES and later.package == item.package:
                break
            same = item.place == later.place or Force.BOUNDS in (item.force, later.force)
            together = "one command installs both" if same else f"{installation.name} installs one after the other"
            sureness = Sureness.CERTAIN if same else Sureness.POSSIBLE
            found = clash(later, item, sureness, together)
            if found is not None:
                yield found


def _loose(repository: Repository, project: Project) -> Iterator[Contradiction]:
    """Yield what pages and requirements files say against the project's dependencies, where nothing installs both."""
    for item in repository.reading.statements:
        if item.source is Source.REQUIREMENTS and item.place.file == "requirements.txt":
            together = "requirements.txt and the project's metadata name what it needs"
            yield from _pairs([item], project.core, Sureness.LIKELY, together)
        elif item.source in (Source.REQUIREMENTS, Source.DOCS):
            together = f"{item.place.file} is for users of the project"
            yield from _pairs([item], project.core, Sureness.POSSIBLE, together)
