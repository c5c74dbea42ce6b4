"""The figures of the tier `gpu`, counted from observations: probes and surprises, thresholds, seconds, memory left.

Each number comes with what it is of, and nothing is counted that did not run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from matrix.observe import MACHINE, THRESHOLD, Observation
from matrix.tier import Outcome, Tier

START_UP = "::test_start_up_is_told"
"""The probe that tells when a launch of PPO reached its phases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """What the GPU probes of one cell, or of several, came to.

    Attributes:
        planned: how many there are.
        ran: how many of them have an answer.
        reproduced: known failures that were seen where they are predicted.
        absent: known failures that were not seen where they are predicted not to be.
        passed: plain probes that passed.
        surprises: what nobody predicted, a line each: a record that is wrong, a plain probe that failed.
        untested: probes that did not run, with the reason.
        seconds: GPU seconds that they held: time times GPUs, with the wait until the memory was back.
        left_mib: memory that did not come back after them, in MiB.
    """

    planned: int = 0
    ran: int = 0
    reproduced: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    passed: int = 0
    surprises: tuple[str, ...] = ()
    untested: tuple[tuple[str, str], ...] = ()
    seconds: float = 0.0
    left_mib: int = 0

    @property
    def trials(self) -> int:
        """Return how many known failures were tried."""
        return len(self.reproduced) + len(self.absent)

    @property
    def line(self) -> str:
        """Return it in a line, each number with what it is of."""
        words = [
            f"{self.ran} of {self.planned} GPU probes ran",
            f"{len(self.reproduced)} known failures reproduced as predicted",
            f"{len(self.absent)} absent as predicted",
            f"{self.passed} others passed",
            f"{len(self.surprises)} {'surprise' if len(self.surprises) == 1 else 'surprises'}",
        ]
        return f"{', '.join(words)}; {self.seconds:.0f} s of GPU time, {self.left_mib} MiB left"

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data (reports/schema.json: `gpu`)."""
        return {
            "planned": self.planned,
            "ran": self.ran,
            "reproduced": list(self.reproduced),
            "absent": list(self.absent),
            "passed": self.passed,
            "surprises": list(self.surprises),
            "untested": [{"probe": probe, "reason": reason} for probe, reason in self.untested],
            "seconds": round(self.seconds, 1),
            "left_mib": self.left_mib,
            "line": self.line,
        }


def gpu_probes(observations: Iterable[Observation]) -> Probes:
    """Return what the probes of tier `gpu` among these came to; what measures and judges nothing is none of them.

    Each probe counts once a cell: where several machines tried it, by an answer before none, then by the latest.
    """
    found: dict[tuple[str, str], Observation] = {}
    for item in observations:
        if item.question.tier is not Tier.GPU or item.question.measures or "::" not in item.question.probe:
            continue
        key = (item.question.cell, item.question.probe)
        if key not in found or _worth(item) >= _worth(found[key]):
            found[key] = item
    items = list(found.values())
    ran = [item for item in items if item.outcome is not Outcome.UNTESTED]
    fine = [item for item in ran if not surprise(item)]
    known = [item for item in fine if item.detail.get("failure")]
    return Probes(
        planned=len(items),
        ran=len(ran),
        reproduced=tuple(_told(item) for item in known if item.detail.get("seen") == "reproduced"),
        absent=tuple(_told(item) for item in known if item.detail.get("seen") == "absent"),
        passed=len(fine) - len(known),
        surprises=tuple(line for item in ran if (line := surprise(item))),
        untested=tuple((item.question.probe, item.reason) for item in items if item.outcome is Outcome.UNTESTED),
        seconds=sum(held_seconds(item) for item in ran),
        left_mib=sum(left_mib(item) for item in ran),
    )


def _worth(item: Observation) -> tuple[bool, datetime]:
    return item.outcome is not Outcome.UNTESTED, item.at


def _told(item: Observation) -> str:
    return str(item.detail["failure"])


def surprise(item: Observation) -> str:
    """Return what an answer says that nobody predicted, as a line; "" where it is as it should be."""
    detail = item.detail
    if item.outcome is Outcome.UNTESTED:
        return ""
    where = f"{item.question.cell}: {item.question.probe.removeprefix('compat/')}"
    if detail.get("disagreement"):
        return f"{where}: {detail.get('failure')}: {detail['disagreement']}"
    if left_mib(item):
        return f"{where}: left {left_mib(item)} MiB on the GPU"
    if not detail.get("failure") and item.outcome is not Outcome.OK:
        return f"{where}: {item.reason}"
    return ""


def left_mib(item: Observation) -> int:
    """Return how much memory did not come back after a probe, in MiB."""
    return int(_number(item.detail.get("gpu_left_mib")))


def held_seconds(item: Observation) -> float:
    """Return for how many GPU seconds a probe held GPUs, until their memory was back; 0 where it held none."""
    gpus = item.detail.get("gpu")
    return _number(item.detail.get("gpu_held_s")) * (len(gpus) if isinstance(gpus, list) else 1)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A threshold of memory: what was foretold and what was measured.

    Attributes:
        cell: the cell it was measured in.
        workload: model, lengths, and what else differs from verl's defaults.
        knob: verl's key of what was searched.
        cap: the card that was asked about; `capped` says how another one stood in for it.
        found: `threshold`, `all pass`, `all fail`, or why there is none.
        predicted: the largest value that the memory model foretold to survive before the search; None for none.
        largest_pass: the largest value that survived every time, None where none did.
        smallest_fail: the smallest above it that did not, None where none was tried.
        part: what died there; `how` in which way.
        repeats: how often the two ends were tried.
        peaks: the most memory taken at the two ends, in bytes; None where nothing was measured.
        flaky: values that did both.
        seconds: GPU seconds of all trials.
        observation: what it rests on.
    """

    cell: str
    workload: str
    knob: str
    cap: str
    capped: str
    found: str
    predicted: float | None
    largest_pass: float | None
    smallest_fail: float | None
    part: str
    how: str
    repeats: tuple[int, int]
    peaks: tuple[int | None, int | None]
    flaky: tuple[float, ...]
    seconds: float
    observation: Observation

    @property
    def error(self) -> float | None:
        """Return how far the prediction is from what was measured, relative to it.

        0 where it lies between the two ends, or beyond the last value that can be asked and all survived; None where
        one of the two is missing.
        """
        if self.predicted is None or self.largest_pass is None:
            return None
        low, high = self.largest_pass, self.smallest_fail
        if self.predicted >= low and (high is None or self.predicted < high):
            return 0.0
        return (self.predicted - low) / low if low else None

    @property
    def answered(self) -> bool:
        """Return whether the question has an answer, if only that all survive or none."""
        return self.observation.outcome is not Outcome.UNTESTED

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data (reports/schema.json: `threshold`)."""
        item = self.observation
        return {
            "cell": self.cell,
            "workload": self.workload,
            "knob": self.knob,
            "cap": self.cap,
            "capped": self.capped,
            "found": self.found,
            "predicted": self.predicted,
            "largest_pass": self.largest_pass,
            "smallest_fail": self.smallest_fail,
            "error": None if self.error is None else round(self.error, 4),
            "part": self.part,
            "how": self.how,
            "repeats": list(self.repeats),
            "peaks": list(self.peaks),
            "flaky": list(self.flaky),
            "seconds": round(self.seconds, 1),
            "line": item.reason,
            "machine": item.machine,
            "at": item.at.isoformat(),
            "shipped": item.shipped,
        }


def limits(observations: Iterable[Observation]) -> tuple[Limit, ...]:
    """Return the thresholds among these observations, by workload, knob and cap."""
    found = [_limit(item) for item in observations if item.question.probe.startswith(THRESHOLD)]
    return tuple(sorted(found, key=lambda item: (item.cell, item.workload, item.knob, item.cap)))


def _limit(item: Observation) -> Limit:
    detail = item.detail
    cap = _mapping(detail.get("cap"))
    low, high = _mapping(detail.get("pass")), _mapping(detail.get("fail"))
    flaky = detail.get("flaky")
    return Limit(
        cell=item.question.cell,
        workload=str(detail.get("workload_name") or ""),
        knob=str(detail.get("knob") or ""),
        cap=str(cap.get("name") or "whole card"),
        capped=str(cap.get("words") or ""),
        found=str(detail.get("found") or ""),
        predicted=_maybe(detail.get("predicted")),
        largest_pass=_maybe(detail.get("largest_pass")),
        smallest_fail=_maybe(detail.get("smallest_fail")),
        part=str(high.get("part") or ""),
        how=str(high.get("how") or ""),
        repeats=(int(_number(low.get("repeats"))), int(_number(high.get("repeats")))),
        peaks=(_bytes(low.get("peak")), _bytes(high.get("peak"))),
        flaky=tuple(_number(value) for value in flaky) if isinstance(flaky, list) else (),
        seconds=_number(detail.get("gpu_seconds")),
        observation=item,
    )


def _maybe(value: object) -> float | None:
    return None if value is None else _number(value)


def _bytes(value: object) -> int | None:
    return int(_number(value)) or None


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class StartUp:
    """When a launch of PPO reached each phase, in seconds from its start; `cell` is what was launched."""

    cell: str
    reached: Mapping[str, float]
    prepared: float
    observation: Observation

    @property
    def first_step(self) -> float | None:
        """Return when the first step began: the model is loaded, the engine serves; None where it never did."""
        return self.reached.get("fit")


def start_ups(observations: Iterable[Observation]) -> tuple[StartUp, ...]:
    """Return the launches of PPO among these observations that tell of their start."""
    found = []
    for item in observations:
        reached = item.detail.get("reached") if item.question.probe.endswith(START_UP) else None
        if isinstance(reached, Mapping):
            made = item.detail.get("prepared")
            prepared = sum(map(_number, made.values())) if isinstance(made, Mapping) else _number(made)
            times = {str(name): _number(seconds) for name, seconds in reached.items()}
            found.append(StartUp(cell=item.question.cell, reached=times, prepared=prepared, observation=item))
    return tuple(sorted(found, key=lambda item: item.cell))


def machines(observations: Iterable[Observation]) -> dict[str, Observation]:
    """Return the observations that hold a fingerprint, by its digest, the latest of each."""
    found: dict[str, Observation] = {}
    for item in observations:
        digest = item.detail.get("fingerprint") if item.question.probe == MACHINE else None
        if digest and (str(digest) not in found or item.at >= found[str(digest)].at):
            found[str(digest)] = item
    return found


def by_cell(observations: Iterable[Observation]) -> dict[str, list[Observation]]:
    """Return the observations of each cell, cells sorted."""
    found: dict[str, list[Observation]] = {}
    for item in observations:
        found.setdefault(item.question.cell, []).append(item)
    return dict(sorted(found.items()))


def median(values: Sequence[float]) -> float:
    """Return the middle of the values, 0 for none; of an even number the mean of the two."""
    import statistics

    return statistics.median(values) if values else 0.0
