"""The diagnosis of a log: every symptom of every run, the worst first, and what could not be judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from matrix.gravity import Gravity
from matrix.health import policy, reward, rollout
from matrix.health.case import Case
from matrix.health.history import Log, Run, read_log
from matrix.health.meanings import MEANINGS
from matrix.health.names import Metric
from matrix.health.symptom import Kind, Symptom

CHECKS = (*policy.CHECKS, *reward.CHECKS, *rollout.CHECKS)

# NaN is what verl writes where there is nothing to measure: all responses aborted, an empty mask, one sample.
_MAY_BE_NAN = ("response_length_non_aborted/", "training/rollout_", "critic/values/", "critic/vf_explained_var", "val-")
_MUST_BE_FINITE = ("loss", "grad_norm", "kl", "entropy", "score", "rewards", "advantages", "returns")
MOST_ALIKE = 3
SHORT = 12
"""Fewer steps have no baseline of their own: only fixed limits are judged then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What is wrong in a log: `symptoms` with the worst first; `unjudged` are metrics the log lacks, by run."""

    log: Log
    symptoms: tuple[Symptom, ...]
    unjudged: tuple[tuple[Metric, ...], ...]

    @property
    def healthy(self) -> bool:
        """Return whether nothing but notes was found."""
        return not any(symptom.fails for symptom in self.symptoms)

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data."""
        notes = self.log.notes
        return {
            "schema": 1,
            "log": self.log.path,
            "healthy": self.healthy,
            "bytes": notes.bytes,
            "lines": notes.lines,
            "damaged_lines": notes.damaged,
            "runs": [
                {
                    "run": run.number,
                    "first_step": run.steps[0],
                    "last_step": run.steps[-1],
                    "steps": len(run.steps),
                    "stride": run.stride,
                    "three_decimals": run.rounded,
                    "restarts": [list(pair) for pair in run.restarts],
                    "unjudged": [metric.value for metric in lacking],
                }
                for run, lacking in zip(self.log.runs, self.unjudged, strict=True)
            ],
            "symptoms": [symptom.to_json() for symptom in self.symptoms],
        }


def diagnose(path: Path | str) -> Diagnosis:
    """Return the diagnosis of the log at `path` (`-`: standard input); raises DataError as `read_log` does."""
    log = read_log(path)
    symptoms = [symptom for run in log.runs for symptom in examine(run, log.notes.vocabulary)]
    lacking = tuple(tuple(metric for metric in Metric if not run.series(metric)) for run in log.runs)
    return Diagnosis(log=log, symptoms=tuple(symptoms), unjudged=lacking)


def examine(run: Run, vocabulary: int = 0) -> list[Symptom]:
    """Return the symptoms of one run, errors before warnings before notes, each by its first step."""
    case = Case(run=run, vocabulary=vocabulary)
    found = [symptom for check in CHECKS for symptom in check(case)]
    found += not_finite(case)
    return sorted(_fewer(found), key=lambda symptom: (symptom.gravity.rank, symptom.since, symptom.metric))


def _fewer(found: Sequence[Symptom]) -> list[Symptom]:
    """Return the first MOST_ALIKE of those that are alike; the last of these says how many more there were."""
    alike: dict[tuple[Kind, str], list[Symptom]] = {}
    for symptom in found:
        alike.setdefault((symptom.kind, symptom.metric), []).append(symptom)
    kept: list[Symptom] = []
    for group in alike.values():
        *before, last = group[:MOST_ALIKE]
        more = len(group) - MOST_ALIKE
        if more > 0:
            until = group[-1].until
            last = replace(last, until=until, message=f"{last.message}; {more} more such stretches after it")
        kept += [*before, last]
    return kept


def not_finite(case: Case) -> Sequence[Symptom]:
    """Return the metrics that were NaN or infinite; where verl writes NaN for "nothing to measure" it is a note."""
    found = []
    for name, seen in case.run.not_finite.items():
        causes, look = MEANINGS[Kind.NOT_FINITE]
        nothing = name.startswith(_MAY_BE_NAN)
        matters = any(word in name for word in _MUST_BE_FINITE) and not nothing
        # From 0.4.0 on verl's workers leave out the optimizer's step when the gradient norm is not finite.
        skipped = name.endswith("grad_norm") and seen.count == 1
        gravity = Gravity.NOTE if nothing else Gravity.ERROR if matters and not skipped else Gravity.WARNING
        times = "once" if seen.count == 1 else f"{seen.count} times, last at step {seen.last}"
        found.append(
            Symptom(
                kind=Kind.NOT_FINITE,
                gravity=gravity,
                metric=name,
                since=seen.first,
                run=case.run.number,
                message=f"NaN or infinite {times}" + ("; verl from 0.4.0 on skips that update" if skipped else ""),
                limit="finite",
                evidence={"count": float(seen.count), "last": float(seen.last)},
                causes=causes,
                look=look,
            )
        )
    return found
