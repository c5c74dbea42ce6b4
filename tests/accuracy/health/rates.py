"""How often `health` is wrong: ``python tests/accuracy/health/rates.py [--logs N] [--seed S]`` prints two tables.

False alarms on simulated healthy logs (a log counts once, whatever the number of symptoms; notes are none), then for
each simulated fault how often it is told, after how many steps, and how often something was told before it began.
"""

from __future__ import annotations

import argparse
import io
import math
import random
import statistics
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))

from matrix.health.diagnosis import examine  # noqa: E402
from matrix.health.history import collect  # noqa: E402
from matrix.health.lines import Notes, logged_steps  # noqa: E402
from matrix.health.symptom import Symptom  # noqa: E402
from tests.accuracy.health import real  # noqa: E402
from tests.accuracy.health.simulate import FAULTS, FORMS, Steps, healthy, shape, written  # noqa: E402


def symptoms(text: str) -> list[Symptom]:
    """Return what fails in the log `text`."""
    (run,) = collect(logged_steps(io.BytesIO(text.encode()), Notes()))
    return [found for found in examine(run) if found.fails]


def told_at(rows: Steps, form: str, kind: str, start: int) -> int | None:
    """Return after how many steps of the fault it is told for the first time, None where it never is."""
    for count in range(start + 1, len(rows) + 1):
        # A spike just before may be taken into the stretch, so its first step may lie a window before the fault.
        if any(found.kind == kind and found.since > start - 6 for found in symptoms(written(rows[:count], form))):
            return count - start
    return None


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=int, default=1000, help="healthy logs (default: %(default)s)")
    parser.add_argument("--faulty", type=int, default=20, help="logs of each fault (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    false, kinds, steps = 0, Counter[str](), 0
    for number in range(args.logs):
        rng = random.Random(f"{args.seed} {number}")
        rows = healthy(rng, shape(rng))
        steps += len(rows)
        found = symptoms(written(rows, FORMS[number % len(FORMS)]))
        false += bool(found)
        kinds.update({item.kind.value for item in found})
    _say(f"healthy simulated logs: {args.logs}, {steps} steps")
    upper = _upper(false, args.logs)
    _say(f"false alarms: {false} of {args.logs} logs ({false / args.logs:.2%}, at most {upper:.2%} at 95 %)")
    for kind, count in kinds.most_common():
        _say(f"  {kind}: {count}")
    _say(f"real healthy log (verl's notebook, 61 steps): {len(symptoms(real.console()))} symptoms")
    _say(f"\n{'fault':36} {'told':>9} {'steps until told: median':>25} {'worst':>6} {'before it began':>16}")
    for name, (fault, kind) in FAULTS.items():
        delays, missed, early = [], 0, 0
        for number in range(args.faulty):
            rng = random.Random(f"{args.seed} {name} {number}")
            drawn = shape(rng, steps=100)
            rows = healthy(rng, drawn)
            start = rng.randrange(40, 70)
            fault(rng, rows, start)
            if not any(_about(kind) in row for row in rows):
                continue
            form = FORMS[number % len(FORMS)]
            delay = told_at(rows, form, kind, start)
            early += any(found.since <= start for found in symptoms(written(rows[: start + 1], form)))
            missed += delay is None
            delays += [delay] if delay is not None else []
        count = len(delays) + missed
        typical = f"{statistics.median(delays):.0f}" if delays else "-"
        _say(f"{name:36} {len(delays):>4}/{count:<4} {typical:>25} {max(delays, default=0):>6} {early:>16}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


def _about(kind: str) -> str:
    """Return a metric without which the fault cannot be in a log."""
    return {"kl-runaway": "actor/kl_loss", "value-loss-rise": "critic/vf_loss"}.get(kind, "critic/score/mean")


def _upper(hits: int, of: int) -> float:
    """Return the upper end of the 95 % interval of a share (Wilson, one-sided 97.5 %)."""
    z, share = 1.96, hits / of
    root = math.sqrt(share * (1 - share) + z * z / (4 * of))
    return (share + z * z / (2 * of) + z * root / math.sqrt(of)) / (1 + z * z / of)


if __name__ == "__main__":
    main()
