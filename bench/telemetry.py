"""The telemetry of a launch: power, clocks, throttling, memory and company of its GPUs, asked of NVML beside it.

Asked in the tool's own process, which holds no context on a card, a few times a second; on a machine without a GPU
there is none and it says so. Raw samples are kept, so that a window of them can be looked at again.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from matrix.gpus.nvml import MIB, Holder, NoDriverError, Nvml

EVERY_S = 0.25
COMPANY_S = 5.0
"""So often it is asked who else is there."""
SEEN = 2
"""From so many samples on with a reason it counts: one alone may be the moment in which a clock changes."""
REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal, by software",
    0x40: "thermal, by hardware",
    0x80: "power brake",
    0x100: "display clocks",
}
"""`nvmlClocksEventReason…`, nvml.h: why clocks are lower than they could be."""
ABNORMAL = ("hardware slowdown", "sync boost", "thermal, by software", "thermal, by hardware", "power brake")
"""Reasons that lie in the machine and not in what is run. The power cap is the card's own limit, which a heavy load
reaches on any day, and on both sides alike; how often it was there is told, and disturbs nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a GPU is doing now: W, MHz, bytes, shares of 100, °C; None where the driver does not say."""

    power_w: float | None
    sm_mhz: int | None
    memory_mhz: int | None
    reasons: int
    used: int
    busy: int | None = None
    celsius: int | None = None


class Gauges(Protocol):
    """What telemetry asks of a driver; `NvmlGauges` is the real one. All raise NoDriverError where it is gone."""

    def reading(self, index: int) -> Reading:
        """Return what a GPU is doing now."""

    def holders(self, index: int) -> list[Holder]:
        """Return the processes that hold memory of it, as the driver names them."""


class NvmlGauges(Nvml):
    """The driver through NVML, with what changes while a launch runs."""

    def reading(self, index: int) -> Reading:
        """Return what a GPU is doing now; a GPU that is lost raises NoDriverError."""

        def ask(nv: Any) -> Reading:
            handle = nv.nvmlDeviceGetHandleByIndex(index)
            power = _maybe(nv, "nvmlDeviceGetPowerUsage", handle)
            rates = _maybe(nv, "nvmlDeviceGetUtilizationRates", handle)
            # Renamed in NVML 12.2; older bindings have the old name alone.
            reasons = _maybe(nv, "nvmlDeviceGetCurrentClocksEventReasons", handle)
            if reasons is None:
                reasons = _maybe(nv, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
            return Reading(
                power_w=None if power is None else power / 1000,
                sm_mhz=_maybe(nv, "nvmlDeviceGetClockInfo", handle, nv.NVML_CLOCK_SM),
                memory_mhz=_maybe(nv, "nvmlDeviceGetClockInfo", handle, nv.NVML_CLOCK_MEM),
                reasons=int(reasons or 0),
                used=_used(nv, handle),
                busy=None if rates is None else int(rates.gpu),
                celsius=_maybe(nv, "nvmlDeviceGetTemperature", handle, nv.NVML_TEMPERATURE_GPU),
            )

        return self._asked(ask)


def _used(nv: Any, handle: Any) -> int:
    """Return the bytes in use, of a driver without the second form of the question with what it keeps back.

    The last question of a reading, whose fault is not passed over: a GPU that is lost answers none.
    """
    try:
        return int(nv.nvmlDeviceGetMemoryInfo(handle, version=nv.nvmlMemory_v2).used)
    except nv.NVMLError:
        return int(nv.nvmlDeviceGetMemoryInfo(handle).used)


def _maybe(nv: Any, name: str, *words: Any) -> Any:
    """Return the answer, None where this binding, driver or GPU has none."""
    question = getattr(nv, name, None)
    if question is None:
        return None
    try:
        return question(*words)
    except nv.NVMLError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Company:
    """Who else was on the GPUs: processes that are none of the launch's, and MiB in use before it began.

    `known` says whether the driver's process ids are those of this machine: in a container they may be the host's, and
    then only who is there before and after a launch can be told apart from it.
    """

    before: int = 0
    after: int = 0
    beside: int = 0
    before_mib: int = 0
    known: bool = True

    @property
    def lines(self) -> tuple[str, ...]:
        """Return what disturbs, a line each."""
        found = []
        if self.before_mib:
            found.append(f"{self.before_mib} MiB of the GPU were in use before it began")
        for count, when in ((self.before, "before it began"), (self.beside, "beside it"), (self.after, "after it")):
            if count:
                found.append(f"{count} other process{'es' if count > 1 else ''} on the GPU {when}")
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What telemetry saw: samples as columns, in seconds since the launch began; `lost` says why there are no more.

    `columns` hold a row a moment: `at`, then of each GPU `power_w`, `sm_mhz`, `memory_mhz`, `reasons`, `used_mib`,
    `busy`, `celsius`.
    """

    columns: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    gpus: int = 0
    company: Company = field(default_factory=Company)
    lost: str = ""
    absent: str = ""

    def summary(self, window: tuple[float, float] | None = None) -> dict[str, object]:
        """Return the means and extremes of the samples in a window of seconds (the whole launch where it is None)."""
        if self.absent:
            return {"absent": self.absent}
        at = self.columns.get("at", ())
        first, last = window if window is not None else (float("-inf"), float("inf"))
        rows = [row for row, moment in enumerate(at) if moment is not None and first <= moment <= last]
        each = [self._of_gpu(gpu, rows) for gpu in range(self.gpus)]
        powers = [float(str(one["power_mean_w"])) for one in each if one["power_mean_w"] is not None]
        return {
            "samples": len(rows),
            "power_mean_w": round(sum(powers), 2) if powers and len(powers) == len(each) else None,
            "gpus": each,
        }

    def _of_gpu(self, gpu: int, rows: Sequence[int]) -> dict[str, object]:
        def values(name: str) -> list[float]:
            column = self.columns.get(f"{name}/{gpu}", ())
            return [value for row in rows if (value := column[row]) is not None]

        found: dict[str, object] = {}
        power, reasons = values("power_w"), values("reasons")
        found["power_mean_w"] = round(statistics.fmean(power), 2) if power else None
        found["power_max_w"] = max(power, default=None)
        for name in ("sm_mhz", "memory_mhz"):
            clocks = values(name)
            found[name] = [min(clocks), round(statistics.fmean(clocks), 1), max(clocks)] if clocks else None
        for name in ("used_mib", "celsius"):
            found[f"{name}_max"] = max(values(name), default=None)
        busy = values("busy")
        found["busy_mean"] = round(statistics.fmean(busy), 1) if busy else None
        counts = {word: sum(bool(int(value) & bit) for value in reasons) for bit, word in REASONS.items()}
        found["reasons"] = {word: round(count / len(reasons), 4) for word, count in counts.items() if count}
        return found

    def throttled(self, window: tuple[float, float] | None = None) -> tuple[str, ...]:
        """Return the abnormal reasons for lower clocks that were seen in a window, a line each with its share."""
        at = self.columns.get("at", ())
        first, last = window if window is not None else (float("-inf"), float("inf"))
        found = []
        for gpu in range(self.gpus):
            column = self.columns[f"reasons/{gpu}"]
            held = [int(value) for moment, value in zip(at, column, strict=True)
                    if moment is not None and value is not None and first <= moment <= last]  # fmt: skip
            for bit, word in REASONS.items():
                count = sum(bool(value & bit) for value in held)
                if word in ABNORMAL and count >= SEEN:
                    found.append(f"throttled: {word}, {count / len(held):.1%} of the time")
        return tuple(dict.fromkeys(found))

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data: the columns, who else was there, and why there is no more."""
        if self.absent:
            return {"absent": self.absent}
        company = self.company
        return {
            "columns": {name: list(values) for name, values in self.columns.items()},
            "gpus": self.gpus,
            "company": {
                "before": company.before, "beside": company.beside, "after": company.after,
                "before_mib": company.before_mib, "known": company.known,
            },
            "lost": self.lost,
        }  # fmt: skip


ABSENT = Seen(absent="no GPU was granted")
"""What is seen of a launch on a CPU."""


class Telemetry(threading.Thread):
    """Reads gauges while a launch runs; `stop` ends it and gives what was seen.

    `ours` gives the ids of the launch's processes in this machine's own counting.
    """

    def __init__(
        self,
        gauges: Gauges,
        indices: Sequence[int],
        *,
        ours: Callable[[], Collection[int]],
        before_mib: int = 0,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Look once, before anything runs; raises NoDriverError where the driver does not answer."""
        super().__init__(daemon=True, name="telemetry")
        self._gauges, self._indices, self._ours = gauges, tuple(indices), ours
        self._every, self._clock = every_s, clock
        self._stopping = threading.Event()
        self._columns: dict[str, list[float | None]] = {"at": []}
        self._before = len(self._there())
        self._before_mib = before_mib
        self._beside, self._known = 0, False
        self._begin = clock()
        self._asked = self._begin
        self.lost = ""

    def run(self) -> None:
        """Sample until `stop` is called or a GPU is lost."""
        try:
            while not self._stopping.is_set():
                self.look()
                self._stopping.wait(self._every)
        except NoDriverError as error:
            self.lost = str(error) or "the driver has stopped answering"

    def look(self) -> None:
        """Take one sample of each GPU; raises NoDriverError where one is lost."""
        now = self._clock()
        readings = [self._gauges.reading(index) for index in self._indices]
        self._columns["at"].append(round(now - self._begin, 3))
        for gpu, reading in enumerate(readings):
            for name, value in (
                ("power_w", reading.power_w), ("sm_mhz", reading.sm_mhz), ("memory_mhz", reading.memory_mhz),
                ("reasons", reading.reasons), ("used_mib", reading.used // MIB), ("busy", reading.busy),
                ("celsius", reading.celsius),
            ):  # fmt: skip
                self._columns.setdefault(f"{name}/{gpu}", []).append(value)
        if now - self._asked >= COMPANY_S:
            self._asked = now
            self._count_company()

    def stop(self) -> Seen:
        """Stop sampling and return what was seen; to be called when the launch has ended and its memory is back."""
        self._stopping.set()
        if self.is_alive():
            self.join()
        after = 0
        if not self.lost:
            try:
                after = len(self._there())
            except NoDriverError as error:
                self.lost = str(error)
        company = Company(
            before=self._before,
            after=after,
            beside=self._beside,
            before_mib=self._before_mib,
            known=self._known,
        )
        return Seen(columns=self._columns, gpus=len(self._indices), company=company, lost=self.lost)

    def _there(self) -> set[int]:
        return {holder.pid for index in self._indices for holder in self._gauges.holders(index)}

    def _count_company(self) -> None:
        """Count who is neither ours nor was there before; only where the driver's ids are this machine's."""
        there, ours = self._there(), set(self._ours())
        if there & ours:
            # The driver counts processes as we do, so that whoever is not ours is somebody else.
            self._known = True
            self._beside = max(self._beside, len(there - ours) - self._before)
