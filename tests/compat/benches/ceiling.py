"""The ceiling of a card: `python tests/compat/benches/ceiling.py --out DIR [--device cuda|cpu] [--seconds N]`.

What products of large square matrices reach, in FLOP/s, held for a while: the denominator of an MFU that no setting of
verl could exceed on this card with this library. Sizes and layouts are tried in turn and the best median counts, as the
finder of the maximum achievable matmul FLOPS does (Bekman, Machine Learning Engineering, chapter on accelerators). The
matrices hold random normal numbers: zeros or small integers draw less power, and the clock stays higher than any
training has it (He, "Strangely, matrix multiplications on GPUs run faster when given predictable data", 2024).
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMPAT = Path(__file__).resolve().parent.parent
if str(COMPAT) not in sys.path:
    sys.path.insert(0, str(COMPAT))

from benches import conduct  # noqa: E402
from benches.obey import fault_of  # noqa: E402
from benches.record import Record  # noqa: E402

SIZES = {"cuda": (4096, 8192, 12_288, 16_384), "cpu": (128, 256)}
LAYOUTS = ("nn", "nt", "tn")
"""Which of the two factors lies transposed in memory; `nt` is that of a linear layer's forward pass."""
RUNS = 8
"""Runs of a size and layout, after one that warms up; the median of theirs is its figure."""
_CLOCK_SM = 1


@dataclass(frozen=True)
class Case:
    """One product: square matrices of a size, in a layout."""

    size: int
    layout: str

    @property
    def name(self) -> str:
        """Return its name as samples have it."""
        return f"{self.size}x{self.size}x{self.size} {self.layout}"

    @property
    def flops(self) -> float:
        """Return the floating-point operations of one product: a multiply and an add for each of n³."""
        return 2.0 * self.size**3


class Clocks:
    """The clock and the power of a GPU, as the driver tells them; nothing where no driver answers."""

    def __init__(self, index: int | None, library: Any = None) -> None:
        self._library: Any = None
        self._handle = ctypes.c_void_p()
        if index is None:
            return
        with contextlib.suppress(OSError):
            self._library = library or ctypes.CDLL("libnvidia-ml.so.1")
            self._library.nvmlInit_v2()
            self._library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(self._handle))

    def read(self) -> dict[str, float]:
        """Return MHz of the streaming multiprocessors and W, as far as they are told."""
        if self._library is None:
            return {}
        found: dict[str, float] = {}
        clock, power = ctypes.c_uint(), ctypes.c_uint()
        if not self._library.nvmlDeviceGetClockInfo(self._handle, _CLOCK_SM, ctypes.byref(clock)):
            found["clock_mhz"] = float(clock.value)
        if not self._library.nvmlDeviceGetPowerUsage(self._handle, ctypes.byref(power)):
            found["power_w"] = power.value / 1000
        return found


class Products:
    """The products of one size and layout, ready to run."""

    def __init__(self, case: Case, device: str, seed: int = 17) -> None:
        import torch

        self._torch = torch
        self.case, self.cuda = case, device == "cuda"
        draw = torch.Generator(device).manual_seed(seed)
        size = (case.size, case.size)
        made = [torch.randn(size, generator=draw, device=device, dtype=torch.float32) for _ in range(2)]
        left, right = (one.to(torch.bfloat16) for one in made)
        self._left = left.t() if case.layout[0] == "t" else left
        self._right = right.t() if case.layout[1] == "t" else right
        self._out = torch.empty(size, device=device, dtype=torch.bfloat16)

    def run(self, calls: int) -> float:
        """Return the seconds that so many products took on the device."""
        torch = self._torch
        if not self.cuda:
            start = time.perf_counter()
            for _ in range(calls):
                torch.mm(self._left, self._right, out=self._out)
            return time.perf_counter() - start
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        for _ in range(calls):
            torch.mm(self._left, self._right, out=self._out)
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1000


def measured(case: Case, products: Any, clocks: Any, seconds: float) -> Iterator[dict[str, Any]]:
    """Yield the runs of a case, each as long as its share of `seconds`; the first only warms up."""
    # The first call finds kernels and workspaces; then a single one says little of how long many take.
    products.run(1)
    calls = 1
    while (spent := products.run(calls)) < seconds / RUNS / 4:
        calls *= 2
    calls = max(1, round(calls * seconds / RUNS / max(spent, 1e-9)))
    for place in range(-1, RUNS):
        took = products.run(calls)
        seen = clocks.read()
        flops = case.flops * calls / took
        yield {"phase": case.name, "place": place, "warm_up": place < 0, "seconds": took, "calls": calls,
               "flops": flops, **seen}  # fmt: skip


def best(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the median of each case's runs, the fastest first."""
    kept: dict[str, list[dict[str, Any]]] = {}
    for sample in samples:
        if not sample["warm_up"]:
            kept.setdefault(sample["phase"], []).append(sample)
    found = [
        {
            "case": name,
            "flops": statistics.median(one["flops"] for one in runs),
            "spread": max(one["flops"] for one in runs) / min(one["flops"] for one in runs) - 1,
            "clock_mhz": _median(runs, "clock_mhz"),
            "power_w": _median(runs, "power_w"),
            "runs": len(runs),
            "seconds": sum(one["seconds"] for one in runs),
        }
        for name, runs in kept.items()
    ]
    return sorted(found, key=lambda one: -float(one["flops"] or 0.0))


def _median(runs: list[dict[str, Any]], name: str) -> float | None:
    told = [one[name] for one in runs if name in one]
    return statistics.median(told) if told else None


def how(first: dict[str, Any], library: str) -> str:
    """Return in words how a ceiling was reached: what product, by what, how long, at which clock."""
    clock = f", at {first['clock_mhz']:.0f} MHz and {first['power_w']:.0f} W" if first.get("clock_mhz") else ""
    return (
        f"product of {first['case']} in bf16, random normal numbers, median of {first['runs']} runs of "
        f"{first['seconds'] / first['runs']:.2f} s{clock}, {library}"
    )


def library_of(device: str) -> str:
    """Return the library that computes the products, as far as it tells."""
    import torch

    if device == "cpu":
        return f"torch {torch.__version__}"
    return f"torch {torch.__version__}, CUDA {torch.version.cuda}, {torch.cuda.get_device_name(0)}"


def run(record: Record, device: str, seconds: float) -> None:
    """Measure every case in turn, each for its share of the seconds, and put the ceiling on record."""
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    cases = [Case(size, layout) for size in SIZES[device] for layout in LAYOUTS]
    clocks = Clocks(_index() if device == "cuda" else None)
    samples = []
    for case in cases:
        products = Products(case, device)
        for sample in measured(case, products, clocks, seconds / len(cases)):
            samples.append(sample)
            record.sample(**sample)
        record.result["by_case"] = best(samples)
        record.reach(case.name)
        del products
    first = best(samples)[0]
    record.result["ceiling"] = {"flops": first["flops"], "numbers": "bf16", "how": how(first, library_of(device))}


def _index() -> int:
    """Return the driver's index of the first GPU that is visible."""
    from ppo.gpu import VISIBLE, Driver, visible

    return visible(Driver().devices(), os.environ.get(VISIBLE))[0].index


def main(argv: list[str] | None = None) -> int:
    """Return the exit code: 0 with a ceiling, 1 without, 128 + N for a signal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where everything is written")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--seconds", type=float, default=20.0, metavar="N", help="so long in all")
    asked = parser.parse_args(argv)
    record = Record(asked.out.resolve(), "ceiling")
    record.result |= {"device": asked.device, "devices": conduct.devices() if asked.device == "cuda" else []}
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, conduct.asked_to_end)
    try:
        run(record, asked.device, asked.seconds)
    except SystemExit as ended:
        return record.end("signal", int(ended.code or 0))
    except Exception as error:  # whatever it is, what was measured before it stays
        return record.end("faulted", 1, {"where": "products", **fault_of(error)})
    return record.end("passed", 0)


if __name__ == "__main__":
    sys.exit(main())
