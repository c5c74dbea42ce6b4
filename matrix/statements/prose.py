"""Reading of documentation: commands in its code blocks, and bounds written as `vllm==0.8.5` in its text.

Scopes are `block LINE` for a block of code, `text` for the rest. Words about a version without an operator ("vLLM 0.8")
are left alone: they tell of history as often as of a requirement.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from matrix.statements.installing import read_commands
from matrix.statements.statement import PYTHON, Force, Notes, Reading, Source, Statement

_FENCE = re.compile(r"^\s*(?:[-*+]\s+|\d+\.\s+)?(`{3,}|~{3,})\s*\{?\.?([\w+-]*)")
_DIRECTIVE = re.compile(r"^(\s*)\.\.\s+(?:code-block|code|sourcecode|prompt|parsed-literal)::\s*(\S*)")
_BOUND = re.compile(
    r"(?<![\w./\[-])([A-Za-z][A-Za-z0-9_.-]*)(?:\[[\w,\s-]*\])?[`*\"']{0,3}\s*:?\s*(?:[Vv]ersion\s+)?"
    r"((?:==|>=|<=|~=|!=|<|>)\s*v?\d+(?:\.\d+)+(?:\.\*|(?:\.post|\.dev|rc|a|b)\d+)*"
    r"(?:\s*,\s*(?:==|>=|<=|~=|!=|<|>)\s*v?\d+(?:\.\d+)*(?:\.\*|(?:\.post|\.dev|rc|a|b)\d+)*)*)"
)
_SHELLS = frozenset({"", "bash", "sh", "shell", "console", "zsh", "text", "dockerfile", "shell-session", "powershell"})
_ENDINGS = (".md", ".rst", ".txt", ".mdx")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A stretch of a page: a block of code in `language`, or text where `language` is None."""

    text: str
    line: int
    language: str | None


def is_prose(name: str) -> bool:
    """Return whether a file of that relative path is documentation: a page below docs/, or a README, anywhere."""
    low = name.lower()
    base = low.rsplit("/", 1)[-1]
    if base.startswith(("license", "changelog", "history", "news", "requirements", "constraints")):
        return False
    at_home = low.startswith(("docs/", "doc/")) or base.startswith(("readme", "install")) or "/" not in low
    return at_home and low.endswith(_ENDINGS) and not (low.endswith(".txt") and not low.startswith(("docs/", "doc/")))


def read_prose(text: str, file: str, packages: Collection[str]) -> Reading:
    """Return what a page says of `packages` (canonical names); commands may name others too."""
    notes = Notes(file, Source.DOCS)
    for block in blocks(text):
        if block.language is not None and block.language.lower() in _SHELLS:
            stripped = "\n".join(re.sub(r"^\s*(?:\$|>|#(?=\s*pip))\s+", "", line) for line in block.text.splitlines())
            read_commands(notes, stripped, block.line, f"block {block.line}", {}, Force.TELLS)
        elif block.language is None:
            _bounds(notes, block, packages)
    # Pages write bounds for people, and variables for them to fill in.
    notes.remarks.clear()
    return notes.reading()


def blocks(text: str) -> Iterator[Block]:
    """Yield the blocks of a Markdown or reStructuredText page in order, `line` that of a block's first line."""
    lines = text.splitlines()
    at, plain_from, plain = 0, 1, []
    while at < len(lines):
        fence, directive = _FENCE.match(lines[at]), _DIRECTIVE.match(lines[at])
        if fence is None and directive is None:
            plain.append(lines[at])
            at += 1
            continue
        yield Block(text="\n".join(plain), line=plain_from, language=None)
        start = at + 1
        end = _fence_end(lines, start, fence[1]) if fence else _indent_end(lines, start, len((directive or [""])[1]))
        language = fence[2] if fence else directive[2] if directive else ""
        yield Block(text="\n".join(lines[start:end]), line=start + 1, language=language)
        at = end + 1 if fence else end
        plain_from, plain = at + 1, []
    yield Block(text="\n".join(plain), line=plain_from, language=None)


def _fence_end(lines: list[str], start: int, fence: str) -> int:
    for at in range(start, len(lines)):
        if lines[at].strip().startswith(fence[:3]) and not lines[at].strip().strip(fence[0]):
            return at
    return len(lines)


def _indent_end(lines: list[str], start: int, indent: int) -> int:
    for at in range(start, len(lines)):
        if lines[at].strip() and len(lines[at]) - len(lines[at].lstrip()) <= indent:
            return at
    return len(lines)


def _bounds(notes: Notes, block: Block, packages: Collection[str]) -> None:
    for offset, line in enumerate(block.text.splitlines()):
        for match in _BOUND.finditer(line):
            package = canonicalize_name(match[1])
            if package not in packages and package != PYTHON:
                continue
            try:
                within = SpecifierSet(re.sub(r"(?<=[=<>])\s*v", "", match[2]).replace(" ", ""))
            except InvalidSpecifier:
                continue
            notes.keep(
                Statement(
                    place=notes.place(block.line + offset),
                    package=package,
                    text=match[0].strip(),
                    source=Source.DOCS,
                    force=Force.TELLS,
                    specifier=within,
                    scope="text",
                )
            )
