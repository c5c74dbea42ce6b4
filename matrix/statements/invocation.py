"""The invocation: one command of pip or uv that installs or removes packages, its words told apart.

What a word says is left to the readers: one keeps what it can, another takes what is no requirement for an error.
Sources: pip's documentation, "pip install"; uv's reference, "uv pip install", "uv pip sync", "uv add".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from matrix.statements.shell import Command, Word

VALUED = frozenset(
    {
        *("-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--index", "--default-index", "-t"),
        *("--target", "--prefix", "--root", "--python", "-p", "--python-version", "--platform", "--abi", "--report"),
        *("--implementation", "--only-binary", "--no-binary", "--config-settings", "-C", "--config-setting", "--log"),
        *("--global-option", "--group", "--build-option", "--install-option", "--retries", "--resume-retries"),
        *("--timeout", "--trusted-host", "--cache-dir", "--proxy", "--upgrade-strategy", "--progress-bar", "--src"),
        *("--cert", "--client-cert", "--index-strategy", "--exclude-newer", "--prerelease", "--resolution"),
        *("--link-mode", "--torch-backend", "--extra", "--upgrade-package", "-P", "--refresh-package", "--project"),
        *("--keyring-provider", "--no-build-isolation-package", "--reinstall-package", "--directory", "--optional"),
        *("--exists-action", "--python-platform", "--no-build-package", "--allow-insecure-host"),
        *("--build-constraints", "--build-constraint", "-n", "--name", "--channel", "--file"),
    }
)
"""Options of pip, uv and conda that take the next word, but for those that name what is installed."""
_INDEXES = ("-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--index", "--default-index")
_BEFORE = frozenset({"sudo", "time", "env", "exec", "command", "then", "do", "else", "if", "!", "{", "RUN", "$", ">"})
_PIP = re.compile(r"(?:.*/)?pip[\d.]*$")
_PYTHON = re.compile(r"(?:.*/)?python[\d.]*$")
_UV = re.compile(r"(?:.*/)?uv$")


class Kind(StrEnum):
    """What a word of an invocation names: a package, a path or address, or a file of a kind."""

    PACKAGE = "package"
    LOCATION = "location"
    EDITABLE = "editable"
    REQUIREMENTS = "requirements"
    CONSTRAINTS = "constraints"
    OVERRIDES = "overrides"


_NAMING = {
    "-r": Kind.REQUIREMENTS, "--requirement": Kind.REQUIREMENTS, "--requirements": Kind.REQUIREMENTS,
    "-c": Kind.CONSTRAINTS, "--constraint": Kind.CONSTRAINTS, "--constraints": Kind.CONSTRAINTS,
    "--override": Kind.OVERRIDES, "--overrides": Kind.OVERRIDES,
    "-e": Kind.EDITABLE, "--editable": Kind.EDITABLE,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """One command that installs or removes.

    Attributes:
        verb: `install` (also `uv add`), `uninstall`, or `sync`, whose words are files of requirements.
        named: what it names, in order.
        indexes: the addresses of indexes and folders of wheels that it gives.
    """

    verb: str
    named: tuple[tuple[Kind, Word], ...]
    no_deps: bool = False
    indexes: tuple[str, ...] = ()

    @property
    def removes(self) -> bool:
        """Return whether it uninstalls."""
        return self.verb == "uninstall"

    def words(self, *kinds: Kind) -> tuple[Word, ...]:
        """Return the words of these kinds, in order."""
        return tuple(word for kind, word in self.named if kind in kinds)


def bare(command: Sequence[Word]) -> Sequence[Word]:
    """Return a command without what stands before it (`sudo`, `then`, `VAR=value`)."""
    at = 0
    while at < len(command) and (command[at].text in _BEFORE or re.match(r"[A-Za-z_]\w*=", command[at].text)):
        at += 1
    return command[at:]


def invocation_of(command: Command) -> Invocation | None:
    """Return what a command of pip or uv installs or removes, None for any other command."""
    words = bare(command)
    rest = _after_pip(words)
    verb = rest[0].text if rest else ""
    if verb not in ("install", "uninstall", "add", "sync"):
        return None
    rest = rest[1:]
    named = tuple(told_apart(rest))
    if verb == "sync":
        named = tuple((Kind.REQUIREMENTS, word) for kind, word in named if kind in (Kind.PACKAGE, Kind.LOCATION))
    return Invocation(
        verb="install" if verb == "add" else verb,
        named=named,
        no_deps=any(word.text == "--no-deps" for word in rest),
        indexes=tuple(_values(rest, _INDEXES)),
    )


def _after_pip(words: Sequence[Word]) -> Sequence[Word]:
    """Return the words after `pip`, `python -m pip`, `uv pip`, or after `uv` where they are `add`; else none."""
    if not words:
        return ()
    if _PYTHON.match(words[0].text):
        module = words[2].text if len(words) > 2 and words[1].text == "-m" else ""
        return _plain(words[3:]) if module == "pip" else _after_uv(words[3:]) if module == "uv" else ()
    if _PIP.match(words[0].text):
        return _plain(words[1:])
    return _after_uv(words[1:]) if _UV.match(words[0].text) else ()


def _after_uv(words: Sequence[Word]) -> Sequence[Word]:
    rest = _plain(words)
    verb = rest[0].text if rest else ""
    return _plain(rest[1:]) if verb == "pip" else rest if verb == "add" else ()


def _plain(words: Sequence[Word]) -> Sequence[Word]:
    """Return the words without the options before the first that is none."""
    at = 0
    while at < len(words) and words[at].text.startswith("-"):
        at += 2 if words[at].text in VALUED else 1
    return words[at:]


def told_apart(words: Sequence[Word]) -> Iterator[tuple[Kind, Word]]:
    """Yield what the words after the verb name, each with its kind; other options and their values are left out."""
    pending: Kind | None = None
    skips = False
    for word in words:
        name, equals, _ = word.text.partition("=")
        if pending is not None or skips:
            if pending is not None:
                yield pending, word
            pending, skips = None, False
        elif name.startswith("--") and name in _NAMING and equals:
            yield _NAMING[name], word.after(f"{name}=")
        elif word.text in _NAMING:
            pending = _NAMING[word.text]
        elif word.text in VALUED:
            skips = True
        elif re.match(r"-[rce][^-]", word.text):
            yield _NAMING[word.text[:2]], word.after(word.text[:2])
        elif not word.text.startswith("-") and str(word) and not word.text.isdecimal():
            # A number alone is the value of an option that is not known here; no package has such a name.
            yield Kind.LOCATION if is_location(word.text) else Kind.PACKAGE, word


def _values(words: Sequence[Word], options: Sequence[str]) -> Iterator[str]:
    """Yield the values of these options."""
    for word, after in zip(words, [*words[1:], None], strict=True):
        name, equals, value = word.text.partition("=")
        if name in options:
            yield value if equals else after.text if after is not None else ""


def is_location(text: str) -> bool:
    """Return whether a word is a path or an address rather than a requirement."""
    if re.match(r"[\w.-]+\s*(?:\[[^\]]*\])?\s+@\s", text):
        return False
    return "/" in text or text.startswith((".", "~")) or text.endswith((".whl", ".tar.gz", ".zip"))
