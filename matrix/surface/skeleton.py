"""A module's text without the bodies of its functions: what is left runs when it is imported, and parses fast."""

from __future__ import annotations

import re
from typing import Final

_HEAD: Final = re.compile(rb"^([ \t]*)(?:async[ \t]+)?def[ \t]", re.MULTILINE)
_ENDS: Final = re.compile(rb":[ \t]*(?:#[^\n]*)?$")
_LONGEST_HEAD: Final = 80


def skeleton(source: bytes) -> bytes | None:
    """Return the text with `...` for every function's body, each line where it was; None where that is not safe.

    It reads indentation and brackets, not the grammar. A body that ends inside of a string, as a line of text at the
    margin makes it seem, leaves an odd number of triple quotes and is not safe.
    """
    if b"\r" in source or b"\f" in source:
        return None
    parts: list[bytes] = []
    done = 0
    while (head := _HEAD.search(source, done)) is not None:
        start = _body(source, head.start())
        if start is None:
            # On one line, or too long to be told: left as it is.
            following = source.find(b"\n", head.end())
            if following < 0:
                break
            parts.append(source[done : following + 1])
            done = following + 1
            continue
        end = _dedent(source, start, len(head[1]))
        body = source[start:end]
        if body.count(b'"""') % 2 or body.count(b"'''") % 2:
            return None
        parts += [source[done:start], head[1] + b" ...", b"\n" * body.count(b"\n")]
        done = end
    return b"".join([*parts, source[done:]])


def _body(source: bytes, start: int) -> int | None:
    """Return where the body of the function at `start` begins, None where it is on the line of its head."""
    depth = 0
    position = start
    for _ in range(_LONGEST_HEAD):
        end = source.find(b"\n", position)
        if end < 0:
            return None
        line = source[position:end]
        depth += sum(map(line.count, (b"(", b"[", b"{"))) - sum(map(line.count, (b")", b"]", b"}")))
        position = end + 1
        if depth <= 0:
            return position if _ENDS.search(line) is not None else None
    return None


def _dedent(source: bytes, start: int, indent: int) -> int:
    """Return where the first line from `start` on begins that is indented by `indent` or less."""
    found = re.compile(rb"^[ \t]{0,%d}[^\s#]" % indent, re.MULTILINE).search(source, start)
    return len(source) if found is None else found.start()
