"""What is kept: each trial as an observation at once, and the threshold with its whole neighbourhood."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from matrix.observe import Observation, Question
from matrix.probing.cellfile import digest
from matrix.store import Store
from matrix.thresholds.question import Asked
from matrix.thresholds.search import Search
from matrix.thresholds.spec import by_what
from matrix.thresholds.trial import Ending, Trial, shown
from matrix.tier import Outcome, Tier

TOOL = "thresholds 1"
"""The version of the way in which trials become observations; raised when that changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeper:
    """Keeps the trials and the threshold of one question on one cell and one machine.

    Attributes:
        cell: the cell's name.
        lock: digest of what is installed in it.
        trials: digest of the scripts that try.
        kind: the class of machine that answers depend on; `machine` is it in words.
        detail: what each observation carries besides (the fingerprint).
    """

    store: Store
    asked: Asked
    spec: Mapping[str, object]
    cell: str
    lock: str
    trials: str
    kind: str
    machine: str
    clock: Callable[[], datetime]
    detail: Mapping[str, object]

    def recall(self, value: float, fresh: bool, number: int) -> Trial | None:
        """Return the stored trial of that value, freshness and number; None where there is none that answers."""
        stored = self.store.get(self._trial(value, fresh, number).key)
        if stored is None or stored.outcome is Outcome.UNTESTED:
            return None
        found = stored.detail["trial"]
        assert isinstance(found, Mapping)
        return Trial.from_json(found)

    def keep(self, trial: Trial, fresh: bool, number: int) -> None:
        """Store a trial."""
        unable = trial.ending is Ending.UNABLE
        how = f"{trial.how} in {trial.part or 'its start'}" if trial.how else "survives"
        self.store.add(
            Observation(
                question=self._trial(trial.value, fresh, number),
                outcome=Outcome.UNTESTED if unable else Outcome.OK,
                reason=f"{self.asked.knob.key}={shown(trial.value)}: {how}",
                detail={**self.detail, "trial": trial.to_json()},
                machine=self.machine,
                at=self.clock(),
                seconds=trial.seconds,
            )
        )

    def conclude(self, search: Search, predicted: float | None, total: int) -> Observation:
        """Store the result of a search and return its observation."""
        observation = Observation(
            question=self._question(self.asked.name, {}),
            outcome=Outcome.OK if search.found.answers else Outcome.UNTESTED,
            reason=search.line,
            detail={**self.detail, **threshold_json(self.asked, search, predicted, total)},
            machine=self.machine,
            at=self.clock(),
            seconds=sum(trial.seconds for trial in search.trials),
        )
        self.store.add(observation)
        return observation

    def _trial(self, value: float, fresh: bool, number: int) -> Question:
        name = self.asked.name.replace("threshold/", "trial/", 1)
        return self._question(f"{name}/{shown(value)}", {"fresh": str(fresh), "number": str(number)})

    def _question(self, probe: str, more: Mapping[str, str]) -> Question:
        # The folder in which a model lies is no part of what is asked.
        asked = {key: value for key, value in self.spec.items() if key != "folder"}
        reads = {"lock": self.lock, "trials": self.trials, "machine": self.kind, "spec": digest(asked), **more}
        return Question(cell=self.cell, probe=probe, tier=Tier.GPU, tool=TOOL, reads=reads)


def scripts_digest(probes: Path) -> str:
    """Return the digest of the in-cell scripts that try, and of the workload that they write."""
    files = sorted(file for name in ("trials", "workload") for file in (probes / name).glob("*.py"))
    return digest({str(file.relative_to(probes)): file.read_text(encoding="utf-8") for file in files})


def threshold_json(asked: Asked, search: Search, predicted: float | None, total: int) -> dict[str, object]:
    """Return a threshold as plain JSON: what was found, between which neighbours, and all that was tried.

    `total` is the memory of the card that it ran on, in bytes (0 where nothing ran).
    """
    cap = None
    if asked.cap is not None:
        words = asked.cap.words(total, by_what(asked.knob.script))
        cap = {"name": asked.cap.name, "bytes": asked.cap.bytes, "words": words}
    return {
        "workload_name": asked.workload_name,
        "workload": asked.settled.to_json(),
        "knob": asked.knob.key,
        "cap": cap,
        "beside": asked.beside,
        "device_total": total,
        "found": search.found.value,
        "largest_pass": search.largest_pass,
        "smallest_fail": search.smallest_fail,
        "flaky": list(search.flaky),
        "reason": search.reason,
        "line": search.line,
        "pass": _neighbour(search, search.largest_pass),
        "fail": _neighbour(search, search.smallest_fail),
        "predicted": predicted,
        "tried": [_brief(trial) for trial in search.trials],
        "trials": len(search.trials),
        "recalled": search.recalled,
        "gpu_seconds": round(sum(trial.seconds for trial in search.trials), 1),
    }  # fmt: skip


def _neighbour(search: Search, value: float | None) -> dict[str, object] | None:
    """Return what the trials of one end say together: peak and death of those that count, and how many there were."""
    trials = search.of(value)
    if value is None or not trials:
        return None
    return {
        "value": value,
        "repeats": sum(trial.value == value for trial in search.trials),
        "fresh": sum(trial.fresh for trial in trials),
        "peak": max(trial.peak for trial in trials),
        "part": trials[-1].part,
        "how": trials[-1].how,
        "text": trials[-1].text[-1500:],
        "parts": [part.to_json() for part in trials[-1].parts],
        "more": dict(trials[-1].more),
    }


def _brief(trial: Trial) -> dict[str, object]:
    return {
        "value": trial.value, "ending": trial.ending.value, "fresh": trial.fresh, "part": trial.part, "how": trial.how,
        "seconds": round(trial.seconds, 2), "peak": trial.peak,
    }  # fmt: skip
