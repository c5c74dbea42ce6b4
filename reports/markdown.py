"""The Markdown summary: what a CI shows at the end of a job; short, with its denominators, links on demand."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import quote

from matrix.figures import Limit, gpu_probes, limits, machines
from matrix.job import RunResult
from matrix.observe import Observation
from matrix.tier import Outcome, Status
from matrix.tried import Tried, short
from matrix.verdict import Verdict
from reports import headline
from reports.document import is_probe, patches, probe_document
from reports.gpu import (
    THRESHOLD_HEADS,
    gpu_column,
    gpu_document,
    machine_rows,
    recorded_line,
    threshold_words,
)
from reports.legend import OUTCOMES, STATUSES, one_line

LIMIT_BYTES = 900_000
"""A step summary of GitHub's CI may be 1 MiB; what goes beyond is not shown at all, so this stays well below."""
REASON_CHARS = 300
TOP_REASONS = 5
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~!@&$])")


def summary(result: RunResult, *, report_url: str = "") -> str:
    """Return the summary; with `report_url` every cell links to its place in the HTML page there."""
    head = [
        f"# verl-matrix: {headline.title(result)}",
        "",
        escaped(headline.denominator(result)),
        "",
        "| " + " | ".join(f"{STATUSES[status].mark} {status}" for status in Status) + " | planned |",
        "|" + " ---: |" * (len(Status) + 1),
        "| " + " | ".join(str(count) for count in result.counts.values()) + f" | {result.planned} |",
        "",
        *(f"> {escaped(note)}" for note in result.notes),
        *(("", escaped(recorded)) if (recorded := recorded_line(result.verdicts)) else ()),
    ]
    lines = [
        *head,
        *_wrong(result),
        *_top_reasons(result),
        *_tables(result, report_url),
        *_probed(result),
        *_gpus(result),
        *_benches(result),
    ]
    foot = ["", f"<sub>{escaped(headline.effort(result))}. {escaped(headline.provenance(result))}</sub>"]
    return "\n".join([*within(lines, LIMIT_BYTES), *foot]) + "\n"


def _wrong(result: RunResult) -> Iterator[str]:
    """Yield what was seen against the records of known failures, first of all: the records are to be mended."""
    wrong = [(verdict, item) for verdict in result.verdicts for item in verdict.disagreements]
    if not wrong:
        return
    yield from ("", f"## {OUTCOMES[Outcome.BROKEN].mark} record wrong: {len(wrong)}", "")
    yield from ("| cell | record | what | proposed |", "| --- | --- | --- | --- |")
    for verdict, item in wrong:
        words = [str(item.detail.get(name) or "") for name in ("failure", "disagreement", "proposal")]
        yield f"| `{verdict.cell.name}` | " + " | ".join(escaped(word) for word in words) + " |"


def _probed(result: RunResult) -> Iterator[str]:
    """Yield for each cell that was installed how many probes ran, what was seen, and what was patched."""
    for verdict in result.verdicts:
        here = [item for item in verdict.evidence if is_probe(item) and not item.shipped]
        if not any(item.outcome is not Outcome.UNTESTED for item in here) and not verdict.recorded:
            continue
        counts = [
            f"{item.tier} {item.ran} of {item.planned} probes ran, {item.planned - item.ran} untested{_where(item)}"
            for item in verdict.tried
            if item.tier.is_deep
        ]
        yield from ("", f"### Probed: `{verdict.cell.name}`", "", escaped("; ".join(counts)))
        patched = patches(verdict)
        if patched:
            yield from ("", f"*Patched*: {escaped('; '.join(patched))}")
        seen = [item for item in verdict.evidence if item.detail.get("seen") == "reproduced"]
        if seen:
            yield ""
        # Several probes may try one record, each in its own way.
        yield from dict.fromkeys(_seen(item) for item in seen)


def _seen(item: Observation) -> str:
    known = probe_document(item)
    out = "; ".join(map(str, item.detail.get("way_out") or ()))  # type: ignore[call-overload]
    return "- " + escaped(f"{known['failure']}: {known['title']}. Way out: {out}")


def _where(item: Tried) -> str:
    return f" ({', '.join(map(short, item.machines))}, {item.at:%Y-%m-%d}{item.aside})" if item.shipped else ""


def _benches(result: RunResult) -> Iterator[str]:
    """Yield what the benches showed, where there are any."""
    if not result.benches:
        return
    from reports.benches import markdown, section

    if (made := section(result)) is not None:
        yield from ("", *markdown(made).splitlines())


def _gpus(result: RunResult) -> Iterator[str]:
    """Yield what came of the GPU probes cell by cell, the thresholds, and the machines."""
    if gpu_document(result.verdicts) is None:
        return
    heads = ("cell", "probes", "as predicted", "surprises", "GPU time", "left")
    yield from ("", "## On GPUs", "", f"| {' | '.join(heads)} |", f"| --- |{' ---: |' * (len(heads) - 1)}")
    for verdict in result.verdicts:
        probes = gpu_probes(verdict.evidence)
        if probes.ran:
            told = (f"{probes.ran} of {probes.planned}", str(probes.trials), str(len(probes.surprises)))
            more = (f"{probes.seconds:.0f} s", f"{probes.left_mib} MiB")
            yield f"| `{verdict.cell.name}` | {' | '.join((*told, *more))} |"
    items = [item for verdict in result.verdicts for item in verdict.evidence]
    yield from _thresholds(limits(items))
    for item in machines(items).values():
        facts = item.detail.get("facts")
        rows = machine_rows(facts) if isinstance(facts, Mapping) else []
        words = "; ".join(f"{name} {value}" for name, value in rows)
        where = f"{item.machine}, {item.at:%Y-%m-%d}{', shipped evidence' * bool(item.shipped)}"
        yield from ("", escaped(f"{where}: {words}"))


def _thresholds(found: Sequence[Limit]) -> Iterator[str]:
    if not found:
        return
    heads = THRESHOLD_HEADS
    yield from ("", "### Thresholds of memory", "", f"| {' | '.join(heads.values())} |", f"|{' --- |' * len(heads)}")
    for row in found:
        words = threshold_words(row.to_json())
        yield "| " + " | ".join(escaped(words[name]) for name in heads) + " |"


def _tables(result: RunResult, report_url: str) -> Iterator[str]:
    """Yield one table a status, the bad ones open, the others folded."""
    for status in (Status.BROKEN, Status.CONFLICT, Status.DEGRADED, Status.UNTESTED, Status.WORKS):
        verdicts = [verdict for verdict in result.verdicts if verdict.status is status]
        if not verdicts:
            continue
        entry = STATUSES[status]
        heading = f"{entry.mark} {entry.name}: {len(verdicts)} of {result.planned}"
        folded = status in (Status.WORKS, Status.UNTESTED)
        yield from ("", f"<details><summary>{heading}</summary>", "") if folded else ("", f"## {heading}", "")
        gpu = gpu_column(verdicts)
        heads = ["cell", "resolves", "works", "tried", *(["on a GPU"] if gpu else []), "why"]
        yield from (f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}")
        for verdict in verdicts:
            yield _row(verdict, report_url, gpu)
        if folded:
            yield from ("", "</details>")


def _row(verdict: Verdict, report_url: str, gpu: Mapping[str, str]) -> str:
    name = f"`{verdict.cell.name}`"
    if report_url:
        name = f"[{name}]({report_url}#/cell/{quote(verdict.cell.name)})"
    works = verdict.works.value + (f" ({escaped(', '.join(verdict.features))})" if verdict.features else "")
    why = escaped(_cut("; ".join(verdict.reasons)))
    tried = verdict.deepest.value if verdict.deepest else "nothing"
    on_gpu = f" {escaped(gpu.get(verdict.cell.name, ''))} |" if gpu else ""
    return f"| {name} | {verdict.resolvable} | {works} | {tried} |{on_gpu} {why} |"


def _top_reasons(result: RunResult) -> Sequence[str]:
    """Return the reasons that stand behind the most cells, where one stands behind several."""
    bad = [
        verdict for verdict in result.verdicts if verdict.status in (Status.BROKEN, Status.CONFLICT) and verdict.reasons
    ]
    common = [
        (reason, count) for reason, count in Counter(v.reasons[0] for v in bad).most_common(TOP_REASONS) if count > 1
    ]
    if not common:
        return ()
    lines = ["", f"**What stands behind most of the {len(bad)} broken or conflicting cells**", ""]
    return [*lines, *(f"- {count} of {len(bad)}: {escaped(_cut(reason))}" for reason, count in common)]


def within(lines: Sequence[str], limit: int) -> Iterator[str]:
    """Yield lines until the limit is reached, and then how many are missing."""
    size = 0
    for number, line in enumerate(lines):
        size += len(line.encode()) + 1
        if size > limit:
            yield ""
            yield f"… {len(lines) - number} more lines; the HTML page and report.json have them all."
            return
        yield line


def escaped(text: str) -> str:
    """Return `text` on one line such that Markdown and HTML show it as it is; control characters are dropped."""
    return _SPECIAL.sub(r"\\\1", one_line(text))


def _cut(text: str) -> str:
    return text if len(text) <= REASON_CHARS else text[: REASON_CHARS - 1].rstrip() + "…"
