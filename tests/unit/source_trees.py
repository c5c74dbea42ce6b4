"""Worlds made of a few lines of source, for the tests of the surface tier."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from textwrap import dedent

from packaging.version import Version

from matrix.surface.answer import Ref
from matrix.surface.factstore import FactStore
from matrix.surface.world import World


class SourceArchive:
    """An archive whose members are given as text; it remembers what was read."""

    def __init__(self, members: Mapping[str, str], name: str = "p-1.whl") -> None:
        self._members = {path: dedent(text).encode() for path, text in members.items()}
        self._name = name
        self.read_members: list[str] = []
        self.batches = 0

    @property
    def filename(self) -> str:
        return self._name

    @property
    def digest(self) -> str:
        whole = hashlib.sha256(self._name.encode())
        for path, content in sorted(self._members.items()):
            whole.update(path.encode() + content)
        return f"sha256:{whole.hexdigest()}"

    @property
    def bytes_read(self) -> int:
        return sum(len(self._members[path]) for path in self.read_members)

    def names(self) -> Sequence[str]:
        return list(self._members)

    def read(self, names: Iterable[str]) -> dict[str, bytes]:
        wanted = list(names)
        self.read_members += wanted
        self.batches += 1
        return {name: self._members[name] for name in wanted}


def archives(members: Mapping[str, str]) -> dict[str, SourceArchive]:
    """Return one archive for each top-level folder of the members."""
    roots = sorted({path.split("/")[0] for path in members})
    return {
        root: SourceArchive({p: t for p, t in members.items() if p.split("/")[0] == root}, f"{root}-1.whl")
        for root in roots
    }


def world_of(
    members: Mapping[str, str],
    *,
    version: str = "1.0",
    absent: Iterable[str] = (),
    facts: FactStore | None = None,
) -> World:
    """Return the world of these members, every package of the same version."""
    made = archives(members)
    return World(made, dict.fromkeys(made, Version(version)), absent=frozenset(absent), facts=facts)


def class_of(world: World, dotted: str) -> Ref:
    """Return the class that a dotted name leads to."""
    module, _, name = dotted.rpartition(".")
    ref = world.lookup(module, name).ref
    assert ref is not None, dotted
    assert ref.kind == "class", dotted
    return ref
