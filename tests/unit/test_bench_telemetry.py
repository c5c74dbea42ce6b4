"""Telemetry over a fake driver: what is sampled, what counts as throttling, who is company, and a GPU that is lost."""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from bench.telemetry import ABNORMAL, ABSENT, REASONS, Company, NvmlGauges, Reading, Seen, Telemetry
from matrix.gpus.nvml import GIB, NoDriverError
from tests.unit.bench_launches import FakeGauges

THERMAL, CAP, IDLE = 0x20, 0x4, 0x1


def columns(reasons: Iterable[int | None], **more: list[float | None]) -> dict[str, list[float | None]]:
    """Return columns of one GPU, a sample a second."""
    held = list(reasons)
    found: dict[str, list[float | None]] = {"at": [float(at) for at in range(len(held))], "reasons/0": list(held)}
    for name in ("power_w", "sm_mhz", "memory_mhz", "used_mib", "busy", "celsius"):
        found[f"{name}/0"] = more.get(name, [10.0] * len(held))
    return found


@pytest.mark.parametrize(
    ("reasons", "window", "expected"),
    [
        ([0] * 10, None, ()),
        ([CAP, IDLE] * 5, None, ()),
        ([THERMAL] + [0] * 9, None, ()),
        ([THERMAL] * 2 + [0] * 8, None, ("throttled: thermal, by software, 20.0% of the time",)),
        ([THERMAL] * 2 + [0] * 8, (2.0, 9.0), ()),
        ([0] * 8 + [THERMAL | 0x8] * 2, (6.0, 9.0),
         ("throttled: hardware slowdown, 50.0% of the time", "throttled: thermal, by software, 50.0% of the time")),
        ([None] * 10, None, ()),
        ([THERMAL] * 3, (7.0, 9.0), ()),
    ],
)  # fmt: skip
def test_what_counts_as_throttling(
    reasons: list[int | None], window: tuple[float, float] | None, expected: tuple[str, ...]
) -> None:
    assert Seen(columns=columns(reasons), gpus=1).throttled(window) == expected


def test_abnormal_reasons_are_reasons() -> None:
    assert set(ABNORMAL) <= set(REASONS.values())
    assert "power cap" not in ABNORMAL


def only(seen: Seen, window: tuple[float, float]) -> dict[str, Any]:
    """Return the summary of the one GPU there is."""
    found = seen.summary(window)["gpus"]
    assert isinstance(found, list)
    (gpu,) = found
    assert isinstance(gpu, dict)
    return gpu


def test_a_summary_is_of_a_window() -> None:
    held = columns([CAP, CAP, 0, 0], power_w=[100.0, 200.0, 300.0, None], sm_mhz=[1000, 1980, 1980, 1980])
    seen = Seen(columns=held, gpus=1)
    whole = seen.summary()
    assert whole["samples"] == 4
    assert whole["power_mean_w"] == 200.0
    gpu = only(seen, (1.0, 2.0))
    assert gpu["power_mean_w"] == 250.0
    assert gpu["power_max_w"] == 300.0
    assert gpu["sm_mhz"] == [1980, 1980.0, 1980]
    assert gpu["reasons"] == {"power cap": 0.5}
    none = only(seen, (90.0, 99.0))
    assert (none["power_mean_w"], none["sm_mhz"], none["reasons"]) == (None, None, {})
    assert seen.summary((90.0, 99.0))["power_mean_w"] is None


def test_the_power_of_several_gpus_adds_up() -> None:
    held = columns([0, 0], power_w=[100.0, 200.0])
    held |= {name.replace("/0", "/1"): values for name, values in columns([0, 0]).items() if name != "at"}
    assert Seen(columns=held, gpus=2).summary()["power_mean_w"] == 160.0


def test_what_is_absent_says_so() -> None:
    assert ABSENT.summary() == ABSENT.to_json() == {"absent": "no GPU was granted"}
    assert ABSENT.throttled() == ABSENT.company.lines == ()


def watched(gauges: FakeGauges, ours: set[int] | None = None, looks: int = 3, step: float = 2.0) -> Seen:
    """Return what telemetry saw in so many looks, which lie seconds apart."""
    clock = iter(range(1000))
    telemetry = Telemetry(gauges, [0, 1], ours=lambda: ours or set(), clock=lambda: next(clock) * step)
    for _ in range(looks):
        telemetry.look()
    return telemetry.stop()


def test_samples_are_kept_raw() -> None:
    seen = watched(FakeGauges(reasons=CAP))
    assert seen.columns["at"] == [2.0, 4.0, 6.0]
    assert seen.columns["power_w/1"] == [400.0] * 3
    assert seen.columns["used_mib/0"] == [5 * 1024] * 3
    told = seen.to_json()
    assert told["columns"] == {name: list(values) for name, values in seen.columns.items()}
    assert told["company"] == {"before": 0, "beside": 0, "after": 0, "before_mib": 0, "known": False}


def test_company_before_and_after() -> None:
    gauges = FakeGauges(holding=[7])
    seen = watched(gauges)
    assert (seen.company.before, seen.company.after) == (1, 1)
    assert seen.company.lines == (
        "1 other process on the GPU before it began",
        "1 other process on the GPU after it",
    )


def test_company_beside_is_known_only_where_the_driver_counts_as_we_do() -> None:
    class Filling(FakeGauges):
        def reading(self, index: int) -> Reading:
            self.holding = [100, 101, 555]
            return FakeGauges.reading(self, index)

    seen = watched(Filling(), ours={100, 101}, looks=5)
    assert seen.company.known
    assert seen.company.beside == 1
    assert "1 other process on the GPU beside it" in seen.company.lines
    # In a container the ids are the host's: nothing can be told of who is beside.
    blind = watched(Filling(), ours={9}, looks=5)
    assert (blind.company.known, blind.company.beside) == (False, 0)


def test_memory_in_use_before_disturbs() -> None:
    assert Company(before_mib=300, before=2).lines == (
        "300 MiB of the GPU were in use before it began",
        "2 other processes on the GPU before it began",
    )


def test_a_thread_samples_until_it_is_stopped() -> None:
    telemetry = Telemetry(FakeGauges(), [0], ours=set, every_s=0.005)
    telemetry.start()
    deadline = time.monotonic() + 20
    while len(telemetry._columns["at"]) < 3 and time.monotonic() < deadline:
        time.sleep(0.005)
    seen = telemetry.stop()
    assert len(seen.columns["at"]) >= 3
    assert seen.lost == ""


def test_a_lost_gpu_ends_the_samples() -> None:
    telemetry = Telemetry(FakeGauges(lost_after=2), [0], ours=set, every_s=0.001)
    telemetry.start()
    telemetry.join(20)
    seen = telemetry.stop()
    assert seen.lost == "GPU is lost"
    assert len(seen.columns["at"]) == 2
    assert seen.to_json()["lost"] == "GPU is lost"


def test_a_gpu_that_is_lost_at_the_end() -> None:
    class Lost(FakeGauges):
        def holders(self, index: int) -> list[Any]:
            if self.looks:
                raise NoDriverError("GPU is lost")
            return []

    assert watched(Lost(), looks=1).lost == "GPU is lost"


class NVMLError(Exception):
    """What the fake library raises."""


class FakeNvml:
    """The functions of pynvml that are asked, of one GPU; `lacks` names those that this GPU does not answer."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, *lacks: str) -> None:
        self.lacks = lacks

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Any] = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlMemory_v2": 2,
            "nvmlDeviceGetPowerUsage": lambda handle: 350_500,
            "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=97),
            "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: THERMAL,
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: CAP,
            "nvmlDeviceGetClockInfo": lambda handle, kind: {1: 1980, 2: 3201}[kind],
            "nvmlDeviceGetTemperature": lambda handle, kind: 55,
            "nvmlDeviceGetMemoryInfo": self._memory,
        }
        if f"-{name}" in self.lacks or name not in answers:
            raise AttributeError(name)
        if name in self.lacks:

            def refuses(*words: Any, **more: Any) -> Any:
                raise NVMLError("Not Supported")

            return refuses
        return answers[name]

    def _memory(self, handle: int, version: int = 1) -> Any:
        if version == 2 and "second form" in self.lacks:
            raise NVMLError("Invalid Argument")
        return SimpleNamespace(used=(3 if version == 2 else 4) * GIB)


@pytest.mark.parametrize(
    ("lacks", "expected"),
    [
        ((), (350.5, 1980, 3201, THERMAL, 3 * GIB, 97, 55)),
        (("-nvmlDeviceGetCurrentClocksEventReasons",), (350.5, 1980, 3201, CAP, 3 * GIB, 97, 55)),
        (
            ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetTemperature",
             "nvmlDeviceGetCurrentClocksEventReasons", "-nvmlDeviceGetCurrentClocksThrottleReasons", "second form"),
            (None, 1980, 3201, 0, 4 * GIB, None, None),
        ),
    ],
)  # fmt: skip
def test_what_is_asked_of_nvml(lacks: tuple[str, ...], expected: tuple[Any, ...]) -> None:
    gauges = NvmlGauges(load=lambda: FakeNvml(*lacks))
    found = gauges.reading(0)
    assert (found.power_w, found.sm_mhz, found.memory_mhz, found.reasons, found.used, found.busy, found.celsius) == (
        expected
    )


def test_a_gpu_that_answers_nothing_is_lost() -> None:
    with pytest.raises(NoDriverError, match="Not Supported"):
        NvmlGauges(load=lambda: FakeNvml("nvmlDeviceGetMemoryInfo")).reading(0)
