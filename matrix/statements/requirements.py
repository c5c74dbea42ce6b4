r"""Reading of requirements files: pip's own format, `pip freeze` and `uv export` included; line by line.

A line may be continued by `\`; `-r`, `-c` and `-e` are inclusions; hashes and markers are kept; options that say
nothing of versions are passed over. Source: pip's documentation, "Requirements File Format".
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace

from matrix.statements.installing import is_elsewhere
from matrix.statements.statement import Force, Inclusion, Notes, Reading, Source

_COMMENT = re.compile(r"(?:^|\s)#.*$")
_HASH = re.compile(r"\s--hash[= ](\S+)")
_OPTION = re.compile(r"\s--[a-z-]+[= ].*$")
_EGG = re.compile(r"#egg=([A-Za-z0-9._-]+)")
_TAKES_IN = {"-r": False, "--requirement": False, "-c": True, "--constraint": True}
_INDEX = re.compile(r"(?:--index-url|--extra-index-url|-i|--find-links|-f)[= ]\s*(\S+)")
_INDEXES = ("--index-url", "--extra-index-url", "-i", "--find-links", "-f")


def read_requirements(text: str, file: str, *, force: Force = Force.ASKS, scope: str = "") -> Reading:
    """Return what a requirements file says; a line that is no requirement is a remark with its number.

    `scope` names what it is installed with (by default the file itself).
    """
    notes = Notes(file, Source.REQUIREMENTS)
    lines = list(_logical(text))
    for line, content in lines:
        _line(notes, line, content, force, scope or file)
    named = (_INDEX.match(content) for _, content in lines)
    if any(is_elsewhere(match[1]) for match in named if match):
        notes.statements[:] = [replace(item, elsewhere=True) for item in notes.statements]
    return notes.reading()


def _logical(text: str) -> Iterator[tuple[int, str]]:
    """Yield each logical line with the number of its first one; comments go first, as pip takes them."""
    start = 0
    parts: list[str] = []
    for number, raw in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        start = start if parts else number
        bare = raw.rstrip()
        if bare.endswith("\\") and not bare.lstrip().startswith("#"):
            parts.append(bare[:-1])
            continue
        whole = " ".join([*parts, raw])
        parts = []
        content = _COMMENT.sub("", whole).strip()
        if content:
            yield start, content
    if parts and (content := _COMMENT.sub("", " ".join(parts)).strip()):
        yield start, content


def _line(notes: Notes, line: int, content: str, force: Force, scope: str) -> None:
    if content.startswith("-"):
        _option(notes, line, content, scope)
        return
    hashes = tuple(_HASH.findall(content))
    bare = _OPTION.sub("", _HASH.sub("", content)).strip()
    if re.match(r"^(?:git|hg|svn|bzr)\+|^https?://|^file:", bare):
        named = _EGG.search(bare)
        if named is None:
            notes.remark(line, f"`{bare[:80]}` names no package")
        else:
            notes.say(f"{named[1]} @ {bare.partition('#')[0]}", line, force, scope=scope)
        return
    if bare.startswith((".", "/")):
        _path(notes, line, bare, scope)
        return
    notes.say(bare, line, force, scope=scope, hashes=hashes)


def _option(notes: Notes, line: int, content: str, scope: str) -> None:
    try:
        words = shlex.split(content.replace("=", " ", 1) if content.startswith("--") else content)
    except ValueError as error:
        notes.remark(line, f"`{content[:80]}` cannot be read: {error}")
        return
    option = words[0]
    if option[:2] in ("-r", "-c", "-e") and len(option) > 2 and not option.startswith("--"):
        words = [option[:2], option[2:], *words[1:]]
        option = words[0]
    if option in _TAKES_IN and len(words) > 1:
        notes.keep(
            Inclusion(
                place=notes.place(line),
                target=words[1],
                source=Source.REQUIREMENTS,
                scope=scope,
                constraint=_TAKES_IN[option],
            )
        )
    elif option in ("-e", "--editable") and len(words) > 1:
        editable = words[1]
        if editable.startswith((".", "/")):
            _path(notes, line, editable, scope)
        else:
            _line(notes, line, editable, Force.ASKS, scope)
    elif option in _INDEXES:
        return
    elif not option.startswith("--"):
        notes.remark(line, f"the option `{option}` is not known")


def _path(notes: Notes, line: int, written: str, scope: str) -> None:
    match = re.fullmatch(r"([^\[]+)(?:\[([^\]]*)\])?", written)
    if match is None:
        notes.remark(line, f"`{written[:80]}` is no path")
        return
    extras = tuple(sorted(word.strip() for word in (match[2] or "").split(",") if word.strip()))
    target = match[1].rstrip("/") or "/"
    notes.keep(
        Inclusion(place=notes.place(line), target=target, source=Source.REQUIREMENTS, scope=scope, extras=extras)
    )
