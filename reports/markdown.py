"""The Markdown summary: what a CI shows at the end of a job; short, with its denominators, links on demand."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from urllib.parse import quote

from matrix.job import RunResult
from matrix.tier import Outcome, Status
from matrix.verdict import Verdict
from reports import headline
from reports.document import patches, probe_counts, probe_document
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
    ]
    lines = [*head, *_wrong(result), *_top_reasons(result), *_tables(result, report_url), *_probed(result)]
    foot = ["", f"<sub>{escaped(headline.effort(result))}. {escaped(headline.provenance(result))}</sub>"]
    return "\n".join([*_within(lines, LIMIT_BYTES), *foot]) + "\n"


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
        probes = [probe_document(item) for item in verdict.evidence if item.question.tier.is_deep]
        if not probes:
            continue
        counts = "; ".join(
            f"{tier} {count['ran']} of {count['planned']} probes ran, {count['untested']} untested"
            for tier, count in probe_counts(probes).items()
        )
        yield from ("", f"### Probed: `{verdict.cell.name}`", "", escaped(counts))
        patched = patches(verdict)
        if patched:
            yield from ("", f"*Patched*: {escaped('; '.join(patched))}")
        seen = [item for item in verdict.evidence if item.detail.get("seen") == "reproduced"]
        if seen:
            yield ""
        for item in seen:
            known = probe_document(item)
            out = "; ".join(map(str, item.detail.get("way_out") or ()))  # type: ignore[call-overload]
            yield "- " + escaped(f"{known['failure']}: {known['title']}. Way out: {out}")


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
        yield from ("| cell | resolves | works | tried | why |", "| --- | --- | --- | --- | --- |")
        for verdict in verdicts:
            yield _row(verdict, report_url)
        if folded:
            yield from ("", "</details>")


def _row(verdict: Verdict, report_url: str) -> str:
    name = f"`{verdict.cell.name}`"
    if report_url:
        name = f"[{name}]({report_url}#cell-{quote(verdict.cell.name)})"
    works = verdict.works.value + (f" ({escaped(', '.join(verdict.features))})" if verdict.features else "")
    why = escaped(_cut("; ".join(verdict.reasons)))
    tried = verdict.deepest.value if verdict.deepest else "nothing"
    return f"| {name} | {verdict.resolvable} | {works} | {tried} | {why} |"


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


def _within(lines: Sequence[str], limit: int) -> Iterator[str]:
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
