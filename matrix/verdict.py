"""The verdict: what the observations of a cell say together (docs/architecture.md: Words, Rules)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from matrix.cell import Axis, Cell
from matrix.errors import NothingRanError
from matrix.finding import Effect, Kind
from matrix.observe import TRIALS, Observation
from matrix.tier import RANKS, Outcome, Status, Tier
from matrix.tried import Tried, short, tried

BAD_STATUSES = (Status.BROKEN, Status.CONFLICT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A cell's status, how deep it was tried, why, and the observations it rests on.

    Attributes:
        cell: what is judged.
        status: what it comes to.
        deepest: the deepest tier that was tried here; None when none was. The status is `untested` where no tier
            answered, here or in the evidence that is shipped, and where the set resolves and no deeper tier answered:
            that a set may be installed says nothing of its code.
        reasons: lines for people, the most important first.
        evidence: the observation of each probe that counts, shallow tiers first; those that were made elsewhere say so.
        resolvable: what the resolver said: `ok`, `conflict`, `backtracked`, `unavailable` or `untested`.
        works: what the tiers below `resolve` said together: `ok`, `degraded`, `broken` or `untested`. It does not look
            at `resolvable`: a set that cannot be resolved may work, and the other way round.
        features: the parts that are broken or silently degraded, sorted.
    """

    cell: Cell
    status: Status
    deepest: Tier | None
    reasons: tuple[str, ...]
    evidence: tuple[Observation, ...]
    resolvable: Outcome = Outcome.UNTESTED
    works: Outcome = Outcome.UNTESTED
    features: tuple[str, ...] = ()

    @property
    def at(self) -> datetime | None:
        """Return when the latest observation was made here (UTC); None when there is none."""
        return max((item.at for item in self.evidence if not item.shipped), default=None)

    @property
    def machine(self) -> str:
        """Return what the deepest tier that was tried here ran on; "" when nothing ran here."""
        here = (item for item in reversed(self.evidence) if item.question.tier is self.deepest and not item.shipped)
        return next((item.machine for item in here), "")

    @property
    def tried(self) -> tuple[Tried, ...]:
        """Return what each tier said, shallow first, and where: here, or on the machine that the evidence is from."""
        return tried(self.evidence)

    @property
    def recorded(self) -> tuple[Tried, ...]:
        """Return what tiers said elsewhere, by the evidence that is shipped, where a probe was not answered here."""
        return tuple(item for item in self.tried if item.shipped)

    def observation(self, tier: Tier) -> Observation | None:
        """Return the observation of that tier which decides (the worst of its probes), None where it was not tried."""
        found = [item for item in self.evidence if item.question.tier is tier]
        return max(found, key=lambda item: _rank(item.outcome), default=None)

    @property
    def disagreements(self) -> tuple[Observation, ...]:
        """Return the observations of probes that contradict the record of the failure that they reproduce."""
        return tuple(item for item in self.evidence if item.detail.get("disagreement"))

    @property
    def unlooked(self) -> tuple[Axis, ...]:
        """Return the axes whose version the surface check was not told, so that nothing is known of their code.

        An axis that a complete lock does not hold is not installed, and so is not one of them.
        """
        surface, resolved = self.observation(Tier.SURFACE), self.observation(Tier.RESOLVE)
        versions = surface.detail.get("versions") if surface is not None else None
        if surface is None or surface.outcome is Outcome.UNTESTED or not isinstance(versions, Mapping):
            return ()
        no_deps = self.cell.deviation is not None and self.cell.deviation.no_deps
        locked = resolved.detail.get("versions") if resolved is not None and resolved.outcome is Outcome.OK else None
        if not no_deps and isinstance(locked, Mapping) and all(a in versions for a in Axis if a.value in locked):
            return ()
        return tuple(axis for axis in Axis if axis.value not in versions)

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data without the details of the observations (reports/schema.json: `verdict`)."""
        cell = self.cell
        return {
            "cell": cell.name,
            "status": self.status.value,
            "resolvable": self.resolvable.value,
            "works": self.works.value,
            "deepest": self.deepest.value if self.deepest else None,
            "machine": self.machine,
            "at": self.at.isoformat() if self.at else None,
            "tried": [item.to_json() for item in self.tried],
            "unlooked": [axis.value for axis in self.unlooked],
            "reasons": list(self.reasons),
            "features": list(self.features),
            "axes": {pin.axis.value: str(pin.version) for pin in cell.pins},
            "extras": {pin.axis.value: list(pin.extras) for pin in cell.pins if pin.extras},
            "variants": {pin.axis.value: pin.variant for pin in cell.pins if pin.variant},
            "added": list(cell.added),
            "open": [axis.requirement for axis in cell.open_axes],
            "requirements": list(cell.requirements),
            "python": cell.platform.python,
            "platform": cell.platform.uv,
            "as_of": cell.as_of.isoformat() if cell.as_of else None,
            "deviation": deviation_words(cell, self.evidence),
            "why_here": cell.reason,
            "evidence": [_evidence_json(item) for item in self.evidence],
        }


def judge(cell: Cell, observations: Iterable[Observation]) -> Verdict:
    """Return what these observations of `cell` say together; where a probe was asked twice the later answer counts.

    What is recorded elsewhere (`matrix.evidence.joined`) counts as what was observed here does, and says so.

    `conflict` where the resolver found no such set (with `--no-deps` recorded, what the metadata forbid does not
    decide); else `broken` or `degraded` where a deeper tier found so; `works` where something ran and nothing was
    found; `untested` where nothing did, and that it could be installed is nothing yet. A finding that is not certain
    never decides.
    """
    evidence = _latest(observations)
    ran = [item for item in evidence if item.answers]
    if not ran:
        why = [f"{item.question.tier}: {item.reason}" for item in evidence if item.outcome is Outcome.UNTESTED]
        reasons = tuple(why) or ("it was installed, and no probe of it ran" if evidence else "nothing was asked",)
        words = deviation_words(cell, evidence)
        reasons += (f"deviation: {words}",) if words and evidence else ()
        return Verdict(cell=cell, status=Status.UNTESTED, deepest=None, reasons=reasons, evidence=evidence)
    weighed = [_weigh(item) for item in evidence if not item.question.measures]
    resolvable = _worst(item.outcome for item in weighed if item.tier is Tier.RESOLVE)
    works = _worst(item.outcome for item in weighed if item.observation.answers and item.tier is not Tier.RESOLVE)
    here = [item.question.tier for item in ran if not item.shipped]
    waived = resolvable is Outcome.CONFLICT and cell.deviation is not None and cell.deviation.no_deps
    return Verdict(
        cell=cell,
        status=_status(resolvable, works, waived=waived),
        deepest=max(here, key=lambda tier: tier.depth, default=None),
        reasons=_reasons(cell, weighed, waived=waived),
        evidence=evidence,
        resolvable=resolvable,
        works=works,
        features=tuple(sorted({feature for item in weighed for feature in item.features})),
    )


def deciding(verdict: Verdict, item: Observation) -> Outcome:
    """Return what an observation of the verdict's evidence counts as: uncertain findings and what is waived do not."""
    deviation = verdict.cell.deviation
    if item.outcome is Outcome.CONFLICT and item.question.tier is Tier.RESOLVE and deviation and deviation.no_deps:
        return Outcome.OK
    return _weigh(item).outcome


def _status(resolvable: Outcome, works: Outcome, *, waived: bool) -> Status:
    """Return the status; an outcome that its tier should not have is taken for bad, never for good."""
    if _rank(resolvable) > _rank(Outcome.OK) and not waived:
        return Status.CONFLICT
    if _rank(works) > _rank(Outcome.DEGRADED):
        return Status.BROKEN
    match works:
        case Outcome.DEGRADED:
            return Status.DEGRADED
        case Outcome.OK:
            return Status.WORKS
        case _:
            return Status.UNTESTED


def exit_code(verdicts: Sequence[Verdict]) -> int:
    """Return 0 where nothing that ran is bad, as far as it was tried; 1 where something is broken or in conflict.

    Raises:
        NothingRanError: there is no verdict, or for none of the cells any tier answered.
    """
    if all(verdict.deepest is None for verdict in verdicts):
        why = "; ".join(sorted({reason for verdict in verdicts for reason in verdict.reasons})[:3])
        raise NothingRanError(
            f"Nothing ran: 0 of {len(verdicts)} {'cell was' if len(verdicts) == 1 else 'cells were'} tried.",
            why=why,
            then="A cell that was not tried never passes. Check the selection and the reasons above.",
        )
    return 1 if any(verdict.status in BAD_STATUSES for verdict in verdicts) else 0


def deviation_words(cell: Cell, evidence: Iterable[Observation] = ()) -> str:
    """Return the cell's deviation in words, "" where it has none: it is shown wherever the cell is.

    What was observed in an environment that lacks packages of the lock (a bundle left them out) says so too.
    """
    told = []
    if (deviation := cell.deviation) is not None:
        parts = [f"override {override}" for override in deviation.overrides] + ["no-deps"] * deviation.no_deps
        told.append(", ".join(parts) + (f" ({deviation.reason})" if deviation.reason else ""))
    for item in evidence:
        left_out = item.detail.get("left_out")
        if isinstance(left_out, Mapping) and left_out:
            names = ", ".join(f"{name} {version}" for name, version in sorted(left_out.items()))
            told.append(f"on {short(item.machine)} without {names}")
    return "; ".join(dict.fromkeys(told))


def _latest(observations: Iterable[Observation]) -> tuple[Observation, ...]:
    """Return the latest observation of each probe, shallow tiers first; of two at one time the one given later."""
    latest: dict[tuple[Tier, str, str], Observation] = {}
    for item in observations:
        if item.question.probe.startswith(TRIALS):
            # The thresholds, and the memory model, say what follows from them all.
            continue
        slot = item.question.slot
        if slot not in latest or item.at >= latest[slot].at:
            latest[slot] = item
    return tuple(latest[slot] for slot in sorted(latest, key=lambda slot: (slot[0].depth, *slot[1:])))


def _rank(outcome: Outcome) -> int:
    return RANKS.index(outcome)


def _worst(outcomes: Iterable[Outcome]) -> Outcome:
    return max(outcomes, key=_rank, default=Outcome.UNTESTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weighed:
    """An observation with the outcome that its certain findings carry, and the features they hurt."""

    observation: Observation
    outcome: Outcome
    features: frozenset[str] = frozenset()

    @property
    def tier(self) -> Tier:
        return self.observation.question.tier

    @property
    def line(self) -> str:
        """Return the reason as a line; it says so where nothing certain stands behind it."""
        doubt = "" if self.outcome is self.observation.outcome else "not certain, so it decides nothing: "
        return f"{self.tier}: {doubt}{self.observation.reason or self.outcome}{_elsewhere(self.observation)}"


def _weigh(observation: Observation) -> _Weighed:
    """Return the outcome as far as certain findings carry it; a probe that lists none is taken at its word.

    `broken` needs something that breaks at import, or whatever the configuration of an ordinary run.
    """
    outcome = observation.outcome
    found = observation.detail.get("findings") if outcome in (Outcome.BROKEN, Outcome.DEGRADED) else None
    if not isinstance(found, list | tuple) or not found:
        return _Weighed(observation=observation, outcome=outcome)
    counted = [item for item in found if isinstance(item, Mapping) and _counts(item)]
    if not counted:
        outcome = Outcome.OK
    elif not any(item["effect"] == Effect.BREAKS_IMPORT or item.get("default_path") for item in counted):
        outcome = Outcome.DEGRADED
    # An import that breaks without breaking an ordinary run is that of a feature's own code.
    hurts = (*_HURTS, Effect.BREAKS_IMPORT) if outcome is Outcome.DEGRADED else _HURTS
    hurt = {str(item["feature"]) for item in counted if item.get("feature") and item["effect"] in hurts}
    return _Weighed(observation=observation, outcome=outcome, features=frozenset(hurt))


_HURTS = (Effect.BREAKS_FEATURE, Effect.DEGRADES)


def _counts(item: Mapping[str, object]) -> bool:
    """Return whether a finding may decide: it is certain, and neither guarded nor about a package that is not held."""
    return bool(item.get("certain", True)) and item["effect"] != Effect.GUARDED and item["kind"] != Kind.PACKAGE_ABSENT


def _reasons(cell: Cell, weighed: Sequence[_Weighed], *, waived: bool) -> tuple[str, ...]:
    """Return one line a tier, the worst outcome first; then what is recorded, what is untested, the deviation."""
    lines = [_contradiction(item.observation) for item in weighed if item.observation.detail.get("disagreement")]
    untried = []
    for item in sorted(weighed, key=lambda item: -_rank(item.outcome)):
        if item.observation.outcome is Outcome.UNTESTED:
            untried.append(item)
        elif item.observation.outcome is not Outcome.OK:
            aside = waived and item.tier is Tier.RESOLVE
            lines.append(item.line + (" (set aside: installed with --no-deps)" if aside else ""))
    lines += [item.line for item in reversed(tried(item.observation for item in weighed)) if item.shipped]
    resolvable = _worst(item.outcome for item in weighed if item.tier is Tier.RESOLVE)
    tried_below = any(item.observation.answers for item in weighed if item.tier is not Tier.RESOLVE)
    if (resolvable is Outcome.OK or waived) and not tried_below:
        why = "; ".join(dict.fromkeys(item.observation.reason for item in untried)) or "no deeper tier was asked"
        lead = "it resolves" if resolvable is Outcome.OK else "it may be installed so"
        lines.insert(0, f"{lead}; whether the code fits was not tried ({why})")
    else:
        lines += _untried(untried, weighed)
    words = deviation_words(cell, (item.observation for item in weighed))
    return tuple(lines) + ((f"deviation: {words}",) if words else ())


def _contradiction(observation: Observation) -> str:
    """Return the line that says which record is wrong, and how it would be right."""
    detail, tier = observation.detail, observation.question.tier
    proposal = f"; {detail['proposal']}" if detail.get("proposal") else ""
    wrong = f"record wrong: {detail.get('failure')}: {detail['disagreement']}{proposal}"
    return f"{tier}: {wrong}{_elsewhere(observation)}"


def _elsewhere(observation: Observation) -> str:
    """Return where and when it was observed, where that was not here."""
    if not observation.shipped:
        return ""
    where = "" if observation.machine == "static" else f"{short(observation.machine)}, "
    return f" (shipped evidence, {where}{observation.at:%Y-%m-%d})"


def _untried(untried: Sequence[_Weighed], weighed: Sequence[_Weighed]) -> Iterator[str]:
    """Yield a line for each tier and reason; where a tier has several probes, with how many of them it is."""
    planned = Counter((item.tier, item.observation.shipped) for item in weighed)
    counts = Counter((item.tier, item.observation.shipped, item.observation.reason) for item in untried)
    for (tier, shipped, reason), count in counts.items():
        many = f", {count} of {planned[tier, shipped]} probes" if planned[tier, shipped] > 1 else ""
        where = ", on the machine of the shipped evidence" if shipped else ""
        yield f"{tier} untested{many}{where}: {reason}"


def _evidence_json(observation: Observation) -> dict[str, object]:
    question = observation.question
    return {
        "tier": question.tier.value,
        "probe": question.probe,
        "outcome": observation.outcome.value,
        "reason": observation.reason,
        "machine": observation.machine,
        "shipped": observation.shipped,
        "at": observation.at.isoformat(),
        "seconds": observation.seconds,
        "tool": question.tool,
        "reads": dict(sorted(question.reads.items())),
        "key": question.key,
    }
