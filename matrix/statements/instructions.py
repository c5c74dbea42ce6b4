"""A Dockerfile taken apart: instructions with their lines, here-documents, stages with `ARG` and `ENV`, shell texts.

Both readers of Dockerfiles stand on it: the one that keeps all that a repository says, and the one of what people have.
Source: Dockerfile reference, sections Format, FROM, ARG, ENV, RUN and Here-Documents.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from matrix.statements.shell import Word, arguments

_INSTRUCTION = re.compile(r"^\s*([A-Za-z]+)\s+(.*)$", re.DOTALL)
_HEREDOC = re.compile(r"(?:(?<=\s)|^)\d*<<(-?)([\"']?)(\w+)\2")
_WITH_HEREDOC = frozenset({"RUN", "COPY", "ADD"})
_ESCAPE = re.compile(r"\s*#\s*escape\s*=\s*(\S)\s*$", re.IGNORECASE)
_OPTIONS = re.compile(r"^(?:--[a-z]+(?:=\S+)?(?:[ \t]|\\\n)+)+")
_SHELL = re.compile(r"(?:\S*/)?(?:ba|da|a|z)?sh$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Heredoc:
    """A here-document: `line` is that of the first line of its text; `closed` says whether its end was found."""

    end: str
    line: int
    text: str
    closed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction: `text` keeps its line breaks, so that what stands in it has its own line."""

    name: str
    text: str
    line: int
    heredocs: tuple[Heredoc, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A `RUN` with the variables that are known where it stands, and those that are set to what is not known."""

    instruction: Instruction
    known: Mapping[str, str]
    unknown: frozenset[str] = frozenset()


@dataclass(slots=True, kw_only=True)
class Stage:
    """A build stage.

    Attributes:
        base: the image that it is from, or the name of another stage; its `shown` has what is not known.
        parent: the stage that it is built on, None where the base is an image.
        known: variables at its end; those of `unknown` are set to what cannot be told.
        fixed: those that an `ENV` sets, which no `ARG` changes any more.
    """

    name: str
    base: Word
    line: int
    parent: Stage | None = None
    known: dict[str, str] = field(default_factory=dict)
    fixed: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    runs: list[Run] = field(default_factory=list)

    def arg(self, item: Instruction, outside: Mapping[str, str]) -> None:
        """Take in an `ARG`; one without a default has that of before the first `FROM`."""
        for word in arguments(item.text, self.known, item.line):
            name, equals, _ = word.text.partition("=")
            if name not in self.fixed and (equals or name in outside):
                self._set(name, word if equals else Word(text=f"{name}={outside[name]}", line=word.line))

    def env(self, item: Instruction) -> None:
        """Take in `ENV A=1 B=2`, and the older `ENV A 1`; all of it sees the variables as they were before."""
        words = tuple(arguments(item.text, self.known, item.line))
        if words and "=" not in words[0].text:
            unset = tuple(name for word in words for name in word.unset)
            value = " ".join(word.text for word in words[1:])
            words = (Word(text=f"{words[0].text}={value}", line=item.line, unset=unset),)
        for word in words:
            self.fixed.add(self._set(word.text.partition("=")[0], word))

    def _set(self, name: str, word: Word) -> str:
        self.known.pop(name, None)
        self.unknown.discard(name)
        if word.unset:
            self.unknown.add(name)
        else:
            self.known[name] = word.text.partition("=")[2]
        return name


def instructions(text: str) -> Iterator[Instruction]:
    """Yield the instructions; comments within a continued one are empty lines, a here-document belongs to its own."""
    lines = text.removeprefix("\ufeff").splitlines()
    escape = "\\"
    at = 0
    if lines and (directive := _ESCAPE.match(lines[0])):
        escape = directive[1]
    while at < len(lines):
        if not lines[at].strip() or lines[at].lstrip().startswith("#"):
            at += 1
            continue
        start = at
        parts: list[str] = []
        while at < len(lines):
            raw = lines[at]
            at += 1
            if parts and (not raw.strip() or raw.lstrip().startswith("#")):
                # Dropped by docker; what is continued goes on after it.
                parts.append("\\")
                continue
            continued = raw.rstrip().endswith(escape)
            parts.append(f"{raw.rstrip()[:-1]}\\" if continued else raw)
            if not continued:
                break
        match = _INSTRUCTION.match("\n".join(parts))
        if match is None:
            continue
        name = match[1].upper()
        bodies: list[Heredoc] = []
        for dash, _, end in _HEREDOC.findall(match[2]) if name in _WITH_HEREDOC else ():
            bodies.append(_heredoc(lines, at, end, tabs=bool(dash)))
            at += bodies[-1].text.count("\n") + bodies[-1].closed
        yield Instruction(name=name, text=match[2], line=start + 1, heredocs=tuple(bodies))


def _heredoc(lines: list[str], first: int, end: str, *, tabs: bool) -> Heredoc:
    """Return the here-document whose text begins there; `tabs` says that its end may stand behind some."""
    ends = (at for at in range(first, len(lines)) if (lines[at].lstrip("\t") if tabs else lines[at]) == end)
    last = next(ends, None)
    text = "".join(f"{line}\n" for line in lines[first:last])
    return Heredoc(end=end, line=first + 1, text=text, closed=last is not None)


def stages(items: Iterable[Instruction]) -> tuple[Stage, ...]:
    """Return the stages in order; variables have the values that the file gives them itself.

    Names of stages are compared without case. A child has the variables of its parent.
    """
    outside = Stage(name="", base=Word(text="", line=1), line=1)
    found: list[Stage] = []
    for item in items:
        stage = found[-1] if found else outside
        match item.name:
            case "FROM":
                found.append(_from(item, outside.known, found))
            case "ARG":
                stage.arg(item, outside.known)
            case "ENV" if found:
                stage.env(item)
            case "RUN" if found:
                stage.runs.append(Run(instruction=item, known=dict(stage.known), unknown=frozenset(stage.unknown)))
            case _:
                pass
    return tuple(found)


def _from(item: Instruction, outside: Mapping[str, str], before: list[Stage]) -> Stage:
    words = [word for word in arguments(item.text, outside, item.line) if not word.text.startswith("--")]
    base = words[0] if words else Word(text="", line=item.line)
    named = len(words) > 2 and words[1].text.lower() == "as"
    stage = Stage(name=words[2].text if named else str(len(before)), base=base, line=item.line)
    below = [other for other in before if not base.unset and other.name.lower() == base.text.lower()]
    if below:
        stage.parent = below[-1]
        stage.known, stage.fixed = dict(below[-1].known), set(below[-1].fixed)
        stage.unknown = set(below[-1].unknown)
    return stage


def scripts(item: Instruction) -> Iterator[tuple[int, str]]:
    """Yield the shell texts of a `RUN`, each with its first line: without its options, its exec form as words.

    Of a here-document the text is one where a shell reads it, not where `python` or `cat` does.
    """
    bare = _OPTIONS.sub(lambda found: "\\\n" * found[0].count("\n"), item.text)
    words = _exec_form(bare)
    if words:
        script = next((at + 1 for at, word in enumerate(words) if re.fullmatch(r"-\w*c", word)), len(words))
        is_shell = _SHELL.match(words[0]) and script < len(words)
        yield item.line, words[script] if is_shell else shlex.join(words)
        return
    head = _HEREDOC.sub("", bare) if item.heredocs else bare
    if head.strip():
        yield item.line, head
    reader = head.split()[:1]
    for body in item.heredocs:
        named = re.match(r"#!\s*(?:\S*/env\s+)?(\S+)", body.text)
        by = reader or ([named[1]] if named else [])
        if not by or _SHELL.match(by[0]):
            yield body.line, body.text


def _exec_form(text: str) -> list[str]:
    """Return the words of the exec form, none where it is the shell form."""
    if not text.lstrip().startswith("["):
        return []
    try:
        words = json.loads(text.replace("\\\n", "\n"))
    except ValueError:
        return []
    return words if isinstance(words, list) and all(isinstance(word, str) for word in words) else []
