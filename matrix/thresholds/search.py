"""The search: where trials of rising values turn from survival to death, with as few of them as will do.

It assumes that more is worse and shows it, by a value far below the edge and one far above: one that survives above one
that does not means that there is no threshold, and says so. Both ends of what it finds are repeated in fresh processes.
A trial in a fresh process outranks those in a used one; a value counts as surviving only where it survived in each of
the trials that count, so an edge that flickers is told as the largest value that held every time, and the values
between are named.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from matrix.thresholds.trial import SETUP, Ending, Trial, shown

Ask = Callable[[float, bool], Trial]
"""Tries a value; the second word asks for a fresh process."""
Recall = Callable[[float, bool, int], "Trial | None"]
"""Returns the stored trial of a value, of that freshness and number, None where there is none."""
REPEATS = 2
FAR = 1.3
"""So far above the edge, as a factor, a value is tried to see that it dies too."""
NEAR = 0.06
"""How far above and below a prediction the bracket is put first."""


class Found(StrEnum):
    """What a search came to."""

    THRESHOLD = "threshold"
    ALL_PASS = "all pass"  # noqa: S105 - a word
    ALL_FAIL = "all fail"
    NOT_MONOTONE = "not monotone"
    UNABLE = "unable"
    CUT_SHORT = "cut short"

    @property
    def answers(self) -> bool:
        """Return whether the question is answered, if only by there being no threshold."""
        return self not in (Found.UNABLE, Found.CUT_SHORT)


class EnoughError(Exception):
    """Raised by whoever asks the trials where no further one may run; what was found so far is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The result of a search.

    Attributes:
        found: what it came to.
        largest_pass: the largest value that survived every time, None where none did.
        smallest_fail: the smallest value above it that did not, None where none was tried.
        flaky: values that did both among the trials that count.
        trials: everything tried, in order.
        recalled: how many of these were stored already.
        reason: why there is no threshold, "" where there is one.
    """

    found: Found
    largest_pass: float | None = None
    smallest_fail: float | None = None
    flaky: tuple[float, ...] = ()
    trials: tuple[Trial, ...] = ()
    recalled: int = 0
    reason: str = ""

    def of(self, value: float | None) -> tuple[Trial, ...]:
        """Return the trials of a value that count: the fresh ones, where there are any."""
        return counting([trial for trial in self.trials if trial.value == value])

    @property
    def line(self) -> str:
        """Return the result in a few words for people."""
        match self.found:
            case Found.THRESHOLD:
                died = self.of(self.smallest_fail)[0]
                return (
                    f"{shown(self.largest_pass or 0)} survives, {shown(self.smallest_fail or 0)} does not: "
                    f"{died.how} in {died.part or 'its start'}"
                )
            case Found.ALL_PASS:
                return f"{shown(self.largest_pass or 0)}, the largest that was to be tried, survives"
            case _:
                return f"{self.found.value}: {self.reason}"


def counting(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """Return the trials of one value that count: those in fresh processes, where there are any."""
    fresh = tuple(trial for trial in trials if trial.fresh)
    return fresh or tuple(trials)


@dataclass(slots=True, kw_only=True)
class _Asker:
    """Asks, remembers, and judges values by all that was tried of them."""

    ask: Ask
    repeats: int
    recall: Recall
    trials: list[Trial] = field(default_factory=list)
    recalled: int = 0
    _used: dict[tuple[float, bool], int] = field(default_factory=dict)

    def try_(self, value: float, *, fresh: bool) -> Trial:
        """Try a value once more; a stored trial that was not used yet stands in for one."""
        number = self._used.get((value, fresh), 0)
        self._used[value, fresh] = number + 1
        stored = self.recall(value, fresh, number)
        self.recalled += stored is not None
        trial = stored or self.ask(value, fresh)
        self.trials.append(trial)
        if trial.ending is Ending.UNABLE:
            last = _last(trial.text)
            raise _UnableError(f"{shown(value)}: " + (last if trial.how in last else f"{trial.how}: {last}"))
        return trial

    def of(self, value: float) -> tuple[Trial, ...]:
        return counting([trial for trial in self.trials if trial.value == value])

    def survives(self, value: float) -> bool | None:
        """Return whether a value survived each time that counts; None where it was not tried."""
        tried = self.of(value)
        return all(trial.passed for trial in tried) if tried else None

    def judged(self, value: float) -> bool:
        """Return whether a value survives, trying it where it was not."""
        known = self.survives(value)
        return self.try_(value, fresh=False).passed if known is None else known

    def confirmed(self, value: float) -> bool:
        """Return whether a value survives, after it was tried often enough in fresh processes."""
        while sum(trial.fresh for trial in self.of(value)) < self.repeats:
            self.try_(value, fresh=True)
        return bool(self.survives(value))

    @property
    def judgements(self) -> dict[float, bool]:
        return {value: bool(self.survives(value)) for value in sorted({trial.value for trial in self.trials})}


class _UnableError(Exception):
    """A trial was kept from its answer by something else than memory."""


def search(
    values: Sequence[float],
    ask: Ask,
    *,
    predicted: float | None = None,
    repeats: int = REPEATS,
    recall: Recall = lambda value, fresh, number: None,
) -> Search:
    """Return where `values` (rising) turn from survival to death.

    With a prediction the values 6 % below and above it are tried first, and ever larger strides beyond where they do
    not bracket the edge; what lies between is halved. Without one all of the values are. `known` trials, by value and
    freshness, are taken in place of new ones: a search that was cut short goes on.

    Raises:
        ValueError: `values` is empty or does not rise.
    """
    if not values or any(later <= earlier for earlier, later in itertools.pairwise(values)):
        raise ValueError("a search needs rising values")
    asker = _Asker(ask=ask, repeats=repeats, recall=recall)
    try:
        low, high = _bracket(values, asker, predicted)
        low, high = _settle(values, asker, low, high)
    except _UnableError as error:
        return _result(asker, Found.UNABLE, reason=str(error))
    except EnoughError as error:
        return _cut(asker, str(error))
    return _concluded(values, asker, low, high)


def _bracket(values: Sequence[float], asker: _Asker, predicted: float | None) -> tuple[int, int]:
    """Return the places of a value that survives and of one above that does not; -1 and the length where not known."""
    low, high = -1, len(values)
    if predicted is None:
        return low, high
    at, stride = _place(values, predicted * (1 - NEAR)), 1
    if not asker.judged(values[at]):
        return _down(values, asker, at)
    low = at
    at = max(_place(values, predicted * (1 + NEAR)), at + 1)
    while at < high:
        if not asker.judged(values[at]):
            return low, at
        low, at, stride = at, at + stride, stride * 2
    return low, high


def _down(values: Sequence[float], asker: _Asker, failed: int) -> tuple[int, int]:
    """Return the bracket below a value that failed, by ever larger strides down."""
    high, stride = failed, 2
    while high > 0:
        # What dies before the knob counts dies with the smallest value too; that one is tried at once.
        at = 0 if asker.trials[-1].part in SETUP else max(high - stride, 0)
        if asker.judged(values[at]):
            return at, high
        high, stride = at, stride * 2
    return -1, high


def _place(values: Sequence[float], wanted: float) -> int:
    """Return the place of the largest value up to `wanted`, 0 where there is none."""
    return max((place for place, value in enumerate(values) if value <= wanted), default=0)


def _settle(values: Sequence[float], asker: _Asker, low: int, high: int) -> tuple[int, int]:
    """Halve what lies between and confirm both ends; an end that does not hold moves, and the halving goes on.

    What lies far off is tried between the two, in the process in which the lower end was confirmed: one is enough then.
    """
    verified = False
    while True:
        while high - low > 1:
            middle = (low + high) // 2
            if asker.judged(values[middle]):
                low = middle
            else:
                high = middle
        if low >= 0 and not asker.confirmed(values[low]):
            high, low = low, _below(values, asker, low)
            continue
        if not verified:
            _verify(values, asker, low, high)
            verified = True
        if high < len(values) and asker.confirmed(values[high]):
            low, high = high, _above(values, asker, high)
            continue
        return low, high


def _verify(values: Sequence[float], asker: _Asker, low: int, high: int) -> None:
    """Try a value far below the edge and one far above it, where none was: more is worse only if it shows."""
    if low > 0:
        half = _place(values, values[low] / 2)
        if not any(asker.survives(values[at]) is not None for at in range(half + 1)):
            asker.judged(values[half])
    if high < len(values) - 1:
        far = min(_place(values, values[high] * FAR) + 1, len(values) - 1)
        if not any(asker.survives(values[at]) is not None for at in range(far, len(values))):
            asker.judged(values[far])


def _below(values: Sequence[float], asker: _Asker, place: int) -> int:
    """Return the nearest place below whose value was tried and survives, -1 for none."""
    return max((at for at in range(place) if asker.survives(values[at])), default=-1)


def _above(values: Sequence[float], asker: _Asker, place: int) -> int:
    """Return the nearest place above whose value was tried and does not survive, the length for none."""
    tried = (at for at in range(place + 1, len(values)) if asker.survives(values[at]) is False)
    return min(tried, default=len(values))


def _concluded(values: Sequence[float], asker: _Asker, low: int, high: int) -> Search:
    judged = asker.judgements
    lowest_fail = min((value for value, survives in judged.items() if not survives), default=None)
    highest_pass = max((value for value, survives in judged.items() if survives), default=None)
    if lowest_fail is not None and highest_pass is not None and highest_pass > lowest_fail:
        reason = f"{shown(highest_pass)} survives and {shown(lowest_fail)} does not, though it is less"
        return _result(asker, Found.NOT_MONOTONE, reason=reason)
    if low < 0:
        first = asker.of(values[0])[0]
        reason = f"{shown(values[0])}, the smallest, ends in {first.how} in {first.part or 'its start'}"
        return _result(asker, Found.ALL_FAIL, fails=values[0], reason=reason)
    if high == len(values):
        return _result(asker, Found.ALL_PASS, passes=values[low])
    return _result(asker, Found.THRESHOLD, passes=values[low], fails=values[high])


def _cut(asker: _Asker, why: str) -> Search:
    judged = asker.judgements
    passes = max((value for value, survives in judged.items() if survives), default=None)
    fails = min((value for value, survives in judged.items() if not survives), default=None)
    between = f"; so far {'none' if passes is None else shown(passes)} survives"
    between += "" if fails is None else f" and {shown(fails)} does not"
    return _result(asker, Found.CUT_SHORT, passes=passes, fails=fails, reason=f"{why}{between}")


def _result(
    asker: _Asker, found: Found, *, passes: float | None = None, fails: float | None = None, reason: str = ""
) -> Search:
    mixed = [value for value in asker.judgements if len({trial.passed for trial in asker.of(value)}) > 1]
    return Search(
        found=found,
        largest_pass=passes,
        smallest_fail=fails,
        flaky=tuple(mixed),
        trials=tuple(asker.trials),
        recalled=asker.recalled,
        reason=reason,
    )


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "nothing was said"
