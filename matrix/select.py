"""Choosing cells by name: globs, braces, groups and exclusions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from matrix.errors import UsageError
from matrix.nearness import near_names

_GROUP = "group:"
_EXPANSIONS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """One pattern as it was typed; `globs` are what its braces expand to.

    A group pattern (`group:ci`) is matched against a cell's groups, any other against its name. `excludes` is true for
    `!pattern`.
    """

    text: str
    globs: tuple[str, ...]
    group: bool = False
    excludes: bool = False

    def matches(self, names: Iterable[str], groups: Iterable[str]) -> bool:
        """Return whether the pattern matches a cell of these names in these groups; case counts."""
        words = tuple(groups if self.group else names)
        return any(fnmatchcase(word, glob) for glob in self.globs for word in words)


def parse_patterns(words: Iterable[str]) -> tuple[Pattern, ...]:
    """Return the patterns of the words: a word holds one or several, separated by commas outside braces.

    Raises:
        UsageError: a brace or bracket is not closed, a pattern is empty, or braces expand without bound.
    """
    return tuple(_pattern(text) for word in words for text in _split(word))


def select(
    cells: Mapping[str, Sequence[str]], patterns: Sequence[Pattern], *, also: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Return the names of the cells that the patterns choose, in the order of `cells` (name → groups).

    `also` gives a second name to some of the cells; a pattern that matches either chooses the cell.

    Chosen is what any pattern matches, or everything when there are only exclusions, less what an exclusion matches.

    Raises:
        UsageError: a pattern matches no cell (it names what comes close), or the exclusions leave nothing.
    """
    names = {name: (name, also[name]) if also and name in also else (name,) for name in cells}

    def matches(pattern: Pattern, name: str) -> bool:
        return pattern.matches(names[name], cells[name])

    for pattern in patterns:
        if not any(matches(pattern, name) for name in cells):
            raise _matches_nothing(pattern, cells)
    wanted = [pattern for pattern in patterns if not pattern.excludes]
    unwanted = [pattern for pattern in patterns if pattern.excludes]
    chosen = tuple(
        name
        for name in cells
        if (not wanted or any(matches(pattern, name) for pattern in wanted))
        and not any(matches(pattern, name) for pattern in unwanted)
    )
    if not chosen:
        typed = " ".join(pattern.text for pattern in patterns)
        raise UsageError(f"No cell is left by `{typed}`.", then="`--list` prints the cells and their groups.")
    return chosen


def _pattern(text: str) -> Pattern:
    import bracex

    if len(text) > _CHARS:
        raise UsageError(f"`{text[:40]}…` is longer than a pattern may be ({_CHARS} characters).", then=_SPLIT)
    body = text.removeprefix("!")
    group = body.startswith(_GROUP)
    glob = body.removeprefix(_GROUP) if group else body
    if _depths(glob)[-1] != 0:
        raise UsageError(f"A brace in `{text}` is not closed.", then=_EXAMPLE)
    try:
        globs = tuple(dict.fromkeys(bracex.iexpand(glob, keep_escapes=True, limit=_EXPANSIONS)))
    except bracex.ExpansionLimitException as error:
        raise UsageError(f"The braces of `{text}` expand to more than {_EXPANSIONS} patterns.") from error
    if not any(globs):
        raise UsageError(f"`{text}` is an empty pattern.", then=_EXAMPLE)
    return Pattern(text=text, globs=globs, group=group, excludes=text.startswith("!"))


_EXAMPLE = "Write it like 'verl0.9.*-vllm0.{24,26}*', 'group:ci' or '!*-nodeps', in quotes."


_CHARS = 250
"""bracex expands by recursion, its older releases a character at a time, and Python allows a thousand levels."""
_SPLIT = "Give it as several patterns."


def _split(word: str) -> Iterator[str]:
    """Yield the pieces of `word` between commas that stand outside braces, without surrounding space."""
    depths = _depths(word)
    start = 0
    for at, character in enumerate(word):
        if character == "," and depths[at] == 0:
            yield word[start:at].strip()
            start = at + 1
    yield word[start:].strip()


def _depths(word: str) -> list[int]:
    """Return how many braces are open before each character, and at the end."""
    depths = [0]
    for character in word:
        depths.append(depths[-1] + {"{": 1, "}": -1}.get(character, 0))
    return depths


def _matches_nothing(pattern: Pattern, cells: Mapping[str, Sequence[str]]) -> UsageError:
    groups = sorted({group for names in cells.values() for group in names})
    if pattern.group:
        near = near_names(pattern.globs[0], groups)
        why = f"Did you mean group:{near[0]}?" if near else f"Groups are: {', '.join(groups) or 'none'}."
    else:
        near = _near_cells(pattern.globs, cells)
        why = f"Closest: {', '.join(near)}." if near else f"Groups are: {', '.join(groups) or 'none'}."
    return UsageError(f"`{pattern.text}` matches no cell.", why=why, then="`--list` prints the cells and their groups.")


def _near_cells(globs: Sequence[str], cells: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return cells that a glob matches once its end is cut off, part by part; else those that are spelled alike."""
    for glob in globs:
        parts = re.split(r"(?<=[-.])|(?=[*\[?])", glob)
        for kept in range(len(parts) - 1, 0, -1):
            stem = "".join(parts[:kept]).rstrip("-.")
            found = [name for name in cells if fnmatchcase(name, f"{stem}*")]
            if stem.strip("*?") and found:
                return tuple(found[:4])
    return near_names(globs[0], cells)
