"""The recipe: a cell's lock made ready to install, with the wheels that the user built put in."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from matrix.cell import Platform
from matrix.errors import ProvisionError, UsageError
from matrix.index.tags import expand, tag_ranks
from matrix.resolve.lock import Lock, Locked, parse_lock

WHEELS_VARIABLE = "VERL_MATRIX_WHEELS"
_SIZE = re.compile(r"\bsize = (\d+)")
_WHEELS = re.compile(r"\nwheels = \[(.*)\]", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalWheel:
    """A wheel that the user built, taken for a release that has none on the index."""

    name: str
    version: Version
    path: Path
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is to be installed: the lock as it came, with its digest, and the packages after local wheels were put in.

    `local` are the wheels put in; `to_build` is what still has no wheel.
    """

    digest: str
    packages: tuple[Locked, ...]
    head: str
    local: tuple[LocalWheel, ...] = ()

    @property
    def to_build(self) -> tuple[Locked, ...]:
        """Return the packages that have to be built from their sdist."""
        return tuple(package for package in self.packages if not package.has_wheel)

    @property
    def wanted(self) -> Mapping[str, str]:
        """Return the version that each package must have once installed."""
        return {package.name: str(package.version) for package in self.packages}

    @property
    def sizes(self) -> Mapping[str, int | None]:
        """Return the bytes of each package's file, the largest where the lock offers several; None where unknown."""
        return {package.name: _size(package.entry) for package in self.packages}

    def text(self, index_url: str) -> str:
        """Return the `pylock.toml` for uv, each package said to come from `index_url`.

        Without the index uv files a wheel in its cache under the wheel's own address and does not find it there again:
        every environment would download and unpack torch anew (seen with uv 0.13.9). It has to be spelled as in uv's
        configuration, user and password included.
        """
        index = f"index = {json.dumps(index_url)}\n"
        local = {wheel.name for wheel in self.local}
        packages = (
            package if package.name in local else replace(package, entry=_after_version(package.entry, index))
            for package in self.packages
        )
        return Lock(head=self.head, packages=tuple(packages)).text


def read_recipe(lock_text: str, platform: Platform, folders: Iterable[Path] = ()) -> Recipe:
    """Return the recipe of a lock; a package without a wheel takes one from `folders` where one fits.

    Raises ProvisionError for a lock that installs nothing, ToolError for one that is not as uv writes it.
    """
    lock = parse_lock(lock_text)
    if not lock.packages:
        raise ProvisionError("The cell's lock holds no package.", then="Resolve the cell again.")
    offered = list(_offered(folders, platform)) if lock.to_build else []
    local, packages = [], []
    for package in lock.packages:
        wheel = None if package.has_wheel else _fitting(package, offered)
        if wheel is not None:
            wheel = replace(wheel, sha256=_digest(wheel.path))
            local.append(wheel)
        packages.append(package if wheel is None else _from_wheel(package, wheel))
    return Recipe(
        digest="sha256:" + hashlib.sha256(lock_text.encode()).hexdigest(),
        packages=tuple(packages),
        head=lock.head,
        local=tuple(local),
    )


def wheel_folders(given: Iterable[str | Path] = ()) -> tuple[Path, ...]:
    """Return the folders of wheels that the user built: those given, then those of VERL_MATRIX_WHEELS.

    Raises UsageError for one that is not a folder.
    """
    named = [Path(item) for item in given]
    named += [Path(item) for item in os.environ.get(WHEELS_VARIABLE, "").split(os.pathsep) if item]
    for folder in named:
        if not folder.is_dir():
            raise UsageError(
                f"{folder} is not a folder of wheels.",
                why=f"It was named with --find-links or {WHEELS_VARIABLE}.",
                then="Name the folder in which the .whl files lie.",
            )
    return tuple(folder.absolute() for folder in named)


def _offered(folders: Iterable[Path], platform: Platform) -> Iterable[LocalWheel]:
    """Yield the wheels in the folders that fit the platform, the best first; their digests are not taken yet."""
    ranks = tag_ranks(platform)
    found = []
    for folder in folders:
        for path in sorted(folder.glob("*.whl")):
            try:
                name, version, _, _ = parse_wheel_filename(path.name)
            except InvalidWheelFilename:
                continue
            tags = expand("-".join(path.stem.split("-")[-3:]))
            if fitting := [ranks[tag] for tag in tags if tag in ranks]:
                found.append((min(fitting), LocalWheel(name=name, version=version, path=path, sha256="")))
    return [wheel for _, wheel in sorted(found, key=lambda item: item[0])]


def _fitting(package: Locked, offered: list[LocalWheel]) -> LocalWheel | None:
    """Return the wheel of that release; a local version (`2.8.3+cu13torch2.11`) is one of it (PEP 440)."""
    wanted = package.version
    for wheel in offered:
        same = wheel.version == wanted or (wanted.local is None and Version(wheel.version.public) == wanted)
        if wheel.name == package.name and same:
            return wheel
    return None


def _from_wheel(package: Locked, wheel: LocalWheel) -> Locked:
    line = f"wheels = [{{ path = {json.dumps(str(wheel.path))}, hashes = {{ sha256 = {json.dumps(wheel.sha256)} }} }}]"
    entry = f'name = "{package.name}"\nversion = "{wheel.version}"\n{line}\n'
    return Locked(name=package.name, version=wheel.version, entry=entry)


def _after_version(entry: str, line: str) -> str:
    name, version, rest = entry.split("\n", 2)
    return f"{name}\n{version}\n{line}{rest}"


def _size(entry: str) -> int | None:
    wheels = _WHEELS.search(entry)
    sizes = [int(size) for size in _SIZE.findall(wheels[1] if wheels else entry)]
    return max(sizes, default=None)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
