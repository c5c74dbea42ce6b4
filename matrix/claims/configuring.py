"""Checks of configurations: keys and defaults as hydra composes them, overrides, what reads a key, words of hydra."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from matrix.cell import Axis
from matrix.claims.checks import Look, Reader
from matrix.config.release import DEFAULT

if TYPE_CHECKING:
    from matrix.claims.library import Library
    from matrix.datafile import Table

_VERL = Axis.VERL.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """Whether a configuration has a key (`key`), with `default` whether that is its value (as JSON or plain text)."""

    releases: str
    key: str
    default: str
    config: str

    @property
    def about(self) -> str:
        """Return what is checked."""
        return f"{self.key}{f' = {self.default}' if self.default else ''} in verl ({self.releases})"

    def look(self, library: Library) -> Iterator[Look]:
        """Yield a look a release."""
        for version in library.within(_VERL, self.releases):
            keys = library.config(version).defaults(self.config).keys
            there = self.key in keys
            value = keys.get(self.key)
            shown = json.dumps(value, default=str)
            told = f"{self.key} = {shown}" if there else f"no key {self.key}"
            fits = there and (not self.default or self.default in (shown, str(value)))
            yield Look(subject=f"verl {version}", supports=fits, text=told, place=self.config, release=str(version))


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Whether hydra composes the configuration with these overrides (`overrides`): it refuses keys that are not there.

    What verl's own validation says of the values is not asked.
    """

    releases: str
    words: tuple[str, ...]
    config: str

    @property
    def about(self) -> str:
        """Return what is checked."""
        return f"verl ({self.releases}) composes with {' '.join(self.words)}"

    def look(self, library: Library) -> Iterator[Look]:
        """Yield a look a release."""
        for version in library.within(_VERL, self.releases):
            refusal = library.config(version).compose(self.config, self.words).refusal
            told = " ".join(refusal.split())[:200] if refusal else "hydra composes it"
            subject = f"verl {version}"
            yield Look(subject=subject, supports=not refusal, text=told, place=self.config, release=str(version))


@dataclass(frozen=True, slots=True, kw_only=True)
class TakesEffect:
    """Whether a release has a key, its code reads it, and nothing that is recorded says that it has no effect there.

    Read as `takes_effect`; the same answer as `verl-matrix config` gives.
    """

    releases: str
    word: str

    @property
    def about(self) -> str:
        """Return what is checked."""
        return f"{self.word} does something in verl ({self.releases})"

    def look(self, library: Library) -> Iterator[Look]:
        """Yield a look a release."""
        from matrix.config.answer import answer
        from matrix.config.wiring import load_wiring

        wiring = load_wiring()
        for version in library.within(_VERL, self.releases):
            found = answer(version, [self.word], library.config, releases=(version,), wiring=wiring, config=DEFAULT)
            (item,) = found.keys
            why = item.wrong or "; ".join(wire.why for wire in item.wires) or item.fate.value
            read = f" at {item.reads[0]}" if item.is_fine and item.reads else ""
            yield Look(
                subject=f"verl {version}",
                supports=item.is_fine,
                text=f"{item.fate.value}: {why}{read}" if why != item.fate.value else f"{why}{read}",
                place=DEFAULT,
                release=str(version),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Whether the entry points of verl take these words of a command line (`words`): hydra's own parser is asked.

    Options that hydra does not know end the program with code 2 before anything of verl runs.
    """

    words: tuple[str, ...]

    @property
    def about(self) -> str:
        """Return what is checked."""
        return f"hydra takes {' '.join(self.words)}"

    def look(self, library: Library) -> Iterator[Look]:
        """Yield one look, by the hydra that is installed here."""
        import importlib.metadata

        from hydra._internal.utils import get_args_parser

        parser = get_args_parser()
        _, unknown = parser.parse_known_args(list(self.words))
        told = f"unrecognized arguments: {' '.join(unknown)}" if unknown else "its parser takes them"
        subject = f"hydra-core {importlib.metadata.version('hydra-core')}"
        yield Look(subject=subject, supports=not unknown, text=told, place="hydra/_internal/utils.py")


def _key(table: Table) -> Key:
    return Key(
        releases=table.text("releases"),
        key=table.text("key"),
        default=table.text("default", ""),
        config=table.text("config", DEFAULT),
    )


def _overrides(table: Table) -> Overrides:
    return Overrides(releases=table.text("releases"), words=table.texts("words"), config=table.text("config", DEFAULT))


def _takes_effect(table: Table) -> TakesEffect:
    return TakesEffect(releases=table.text("releases"), word=table.text("word"))


def _words(table: Table) -> Words:
    return Words(words=table.texts("words"))


READERS: Mapping[str, Reader] = {
    "key": _key,
    "overrides": _overrides,
    "takes_effect": _takes_effect,
    "words": _words,
}
