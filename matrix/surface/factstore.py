"""Facts on disk: one entry per wheel, decoded module by module, so that a warm check parses no source.

The entry is written whole or not at all and checked by digest when it is read (`matrix.cache`). Two runs that learn
different modules of one wheel at the same time keep what the later one wrote and what it had read before; the rest is
derived again when it is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from matrix.cache import Cache
from matrix.surface.facts import FACTS_VERSION, ModuleFacts

_KIND = f"facts-{FACTS_VERSION}"


class FactStore:
    """Facts by wheel digest and member path, below a directory."""

    def __init__(self, root: Path) -> None:
        """Remember where the facts lie; nothing is created before the first `save`."""
        self._cache = Cache(root)

    def load(self, digest: str) -> StoredFacts:
        """Return what is kept of the wheel with this digest; empty when nothing is or the entry was damaged."""
        return StoredFacts(self._cache.get(_KIND, _key(digest)) or b"")

    def save(self, digest: str, facts: Mapping[str, ModuleFacts]) -> None:
        """Add these members to what is kept; raises NoSpaceError, UsageError when the directory cannot be written."""
        kept = self.load(digest).lines
        fresh = {member: _encode(found) for member, found in facts.items()}
        lines = [name.encode() + b"\t" + line for name, line in sorted({**kept, **fresh}.items())]
        self._cache.put(_KIND, _key(digest), b"\n".join(lines))


class StoredFacts:
    """The facts of one wheel as they lie on disk; a member is decoded when it is asked for."""

    def __init__(self, payload: bytes) -> None:
        """Split the payload into members without decoding them."""
        parts = (line.partition(b"\t") for line in payload.split(b"\n") if line)
        self.lines = {name.decode(): text for name, _, text in parts}

    def __contains__(self, member: object) -> bool:
        return member in self.lines

    def get(self, member: str) -> ModuleFacts | None:
        """Return the facts of a member, or None when they are not kept."""
        line = self.lines.get(member)
        return None if line is None else ModuleFacts(json.loads(line))


def _encode(facts: ModuleFacts) -> bytes:
    return json.dumps(facts.data, separators=(",", ":")).encode()


def _key(digest: str) -> str:
    return digest.replace(":", "-")
