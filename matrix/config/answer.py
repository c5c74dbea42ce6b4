"""What became of each key of a command line: an answer a key, by the release's own composition, code and history."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from packaging.version import Version

from matrix.config.release import DEFAULT, Composed, ConfigRelease, Read
from matrix.config.wiring import Says, Wire, about
from matrix.errors import MatrixError, UsageError
from matrix.nearness import near_names

Open = Callable[[Version], ConfigRelease]
SHOWN_READS = 3


class Fate(StrEnum):
    """What a release does with a key, best first.

    `read`: it has the key and code reads a field of that name. `inert`: it has the key and nothing reads it.
    `added`: it has no such key, but a `+` is written. `group`: the word chooses among files of the configuration.
    `unknown`: it has no such key, and hydra refuses it.
    """

    READ = "read"
    GROUP = "group"
    ADDED = "added"
    INERT = "inert"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """A word of a command line as hydra reads it: `+` or `~` before the key, the value after `=`; None without one."""

    text: str
    prefix: str
    key: str
    value: str | None

    @classmethod
    def parse(cls, text: str) -> Override:
        """Return the override that `text` is; raises UsageError."""
        match = re.fullmatch(r"(?P<prefix>\+{0,2}|~)(?P<key>[\w./@-]+?)(?:=(?P<value>.*))?", text, re.DOTALL)
        if match is None or match["key"].startswith(".") or match["key"].endswith("."):
            raise UsageError(f"`{text[:100]}` is not a key of hydra.", then="Write it like trainer.n_gpus_per_node=8.")
        return cls(text=text, prefix=match["prefix"], key=match["key"], value=match["value"])


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyAnswer:
    """What a release does with one override.

    Attributes:
        override: what was asked.
        fate: what becomes of it.
        default: the value without the override, as the release's files write it ("" where it has no such key).
        reads: places where code reads a field of that name, the likeliest first.
        wires: what is known of the key beyond its name.
        instead: keys that are meant, the likeliest first.
        had: releases that have the key, where this one has not.
        wrong: what is wrong with the value, "" where nothing is seen.
    """

    override: Override
    fate: Fate
    default: str = ""
    reads: tuple[Read, ...] = ()
    wires: tuple[Wire, ...] = ()
    instead: tuple[str, ...] = ()
    had: tuple[Version, ...] = ()
    wrong: str = ""

    @property
    def is_fine(self) -> bool:
        """Return whether the key does something as far as is known."""
        dead = any(wire.says in (Says.INERT, Says.MOVED) for wire in self.wires)
        return self.fate in (Fate.READ, Fate.GROUP, Fate.ADDED) and not dead and not self.wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigAnswer:
    """What a release makes of a command line: an answer a key, and hydra's refusal ("" where the whole composes)."""

    version: Version
    config: str
    keys: tuple[KeyAnswer, ...]
    refusal: str = ""

    @property
    def is_fine(self) -> bool:
        """Return whether it composes and every key does something."""
        return not self.refusal and all(answer.is_fine for answer in self.keys)


def answer(
    version: Version,
    words: Sequence[str],
    open_release: Open,
    *,
    releases: Sequence[Version],
    wiring: Sequence[Wire],
    config: str = DEFAULT,
) -> ConfigAnswer:
    """Return what `version` makes of the words; `releases` are looked through for keys that it does not have.

    Raises:
        UsageError: a word is malformed, or the release has no configuration of that name.
        UnknownReleaseError, IndexUnreachableError: the release cannot be read.
    """
    overrides = [Override.parse(word) for word in words]
    release = open_release(version)
    chosen = [override.text for override in overrides if _is_group(override)]
    base = release.compose(config, chosen) if chosen else release.defaults(config)
    if base.refusal:
        base = release.defaults(config)
    reads = release.reads()
    answers = [_answer(override, version, base, reads, wiring, release.fields()) for override in overrides]
    if any(item.fate in (Fate.UNKNOWN, Fate.ADDED) for item in answers):
        history = _history(open_release, releases, config)
        answers = [
            _with_history(item, version, base, history) if item.fate in (Fate.UNKNOWN, Fate.ADDED) else item
            for item in answers
        ]
    whole = [override.text for override in overrides if override.value is not None or override.prefix == "~"]
    refusal = release.compose(config, whole).refusal if whole else ""
    return ConfigAnswer(version=version, config=config, keys=tuple(answers), refusal=refusal)


def _is_group(override: Override) -> bool:
    """Return whether the word chooses a file (`model_engine=megatron`, `actor@x.y=z`) and does not set a value."""
    return "@" in override.key or "/" in override.key or override.key == "model_engine"


def _answer(
    override: Override,
    version: Version,
    base: Composed,
    reads: Mapping[str, Sequence[Read]],
    wiring: Sequence[Wire],
    fields: Mapping[str, Sequence[str]],
) -> KeyAnswer:
    wires = about(override.key, version, wiring)
    instead = tuple(wire.instead_of(override.key) for wire in wires if wire.to)
    if _is_group(override):
        return KeyAnswer(override=override, fate=Fate.GROUP, wires=wires, instead=instead)
    inside = [key for key in base.keys if key == override.key or key.startswith(f"{override.key}.")]
    places = _likeliest(override.key, reads.get(override.key.rpartition(".")[2], ()))
    whole = _passed_on(override.key)
    if whole and not places:
        places = _likeliest(whole, reads.get(whole.rpartition(".")[2], ()))
    if inside:
        default = _shown(base.keys[override.key]) if override.key in base.keys else "{…}"
        fate = Fate.READ if places else Fate.INERT
        wrong = _mistyped(override, base.keys.get(override.key)) if override.prefix != "~" else ""
        if override.prefix == "+":
            wrong = f"it exists already, so `+` is refused; write {override.key}={override.value or ''}"
        return KeyAnswer(
            override=override, fate=fate, default=default, reads=places, wires=wires, instead=instead, wrong=wrong
        )
    if override.prefix.startswith("+"):
        wrong = _not_taken(override.key, base, fields)
        if not wrong and not places:
            wrong = "no code reads a field of that name"
        return KeyAnswer(override=override, fate=Fate.ADDED, reads=places, wires=wires, instead=instead, wrong=wrong)
    return KeyAnswer(
        override=override,
        fate=Fate.UNKNOWN,
        reads=places,
        wires=wires,
        instead=instead,
        wrong=_takes_plus(override, base, fields),
    )


_WHOLE = re.compile(r"(?!val_)\w*kwargs|override_\w*config")
"""Nodes that verl hands on whole, to vLLM, transformers, an optimizer or Ray: what is in them has its reader there."""


def _passed_on(key: str) -> str:
    """Return the node around the key that is handed on whole, "" where there is none."""
    parts = key.split(".")[:-1]
    for at, part in enumerate(parts, 1):
        if _WHOLE.fullmatch(part):
            return ".".join(parts[:at])
    return ""


def _takes_plus(override: Override, base: Composed, fields: Mapping[str, Sequence[str]]) -> str:
    """Return that a `+` would make the key known, where the typed class of its node has the field or takes any."""
    node, _, name = override.key.rpartition(".")
    whole = _passed_on(override.key)
    if any(known == whole or known.startswith(f"{whole}.") for known in base.keys if whole):
        return f"{whole} takes any name and is handed on whole; write +{override.text.lstrip('+')}"
    if name in fields.get(base.targets.get(node, "").rpartition(".")[2], ()):
        return f"it is a field of {base.targets[node]} and in no file; write +{override.text.lstrip('+')}"
    return ""


def _not_taken(key: str, base: Composed, fields: Mapping[str, Sequence[str]]) -> str:
    """Return that the typed class of the key's node does not take it, "" where it does or there is no such class."""
    node, _, name = key.rpartition(".")
    target = base.targets.get(node, "")
    taken = fields.get(target.rpartition(".")[2])
    if target and taken and name not in taken:
        near = near_names(name, taken)
        return f"{target} has no field {name}" + (f"; closest: {', '.join(near)}" if near else "")
    return ""


def _likeliest(key: str, places: Sequence[Read]) -> tuple[Read, ...]:
    """Return the places, those first whose chain or path names more of the key's other parts."""
    parts = key.split(".")[:-1]

    def rank(place: Read) -> tuple[int, int]:
        written = place.chain.split(".")
        return -sum(part in written for part in parts), -sum(part in place.path for part in parts)

    return tuple(sorted(places, key=rank))


def _shown(value: object) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _mistyped(override: Override, default: object) -> str:
    """Return what is wrong with a value by the type of the default, which hydra itself does not compare."""
    value = override.value
    # `$NAME` is what a shell would have put something in for, `${…}` what omegaconf will.
    if value is None or value in ("null", "") or "$" in value:
        return ""
    text = value.strip("'\"")
    if isinstance(default, bool):
        known = {"true", "false", "yes", "no", "on", "off", "1", "0"}
        return "" if text.lower() in known else f"the default is {_shown(default)}; `{text}` is not true or false"
    if isinstance(default, int | float):
        try:
            float(text)
        except ValueError:
            return f"the default is {default}; hydra takes `{text}` without a word, the code will not"
    return ""


def _history(open_release: Open, releases: Sequence[Version], config: str) -> dict[Version, Composed]:
    """Return the defaults of every release that can be read and has the configuration, oldest first."""
    found = {}
    for version in sorted(releases):
        try:
            composed = open_release(version).defaults(config)
        except MatrixError:
            continue
        if not composed.refusal:
            found[version] = composed
    return found


def _with_history(item: KeyAnswer, version: Version, base: Composed, history: Mapping[Version, Composed]) -> KeyAnswer:
    """Return the answer with the releases that have the key, and the keys of this release that may be meant."""
    key = item.override.key
    had = tuple(
        release
        for release, composed in history.items()
        if release != version and any(known == key or known.startswith(f"{key}.") for known in composed.keys)
    )
    told = item.instead or (tuple(_meant(key, base)) if item.fate is Fate.UNKNOWN and not item.wrong else ())
    return replace(item, had=had, instead=told)


def _meant(key: str, base: Composed) -> list[str]:
    """Return the keys of a release that may be meant by one that it does not have, at most three."""
    parts = key.split(".")
    same = [known for known in base.keys if known.split(".")[-1] == parts[-1]]
    # A name like `path` or `lr` that many nodes have means nothing without one of its parents.
    same = [known for known in same if set(known.split(".")[:-1]) & set(parts[:-1])] or same * (len(same) == 1)
    same.sort(key=lambda known: -len(set(known.split(".")) & set(parts)))
    if same:
        return same[:3]
    node = key.rpartition(".")[0]
    beside = {known.rpartition(".")[2]: known for known in base.keys if known.rpartition(".")[0] == node}
    return [beside[name] for name in near_names(parts[-1], beside)]
