"""The cause of a change: which of the inputs that were written down differ between two nights, and nothing else.

An answer is the outcome of a question over named inputs. Where inputs of one kind differ, that kind is the cause; where
several kinds differ at once, or none does, the cause is `unknown` and says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from packaging.version import Version

from matrix.cell import Axis, parse_name
from matrix.errors import UsageError
from matrix.index.page import split_filename
from matrix.nightly.record import CellRecord, Night, Slot
from matrix.tier import Tier


class Label(StrEnum):
    """Whose doing a change is."""

    INDEX = "index changed"
    RELEASE = "release changed"
    MACHINE = "machine changed"
    OURS = "ours"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One input that differs: of which kind, and how, in words."""

    label: Label
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why a cell changed: the label, and every input that differs."""

    label: Label
    facts: tuple[Fact, ...] = ()

    @property
    def line(self) -> str:
        """Return it as one line for people."""
        kinds = dict.fromkeys(fact.label for fact in self.facts)
        told = "; ".join(fact.what for fact in self.facts)
        if self.label is Label.UNKNOWN and len(kinds) > 1:
            return f"unknown: inputs of {len(kinds)} kinds differ ({', '.join(kinds)}): {told}"
        return f"{self.label}: {told}" if told else f"{self.label}: nothing that was recorded differs"

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        facts = [{"label": fact.label.value, "what": fact.what} for fact in self.facts]
        return {"label": self.label.value, "facts": facts, "line": self.line}


def cause_of(facts: Iterable[Fact]) -> Cause:
    """Return the cause that these differences amount to."""
    found = tuple(dict.fromkeys(facts))
    kinds = {fact.label for fact in found}
    return Cause(label=kinds.pop() if len(kinds) == 1 else Label.UNKNOWN, facts=found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nights:
    """The two nights that are compared."""

    before: Night
    now: Night

    @property
    def machine(self) -> tuple[str, ...]:
        """Return which facts of the machine differ, in words."""
        return differing(self.before.snapshot.get("machine") or {}, self.now.snapshot.get("machine") or {})


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """Return each entry of two mappings that differs, as `driver 580.65 → 580.95`."""
    names = dict.fromkeys([*before, *now])
    return tuple(
        f"{name} {_word(before.get(name))} → {_word(now.get(name))}"
        for name in names
        if before.get(name) != now.get(name)
    )


def _word(value: object) -> str:
    if value in (None, "", [], {}):
        return "none"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def facts_of(nights: Nights, before: Slot, now: Slot, *, derived: bool = False) -> Iterator[Fact]:
    """Yield every input of a probe's answer that differs from that of its last answer.

    With `derived`, that a package is read now and was not before, or the other way round, is left out: it follows from
    what the resolver says, whose own inputs are told.
    """
    if before.shipped or now.shipped:
        yield from _shipped(before, now)
        return
    if before.tool != now.tool:
        yield Fact(label=Label.OURS, what=f"the tool: {before.tool} → {now.tool}")
    match now.tier:
        case Tier.RESOLVE:
            yield from _resolve(nights, before, now)
        case Tier.SURFACE:
            yield from _surface(before, now, derived=derived)
        case _:
            yield from _deep(nights, before, now)


def _shipped(before: Slot, now: Slot) -> Iterator[Fact]:
    """Yield what differs where an answer is another machine's; such evidence travels with the tool."""
    if bool(before.shipped) != bool(now.shipped):
        places = (f"{slot.machine}{' (shipped evidence)' * bool(slot.shipped)}" for slot in (before, now))
        yield Fact(label=Label.MACHINE, what=" → ".join(places))
    elif (before.shipped, before.at, before.reads) != (now.shipped, now.at, now.reads):
        yield Fact(label=Label.OURS, what="the evidence that is shipped")


def _differing(before: Slot, now: Slot) -> list[str]:
    names = dict.fromkeys([*before.reads, *now.reads])
    return [name for name in names if before.reads.get(name) != now.reads.get(name)]


def _resolve(nights: Nights, before: Slot, now: Slot) -> Iterator[Fact]:
    changed = _differing(before, now)
    for name in changed:
        if name == "uv":
            yield Fact(label=Label.OURS, what=f"uv {before.reads.get(name, '?')} → {now.reads.get(name, '?')}")
        elif name == "index":
            yield Fact(label=Label.INDEX, what="another index is asked")
        elif name.partition(" ")[2]:
            yield _release(nights, name, before.reads.get(name), now.reads.get(name))
        else:
            yield Fact(label=Label.OURS, what=f"our data {name}")
    if before.lock and now.lock:
        yield from _locks(nights, before.lock, now.lock)


def _release(nights: Nights, name: str, before: str | None, now: str | None) -> Fact:
    """Return what became of a pinned release on the index."""
    if before is None or now is None:
        return Fact(label=Label.OURS, what=f"whether {name} is read")
    if before == "absent":
        return Fact(label=Label.RELEASE, what=f"{name} is on the index now")
    if now == "absent":
        return Fact(label=Label.INDEX, what=f"{name} is gone from the index")
    held = [(night.snapshot.get("releases") or {}).get(name) or {} for night in (nights.before, nights.now)]
    words = list(_files(*held)) or ["its files differ"]
    return Fact(label=Label.INDEX, what=f"{name}: {'; '.join(words)}")


_TOLD = 3
"""So many files are named of those that changed."""


def _files(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield in words what became of the files of a release."""
    if before.get("yanked") is None and now.get("yanked") is not None:
        yield "yanked" + (f" ({now['yanked']})" if now["yanked"] not in ("", "True") else "")
    elif before.get("yanked") is not None and now.get("yanked") is None and now:
        yield "no longer yanked"
    was, has = before.get("files") or {}, now.get("files") or {}
    for word, names in (
        ("added", [name for name in has if name not in was]),
        ("gone", [name for name in was if name not in has]),
        ("other bytes", [name for name in has if name in was and _bytes(was[name]) != _bytes(has[name])]),
        ("other metadata", [name for name in has if name in was and _metadata(was[name], has[name])]),
    ):
        if names and was and has:
            more = f" and {len(names) - _TOLD} more" if len(names) > _TOLD else ""
            yield f"{word}: {', '.join(names[:_TOLD])}{more}"


def _bytes(state: str) -> str:
    return str(state).partition(" ")[0]


def _metadata(before: str, now: str) -> bool:
    """Return whether the metadata that the index serves changed while the file did not."""
    same = _bytes(before) == _bytes(now)
    return same and str(before).removesuffix(" yanked") != str(now).removesuffix(" yanked")


def _locks(nights: Nights, before: str, now: str) -> Iterator[Fact]:
    """Yield what differs between two resolved sets, package by package: a version, or the files of one."""
    if before == now:
        return
    was, has = nights.before.locks.get(before), nights.now.locks.get(now)
    if was is None or has is None:
        return
    moved, other = [], []
    for name in sorted({*was, *has}):
        old, new = (held.get(name, "").partition(" ") for held in (was, has))
        if old[0] != new[0]:
            moved.append(f"{name} {old[0] or 'none'} → {new[0] or 'none'}")
        elif old[2] != new[2]:
            other.append(f"{name} {new[0]}")
    if moved:
        yield Fact(label=Label.RELEASE, what=f"the set moved: {_listed(moved)}")
    if other:
        yield Fact(label=Label.INDEX, what=f"other files of {_listed(other)}")


_LISTED = 8


def _listed(words: list[str]) -> str:
    return ", ".join(words[:_LISTED]) + (f" and {len(words) - _LISTED} more" if len(words) > _LISTED else "")


def _surface(before: Slot, now: Slot, *, derived: bool) -> Iterator[Fact]:
    """Yield what differs among the files that were read: each names its package and its version."""
    was, has = _read(before), _read(now)
    for name in sorted({*was, *has}):
        old, new = was.get(name, {}), has.get(name, {})
        if old == new or (derived and not (old and new)):
            continue
        versions = [sorted({version for version, _ in held}) for held in (old, new)]
        if versions[0] != versions[1]:
            told = " → ".join(", ".join(held) or "none" for held in versions)
            yield Fact(label=Label.RELEASE, what=f"{name} {told}")
        elif {file for _, file in old} != {file for _, file in new}:
            yield Fact(label=Label.INDEX, what=f"another file of {name} {', '.join(versions[1])}")
        else:
            yield Fact(label=Label.INDEX, what=f"other bytes under the name of {', '.join(file for _, file in new)}")
    for name in _differing(before, now):
        if _split(name) is None:
            yield Fact(label=Label.OURS, what=f"our data {name}")


def versions_read(slot: Slot) -> dict[Axis, Version]:
    """Return the version of each axis whose release a surface check read; of an axis with several, none."""
    found = {Axis(name): {version for version, _ in files} for name, files in _read(slot).items()}
    return {axis: Version(held.pop()) for axis, held in found.items() if len(held) == 1}


def _read(slot: Slot) -> dict[str, dict[tuple[str, str], str]]:
    """Return package to the version, name and digest of each file that was read of it."""
    found: dict[str, dict[tuple[str, str], str]] = {}
    for name, digest in slot.reads.items():
        split = _split(name)
        if split is not None:
            found.setdefault(split[0], {})[split[1], name] = digest
    return found


def _split(filename: str) -> tuple[str, str] | None:
    """Return the axis and the version that a file's name states, None for what is no release of an axis."""
    for axis in Axis:
        split = split_filename(axis.value, filename)
        if split is not None:
            return axis.value, str(split[0])
    return None


def _deep(nights: Nights, before: Slot, now: Slot) -> Iterator[Fact]:
    """Yield what differs of an installed set, of the machine, and of the probes."""
    for name in _differing(before, now):
        if name == "lock":
            found = list(_locks(nights, before.reads.get(name, ""), now.reads.get(name, "")))
            yield from found or [Fact(label=Label.UNKNOWN, what="another set is installed; what differs was not kept")]
        elif name == "machine":
            what = f"{before.reads.get(name, '?')} → {now.reads.get(name, '?')}"
            yield Fact(label=Label.MACHINE, what=what)
        else:
            what = "the record of the failure" if name.startswith("record ") else "the probe"
            yield Fact(label=Label.OURS, what=f"{what}: {name.removeprefix('record ')}")
    changed = nights.machine
    if changed:
        yield Fact(label=Label.MACHINE, what=_listed(list(changed)))
    elif before.machine != now.machine and "machine" not in _differing(before, now):
        yield Fact(label=Label.MACHINE, what=f"{before.machine} → {now.machine}")
    elif before.fingerprint and now.fingerprint and before.fingerprint != now.fingerprint:
        yield Fact(label=Label.MACHINE, what="the fingerprint of the GPU machine")


def newly_there(nights: Nights, cell: CellRecord) -> Cause:
    """Return why a cell that the night before did not have is there."""
    data, asked = (
        (nights.before.snapshot.get(word) or {}, nights.now.snapshot.get(word) or {}) for word in ("data", "asked")
    )
    was, has = (night.snapshot.get("lattice") or {} for night in (nights.before, nights.now))
    new = [
        f"{name} {version} is new on the index"
        for name, version in _pins(cell)
        if name in was and version not in was[name] and version in has.get(name, {})
    ]
    if new:
        return cause_of(Fact(label=Label.RELEASE, what=what) for what in new)
    if cell.new and cell.new.partition(" ")[0] in was:
        return cause_of([Fact(label=Label.RELEASE, what=f"{cell.new} is among the newest now")])
    facts = []
    if data[0].get("cells") != data[1].get("cells"):
        facts.append(Fact(label=Label.OURS, what="the cells that are planned"))
    if asked[0] != asked[1]:
        facts.append(Fact(label=Label.OURS, what="what was selected"))
    return cause_of(facts)


def _pins(cell: CellRecord) -> list[tuple[str, str]]:
    """Return the axis and the version of each pin of a cell; none of a name that this release does not know."""
    try:
        return [(pin.axis.value, str(pin.version)) for pin in parse_name(cell.cell).pins]
    except UsageError:
        return []
