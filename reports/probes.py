"""The probes of a cell for the terminal: how many ran, what contradicts a record, what was seen, what failed."""

from __future__ import annotations

from matrix.tier import Outcome
from matrix.verdict import Verdict
from reports.document import patches, probe_counts, probe_document
from reports.legend import OUTCOMES, one_line

SHOWN = 12
"""So many probes of a kind are shown; the reports have all."""


def probe_lines(verdict: Verdict) -> list[str]:
    """Return the lines about the probes of a cell, none where it was not to be installed."""
    probes = [probe_document(item) for item in verdict.evidence if item.question.tier.is_deep]
    lines = []
    for tier, count in probe_counts(probes).items():
        untested = f", {count['untested']} untested" if count["untested"] else ""
        lines.append(f"  {tier:<9}  {count['ran']} of {count['planned']} probes ran{untested}")
    patched = patches(verdict)
    lines += [f"  patched    {one_line(patch)}" for patch in patched]
    red = [item for item in probes if item["disagreement"]]
    for item in red[:SHOWN]:
        lines.append(f"    {OUTCOMES[Outcome.BROKEN].mark} record wrong: {item['failure']}: {item['disagreement']}")
        lines += [f"        {one_line(str(item['proposal']))}"] if item["proposal"] else []
    bad = [item for item in probes if item["outcome"] not in (Outcome.OK, Outcome.UNTESTED)]
    for item in bad[:SHOWN]:
        mark = OUTCOMES[Outcome(str(item["outcome"]))].mark
        lines.append(f"    {mark} {str(item['probe']).removeprefix('compat/')}: {one_line(str(item['reason']))}")
        if item["seen"] == "reproduced" and isinstance(item["way_out"], list):
            lines += [f"        way out: {one_line(step)}" for step in item["way_out"]]
    left = max(len(red) - SHOWN, 0) + max(len(bad) - SHOWN, 0)
    return [*lines, f"    … and {left} more; the reports have all"] if left else lines
