"""`pins verify FILE`: whether an old answer still holds: yanked, gone, uploaded anew, a new known failure, too old."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from matrix.cell import Platform
from matrix.errors import DataError, IndexUnreachableError, NewerSchemaError, UnknownReleaseError
from matrix.failure import Failure
from matrix.index import PackageIndex
from matrix.nearness import near_versions
from matrix.pins.kept import complete, weigh
from matrix.pins.output import EVIDENCE, SCHEMA
from matrix.pins.policy import Policy
from matrix.pins.requirements import logical_lines, text_of
from matrix.pins.stack import exact, unreadable
from matrix.tier import Tier

_WORKERS = 8
_HASH = re.compile(r"\bsha256 = \"([0-9a-f]{64})\"|--hash=sha256:([0-9a-f]{64})")


class What(StrEnum):
    """In what an old answer no longer holds."""

    GONE = "gone"
    YANKED = "yanked"
    REPLACED = "uploaded anew"
    FAILURE = "new known failure"
    OLD = "evidence too old"
    UNPROVEN = "no evidence"
    EDITED = "edited since"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing in which an old answer no longer holds."""

    what: What
    package: str
    text: str

    @property
    def line(self) -> str:
        """Return it for people."""
        return f"{self.what}: {self.text}"

    def to_json(self) -> dict[str, str]:
        """Return plain JSON data."""
        return {"what": self.what.value, "package": self.package, "text": self.text}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An old answer as its files tell it.

    Attributes:
        packages: every package with its exact version.
        hashes: SHA-256 of the files of each package, where they are told.
        failures: ids of the known failures that were known to apply then; None where that is not told.
        edited: packages in which it is another set than the evidence beside it speaks of, a line each.
        tried: the days on which the set was tried deeper than its metadata and code; none where it was not.
    """

    path: Path
    packages: Mapping[str, Version]
    hashes: Mapping[str, frozenset[str]]
    policy: Policy
    python: str
    failures: frozenset[str] | None = None
    tried: tuple[datetime, ...] = ()
    made: datetime | None = None
    edited: tuple[str, ...] = ()


def read_answer(path: Path) -> Answer:
    """Return the old answer of a `constraints.txt`, `pylock.toml` or `evidence.json`.

    Of the first two the `evidence.json` beside them is read too; where it speaks of other versions, the set was edited.

    Raises:
        DataError: it is none of them, or cannot be read; the line is named.
        NewerSchemaError: a newer release of this tool wrote it.
    """
    text = text_of(path)
    if path.name.endswith(".json"):
        return _evidence(path, text)
    if path.name.endswith(".toml"):
        packages, hashes = _lock(path, text)
    else:
        packages, hashes = _constraints(path, text)
    if not packages:
        raise DataError(
            path, "", "names no exact version", then="Name a constraints.txt, pylock.toml or evidence.json."
        )
    beside = path.with_name(EVIDENCE)
    if beside.is_file():
        more = _evidence(beside, text_of(beside))
        if dict(more.packages) == packages:
            return Answer(
                path=path, packages=packages, hashes=hashes or more.hashes, policy=more.policy, python=more.python,
                failures=more.failures, tried=more.tried, made=more.made,
            )  # fmt: skip
        edited = tuple(_edited(more.packages, packages))
        return Answer(
            path=path, packages=packages, hashes=hashes, policy=more.policy, python=more.python, edited=edited
        )
    return Answer(path=path, packages=packages, hashes=hashes, policy=Policy(), python=Platform().python)


def _edited(told: Mapping[str, Version], found: Mapping[str, Version]) -> Iterator[str]:
    for name in sorted({*told, *found}):
        before, now = told.get(name), found.get(name)
        if before != now:
            yield f"{name} {now or 'is gone'}, was {before}" if before else f"{name} {now} was not in it"


def _lock(path: Path, text: str) -> tuple[dict[str, Version], dict[str, frozenset[str]]]:
    import tomllib

    try:
        rows = tomllib.loads(text)["packages"]
        packages = {str(canonicalize_name(row["name"])): Version(row["version"]) for row in rows if "version" in row}
    except (tomllib.TOMLDecodeError, KeyError, TypeError, InvalidVersion) as error:
        raise DataError(path, "", f"is no pylock.toml: {error}") from None
    hashes: dict[str, frozenset[str]] = {}
    for row in rows:
        files = [*row.get("wheels", ()), *([row["sdist"]] if "sdist" in row else ())]
        found = frozenset(str(file["hashes"]["sha256"]) for file in files if "sha256" in file.get("hashes", {}))
        if found:
            hashes[str(canonicalize_name(row["name"]))] = found
    return packages, hashes


def _constraints(path: Path, text: str) -> tuple[dict[str, Version], dict[str, frozenset[str]]]:
    packages: dict[str, Version] = {}
    hashes: dict[str, frozenset[str]] = {}
    for number, line in logical_lines(text):
        if line.startswith("-"):
            continue
        bare = re.sub(r"\s--hash\b.*$", "", line).strip()
        try:
            requirement = Requirement(bare)
        except InvalidRequirement as error:
            raise unreadable(path, number, bare, str(error).partition("\n")[0]) from None
        name, version = str(canonicalize_name(requirement.name)), exact(requirement.specifier)
        if version is None:
            raise unreadable(path, number, bare, "it names no exact version")
        packages[name] = version
        found = frozenset(one or other for one, other in _HASH.findall(line))
        if found:
            hashes[name] = found
    return packages, hashes


def _evidence(path: Path, text: str) -> Answer:
    try:
        data = json.loads(text)
        schema = data["schema"]
    except (ValueError, KeyError, TypeError) as error:
        line = f"line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise DataError(path, line, f"is no evidence.json: {error}", then="Run `verl-matrix pins` again.") from None
    if not isinstance(schema, int) or schema < 1:
        raise DataError(path, "", f"has no schema of this tool: {schema}", then="Run `verl-matrix pins` again.")
    if schema > SCHEMA:
        raise NewerSchemaError(
            f"{path}: written with schema {schema}; this release reads up to {SCHEMA}.", then="Upgrade verl-matrix."
        )
    try:
        made, policy = data["set"], data["policy"]
        kept = made["known_failures"]
        ids = [row["id"] for row in (*kept["against"], *kept["present"], *kept["conditional"])] + list(
            kept["elsewhere"]
        )
        versions = {str(name): Version(version) for name, version in made["versions"].items()}
        if not versions:
            raise ValueError("it names no package")
        return Answer(
            path=path,
            packages=versions,
            hashes={name: frozenset(found) for name, found in data["hashes"].items() if found},
            policy=Policy(
                min_tier=Tier(policy["min_tier"]), asked=policy["min_tier_asked"], gpu=policy["gpu"],
                max_slowdown=policy["max_slowdown"], uses=tuple(policy["uses"]),
            ),
            python=str(made["python"]),
            failures=frozenset(ids),
            tried=tuple(
                _day(row["at"]) for row in made["tried"] if Tier(row["tier"]).is_deep and row["ran"]
            ),
            made=_day(data["at"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"is no evidence.json of this tool: {type(error).__name__} {error}"
        raise DataError(path, "", what, then="Run `verl-matrix pins` again.") from None


def _day(text: str) -> datetime:
    """Return the time that a text says, of UTC where it names no zone; raises ValueError."""
    at = datetime.fromisoformat(text)
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def verify(
    answer: Answer,
    index: PackageIndex,
    failures: Sequence[Failure],
    *,
    now: datetime,
    max_age: timedelta | None = None,
) -> tuple[Fault, ...]:
    """Return in what an old answer no longer holds, by today's index and records; nothing where it still does.

    Raises IndexUnreachableError where the index cannot be asked: that is no answer.
    """
    names = sorted(answer.packages)
    with ThreadPoolExecutor(_WORKERS, thread_name_prefix="verify") as pool:
        found = [fault for faults in pool.map(lambda name: _of_index(name, answer, index), names) for fault in faults]
    return (*found, *_of_edits(answer), *_of_records(answer, failures), *_of_age(answer, now, max_age))


def _of_edits(answer: Answer) -> list[Fault]:
    """Return that it is another set than the one that was tried, in one line: nothing is known of it as a whole."""
    if not answer.edited:
        return []
    more = f" and {len(answer.edited) - 3} more" if len(answer.edited) > 3 else ""
    text = f"{answer.path.name} is another set than the {EVIDENCE} beside it: {'; '.join(answer.edited[:3])}{more}"
    return [Fault(what=What.EDITED, package="", text=text)]


def _of_index(name: str, answer: Answer, index: PackageIndex) -> list[Fault]:
    version = answer.packages[name]
    try:
        project = index.project(name)
    except IndexUnreachableError:
        raise
    except UnknownReleaseError:
        return [Fault(what=What.GONE, package=name, text=f"{name} is not on the index any more")]
    release = project.releases.get(version)
    if release is None:
        near = ", ".join(near_versions(version, project.releases))
        return [Fault(what=What.GONE, package=name, text=f"{name} {version} is not on the index; closest: {near}")]
    faults = []
    if release.yanked is not None:
        why = f": {release.yanked}" if release.yanked not in ("", "True") else ""
        faults.append(Fault(what=What.YANKED, package=name, text=f"{name} {version} was yanked{why}"))
    there = {file.sha256 for file in release.files if file.sha256}
    lost = answer.hashes.get(name, frozenset()) - there
    if lost and there:
        word = "a file" if len(lost) == 1 else f"one of {len(lost)} files"
        text = (
            f"{name} {version}: {word} of the answer ({min(lost)[:12]}…) is not on the index any more under that hash"
        )
        faults.append(Fault(what=What.REPLACED, package=name, text=text))
    return faults


def _of_records(answer: Answer, failures: Sequence[Failure]) -> list[Fault]:
    """Return the known failures that speak against the set now and were not known to apply when it was chosen."""
    known = complete(answer.packages, answer.python, failures)
    kept = weigh(failures, known, answer.policy, whole=len(answer.packages) > _WHOLE)
    then = answer.failures or frozenset()
    return [
        Fault(what=What.FAILURE, package="", text=f"{failure.id}: {failure.title}")
        for failure in kept.against
        if failure.id not in then
    ]


_WHOLE = 20
"""A list of more packages than this is a whole set, in which what is not named is not installed."""


_CLOCKS = timedelta(days=1)
"""So far the clocks of two machines may be apart before a time is one to come."""


def _of_age(answer: Answer, now: datetime, max_age: timedelta | None) -> list[Fault]:
    if max_age is None:
        return []
    late = [at for at in answer.tried if at > now + _CLOCKS]
    if late:
        text = f"it says that it was tried on {max(late):%Y-%m-%d}, which is to come, so its evidence has no age"
        return [Fault(what=What.UNPROVEN, package="", text=text)]
    if not answer.tried:
        text = "nothing tells that the set was tried on a machine, so its evidence has no age"
        return [Fault(what=What.UNPROVEN, package="", text=text)]
    newest = max(answer.tried)
    days = (now - newest).days
    if now - newest <= max_age:
        return []
    return [Fault(what=What.OLD, package="", text=f"last tried on {newest:%Y-%m-%d}, {days} days ago")]
