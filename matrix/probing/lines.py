"""The lines that probes write (tests/compat/conftest.py): what is planned, what begins, how it ended."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matrix.gpus.need import Need, read_capability
from matrix.tier import Tier

NOT_BEGUN = "not_begun"
"""In the detail of a probe whose turn never came (no time was left, a GPU's memory was lost): it is asked again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedProbe:
    """A probe there is to run, as its marks say.

    Attributes:
        test: pytest's id, relative to the folder of probes.
        tier: `import`, `behave` or `gpu`.
        failure: id of the record that it reproduces, "" for a plain probe.
        limit: seconds after which it counts as hung.
        gpus: how many GPUs it needs.
        capability: the compute capability that each must have at least, e.g. `9.0`; "" for any.
        gpu_memory: the GiB that each must have.
        hurts: the feature that does not work when it fails; "" for one named by its file.
        default_path: whether an ordinary run does not work when it fails.
        entry: the entry point of verl that it imports (`name`, `module`), {} for any other.
    """

    test: str
    tier: Tier
    failure: str = ""
    limit: float = 120.0
    gpus: int = 0
    capability: str = ""
    gpu_memory: float = 0.0
    hurts: str = ""
    default_path: bool = False
    entry: Mapping[str, str] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """Return the file it is in, e.g. `test_ray.py`."""
        return self.test.partition("::")[0]

    @property
    def probe(self) -> str:
        """Return the name under which its observations are stored."""
        return f"compat/{self.test}"

    @property
    def feature(self) -> str:
        """Return the feature that it speaks for, "" where that is any run."""
        return self.hurts or ("" if self.default_path else Path(self.file).stem.removeprefix("test_"))

    @property
    def need(self) -> Need:
        """Return what it needs of GPUs; none of them for one of another tier."""
        return Need(gpus=self.gpus, capability=read_capability(self.capability), memory_gib=self.gpu_memory)

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data; `from_json` gives the equal probe back."""
        return {
            "test": self.test,
            "tier": self.tier.value,
            "failure": self.failure or None,
            "limit": self.limit,
            "gpus": self.gpus,
            "capability": self.capability,
            "memory_gib": self.gpu_memory,
            "hurts": self.hurts,
            "default_path": self.default_path,
            "entry": dict(self.entry) or None,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PlannedProbe:
        """Return the probe of a line; raises KeyError, ValueError for one that is none."""
        return cls(
            test=str(data["test"]),
            tier=Tier(data["tier"]),
            failure=str(data["failure"] or ""),
            limit=float(data["limit"]),
            gpus=int(data["gpus"]),
            capability=str(data.get("capability") or ""),
            gpu_memory=float(data.get("memory_gib") or 0.0),
            hurts=str(data.get("hurts") or ""),
            default_path=bool(data.get("default_path")),
            entry={str(name): str(value) for name, value in (data.get("entry") or {}).items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A file of probes that pytest could not read, and why."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedProbe:
    """How a probe ended.

    Attributes:
        test: pytest's id.
        outcome: `passed`, `failed` or `untested`; `killed` where it was ended from outside or took its process down.
        reason: one line, "" for one that passed.
        seconds: wall time.
        predicted: `yes`, `no`, `unknown` for a trial of a known failure; "" for a plain probe.
        seen: `reproduced`, `absent`, `other`; "" where nothing was judged.
        detail: what was measured, plain JSON data.
    """

    test: str
    outcome: str
    reason: str = ""
    seconds: float = 0.0
    predicted: str = ""
    seen: str = ""
    detail: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def never_begun(cls, test: str, reason: str) -> EndedProbe:
        """Return the end of a probe whose turn never came."""
        return cls(test=test, outcome="untested", reason=reason, detail={NOT_BEGUN: True})

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EndedProbe:
        """Return the end that a line tells of; raises KeyError, ValueError for a line that is none."""
        return cls(
            test=str(data["test"]),
            outcome=str(data["outcome"]),
            reason=" ".join(str(data.get("reason") or "").split()),
            seconds=max(float(data["seconds"]), 0.0),
            predicted=str(data.get("predicted") or ""),
            seen=str(data.get("seen") or ""),
            detail=_finite(data.get("detail") or {}),
        )


def _finite(value: Any) -> Any:
    """Return JSON data in which a number that JSON does not have is the word for it."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list) else value


class Tail:
    """The lines that were added to a file since the last look; a line without its end yet is left for later."""

    def __init__(self, path: Path) -> None:
        """Start at the beginning of `path`, which need not be there yet."""
        self._path = path
        self._read_to = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield what is new, as JSON objects; what is none (a probe wrote there itself) is passed over."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read_to)
                block = file.read()
        except FileNotFoundError:
            return
        whole = block[: block.rfind(b"\n") + 1]
        self._read_to += len(whole)
        for line in whole.splitlines():
            try:
                data = json.loads(line)
            except ValueError:
                continue
            if isinstance(data, dict):
                yield data
