"""What the surface tier says of the installed releases, as checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matrix.doctor.checkup import Check, Grade, ok, unknown
from matrix.finding import Effect, Finding
from matrix.job import RunResult
from matrix.tier import Tier

TOPIC = "code against code"
_SHOWN = 8
_ORDER = list(Effect)


def surface_checks(result: RunResult) -> list[Check]:
    """Return a check for each finding that decides the verdict, or one that says that there is none, or why not."""
    (verdict,) = result.verdicts
    observation = verdict.observation(Tier.SURFACE)
    if observation is None or verdict.deepest is None:
        why = "; ".join([*verdict.reasons, *(failure.what for failure in result.failures)])
        return [unknown(TOPIC, "untested: the releases could not be read", why, "verl-matrix surface says more.")]
    stored = observation.detail.get("findings", ())
    rows: Sequence[Mapping[str, object]] = stored if isinstance(stored, list | tuple) else ()
    findings = [found for found in map(Finding.from_json, rows) if found.decides]
    findings.sort(key=lambda found: _ORDER.index(found.effect))
    checks = [_check(found) for found in findings[:_SHOWN]]
    if len(findings) > _SHOWN:
        checks.append(
            unknown(TOPIC, f"{len(findings) - _SHOWN} more findings", then="verl-matrix surface lists all of them.")
        )
    return checks or [ok(TOPIC, f"what verl uses of the installed releases is there; {len(rows)} guarded or uncertain")]


def _check(found: Finding) -> Check:
    grade = Grade.BAD if found.effect is Effect.BREAKS_IMPORT or found.default_path else Grade.WARN
    return Check(
        topic=TOPIC,
        grade=grade if found.effect.is_break else Grade.WARN,
        what=found.message or f"{found.symbol} is not in {found.target}",
        why=f"{found.effect.value}; used at {found.used_at}"
        + (f", by the feature {found.feature}" if found.feature else ""),
        then=f"It may be {', '.join(found.moved_to)} now." if found.moved_to else "",
    )
