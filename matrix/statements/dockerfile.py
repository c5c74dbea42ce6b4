"""Reading of Dockerfiles: stages and what they are built on, `ARG` and `ENV`, what the commands of `RUN` install.

Scopes are `stage NAME` (its number where it has no name). Source: Dockerfile reference, sections Format, FROM, ARG,
ENV, RUN and Here-Documents.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from matrix.statements.images import read_image
from matrix.statements.installing import INDEX_VARIABLES, read_commands
from matrix.statements.shell import commands
from matrix.statements.statement import Notes, Reading, Source

_INSTRUCTION = re.compile(r"^\s*([A-Za-z]+)\s+(.*)$", re.DOTALL)
_HEREDOC = re.compile(r"<<-?\s*[\"']?(\w+)[\"']?")
_ESCAPE = re.compile(r"#\s*escape\s*=\s*(\S)\s*$", re.IGNORECASE)
_NAMES = re.compile(r"^(?:dockerfile|containerfile)(?:$|[._-])|\.(?:dockerfile|containerfile)$", re.IGNORECASE)
_OTHERS = re.compile(r"\.(?:dockerignore|md|rst|txt|png|svg|py|sh|ya?ml|json|patch|diff|swp|j2|html)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction: `text` keeps its line breaks, so that what stands in it has its own line."""

    name: str
    text: str
    line: int


@dataclass(slots=True, kw_only=True)
class _Stage:
    scope: str
    known: dict[str, str] = field(default_factory=dict)


def is_dockerfile(name: str) -> bool:
    """Return whether a file of that name is a Dockerfile by convention."""
    base = name.rsplit("/", 1)[-1]
    return bool(_NAMES.search(base)) and not _OTHERS.search(base)


def read_dockerfile(text: str, file: str) -> Reading:
    """Return what a Dockerfile says; variables have the values that it gives them itself.

    What depends on a build argument without a default is a remark.
    """
    notes = Notes(file, Source.DOCKERFILE)
    outside: dict[str, str] = {}
    stages: dict[str, _Stage] = {}
    parents: dict[str, str] = {}
    stage: _Stage | None = None
    for item in instructions(text):
        if item.name == "FROM":
            stage = _from(notes, item, outside, stages, parents)
        elif item.name == "ARG":
            _arg(item, stage.known if stage is not None else outside, outside)
        elif stage is None:
            continue
        elif item.name == "ENV":
            _env(item, stage.known)
        elif item.name == "RUN":
            read_commands(notes, _shell(item.text), item.line, stage.scope, stage.known)
    if stage is None:
        notes.remark(1, "no FROM: this is no Dockerfile")
    return replace(notes.reading(), parents=parents)


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
        body = "\n".join(parts)
        for word in _HEREDOC.findall(body):
            while at < len(lines):
                body += f"\n{lines[at]}"
                at += 1
                if lines[at - 1].strip() == word:
                    break
        match = _INSTRUCTION.match(body)
        if match is not None:
            name = match[1].upper()
            yield Instruction(name=name, text=match[2], line=start + 1)


def _shell(text: str) -> str:
    """Return the shell text of `RUN`: without its options, the words of its exec form, the body of a here-document."""
    bare = re.sub(r"^(?:--[a-z]+(?:=\S+)?(?:[ \t]|\\\n)+)+", lambda found: "\\\n" * found[0].count("\n"), text)
    if bare.lstrip().startswith("["):
        words = re.findall(r'"((?:[^"\\]|\\.)*)"', bare)
        if words[:2] in (["/bin/sh", "-c"], ["sh", "-c"], ["/bin/bash", "-c"], ["bash", "-c"]):
            return " ".join(words[2:])
        return " ".join(f"'{word}'" for word in words)
    heredoc = _HEREDOC.search(bare.partition("\n")[0])
    if heredoc is not None:
        return "\n" + bare.partition("\n")[2]
    return bare


def _from(
    notes: Notes, item: Instruction, outside: dict[str, str], stages: dict[str, _Stage], parents: dict[str, str]
) -> _Stage:
    words = next(iter(commands(item.text, outside)), ())
    texts = [word.text for word in words if not word.text.startswith("--")]
    image = texts[0] if texts else ""
    named = texts[2] if len(texts) > 2 and texts[1].lower() == "as" else str(len(stages))
    stage = _Stage(scope=f"stage {named}")
    if image in stages:
        parents[stage.scope] = stages[image].scope
        stage.known = dict(stages[image].known)
    elif any(word.unset for word in words):
        notes.remark(item.line, f"the base image `{item.text.strip()}` depends on what is not known here")
    else:
        read_image(notes, image, item.line, stage.scope)
    stages[named] = stage
    return stage


def _arg(item: Instruction, known: dict[str, str], outside: dict[str, str]) -> None:
    for command in commands(item.text, known):
        for word in command:
            name, equals, value = word.text.partition("=")
            if equals and not word.unset:
                known[name] = value
            elif not equals and name in outside:
                known[name] = outside[name]


def _env(item: Instruction, known: dict[str, str]) -> None:
    """Take in `ENV A=1 B=2`, and the older `ENV A 1`."""
    words = next(iter(commands(item.text, known)), ())
    if words and "=" not in words[0].text:
        known[words[0].text] = " ".join(word.text for word in words[1:])
        return
    for word in words:
        name, _, value = word.text.partition("=")
        if not word.unset or name in INDEX_VARIABLES:
            # Which other index it is does not matter.
            known[name] = value or "unknown"
