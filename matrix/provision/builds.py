"""Named builds: which releases without a wheel may be built from their sdist, and with what (`builds.toml`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from matrix.datafile import Table, read
from matrix.errors import ProvisionError
from matrix.resolve.lock import Locked

PATH = Path(__file__).with_name("builds.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A build requirement, pinned with the digest of its wheel."""

    name: str
    version: Version
    sha256: str

    @property
    def constraint(self) -> str:
        """Return it as a line of uv's build constraints."""
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """What is known of building one package; `version` None stands for every release, `python` for where it builds."""

    name: str
    version: Version | None
    allowed: bool
    python: SpecifierSet
    backends: tuple[str, ...]
    why: str

    def covers(self, name: str, version: Version) -> bool:
        """Return whether this entry speaks of that release."""
        return self.name == name and self.version in (None, version)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildTable:
    """The whole data file."""

    builds: tuple[Build, ...]
    backends: Mapping[str, Backend]

    def refusal(self, package: Locked, python: str) -> str:
        """Return why that release may not be built for that Python (`X.Y`), "" where it may."""
        release = f"{package.name} {package.version}"
        entry = next((item for item in self.builds if item.covers(package.name, package.version)), None)
        if entry is None:
            return f"{release} has no wheel for this platform, and no build of it is named in builds.toml"
        if not entry.allowed:
            return f"{release} has no wheel on the index and is not built here: {entry.why}"
        if not entry.python.contains(f"{python}.0"):
            return f"{release} has no wheel, and builds on Python {entry.python} only, not {python}: {entry.why}"
        return ""

    def check(self, packages: Sequence[Locked], python: str) -> None:
        """Raise ProvisionError where one of the packages may not be built, with the reason for each such."""
        refused = {package.name: why for package in packages if (why := self.refusal(package, python))}
        if refused:
            raise ProvisionError(
                f"{len(refused)} of the cell's packages cannot be installed: {'; '.join(refused.values())}.",
                then="Build a wheel yourself and name its folder with VERL_MATRIX_WHEELS (or --find-links).",
                packages=tuple(refused),
                wheel_missing=not any(self._never(package, python) for package in packages),
            )

    def _never(self, package: Locked, python: str) -> bool:
        """Return whether that release is known not to build on that Python, whoever tries."""
        entry = next((item for item in self.builds if item.covers(package.name, package.version)), None)
        return entry is not None and entry.allowed and not entry.python.contains(f"{python}.0")

    def constraints(self, packages: Sequence[Locked]) -> str:
        """Return uv's build constraints for building these packages, a line a backend."""
        names = {
            name
            for p in packages
            for build in self.builds
            if build.covers(p.name, p.version)
            for name in build.backends
        }
        return "".join(f"{self.backends[name].constraint}\n" for name in sorted(names))


def load_builds(path: Path = PATH) -> BuildTable:
    """Return the table in `path`; raises DataError with the path and the field for whatever is wrong in it."""
    table = read(path)
    backends = {backend.name: backend for backend in map(_backend, table.tables("backend"))}
    builds = tuple(_build(row, backends) for row in table.tables("build"))
    table.end()
    return BuildTable(builds=builds, backends=backends)


def _backend(row: Table) -> Backend:
    backend = Backend(name=row.text("name"), version=row.version("version"), sha256=row.text("sha256"))
    if len(backend.sha256) != 64 or not set(backend.sha256) <= set("0123456789abcdef"):
        raise row.error("sha256", "is 64 hexadecimal digits")
    row.text("source")
    row.moment("checked")
    row.end()
    return backend


def _build(row: Table, known: Mapping[str, Backend]) -> Build:
    text = row.text("python", "")
    try:
        python = SpecifierSet(text)
    except InvalidSpecifier:
        raise row.error("python", f"`{text}` is not a specifier") from None
    backends = row.texts("backends")
    for name in backends:
        if name not in known:
            raise row.error("backends", f"`{name}` has no [[backend]] table")
    build = Build(
        name=row.text("name"),
        version=row.version("version") if row.has("version") else None,
        allowed=row.flag("allowed"),
        python=python,
        backends=backends,
        why=row.text("why"),
    )
    row.moment("checked")
    row.end()
    return build
