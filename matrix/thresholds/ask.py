"""Asking: a question put to a cell, trial by trial, each kept as it ends, until the edge is found or time is up."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from matrix.probing.surroundings import Scratch, scratch, surroundings
from matrix.thresholds.child import Errands, Pair
from matrix.thresholds.knobs import Script
from matrix.thresholds.question import Asked
from matrix.thresholds.records import Keeper
from matrix.thresholds.search import EnoughError, Search, search
from matrix.thresholds.spec import spec_of
from matrix.thresholds.trial import Trial, shown

LIMITS = {Script.UPDATE: 120.0, Script.ROLLOUT: 180.0, Script.STEP: 480.0}
"""Seconds that one trial may take before it counts as a hang."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where trials run.

    Attributes:
        python: the cell's interpreter.
        probes: the folder of the in-cell scripts (`tests/compat`).
        caches: where models, compiled kernels and the like are kept between trials.
        device: `cuda`, or `cpu` to show that the way holds.
        visible: which GPU the children see (CUDA_VISIBLE_DEVICES).
        deadline: the moment (monotonic) after which no further trial begins.
    """

    python: Path
    probes: Path
    caches: Path
    device: str = "cuda"
    visible: str = ""
    deadline: float = float("inf")

    def env(self, given: Scratch) -> dict[str, str]:
        """Return the whole environment of a child."""
        more = {
            "PYTHONPATH": str(self.probes),
            "TORCHINDUCTOR_CACHE_DIR": str(self.caches / "inductor"),
            "TRITON_CACHE_DIR": str(self.caches / "triton"),
            "VLLM_CACHE_ROOT": str(self.caches / "vllm"),
            "CUDA_VISIBLE_DEVICES": self.visible,
            # Asking whether there is a GPU must not wake the driver in a process that forks later.
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            # Where log-probabilities are not processed vLLM samples with FlashInfer, which compiles when first used.
            "VLLM_USE_FLASHINFER_SAMPLER": "0",
            "OMP_NUM_THREADS": "2" if self.device == "cpu" else "8",
        }
        if self.device == "cpu":
            more |= {
                "VERL_USE_EXTERNAL_MODULES": "ppo.plugin",
                "VERL_PLATFORM": "cpu",
                "VERL_ENGINE_DEVICE": "cuda",
                "TORCHDYNAMO_DISABLE": "1",
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            }
        return surroundings(self.python, given, more)

    @contextmanager
    def pair(self, spec: Mapping[str, object], script: Script) -> Iterator[Pair]:
        """Yield the children of one question; they and their files are gone afterwards."""
        with ExitStack() as stack:
            given = stack.enter_context(scratch())
            path = given.root / "spec.json"
            path.write_text(json.dumps(spec), encoding="utf-8")
            argv = [str(self.python), str(self.probes / "trials" / script.value), "--spec", str(path)]
            errands = Errands(argv=argv, env=self.env(given), work=given.work, limit_s=LIMITS[script])
            pair = Pair(errands=errands, stands_by=script is not Script.STEP)
            stack.callback(pair.end)
            yield pair


@dataclass(slots=True, kw_only=True)
class Asking:
    """One question being asked."""

    asked: Asked
    bench: Bench
    pair: Pair
    tell: Callable[[str], None]
    keeper: Keeper | None = None
    _numbers: dict[tuple[float, bool], int] = field(default_factory=dict)
    _made: int = 0

    def run(self, predicted: float | None) -> Search:
        """Return where the knob's values turn from survival to death."""
        return search(
            self.asked.values, self._ask, predicted=predicted, repeats=self.asked.repeats, recall=self._recall
        )

    def answer(self, predicted: float | None) -> Search:
        """Return the result of a search, once its children have ended; with a keeper it is stored, too."""
        try:
            found = self.run(predicted)
        finally:
            self.pair.end()
        if self.keeper is not None:
            self.keeper.conclude(found, predicted, device_total(found.trials))
        return found

    def once(self, value: float) -> Trial:
        """Return how one value ends in a fresh process, whatever is stored of it."""
        return self._ask(value, True)

    def _recall(self, value: float, fresh: bool, number: int) -> Trial | None:
        self._numbers[value, fresh] = number
        return self.keeper.recall(value, fresh, number) if self.keeper is not None else None

    def _ask(self, value: float, fresh: bool) -> Trial:
        if time.monotonic() > self.bench.deadline:
            raise EnoughError("the time was up")
        self._made += 1
        errand = {"trial": f"t{self._made}", "knob": self.asked.knob.key, "value": value}
        trial = self.pair.run(value, errand, fresh=fresh)
        if self.keeper is not None:
            self.keeper.keep(trial, fresh, self._numbers.get((value, fresh), 0))
        self.tell(_line(self.asked, trial))
        return trial


def _line(asked: Asked, trial: Trial) -> str:
    peak = f"{trial.peak / 2**30:.2f} GiB" if trial.peak else ""
    how = f"{trial.how} in {trial.part or 'its start'}" if trial.how else ""
    words = [f"{shown(trial.value):>8}", trial.ending.value, "fresh" if trial.fresh else "", how, peak]
    return "  ".join(word for word in words if word) + f"  {trial.seconds:.1f} s"


def ask_one(
    asked: Asked,
    bench: Bench,
    tell: Callable[[str], None],
    *,
    predicted: float | None = None,
    keeper: Callable[[Mapping[str, object]], Keeper] | None = None,
) -> Search:
    """Return the result of one question; with a keeper it is stored, too."""
    with asking(asked, bench, tell, keeper) as one:
        return one.answer(predicted)


Made = Callable[[Asked, Mapping[str, object]], Keeper]
"""Makes who keeps the trials of a question, of its spec."""


def in_turn(
    questions: Sequence[Asked], bench: Bench, tell: Callable[[str], None], keeper: Made | None
) -> Iterator[Asking]:
    """Yield what asks each question; while one is asked the first child of the next imports what it needs.

    Not before it has shown that an import takes no memory of the card, and not on a processor, which has no cores to
    spare.
    """
    quiet = False
    ahead: Asking | None = None
    with ExitStack() as stack:

        def opened(place: int) -> Asking:
            asked = questions[place]
            return stack.enter_context(asking(asked, bench, tell, partial(keeper, asked) if keeper else None))

        for place in range(len(questions)):
            one, ahead = ahead or opened(place), None
            if quiet and place + 1 < len(questions):
                ahead = opened(place + 1)
                ahead.pair.prepare()
            yield one
            one.pair.end()
            quiet = bench.device == "cuda" and one.pair.is_quiet


@contextmanager
def asking(
    asked: Asked,
    bench: Bench,
    tell: Callable[[str], None],
    keeper: Callable[[Mapping[str, object]], Keeper] | None = None,
) -> Iterator[Asking]:
    """Yield what asks, with its children; they are gone afterwards."""
    spec = spec_of(asked, device=bench.device, models=bench.caches / "models")
    with bench.pair(spec, asked.knob.script) as pair:
        yield Asking(asked=asked, bench=bench, pair=pair, tell=tell, keeper=keeper(spec) if keeper else None)


def device_total(trials: Sequence[Trial]) -> int:
    """Return the memory of the card that these ran on as a part told it, in bytes; 0 where none did."""
    told = (part.more.get("device_total") for trial in trials for part in trial.parts)
    return max((int(str(value)) for value in told if value is not None), default=0)
