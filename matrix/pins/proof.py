"""The proof: how deep a set was tried, on what machine and when, and what broke there under a policy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from matrix.failure import Failure
from matrix.observe import Observation
from matrix.pins.policy import Policy, patterns
from matrix.tier import Outcome, Tier
from matrix.tried import Tried, short, tried

KEYSTONE = "test_ppo_gpu.py::test_ppo_trains"
"""The probe of the tier `gpu` without which its other answers prove only what they are about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What the observations of a cell prove under a policy.

    Attributes:
        tried: what each tier said, shallow first, where and when.
        deepest: the deepest tier of those that need an installation which has an answer on a named machine (and on the
            GPU that was asked for); None where there is none. The tier `gpu` counts where PPO was run to its end.
        partly: the tier `gpu` where it has answers and PPO was not run: that much is known, and proves no more.
        breaks: lines that say what broke, as far as the policy counts it; never empty for a set that is not safe.
        degraded: lines of what is hurt and does not count.
        untried: features in use that no probe of the deepest tiers was about: the proof says nothing of them.
    """

    tried: tuple[Tried, ...] = ()
    deepest: Tried | None = None
    partly: Tried | None = None
    breaks: tuple[str, ...] = ()
    degraded: tuple[str, ...] = ()
    untried: tuple[str, ...] = ()

    def proven(self, policy: Policy) -> bool:
        """Return whether it was tried at the least tier or deeper, and nothing that counts broke."""
        return self.deepest is not None and self.deepest.tier.depth >= policy.min_tier.depth and not self.breaks

    @property
    def tier(self) -> Tier | None:
        """Return the deepest tier that was tried on a machine; None where none was."""
        return self.deepest.tier if self.deepest is not None else None

    @property
    def machine(self) -> str:
        """Return the machine of the deepest tier, in the words that tell it from others; "" where there is none."""
        return ", ".join(short(machine) for machine in self.deepest.machines) if self.deepest is not None else ""

    @property
    def at(self) -> datetime | None:
        """Return when the deepest tier was tried (UTC); None where there is none."""
        return self.deepest.at if self.deepest is not None else None


def prove(observations: Iterable[Observation], policy: Policy, failures: Sequence[Failure] = ()) -> Proof:
    """Return what these observations of one cell prove; by the records, a probe is about the feature of its failure.

    An answer from a machine without a name is shown and proves nothing; so is one of the tiers `gpu` and `bench` from
    another GPU than the one that was asked for.
    """
    seen = [item for item in observations if not item.question.measures]
    found = tried(seen)
    deep = [item for item in found if item.tier.is_deep and item.ran and item.outcome is not Outcome.UNTESTED]
    named = [item for item in deep if _named(item) and _on_the_gpu(item, policy)]
    trained = {(item.question.tier, item.shipped) for item in seen if _trains(item)}
    counted = [item for item in named if item.tier is not Tier.GPU or (item.tier, item.shipped) in trained]
    partly = [item for item in named if item not in counted]
    breaks: list[str] = []
    degraded: list[str] = []
    for item in seen:
        if item.outcome is Outcome.UNTESTED or item.question.tier is Tier.RESOLVE or item.outcome is Outcome.OK:
            continue
        (breaks if _breaks(item, policy) else degraded).append(_line(item))
    return Proof(
        tried=found,
        deepest=max(counted, key=lambda item: (item.tier.depth, item.ran), default=None),
        partly=max(partly, key=lambda item: item.ran, default=None),
        breaks=tuple(dict.fromkeys(breaks)),
        degraded=tuple(dict.fromkeys(degraded)),
        untried=_untried(seen, policy, failures),
    )


def _untried(seen: Sequence[Observation], policy: Policy, failures: Sequence[Failure]) -> tuple[str, ...]:
    """Return the features in use of which no probe answered at the tiers that need an installation."""
    known = {failure.id: failure for failure in failures}
    texts: list[str] = []
    for item in seen:
        if item.question.tier.is_deep and item.answers:
            failure = known.get(str(item.detail.get("failure")))
            texts += [_words(item.question.probe), *((failure.feature, failure.needs) if failure is not None else ())]
    found = patterns()
    return tuple(
        word for word in policy.uses if word in found and not any(found[word].search(text) for text in texts if text)
    )


def _words(probe: str) -> str:
    """Return the words of a probe's id, e.g. `test import test entry point imports lora`."""
    return re.sub(r"[^A-Za-z0-9.]+", " ", probe.partition("/")[2] or probe)


def _trains(item: Observation) -> bool:
    """Return whether it answers whether PPO trains: what everybody who installs the stack is going to do with it."""
    return item.answers and item.question.probe.endswith(KEYSTONE)


def _named(item: Tried) -> bool:
    return any(machine not in ("", "static") for machine in item.machines)


def _on_the_gpu(item: Tried, policy: Policy) -> bool:
    if not policy.gpu or item.tier.depth < Tier.GPU.depth:
        return True
    return any(policy.gpu.casefold() in machine.casefold() for machine in item.machines)


def _breaks(item: Observation, policy: Policy) -> bool:
    """Return whether an observation that is not `ok` breaks something that the policy counts.

    One that lists no finding is taken at its word: `broken` breaks, `degraded` does not.
    """
    findings = _findings(item)
    if not findings:
        return item.outcome is not Outcome.DEGRADED
    return any(policy.counts(finding, broken=item.outcome is not Outcome.DEGRADED) for finding in findings)


def _findings(item: Observation) -> Sequence[Mapping[str, object]]:
    found = item.detail.get("findings")
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list | tuple) else []


def _line(item: Observation) -> str:
    where = "" if item.machine == "static" else f" ({short(item.machine)}, {item.at:%Y-%m-%d})"
    return f"{item.question.tier}: {item.reason or item.outcome}{where}"
