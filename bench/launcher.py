"""The launcher: one launch of a bench in a cell's environment, watched, ended for certain, kept at once.

A launch has its GPUs for itself, an environment with nothing of the caller's, limits, and a warden that ends it when
the tool is killed. Caches of compiled kernels lie in one place for all launches of a cell, so that both sides find them
alike. What is kept is an observation at tier `bench`; a launch that is kept is never had again.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import bench
from bench import kept, outcome
from bench.errand import Limits, command, limits_of, scripts_digest, variables
from bench.lane import Lane, Opens, lane, observed
from bench.launched import Fault, Launched, Measured, Trouble
from bench.place import Place
from bench.recipes import Kind
from bench.telemetry import ABSENT, Seen, Telemetry
from bench.warden import GRACE_S, Watch
from matrix.errors import ToolError, UsageError
from matrix.gpus.nvml import NoDriverError
from matrix.job import now
from matrix.observe import Observation, Question
from matrix.probing import processes
from matrix.probing.cellfile import digest
from matrix.probing.surroundings import Scratch, built, scratch, surroundings
from matrix.provision.environment import Environment
from matrix.store import Store
from matrix.tier import Outcome, Tier

TOOL = "bench 1"
"""The version of the way in which launches become observations; raised when that changes."""
POLL_S = 0.1
_TELLING = ("log.txt", "metrics.jsonl", "samples.jsonl", "result.json", "off.txt", "on.txt", "side.txt")
"""Files that grow while a launch goes on."""


@dataclass(slots=True, kw_only=True)
class Launcher:
    """Launches places one at a time; a context manager, which holds the cards from the first launch to its end.

    Attributes:
        environments: of each cell's name the environment it is run in.
        store: where observations are kept.
        cache: where models' tokenizers and compiled kernels lie.
        probes: the folder of the in-cell scripts.
        opens: gives a lane of so many GPUs.
        limits: of a place.
    """

    environments: Mapping[str, Environment]
    store: Store
    cache: Path
    probes: Path
    opens: Opens = lane
    limits: Callable[[Place], Limits] = limits_of
    clock: Callable[[], datetime] = now
    closed: str = ""
    _stack: ExitStack = field(default_factory=ExitStack)
    _lane: Lane | None = None
    _told: set[str] = field(default_factory=set)

    def __enter__(self) -> Launcher:
        """Return itself; what launches of a tool that was killed left running is ended first."""
        processes.end_orphans()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Let the cards go."""
        self._stack.close()
        self._lane = None

    def stored(self, place: Place) -> Launched | None:
        """Return the launch of this place as it is kept, None where it has not been had."""
        kind = self.lane_of(place).machine.kind
        found = self.store.get(self._question(place, kind).key)
        return None if found is None else Launched.of(found)

    def launch(self, place: Place) -> Launched:
        """Return how the launch ended, out of the store where it is kept.

        Raises:
            UsageError: a cell of the pairing has no environment here.
            ToolError: the GPUs are not there, or memory of an earlier launch did not come back (`closed` says so).
            BusyError: others held them for ten minutes.
        """
        held = self.stored(place)
        if held is not None:
            return held
        if self.closed:
            raise ToolError(f"Nothing more is launched: {self.closed}.")
        where = self.lane_of(place)
        ended = self._run(place, where)
        launched = self.keep(place, where, ended)
        if ended.left_mib:
            self.closed = f"{ended.left_mib} MiB were left on the GPU after {place.words}"
        elif ended.seen.lost:
            self.closed = f"a GPU was lost in {place.words}: {ended.seen.lost}"
        return launched

    def lane_of(self, place: Place) -> Lane:
        """Return the lane that a place runs in; one with another number of cards is let go first."""
        for cell in place.pairing.cells:
            if cell not in self.environments:
                raise UsageError(
                    f"There is no environment of {cell} here.", then="Give its interpreter, or `env build` it."
                )
        wanted = place.pairing.gpus
        if self._lane is None or len(self._lane.gpus) != wanted:
            self._stack.close()
            self._lane = self._stack.enter_context(self.opens(wanted))
        return self._lane

    def caches(self, place: Place) -> Path:
        """Return the folder of compiled kernels and the like, one for each set of installed packages."""
        first = self.environments[place.variants[0].cell]
        return self.cache / "bench" / lock_of(first).removeprefix("sha256:")[:16]

    def surroundings(self, place: Place, where: Lane, given: Scratch, token: str) -> dict[str, str]:
        """Return the whole environment of a launch, whose processes are found by the token."""
        more = variables(place.pairing.recipe.device, where.visible, self.caches(place))
        python = self.environments[place.variants[0].cell].python
        return surroundings(python, given, {**more, **built(self.cache), processes.TAG: token})

    def _run(self, place: Place, where: Lane) -> Ended:
        """Run it to its end; what it wrote is read before its folder goes."""
        limits, caches = self.limits(place), self.caches(place)
        caches.mkdir(parents=True, exist_ok=True)
        mark = caches / f"warm-{digest(kept.caches_by(place)).removeprefix('sha256:')[:16]}"
        cold = not mark.exists()
        with scratch() as given:
            out = given.work / "out"
            token = processes.new_token()
            env = self.surroundings(place, where, given, token)
            argv = command(place, self.environments, self.probes, out, limits)
            watch = Watch(argv=argv, env=env, work=given.work, log=given.root / "launch.txt", token=token,
                          scratch=given.root)  # fmt: skip
            before = self.facts(place, where)
            settling = where.settling() if where.gpus else None
            ended = _watched(watch, given, out, limits, where, settling.others_mib() if settling is not None else 0)
            settled = settling.settle() if settling is not None and not ended.seen.lost else None
            ended = replace(
                ended,
                facts=before,
                cold=cold,
                settled={} if settled is None else settled.to_json(),
                left_mib=0 if settled is None else settled.left_mib,
            )
            ended = _read(place, ended, out, given)
        if ended.measured.fault is None:
            mark.touch()
        return ended

    def facts(self, place: Place, where: Lane) -> dict[str, Any]:
        """Return the machine's fingerprint, stored when it is first seen."""
        environment = self.environments[place.variants[0].cell]
        try:
            facts = where.facts(environment)
        except NoDriverError as error:
            raise ToolError("The NVIDIA driver has stopped answering.", why=str(error)) from error
        observation = observed(environment, lock_of(environment), where.machine, facts, self.clock())
        if observation.question.key not in self._told:
            self._told.add(observation.question.key)
            if self.store.get(observation.question.key) is None:
                self.store.add(observation)
        return facts

    def keep(self, place: Place, where: Lane, ended: Ended) -> Launched:
        """Store the launch and return it."""
        fault = ended.measured.fault
        observation = Observation(
            question=self._question(place, where.machine.kind),
            outcome=Outcome.OK if fault is None else Outcome.BROKEN,
            reason="" if fault is None else str(fault),
            detail=kept.detail(place, ended, where, scripts_digest(self.probes)),
            machine=where.machine.words,
            at=self.clock(),
            seconds=round(ended.seconds, 2),
        )
        self.store.add(observation)
        return Launched.of(observation, recalled=False)

    def _question(self, place: Place, machine: str) -> Question:
        reads = {"series": place.series, "machine": machine}
        for variant in place.variants:
            name = "" if place.side is not None else f" {variant.side.value}"
            reads[f"lock{name}"] = lock_of(self.environments[variant.cell])
            reads[f"variant{name}"] = variant.digest
        return Question(
            cell=place.variants[0].cell, probe=place.probe, tier=Tier.BENCH, tool=TOOL, reads=reads
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a launch ended: its exit code, why it was ended from outside, what was seen and what it left.

    `start` is the moment at which it began, by the clock on the wall.
    """

    code: int
    over: str
    seconds: float
    start: float
    seen: Seen = ABSENT
    facts: Mapping[str, Any] = field(default_factory=dict)
    settled: Mapping[str, object] = field(default_factory=dict)
    left_mib: int = 0
    cold: bool = False
    measured: Measured = field(default_factory=Measured)
    result: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[Mapping[str, Any], ...] = ()
    said: str = ""


def lock_of(environment: Environment) -> str:
    """Return the digest of what is installed: the lock's, or that of the installed versions."""
    return environment.lock or digest(dict(sorted(environment.installed.items())))


def _watched(watch: Watch, given: Scratch, out: Path, limits: Limits, where: Lane, others_mib: int) -> Ended:
    """Start the launch under its warden and wait for its end, a limit, or the loss of a GPU."""
    spec = given.root / "watch.json"
    spec.write_text(json.dumps(watch.to_json()), encoding="utf-8")
    telemetry = None
    if where.gauges is not None:
        telemetry = Telemetry(
            where.gauges,
            [gpu.index for gpu in where.gpus],
            ours=lambda: [item.pid for item in processes.tagged(watch.token)],
            before_mib=others_mib,
        )
    start, began = time.time(), time.monotonic()
    try:
        with _warden(spec) as (process, let_go):
            if telemetry is not None:
                telemetry.start()
            over = _until_over(process, out, limits, telemetry)
            let_go()
            # The warden's grace, and what a full card takes to be given back.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S * 3)
            code = process.returncode if process.returncode is not None else -9
    finally:
        # Where the warden is gone too, and what it could not find.
        processes.end(watch.token)
        processes.end_strays(watch.token, given.root)
        seen = ABSENT if telemetry is None else telemetry.stop()
    seconds = time.monotonic() - began
    return Ended(code=code if code >= 0 else 128 - code, over=over, seconds=seconds, start=start, seen=seen)


@contextmanager
def _warden(spec: Path) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], None]]]:
    """Yield a warden of the launch that a file tells of, and what lets it go; afterwards it and the launch are gone."""
    root = Path(bench.__file__).parents[1]
    theirs, mine = os.pipe()
    with (spec.parent / "warden.txt").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.warden", str(spec)],
            stdin=theirs,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env={"PYTHONPATH": str(root), "PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"},
            cwd=spec.parent,
            start_new_session=True,
        )
    os.close(theirs)
    held = [mine]

    def let_go() -> None:
        while held:
            os.close(held.pop())

    try:
        yield process, let_go
    finally:
        let_go()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S * 2)
        if process.poll() is None:
            process.kill()
            process.wait()


def _until_over(process: subprocess.Popen[bytes], out: Path, limits: Limits, telemetry: Telemetry | None) -> str:
    """Wait for the end and return "", or why the launch has to be ended."""
    begin = moved = time.monotonic()
    runs: float | None = None
    size = -1
    while process.poll() is None:
        time.sleep(POLL_S)
        clock = time.monotonic()
        if telemetry is not None and telemetry.lost:
            return f"{Trouble.GPU_LOST}: {telemetry.lost}"
        if runs is None and any((out / name).exists() for name in ("command.json", "samples.jsonl", "result.json")):
            # Another launch of this user may have been waited for until now.
            runs = moved = clock
        if runs is None and clock - begin > limits.wait_s:
            return f"it did not begin in {limits.wait_s:.0f} s"
        said = _size(out)
        if said != size:
            size, moved = said, clock
        if runs is not None and clock - moved > limits.still_s:
            return f"it said nothing for {limits.still_s:.0f} s"
        if runs is not None and clock - runs > limits.whole_s + GRACE_S:
            return f"it was not over after {limits.whole_s:.0f} s"
    return ""


def _size(out: Path) -> int:
    """Return how much a launch has said so far, in bytes."""
    total = 0
    for name in _TELLING:
        with contextlib.suppress(OSError):
            total += (out / name).stat().st_size
    return total


def _read(place: Place, ended: Ended, out: Path, given: Scratch) -> Ended:
    """Return the same with what the launch's files say."""
    result = outcome.read_result(out)
    texts = [given.root / "launch.txt", out / "off.txt", out / "on.txt", out / "side.txt", out / "log.txt"]
    said = "\n".join(text for text in (outcome.tail(path) for path in texts) if text)
    lost = ended.seen.lost or (ended.over if ended.over.startswith(Trouble.GPU_LOST) else "")
    fault = outcome.fault_told(result, ended.code, said, over=ended.over)
    if lost:
        fault = Fault(trouble=Trouble.GPU_LOST, text=lost.removeprefix(f"{Trouble.GPU_LOST}: "))
    if place.kind is Kind.PPO:
        assert place.side is not None
        rows = tuple(outcome.read_rows(out / "metrics.jsonl"))
        measured = outcome.of_ppo(out, place.side, fault, start=ended.start)
        tokens = sum(outcome.tokens_of(out, measured.dropped))
        measured = outcome.with_power(measured, ended.seen.summary(measured.window), tokens)
    else:
        rows = tuple(outcome.read_rows(out / "samples.jsonl"))
        measured = outcome.of_repeats(out, result, fault, start=ended.start)
    return replace(ended, measured=measured, result=result, rows=rows, said=said)
