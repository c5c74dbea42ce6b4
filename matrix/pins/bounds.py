"""What bounds a package in a set: every statement on it, with the file and the line where it can be read again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from matrix.cell import Platform
from matrix.errors import MatrixError
from matrix.failure import Failure
from matrix.index import File, PackageIndex
from matrix.index.metadata import requirements_on
from matrix.pins.stack import Stack
from matrix.records import FAILURES
from matrix.resolve.sdists import SdistTable

_WORKERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """One statement on a package.

    Attributes:
        holder: who states it: `vllm 0.26.0`, a file of people's own, a record.
        text: the requirement, or what the record says.
        source: the file in which it stands.
        line: the line there; 0 where it is not known.
        specifier: what it lets in; of a record what it speaks against.
        kind: `metadata`, `yours` or `record`.
    """

    holder: str
    text: str
    source: str
    line: int
    specifier: SpecifierSet
    kind: str = "metadata"

    @property
    def where(self) -> str:
        """Return file and line as one word."""
        return f"{self.source}:{self.line}" if self.line else self.source

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data."""
        return {
            "kind": self.kind,
            "holder": self.holder,
            "text": self.text,
            "source": self.source,
            "line": self.line,
        }


def stated_in(
    package: str,
    locked: Mapping[str, Version],
    index: PackageIndex,
    sdists: SdistTable,
    platform: Platform,
    *,
    extras: Mapping[str, Sequence[str]] | None = None,
) -> tuple[Bound, ...]:
    """Return what the packages of a lock require of one package on a platform, sorted by holder.

    A holder whose metadata cannot be read says nothing here. Raises IndexUnreachableError where the index is not there.
    """

    def of(item: tuple[str, Version]) -> list[Bound]:
        name, version = item
        return _requirements(package, name, version, index, sdists, platform, (extras or {}).get(name, ()))

    with ThreadPoolExecutor(_WORKERS, thread_name_prefix="bounds") as pool:
        found = [bound for bounds in pool.map(of, sorted(locked.items())) for bound in bounds]
    return tuple(found)


def _requirements(
    package: str, name: str, version: Version, index: PackageIndex, sdists: SdistTable, platform: Platform,
    extras: Sequence[str],
) -> list[Bound]:  # fmt: skip
    listed = sdists.find(name, version)
    if listed is not None:
        environment = platform.environment()
        stated = [item for item in listed.requires if item.marker is None or item.marker.evaluate(environment)]
        return [_bound(name, version, item, "sdists.toml", 0) for item in stated if _is(item, package)]
    try:
        release = index.project(name).releases.get(version)
        file = index.best_file(release, platform) or release.sdist if release is not None else None
        metadata = index.metadata(file) if file is not None else None
    except MatrixError:
        return []
    if file is None or metadata is None:
        return []
    stated = [item for item in requirements_on(metadata, platform, tuple(extras)) if _is(item, package)]
    if not stated:
        return []
    lines = _lines(index, file, package)
    bounds = [_bound(name, version, item, f"{file.filename} METADATA", _line_of(item, lines)) for item in stated]
    return list(dict.fromkeys(bounds))


def _bound(name: str, version: Version, requirement: Requirement, source: str, line: int) -> Bound:
    text = f"{requirement.name}{requirement.specifier}" if requirement.url is None else str(requirement)
    return Bound(holder=f"{name} {version}", text=text, source=source, line=line, specifier=requirement.specifier)


def _is(requirement: Requirement, package: str) -> bool:
    return str(canonicalize_name(requirement.name)) == package


def _lines(index: PackageIndex, file: File, package: str) -> list[tuple[int, Requirement]]:
    """Return the lines of a file's own METADATA that speak of a package; none where it cannot be read."""
    try:
        archive = index.archive(file)
        name = next(
            (path for path in archive.names() if path.endswith((".dist-info/METADATA", "PKG-INFO")) and
             path.count("/") <= 1), None,
        )  # fmt: skip
        text = archive.read([name])[name].decode("utf-8", "replace") if name is not None else ""
    except (MatrixError, KeyError):
        return []
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        field, _, value = line.partition(":")
        if field == "Requires-Dist":
            try:
                requirement = Requirement(value.strip())
            except InvalidRequirement:
                continue
            if _is(requirement, package):
                found.append((number, requirement))
    return found


def _line_of(requirement: Requirement, lines: Sequence[tuple[int, Requirement]]) -> int:
    return next((number for number, other in lines if other.specifier == requirement.specifier), 0)


def of_people(package: str, stack: Stack) -> tuple[Bound, ...]:
    """Return what people's own files say of a package."""
    found = []
    for item in stack.about(package):
        source, _, number = item.where.rpartition(":")
        known = number.isdecimal()
        found.append(
            Bound(
                holder=stack.source,
                text=item.text,
                source=source if known else item.where,
                line=int(number) if known else 0,
                specifier=item.specifier,
                kind="yours",
            )
        )
    return tuple(found)


def of_records(package: str, failures: Sequence[Failure], versions: Mapping[str, Version | None]) -> tuple[Bound, ...]:
    """Return the records that speak against versions of a package beside the other versions of a set."""
    others = {name: version for name, version in versions.items() if name != package}
    found = []
    for failure in failures:
        affected = failure.affects.get(package)
        if affected is None or failure.planted:
            continue
        rest = {name: within for name, within in failure.affects.items() if name != package}
        if all(
            (version := others.get(name)) is not None and within.contains(version, prereleases=True)
            for name, within in rest.items()
        ):
            path = FAILURES / f"{failure.family.value}.toml"
            where = f" (where {failure.needs})" if failure.needs else ""
            found.append(
                Bound(
                    holder=failure.id,
                    text=f"{package}{affected}: {failure.title}{where}",
                    source=f"matrix/failures/{path.name}",
                    line=line_of_record(path, failure.id),
                    specifier=affected,
                    kind="record",
                )
            )
    return tuple(found)


def line_of_record(path: Path, name: str) -> int:
    """Return the line of a record's id in its file, 0 where it is not found."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return 0
    return next((number for number, line in enumerate(text.splitlines(), 1) if line == f'id = "{name}"'), 0)
