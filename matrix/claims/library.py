"""The library: releases of packages as the checks of claims look at them: lists, metadata, files, configurations."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Sequence
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from matrix.cell import Axis, Platform
from matrix.config.release import ConfigRelease
from matrix.errors import UnknownReleaseError
from matrix.index import Archive, File, Metadata, PackageIndex, Release
from matrix.tier import Outcome

_ANY = (Platform(), Platform(python="3.11"), Platform(python="3.10"), Platform(python="3.9"), Platform(python="3.8"))


class Library:
    """Releases on an index, each read at most once; raises what the index raises."""

    def __init__(self, index: PackageIndex, cache: Path) -> None:
        """Look at nothing yet."""
        self.index = index
        self._cache = cache

    def has(self, package: str, version: Version) -> bool:
        """Return whether the index has that release."""
        return version in self.versions(package)

    @functools.cache  # noqa: B019 - a library lives as long as one run
    def versions(self, package: str) -> tuple[Version, ...]:
        """Return every release of the package, oldest version first; none where there is no such project."""
        try:
            return tuple(sorted(self.index.project(package).releases))
        except UnknownReleaseError:
            return ()

    def within(self, package: str, wanted: str) -> tuple[Version, ...]:
        """Return the releases that a range takes (`all`: every one), without development releases.

        Where the range is exact versions joined by spaces, those.
        """
        if wanted and all(word[0].isdigit() for word in wanted.split()):
            return tuple(Version(word) for word in wanted.split())
        specifier = SpecifierSet("" if wanted == "all" else wanted)
        return tuple(
            version
            for version in self.versions(package)
            if not version.is_devrelease and specifier.contains(version, prereleases=True)
        )

    def release(self, package: str, version: Version) -> Release:
        """Return one release; raises UnknownReleaseError."""
        return self.index.require_release(package, version)

    def metadata(self, package: str, version: Version) -> Metadata:
        """Return the metadata of a release: of a wheel if there is one, else of its sdist."""
        return self.index.metadata(self._file(package, version, sdist=False))

    def archive(self, package: str, version: Version, *, sdist: bool = False) -> Archive:
        """Return the files of a release: of its wheel if there is one, or of its sdist where that is asked for."""
        return self._archive(package, version, sdist)

    @functools.cache  # noqa: B019
    def _archive(self, package: str, version: Version, sdist: bool) -> Archive:
        return self.index.archive(self._file(package, version, sdist=sdist))

    def _file(self, package: str, version: Version, *, sdist: bool) -> File:
        release = self.release(package, version)
        if not sdist:
            for platform in _ANY:
                if (file := self.index.best_file(release, platform)) is not None:
                    return file
        if release.sdist is None:
            raise UnknownReleaseError(f"A file of {package}=={version} that can be read here")
        return release.sdist

    def files(self, package: str, version: Version, patterns: Sequence[str], *, sdist: bool = False) -> tuple[str, ...]:
        """Return the names of files that match one of the globs, sorted; an sdist's top folder is left out of them."""
        names = self.archive(package, version, sdist=sdist).names()
        return tuple(sorted(name for name in names if any(_matches(_bare(name, sdist), glob) for glob in patterns)))

    def texts(
        self, package: str, version: Version, patterns: Sequence[str], *, sdist: bool = False
    ) -> tuple[tuple[str, str], ...]:
        """Return name and text of each file that matches one of the globs, sorted by name; kept for the next check."""
        return self._texts(package, version, tuple(patterns), sdist)

    @functools.lru_cache(maxsize=256)  # noqa: B019
    def _texts(
        self, package: str, version: Version, patterns: tuple[str, ...], sdist: bool
    ) -> tuple[tuple[str, str], ...]:
        names = self.files(package, version, patterns, sdist=sdist)
        found = self.archive(package, version, sdist=sdist).read(names) if names else {}
        return tuple((name, found[name].decode("utf-8", "replace")) for name in sorted(found))

    @functools.cache  # noqa: B019
    def config(self, version: Version) -> ConfigRelease:
        """Return the configuration of a release of verl."""
        return ConfigRelease(self.index, self._cache, version)

    @functools.cache  # noqa: B019
    def surface(self, verl: Version, vllm: Version) -> tuple[Outcome, str]:
        """Return what the surface tier says of the two, and why."""
        from matrix.claims.surfacing import cell_of
        from matrix.surface.check import SurfaceChecker
        from matrix.verdict import judge

        cell = cell_of(verl, vllm)
        found = SurfaceChecker(index=self.index, cache_dir=self._cache).observe(
            cell, {Axis.VERL: verl, Axis.VLLM: vllm}
        )
        verdict = judge(cell, [found])
        return verdict.works, found.reason

    def verls(self) -> tuple[Version, ...]:
        """Return every release of verl, without development releases."""
        return self.within(Axis.VERL.value, "all")


def _bare(name: str, sdist: bool) -> str:
    return name.partition("/")[2] if sdist else name


def _matches(name: str, glob: str) -> bool:
    """Return whether the glob takes the name; `**` any folders, `*` within one."""
    if "**" in glob:
        head, _, tail = glob.partition("**/")
        return name.startswith(head) and fnmatch.fnmatchcase(name, f"{head}*{tail}")
    return fnmatch.fnmatchcase(name, glob) and name.count("/") == glob.count("/")
