"""The trial: one value of one knob tried for real, how it ended, and what its parts took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

SETUP = ("trainer init", "first step")
"""Parts that come before a knob of the trainer counts."""


class Ending(StrEnum):
    """How a trial ended. `unable` says nothing of memory: something else kept it from its answer."""

    PASS = "pass"  # noqa: S105 - a word
    FAIL = "fail"
    UNABLE = "unable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a trial (old log-prob, actor update, wake-up, …).

    Attributes:
        name: the word of the part.
        ended: whether it came through.
        seconds: wall time.
        peaks: bytes by name: `allocated` and `reserved` at their highest, `held` when it ended, `overhead` outside of
            the allocator.
        more: what else was told (rows, tokens, …).
    """

    name: str
    ended: bool
    seconds: float = 0.0
    peaks: Mapping[str, int] = field(default_factory=dict)
    more: Mapping[str, object] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Return plain JSON."""
        return {
            "part": self.name, "ended": self.ended, "seconds": self.seconds,
            "peaks": dict(self.peaks), **dict(self.more),
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Part:
        """Return the part of `to_json`."""
        known = ("part", "ended", "seconds", "peaks")
        peaks = data["peaks"]
        assert isinstance(peaks, Mapping)
        return cls(
            name=str(data["part"]),
            ended=bool(data["ended"]),
            seconds=float(str(data["seconds"])),
            peaks={str(name): int(value) for name, value in peaks.items()},
            more={name: value for name, value in data.items() if name not in known},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One value of a knob, tried once.

    Attributes:
        value: what the knob was set to.
        ending: pass, fail or unable.
        fresh: whether nothing was tried before in its process.
        part: the part in which it died, "" where it did not.
        how: in which way (`OutOfMemoryError`, `no KV cache`, `killed`, `hang`, …), "" for a pass.
        text: the end of what was said of it.
        seconds: wall time, with what had to be built for it.
        parts: what ran, in order.
        more: what else the script told when it ended (what vLLM said of itself).
    """

    value: float
    ending: Ending
    fresh: bool = False
    part: str = ""
    how: str = ""
    text: str = ""
    seconds: float = 0.0
    parts: tuple[Part, ...] = ()
    more: Mapping[str, object] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Return whether it survived."""
        return self.ending is Ending.PASS

    @property
    def peak(self) -> int:
        """Return the most that was taken at once, in bytes: allocator and what is outside of it; 0 if not measured.

        What is built first does not count where the knob's own parts ran.
        """
        own = [part for part in self.parts if part.name not in SETUP]
        return max((_taken(part.peaks) for part in own or self.parts), default=0)

    def to_json(self) -> dict[str, object]:
        """Return plain JSON."""
        return {
            "value": self.value, "ending": self.ending.value, "fresh": self.fresh, "part": self.part, "how": self.how,
            "text": self.text, "seconds": self.seconds, "parts": [part.to_json() for part in self.parts],
            "more": dict(self.more),
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Trial:
        """Return the trial of `to_json`."""
        parts = data["parts"]
        assert isinstance(parts, Sequence)
        more = data.get("more")
        return cls(
            value=float(str(data["value"])),
            ending=Ending(str(data["ending"])),
            fresh=bool(data["fresh"]),
            part=str(data["part"]),
            how=str(data["how"]),
            text=str(data["text"]),
            seconds=float(str(data["seconds"])),
            parts=tuple(Part.from_json(item) for item in parts),
            more={str(name): value for name, value in more.items()} if isinstance(more, Mapping) else {},
        )


def _taken(peaks: Mapping[str, int]) -> int:
    """Return what the process took: an allocator's reserve counts, for nobody else could have had it."""
    return peaks.get("reserved", peaks.get("allocated", 0)) + peaks.get("overhead", 0)


def shown(value: float) -> str:
    """Return a knob's value as people write it: `64`, `0.45`."""
    return f"{value:g}" if value != int(value) else str(int(value))
