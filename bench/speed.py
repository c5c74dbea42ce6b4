"""How fast and how big the tool itself is, against its targets: `nox -s speed`.

Every figure is taken from the outside, from the command that a user would type, in a fresh home folder: wall time, CPU
time of the process and its children, and the peak of the summed resident memory of its process tree. A figure that
misses its target is marked and makes the exit code 1.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

TIMEOUT_S = 3600.0
POLL_S = 0.5
NEWEST = ("verl==0.9.1", "vllm==0.33.0")
SAMPLE = 40
SEED = 20261130


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one command took: wall and CPU seconds, peak memory of the tree in MiB, and what it printed."""

    wall_s: float
    cpu_s: float
    peak_mib: float
    code: int
    printed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure beside its target; `samples` are the raw values that `value` was made of."""

    name: str
    value: float
    target: float
    unit: str
    samples: tuple[float, ...] = ()
    note: str = ""

    @property
    def holds(self) -> bool:
        """Return whether the target is kept (a figure is good when it is small)."""
        return self.value <= self.target


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures and write them as JSON; 0 when every target is kept, else 1."""
    parser = argparse.ArgumentParser(prog="bench.speed", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", default="reports/out/speed.json", help="where the JSON goes (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="start-up and one engine only, no lattice")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="verl-matrix-speed-") as folder:
        figures = [*start_up(), *one_engine(Path(folder) / "one"), *pins(Path(folder) / "pins")]
        if not args.quick:
            figures += lattice(Path(folder) / "grid")
            figures += agreement(Path(folder) / "grid")
    _write(Path(args.out), figures)
    sys.stdout.write(_table(figures))
    return 0 if all(figure.holds for figure in figures) else 1


def start_up() -> list[Figure]:
    """Return the CPU time of `--help`, the median of seven runs after one that is thrown away."""
    samples = tuple(command("--help").cpu_s * 1000 for _ in range(8))[1:]
    return [Figure(name="--help, CPU", value=statistics.median(samples), target=150, unit="ms", samples=samples)]


def one_engine(home: Path) -> list[Figure]:
    """Return what the surface check of a new engine release costs, cold and warm, and its share of the wheel."""
    cold = command("surface", *NEWEST, "--home", str(home))
    warm = [command("surface", *NEWEST, "--home", str(home)).wall_s for _ in range(5)]
    share = bytes_share(home)
    return [
        Figure(name="surface of one new engine, cold", value=cold.wall_s, target=5, unit="s", note=" ".join(NEWEST)),
        Figure(
            name="surface of one engine, warm", value=statistics.median(warm), target=0.3, unit="s", samples=tuple(warm)
        ),
        Figure(name="bytes read, share of the wheels", value=share, target=3, unit="%"),
    ]


def pins(home: Path) -> list[Figure]:
    """Return what `pins` for the newest release of verl costs: from an empty home, and with everything stored."""
    words = ("pins", NEWEST[0], "vllm==0.24.0", "--home", str(home), "--out", str(home / "pins"))
    cold = command(*words)
    warm = [command(*words).wall_s for _ in range(5)]
    note = " ".join(words[1:3])
    return [
        Figure(name="pins, cold", value=cold.wall_s, target=60, unit="s", note=note),
        Figure(name="pins, warm", value=statistics.median(warm), target=5, unit="s", samples=tuple(warm)),
    ]


def bytes_share(home: Path) -> float:
    """Return the largest share of its wheels, in percent, that a surface check in this store has read over the network.

    verl's own wheel, which is read whole, counts in it; raises ValueError where no check has read anything.
    """
    from matrix.store import Store
    from matrix.tier import Tier

    details = [item.detail for item in Store(home / "store") if item.question.tier is Tier.SURFACE]
    shares = [100 * float(str(detail["bytes_read"])) / float(str(detail["wheel_bytes"])) for detail in details]
    if not any(shares):
        raise ValueError("no surface check has read anything")
    return max(shares)


def lattice(home: Path) -> list[Figure]:
    """Return what the whole lattice verl x vLLM costs: cold, with one new release, with nothing new, and in memory."""
    newest = f"!{NEWEST[1].split('==')[1]}"
    where = ("--home", str(home), "--out", str(home / "out"))
    cold = command("grid", *where)
    cells = cold.printed.split(" pairs judged", 1)[0].rsplit(" ", 1)[-1]
    warm = [command("grid", *where).wall_s for _ in range(3)]
    before = home.with_name("before")
    apart = ("--home", str(before), "--out", str(before / "out"))
    command("grid", *apart, "--x-only", "0.{7,8,9}*", "--y-only", f"0.3*,{newest}")
    grown = command("grid", *apart, "--x-only", "0.{7,8,9}*", "--y-only", "0.3*")
    return [
        Figure(name="lattice verl x vllm, cold", value=cold.wall_s, target=360, unit="s", note=f"{cells} pairs"),
        Figure(name="lattice, CPU", value=cold.cpu_s, target=720, unit="s"),
        Figure(name="lattice, peak memory", value=cold.peak_mib, target=1024, unit="MiB"),
        Figure(
            name="lattice, nothing new", value=statistics.median(warm), target=10, unit="s", samples=tuple(warm)
        ),
        Figure(
            name="rows asked when one release appeared", value=_new_rows(grown.printed), target=5, unit="rows",
            note="5 releases of verl",
        ),
    ]  # fmt: skip


def agreement(home: Path) -> list[Figure]:
    """Return how many of the sampled pairs that a shortcut decided uv decides otherwise; must be none."""
    from matrix.axes import load_axes
    from matrix.cell import Axis
    from matrix.grid import pairs
    from matrix.index.simple import SimpleIndex
    from matrix.resolve import Resolver, sample_agreement

    axes = load_axes()
    cells = pairs(Axis.VERL, Axis.VLLM, axes[Axis.VERL].releases, axes[Axis.VLLM].releases)
    index = SimpleIndex.from_environment(cache_dir=home / "cache")
    found = sample_agreement(Resolver(index=index, cache_dir=home / "cache"), cells, n=SAMPLE, seed=SEED)
    return [
        Figure(
            name="shortcuts that uv contradicts",
            value=float(len(found.disagreements)),
            target=0,
            unit="pairs",
            note=f"of {found.asked} sampled, seed {SEED}",
        )
    ]


def command(*words: str) -> Measured:
    """Return what `python -m matrix WORDS` took, as this interpreter runs it; raises TimeoutExpired after an hour."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start, before = time.monotonic(), os.times()
    with subprocess.Popen(
        [sys.executable, "-m", "matrix", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
        start_new_session=True,
    ) as process:
        peak = _Peak(process.pid)
        printed, _ = process.communicate(timeout=TIMEOUT_S)
    after = os.times()
    cpu = after.children_user - before.children_user + after.children_system - before.children_system
    return Measured(
        wall_s=time.monotonic() - start, cpu_s=cpu, peak_mib=peak.end(), code=process.returncode, printed=printed
    )


class _Peak:
    """The peak of the summed proportional memory of a process and its descendants, polled from /proc."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._peak = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> float:
        """Return the peak in MiB; the process has ended."""
        self._stop.set()
        self._thread.join()
        return self._peak

    def _watch(self) -> None:
        while not self._stop.wait(POLL_S):
            self._peak = max(self._peak, sum(_pss_kib(pid) for pid in _tree(self._pid)) / 1024)


def _tree(root: int) -> list[int]:
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        try:
            for task in Path(f"/proc/{pid}/task").iterdir():
                todo += [int(child) for child in (task / "children").read_text().split()]
        except (OSError, ValueError):
            continue
    return found


def _pss_kib(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    except OSError:
        pass
    return 0


def _new_rows(printed: str) -> float:
    """Return the largest number of new answers that a tier line of `grid` tells."""
    counts = [line.split(" new")[0].rsplit(" ", 1)[-1] for line in printed.splitlines() if " new, " in line]
    return max((float(count) for count in counts), default=float("inf"))


def _write(path: Path, figures: Sequence[Figure]) -> None:
    from matrix import __version__

    record = {
        "schema": 1,
        "tool": __version__,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {"cpu": _cpu(), "cores": len(os.sched_getaffinity(0)), "python": platform.python_version()},
        "figures": [asdict(replace(figure, samples=tuple(figure.samples))) for figure in figures],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _table(figures: Sequence[Figure]) -> str:
    shown: Callable[[float], str] = lambda value: f"{value:.3g}" if value < 1000 else f"{value:.0f}"  # noqa: E731
    rows = [
        f"{'ok  ' if figure.holds else 'MISS'} {figure.name:<40} {shown(figure.value):>8} {figure.unit:<5}"
        f" (target {shown(figure.target)}{', ' + figure.note if figure.note else ''})"
        for figure in figures
    ]
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.exit(main())
