"""The probes of a cell for the terminal: how many ran, what contradicts a record, what was seen, what failed."""

from __future__ import annotations

from collections.abc import Iterator

from matrix.figures import gpu_probes, limits
from matrix.tier import Outcome
from matrix.tried import Tried, short
from matrix.verdict import Verdict
from reports.document import is_probe, patches, probe_document
from reports.gpu import threshold_lines
from reports.legend import OUTCOMES, one_line

SHOWN = 12
"""So many probes of a kind are shown; the reports have all."""


def probe_lines(verdict: Verdict) -> list[str]:
    """Return the lines about the probes of a cell, none where it was not to be installed."""
    probes = [probe_document(item) for item in verdict.evidence if is_probe(item)]
    lines = [f"  {item.tier:<9}  {_count(verdict, item)}" for item in verdict.tried if item.tier.is_deep]
    lines += list(_on_gpus(verdict))
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


def _count(verdict: Verdict, item: Tried) -> str:
    """Return how many probes of a tier ran, and where that was not here; of a tier that was not tried, why not."""
    if not item.ran:
        found = (one for one in verdict.evidence if one.question.tier is item.tier and one.shipped == item.shipped)
        return f"untested: {'; '.join(dict.fromkeys(one_line(one.reason) for one in found))}{item.aside}"
    untested = f", {item.planned - item.ran} untested" if item.ran < item.planned else ""
    where = f", {', '.join(map(short, item.machines))}, {item.at:%Y-%m-%d}" if item.shipped else ""
    return f"{item.ran} of {item.planned} probes ran{untested}{where}{item.aside}"


def _on_gpus(verdict: Verdict) -> Iterator[str]:
    """Yield what the GPU probes came to, and the thresholds of memory that were measured."""
    gpu, found = gpu_probes(verdict.evidence), limits(verdict.evidence)
    if gpu.ran:
        yield f"  on GPUs    {gpu.line}"
    if found:
        yield "  thresholds"
        yield from (f"    {line}" for line in threshold_lines(found))
