"""The shell lines of a Dockerfile's RUN: commands taken apart, variables put in, pip's and uv's words understood."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_VARIABLE = re.compile(
    r"\\(?P<escaped>\$)|\$(?:\{(?P<braced>\w+)(?:(?P<mode>:?[-+])(?P<other>[^{}]*))?\}|(?P<plain>[A-Za-z_]\w*))"
)
_WITH_VALUE = frozenset(
    [
        "-i",
        "--index-url",
        "--extra-index-url",
        "-f",
        "--find-links",
        "--index",
        "--default-index",
        "-t",
        "--target",
        "--prefix",
        "--root",
        "--src",
        "--platform",
        "--python-version",
        "--python",
        "--implementation",
        "--abi",
        "--no-binary",
        "--only-binary",
        "--progress-bar",
        "--log",
        "--proxy",
        "--retries",
        "--timeout",
        "--cache-dir",
        "--trusted-host",
        "--cert",
        "--client-cert",
        "--exists-action",
        "--upgrade-strategy",
        "--report",
        "--config-settings",
        "--global-option",
        "--torch-backend",
        "--python-platform",
        "--index-strategy",
        "--prerelease",
        "--resolution",
        "--link-mode",
        "--keyring-provider",
        "--exclude-newer",
        "-p",
        "--group",
        "--extra",
        "--no-build-package",
        "--reinstall-package",
        "--upgrade-package",
        "-P",
        "--allow-insecure-host",
        "--build-constraints",
        "--no-build-isolation-package",
        "--directory",
    ]
)
_SEPARATORS = frozenset(("&&", "||", ";", "|", "&", "\n", ";;"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Install:
    """One `pip install` or `pip uninstall`: what it names, the files it reads, whether dependencies are ignored.

    `sources` are paths and addresses; `files` pairs of `r`, `c` or `o` (requirements, constraints, overrides) and path.
    """

    requirements: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    sources: tuple[str, ...] = ()
    no_deps: bool = False
    removes: bool = False


def substituted(text: str, variables: Mapping[str, str]) -> tuple[str, frozenset[str]]:
    """Return the text with the variables put in, and the names of those that are not known and were left."""
    unknown: set[str] = set()

    def value(match: re.Match[str]) -> str:
        if match["escaped"]:
            return "$"
        name = match["braced"] or match["plain"]
        known = variables.get(name)
        mode, other = match["mode"] or "", match["other"] or ""
        if mode.endswith("-"):
            return known if known or (known is not None and mode == "-") else other
        if mode.endswith("+"):
            return other if known or (known is not None and mode == "+") else ""
        if known is None:
            unknown.add(name)
            return match[0]
        return known

    return _VARIABLE.sub(value, text), frozenset(unknown)


def commands(script: str) -> Iterator[list[str]]:
    """Yield the words of each simple command of a shell script; raises ValueError where quotes do not match."""
    for line in script.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|()<>")
        lexer.whitespace_split = True
        lexer.commenters = "#"
        words: list[str] = []
        for word in lexer:
            if word in _SEPARATORS or set(word) <= set(";&|()"):
                if words:
                    yield words
                words = []
            else:
                words.append(word)
        if words:
            yield words


def redirected(words: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return the words without redirections, and the bounds that one swallowed: `pip install a>=2` bounds nothing."""
    kept: list[str] = []
    lost = []
    at = 0
    while at < len(words):
        word = words[at]
        if set(word) <= set("<>&") and word.strip("&"):
            target = words[at + 1] if at + 1 < len(words) else ""
            if re.match(r"=?\d", target) and kept:
                lost.append(f"{kept[-1]}{word}{target}")
            elif kept and kept[-1].isdecimal():
                kept.pop()
            at += 2
        else:
            kept.append(word)
            at += 1
    return kept, tuple(lost)


def exported(words: list[str]) -> dict[str, str]:
    """Return the variables that a command sets for those after it: `export A=1`, or `A=1` alone."""
    rest = words[1:] if words[:1] == ["export"] else words
    pairs = [re.fullmatch(r"([A-Za-z_]\w*)=(.*)", word, re.DOTALL) for word in rest]
    return {pair[1]: pair[2] for pair in pairs if pair} if rest and all(pairs) else {}


def install_of(words: list[str]) -> Install | None:
    """Return what an install command names, None for any other command."""
    rest = _after_pip(words)
    if not rest or rest[0] not in ("install", "uninstall", "add", "sync"):
        return None
    if rest[0] == "sync":
        return Install(files=tuple(("r", word) for word in rest[1:] if not word.startswith("-")))
    requirements: list[str] = []
    files: list[tuple[str, str]] = []
    sources: list[str] = []
    at, arguments = 0, rest[1:]
    while at < len(arguments):
        word = arguments[at]
        at += 1
        option, equals, value = word.partition("=")
        kind = _FILES.get(option) if word.startswith("--") else _FILES.get(word[:2]) if word.startswith("-") else None
        if kind is not None:
            if not equals or not word.startswith("--"):
                value = word[2:] if len(word) > 2 and not word.startswith("--") else ""
            if not value and at < len(arguments):
                value, at = arguments[at], at + 1
            (sources if kind == "e" else files).append(value if kind == "e" else (kind, value))  # type: ignore[arg-type]
        elif word.startswith("-"):
            at += word in _WITH_VALUE
        elif word.isdecimal():
            # The value of an option that is not known here; no package has such a name.
            continue
        elif _is_source(word):
            sources.append(word)
        else:
            requirements.append(word)
    return Install(
        requirements=tuple(requirements),
        files=tuple(files),
        sources=tuple(sources),
        no_deps="--no-deps" in arguments,
        removes=rest[0] == "uninstall",
    )


_FILES = {
    "-r": "r", "--requirement": "r", "--requirements": "r", "-c": "c", "--constraint": "c", "--constraints": "c",
    "--override": "o", "--overrides": "o", "-e": "e", "--editable": "e",
}  # fmt: skip


def _is_source(word: str) -> bool:
    """Return whether a word is a path or an address rather than a requirement."""
    if " @ " in word:
        return False
    return "://" in word or word.startswith((".", "/", "~")) or word.endswith((".whl", ".tar.gz", ".zip"))


def _after_pip(words: list[str]) -> list[str]:
    """Return the words after `pip`, `python -m pip`, `uv pip` or `uv`, whatever stands before (sudo, VAR=value)."""
    rest = list(words)
    while rest and (rest[0] in ("sudo", "exec", "time", "command", "then", "do", "else", "if", "!", "{")
                    or re.match(r"[A-Za-z_]\w*=", rest[0])):  # fmt: skip
        rest.pop(0)
    if not rest:
        return []
    name = rest[0].rpartition("/")[2]
    if re.fullmatch(r"pip[\d.]*", name):
        return _plain(rest[1:])
    if re.fullmatch(r"python[\d.]*", name) and rest[1:3] in (["-m", "pip"], ["-m", "uv"]):
        return _plain(rest[3:]) if rest[2] == "pip" else _after_uv(rest[3:])
    return _after_uv(rest[1:]) if name == "uv" else []


def _after_uv(rest: list[str]) -> list[str]:
    rest = _plain(rest)
    if rest[:1] == ["pip"]:
        return _plain(rest[1:])
    return rest if rest[:1] == ["add"] else []


def _plain(rest: list[str]) -> list[str]:
    """Return the words without the options that stand before the command."""
    while rest and rest[0].startswith("-"):
        rest = rest[2:] if rest[0] in _WITH_VALUE else rest[1:]
    return rest
