"""An environment that is there, and the manifest that says so: it is written last, so half of one is never taken."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from matrix.atomic import replace_file

MANIFEST = "verl-matrix.json"
SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A place in which a cell's packages are installed.

    Attributes:
        cell: the name of the cell; for an environment one stands in, of the axes found there, "" where there is none.
        python: its interpreter.
        python_version: the interpreter's full version, e.g. `3.12.1`.
        installed: canonical distribution name to version, read back inside the environment.
        lock: digest (`sha256:…`) of the lock it was built from; "" for an environment one stands in.
        seconds: wall time of building it; 0.0 when it was there already.
        added_bytes: what it cost on disk beyond what it shares by hard links with what was there; 0 when reused.
        built: `name==version` of what was built from an sdist.
        reused: whether it was there already.
        notes: lines for people.
        left_out: packages of the lock that a bundle did not carry, with their version: a deviation of the environment.
        differing: in which packages it is not what its lock says, beyond that, a line each.
    """

    cell: str
    python: Path
    python_version: str
    installed: Mapping[str, str]
    lock: str = ""
    seconds: float = 0.0
    added_bytes: int = 0
    built: tuple[str, ...] = ()
    reused: bool = False
    notes: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    differing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundled:
    """What an environment out of a bundle owes to it: the lock's digest, and which packages came how, or did not."""

    lock: str
    host: Mapping[str, str]
    left_out: Mapping[str, str]
    needs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What is known of a complete environment in `home.cache / "environments"`.

    `kept` says that somebody wants it to outlive the run that made it; `added_bytes` and `seconds` are what making it
    cost; `made` is when it was complete (UTC). `bundled` is there for one that came in a bundle (docs/bundle.md).
    """

    cell: str
    lock: str
    python_version: str
    installed: Mapping[str, str]
    made: datetime
    uv: str
    seconds: float
    added_bytes: int
    built: tuple[str, ...] = ()
    kept: bool = False
    notes: tuple[str, ...] = field(default=())
    bundled: Bundled | None = None

    def environment(self, folder: Path, *, reused: bool) -> Environment:
        """Return the environment in `folder`; one that is reused cost nothing this time."""
        return Environment(
            cell=self.cell,
            python=folder / "bin" / "python",
            python_version=self.python_version,
            installed=self.installed,
            lock=self.lock,
            seconds=0.0 if reused else self.seconds,
            added_bytes=0 if reused else self.added_bytes,
            built=self.built,
            reused=reused,
            notes=self.notes,
        )

    def write(self, folder: Path) -> None:
        """Put the manifest into `folder`, whole; raises OSError."""
        data = {
            "schema": SCHEMA,
            "cell": self.cell,
            "lock": self.lock,
            "python": self.python_version,
            "installed": dict(sorted(self.installed.items())),
            "made": self.made.isoformat(),
            "uv": self.uv,
            "seconds": self.seconds,
            "added_bytes": self.added_bytes,
            "built": list(self.built),
            "kept": self.kept,
            "notes": list(self.notes),
        }
        if (came := self.bundled) is not None:
            own = {"host": dict(came.host), "left_out": dict(came.left_out), "needs": dict(came.needs)}
            data["bundle"] = {"lock": came.lock, **own}
        replace_file(folder / MANIFEST, json.dumps(data, indent=1).encode() + b"\n", last=True)

    def keep(self, folder: Path) -> Manifest:
        """Return this manifest with `kept` set, written to `folder` where that is news."""
        if self.kept:
            return self
        kept = replace(self, kept=True)
        kept.write(folder)
        return kept


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest in `folder`; None where the environment is half-finished or of another release's form."""
    try:
        data = json.loads((folder / MANIFEST).read_bytes())
        if data["schema"] != SCHEMA:
            return None
        return Manifest(
            cell=data["cell"],
            lock=data["lock"],
            python_version=data["python"],
            installed=dict(data["installed"]),
            made=datetime.fromisoformat(data["made"]),
            uv=data["uv"],
            seconds=float(data["seconds"]),
            added_bytes=int(data["added_bytes"]),
            built=tuple(data["built"]),
            kept=bool(data["kept"]),
            notes=tuple(data["notes"]),
            bundled=Bundled(**data["bundle"]) if "bundle" in data else None,
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
