"""How the records stand: which were reproduced, which refuted, which could not be tried, by what was observed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from matrix.failure import Failure, Family, Reach
from matrix.known import contradicts
from matrix.observe import Observation
from matrix.probing.outcome import Disagreement
from matrix.tried import short


class Standing(StrEnum):
    """What the observations of its probe say of a record, worst first."""

    REFUTED = "refuted"
    UNSETTLED = "unsettled"
    REPRODUCED = "reproduced"
    ABSENT = "absent"
    UNTESTED = "untested"
    ELSEWHERE = "elsewhere"
    UNPROBED = "unprobed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """A record and how it stands; `cells` are those on which it was seen, or not seen against its prediction.

    `seen` are the observations that say so.
    """

    failure: Failure
    standing: Standing
    cells: tuple[str, ...] = ()
    seen: tuple[Observation, ...] = ()

    @property
    def line(self) -> str:
        """Return why it stands so, "" where the word says it all."""
        match self.standing:
            case Standing.UNPROBED:
                return self.failure.unprobed
            case Standing.ELSEWHERE:
                few = "a GPU" if self.failure.testable is Reach.GPU else "several GPUs"
                return self.failure.unprobed or f"takes {few}, and nothing is recorded of one"
            case Standing.ABSENT:
                return "its probe ran only where it is not predicted"
            case _:
                return ", ".join(self.cells)

    @property
    def told(self) -> str:
        """Return the standing in a sentence: where, on what machine and when, and whether that is shipped evidence."""
        if not self.seen:
            return f"{self.standing}{self.line and ': '}{self.line}"
        found: dict[tuple[str, str, bool], list[str]] = {}
        for item in self.seen:
            where = (short(item.machine), f"{item.at:%Y-%m-%d}", bool(item.shipped))
            found.setdefault(where, []).append(item.question.cell)
        places = [
            f"{', '.join(sorted(set(cells)))} ({machine}, {day}{', shipped evidence' * shipped})"
            for (machine, day, shipped), cells in sorted(found.items())
        ]
        return f"{self.standing} on {'; '.join(places)}"


def stands(failures: Sequence[Failure], observations: Iterable[Observation]) -> tuple[Stand, ...]:
    """Return how each record stands, in the order of the records; of a probe on a cell the latest answer counts."""
    latest: dict[tuple[str, str], Observation] = {}
    for item in observations:
        if item.detail.get("failure"):
            latest[item.question.cell, item.question.probe] = item
    by_failure: dict[str, list[Observation]] = {}
    for item in latest.values():
        by_failure.setdefault(str(item.detail["failure"]), []).append(item)
    return tuple(_stand(failure, by_failure.get(failure.id, ())) for failure in failures)


_AGAINST = (Disagreement.NOT_SEEN.value, Disagreement.NOT_PREDICTED.value)


def _against(failure: Failure, item: Observation) -> bool:
    """Return whether what was seen contradicts the record: as it is now where that can be told, else as it was then."""
    now = contradicts(failure, item)
    return item.detail.get("disagreement") in _AGAINST if now is None else now


def _stand(failure: Failure, seen: Sequence[Observation]) -> Stand:
    """Return how one record stands.

    `refuted`: somewhere the opposite of what it predicts was seen. `unsettled`: its probe failed for another reason
    somewhere. `reproduced`: it was seen where predicted.
    `absent`: its probe ran, only where it is not predicted, and did not see it. `elsewhere`: it takes GPUs.
    """
    against = [item for item in seen if _against(failure, item)]
    otherwise = [item for item in seen if item.detail.get("disagreement") not in (None, *_AGAINST)]
    reproduced = [item for item in seen if item.detail.get("seen") == "reproduced"]
    ran = [item for item in seen if item.detail.get("seen")]
    if against:
        standing, cells = Standing.REFUTED, against
    elif otherwise:
        standing, cells = Standing.UNSETTLED, otherwise
    elif reproduced:
        standing, cells = Standing.REPRODUCED, reproduced
    elif ran:
        standing, cells = Standing.ABSENT, ran
    elif failure.testable in (Reach.GPU, Reach.GPUS):
        standing, cells = Standing.ELSEWHERE, []
    else:
        standing, cells = (Standing.UNPROBED if failure.unprobed else Standing.UNTESTED), []
    names = tuple(sorted({item.question.cell for item in cells}))
    return Stand(failure=failure, standing=standing, cells=names, seen=tuple(cells))


def by_family(found: Sequence[Stand]) -> Mapping[Family, Mapping[Standing, int]]:
    """Return how many records of each family stand how, every standing named."""
    return {
        family: {
            word: sum(item.standing is word for item in found if item.failure.family is family) for word in Standing
        }
        for family in Family
    }
