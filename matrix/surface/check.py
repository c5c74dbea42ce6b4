"""Tier `surface`: what a verl release uses of the other packages of a cell, and whether it is there."""

from __future__ import annotations

import gc
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from packaging.version import Version

from matrix import __version__
from matrix.cell import Axis, Cell
from matrix.errors import UnknownReleaseError
from matrix.index import Archive, File, PackageIndex, Release
from matrix.observe import Observation, Question
from matrix.surface import entrypoints
from matrix.surface.facts import FACTS_VERSION
from matrix.surface.factstore import FactStore
from matrix.surface.report import SurfaceReport, check_surface
from matrix.surface.subject import Subject
from matrix.surface.world import World
from matrix.tier import Outcome, Tier

PROBE: Final = "surface"
RULES: Final = 7
"""Counts up when the same inputs may give another answer, so that stored answers are asked anew."""

_KEPT_WORLDS: Final = 4

Versions = Mapping[Axis, Version]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Input:
    """One release that a check reads, and the file that it is read from."""

    axis: Axis
    version: Version
    file: File


class SurfaceChecker:
    """The probe of tier `surface`; the last release of verl, and a few worlds, stay loaded between calls."""

    def __init__(self, index: PackageIndex, cache_dir: Path) -> None:
        """Read releases from `index`; derived facts are kept below `cache_dir`."""
        self._index = index
        self._facts = FactStore(cache_dir)
        self._subject: tuple[str, Subject] | None = None
        self._worlds: OrderedDict[tuple[str, ...], tuple[World, list[Archive]]] = OrderedDict()

    def question(self, cell: Cell, versions: Versions) -> Question:
        """Return what `observe` would answer, from the index alone; raises UnknownReleaseError."""
        return self._question(cell, self._inputs(cell, versions))

    def observe(self, cell: Cell, versions: Versions) -> Observation:
        """Return what the cell's verl uses of its other packages that is not there.

        `untested` when the cell has no verl or nothing else. `detail`: `findings` (JSON), `counts` by effect,
        `entry_points` by name, `versions` that were looked at, `bytes_read` over the network by this call and
        `wheel_bytes`, the size of the files. Raises UnknownReleaseError, IndexUnreachableError, CorruptFileError.
        """
        started = time.perf_counter()
        inputs = self._inputs(cell, versions)
        question = self._question(cell, inputs)
        verl = next((item for item in inputs if item.axis is Axis.VERL), None)
        targets = [item for item in inputs if item.axis is not Axis.VERL]
        if verl is None or not targets:
            reason = "the cell has no release of verl" if verl is None else "the cell has nothing but verl"
            return Observation(question=question, outcome=Outcome.UNTESTED, reason=reason, at=datetime.now(UTC))
        subject, read = self._load_subject(verl)
        world, archives = self._load_world(targets)
        before = sum(archive.bytes_read for archive in archives)
        report = check_surface(subject, world, {item.axis.module: item.version for item in targets})
        world.save()
        read += sum(archive.bytes_read for archive in archives) - before
        return Observation(
            question=question,
            outcome=report.outcome,
            reason=report.reason,
            detail=_detail(report, inputs, read),
            at=datetime.now(UTC),
            seconds=time.perf_counter() - started,
        )

    def _question(self, cell: Cell, inputs: Iterable[_Input]) -> Question:
        reads = {item.file.filename: f"sha256:{item.file.sha256}" for item in inputs}
        reads["verl.toml"] = entrypoints.digest()
        tool = f"verl-matrix {__version__} rules {RULES} facts {FACTS_VERSION}"
        return Question(cell=cell.name, probe=PROBE, tier=Tier.SURFACE, tool=tool, reads=reads)

    def _inputs(self, cell: Cell, versions: Versions) -> list[_Input]:
        found = []
        for axis in Axis:
            if axis in versions:
                release = self._index.require_release(axis.value, versions[axis])
                found.append(_Input(axis=axis, version=versions[axis], file=self._file(release, cell)))
        return found

    def _file(self, release: Release, cell: Cell) -> File:
        """Return the file to read: the one an installer takes, else any wheel, else the sdist.

        What the code looks like does not depend on the platform; whether it can be installed is said by `resolve`.
        """
        best = self._index.best_file(release, cell.platform)
        if best is not None:
            return best
        files = sorted(release.files, key=lambda file: (not file.is_wheel, "x86_64" not in file.tags, file.filename))
        if not files:
            raise UnknownReleaseError(f"{release.project} {release.version}")
        return files[0]

    def _load_subject(self, verl: _Input) -> tuple[Subject, int]:
        if self._subject is None or self._subject[0] != verl.file.sha256:
            if self._subject is not None:
                # Loading a subject freezes it for the collector; a dropped one would stay for ever, by its cycles.
                self._subject = None
                gc.unfreeze()
                gc.collect()
            archive = self._index.archive(verl.file)
            self._subject = verl.file.sha256, Subject.load(archive, verl.version)
            return self._subject[1], archive.bytes_read
        return self._subject[1], 0

    def _load_world(self, targets: list[_Input]) -> tuple[World, list[Archive]]:
        key = tuple(item.file.sha256 for item in targets)
        if key not in self._worlds:
            archives = {item.axis.module: self._index.archive(item.file) for item in targets}
            versions = {item.axis.module: item.version for item in targets}
            absent = entrypoints.absent_packages()
            self._worlds[key] = World(archives, versions, absent=absent, facts=self._facts), list(archives.values())
        self._worlds.move_to_end(key)
        while len(self._worlds) > _KEPT_WORLDS:
            self._worlds.popitem(last=False)
        return self._worlds[key]


def _detail(report: SurfaceReport, inputs: Iterable[_Input], read: int) -> dict[str, object]:
    inputs = list(inputs)
    return {
        "versions": {item.axis.value: str(item.version) for item in inputs},
        "findings": [finding.to_json() for finding in report.findings],
        "counts": report.counts,
        "entry_points": dict(report.entry_points),
        "bytes_read": read,
        "wheel_bytes": sum(item.file.size or 0 for item in inputs),
    }


__all__ = ["PROBE", "RULES", "SurfaceChecker", "SurfaceReport", "check_surface"]
