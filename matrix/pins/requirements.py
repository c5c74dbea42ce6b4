"""Requirements files as pip reads them, and what `pip freeze` prints."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from matrix.errors import DataError
from matrix.pins.stack import VARIABLE, Note, Statement, parsed, statement_of, unreadable, version_of_file

_COMMENT = re.compile(r"(^|\s+)#.*$")
_OPTION_AFTER = re.compile(r"\s(?:--(?:hash|config-settings?|global-option|install-option)\b.*)$")
_INCLUDE = re.compile(r"(?:-r|-c|--requirements?|--constraints?)(?:\s+|=|(?<=-[rc]))(?P<file>\S.*)")
_EDITABLE = re.compile(r"(?:-e|--editable)(?:\s+|=)(?P<what>\S.*)")
_PATH = re.compile(r"^(?:\.{1,2}(?:/|$)|/|~|file:|\w+\+?\w*://|git\+)|\.(?:whl|zip|tar\.gz)(?:\[.*\])?$")
_LARGEST = 4 * 2**20


@dataclass(slots=True, kw_only=True)
class Read:
    """What was read so far: statements and notes."""

    statements: list[Statement] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    def note(self, where: str, text: str) -> None:
        """Add a note."""
        self.notes.append(Note(where=where, text=text))


def text_of(path: Path) -> str:
    """Return the text of a file that people wrote; raises DataError where it cannot be read or is no text."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(path, "", error.strerror or str(error), then="Name a file that is there.") from error
    if len(content) > _LARGEST:
        raise DataError(path, "", f"is {len(content)} bytes long", then="Name a file that lists packages.")
    for encoding in ("utf-8-sig", "utf-16") if content[:2] in (b"\xff\xfe", b"\xfe\xff") else ("utf-8-sig",):
        try:
            return content.decode(encoding)
        except UnicodeDecodeError as error:
            line = content[: error.start].count(b"\n") + 1
    raise DataError(path, f"line {line}", "is not text in UTF-8", then="Save the file as UTF-8.")


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each line without its comment, continuations joined, with the number of its first line."""
    held, start = "", 0
    lines = text.splitlines()
    for number, raw in enumerate(lines, 1):
        if held and raw.lstrip().startswith("#"):
            # It is taken out and the line goes on, as people mean it; pip 23.2 would end the line here.
            continue
        start = start or number
        if raw.endswith("\\") and not raw.lstrip().startswith("#"):
            held += raw[:-1] + " "
            continue
        line = _COMMENT.sub("", held + raw).strip()
        if line:
            yield start, line
        held, start = "", 0
    if line := _COMMENT.sub("", held).strip():
        yield start, line


def read_requirements(
    path: Path,
    text: str,
    environment: Mapping[str, str],
    read: Read,
    *,
    binds: bool = True,
    asks: bool = True,
    shown: str = "",
    within: tuple[Path, ...] = (),
) -> None:
    """Add what a requirements file says to `read`, its includes too.

    Environment variables are left as they are, addresses and paths are told as what no index pins.

    Raises:
        DataError: a line cannot be read, or a file that it includes; the message names file and line.
    """
    name = shown or path.name
    for number, line in logical_lines(text):
        where = f"{name}:{number}"
        if VARIABLE.search(line):
            read.note(where, f"`{line}` has an environment variable, left as it is")
        elif line.startswith("-"):
            _option(line, number, where, path, environment, read, binds=binds, asks=asks, within=within)
        else:
            _statement(line, number, where, name, environment, read, binds=binds, asks=asks)


def _option(
    line: str, number: int, where: str, path: Path, environment: Mapping[str, str], read: Read,
    *, binds: bool, asks: bool, within: tuple[Path, ...],
) -> None:  # fmt: skip
    if match := _EDITABLE.fullmatch(line):
        read.note(where, f"`{match['what']}` is installed from its source, which no index pins")
        return
    if not (match := _INCLUDE.fullmatch(line)):
        if not line.startswith("--"):
            word = line.split()[0]
            if word not in ("-i", "-f"):
                raise unreadable(path, number, line, f"pip knows no option `{word}`")
        read.note(where, f"`{line.split('=')[0].split()[0]}` is an option of pip, not followed here")
        return
    file = match["file"].strip().strip("'\"")
    if "://" in file:
        read.note(where, f"{file} was not fetched: what it says is not in the answer")
        return
    target = (path.parent / file).resolve()
    if target in (*within, path.resolve()):
        raise DataError(path, f"line {number}", f"{file} includes itself", then="Take one of the includes away.")
    if not target.is_file():
        raise DataError(path, f"line {number}", f"there is no {file}", then="Correct the path of the included file.")
    constrains = line.startswith(("-c", "--constraint"))
    read_requirements(
        target, text_of(target), environment, read, binds=binds, asks=asks and not constrains, shown=file,
        within=(*within, path.resolve()),
    )  # fmt: skip


def _statement(
    line: str, number: int, where: str, name: str, environment: Mapping[str, str], read: Read, *, binds: bool,
    asks: bool,
) -> None:  # fmt: skip
    text = _OPTION_AFTER.sub("", f" {line}").strip()
    if _PATH.search(text) and " @ " not in text:
        version = version_of_file(text)
        told = f"; its name says {version}" if version else ""
        read.note(where, f"`{text}` is a path or address, which no index pins{told}")
        if text.partition("#egg=")[2] or version is None:
            return
        text = f"{Path(text).name.split('-')[0]} @ {text if '://' in text else 'file:///' + text.lstrip('/')}"
    requirement = parsed(name, number, text)
    if requirement.marker is not None and not requirement.marker.evaluate({**environment, "extra": ""}):
        read.note(where, f"`{text}` does not hold on python {environment['python_version']}, so it was left out")
        return
    made = statement_of(requirement, where, text, binds=binds, asks=asks)
    if made.url:
        told = f"; its name says {made.version}" if made.version else ""
        read.note(where, f"{made.package} is unpinned: it comes from {_address(made.url)}{told}")
    read.statements.append(made)


def _address(url: str) -> str:
    """Return an address without what may be a password in it."""
    return re.sub(r"//[^/@]*@", "//…@", url)


def read_freeze(path: Path, text: str, environment: Mapping[str, str], read: Read, *, shown: str = "") -> None:
    """Add what `pip freeze` (or `uv pip freeze`, `pip list`) printed to `read`; nothing of it binds.

    Raises DataError for a line that is none of theirs.
    """
    name = shown or path.name
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        where = f"{name}:{number}"
        if not line or line.startswith("#") or re.fullmatch(r"[-\s]+|Package\s+Version.*", line):
            continue
        if line.startswith(("WARNING:", "[notice]")):
            read.note(where, "a message of pip, passed over")
        elif match := _EDITABLE.fullmatch(line):
            read.note(where, f"`{match['what']}` is installed from its source, which no index pins")
        elif row := re.fullmatch(r"([A-Za-z0-9][\w.-]*)\s{2,}(\d\S*)(\s+\S+)*|([A-Za-z0-9][\w.-]*) (\d\S*)", line):
            package, version = (row[1], row[2]) if row[1] else (row[4], row[5])
            _statement(f"{package}=={version}", number, where, name, environment, read, binds=False, asks=False)
        else:
            _statement(line, number, where, name, environment, read, binds=False, asks=False)
