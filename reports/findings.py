"""Findings as text for a terminal, Markdown, annotations for a CI, or JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

from matrix.finding import Effect, Finding
from reports.legend import EFFECTS, one_line
from reports.markdown import escaped

Format = Literal["text", "markdown", "annotation", "json"]
_LEVELS = {Effect.BREAKS_IMPORT: "error", Effect.BREAKS_FEATURE: "error", Effect.DEGRADES: "warning"}


def render(findings: Sequence[Finding], form: Format) -> str:
    """Return the findings in one of the formats: what breaks first, the certain before the others."""
    order = list(EFFECTS)
    ordered = sorted(findings, key=lambda item: (order.index(item.effect), not item.certain))
    match form:
        case "text":
            return _text(ordered)
        case "markdown":
            return _markdown(ordered)
        case "annotation":
            return "\n".join(_annotation(item) for item in ordered)
        case "json":
            return json.dumps([item.to_json() for item in ordered], indent=2, ensure_ascii=False)


def finding_lines(item: Finding) -> list[str]:
    """Return a finding as lines for a terminal: where and what, where it is now, when it matters, and who reaches it.

    What the message says already is not said again.
    """
    message = one_line(item.message or item.symbol)
    doubt = "" if item.certain else " (not certain)"
    feature = f" [{item.feature}]" if item.feature else ""
    lines = [f"{item.used_at}  {message}{feature}{doubt}"]
    owner, _, name = item.symbol.rpartition(".")
    if item.symbol not in message and not (owner in message and name in message):
        lines.append(f"  uses: {one_line(item.symbol)}")
    if item.moved_to:
        lines.append(f"  now: {one_line(_now(item, message))}")
    if item.guard and one_line(item.guard) not in message:
        lines.append(f"  {'guard' if item.effect is Effect.GUARDED else 'when'}: {one_line(item.guard)}")
    if item.entry_points:
        lines.append(f"  reached by: {', '.join(item.entry_points)}")
    return lines


def _now(item: Finding, message: str) -> str:
    """Return where it may be found now: the names, or only the file where the message has the best name already."""
    if item.moved_to[0] in message and item.found_at:
        return f"{item.found_at}"
    where = f" ({item.found_at})" if item.found_at else ""
    return f"{', '.join(item.moved_to)}{where}"


def _text(findings: Sequence[Finding]) -> str:
    lines = []
    for effect, heading in EFFECTS.items():
        shown = [item for item in findings if item.effect is effect]
        if shown:
            lines += [f"{heading} ({len(shown)}):", *(f"  {line}" for item in shown for line in finding_lines(item))]
    return "\n".join(lines) or "no finding"


def _markdown(findings: Sequence[Finding]) -> str:
    lines = ["| effect | used at | what | now at | feature | reached by |", "| --- | --- | --- | --- | --- | --- |"]
    for item in findings:
        doubt = "" if item.certain else " (not certain)"
        columns = (
            item.effect.value + doubt,
            str(item.used_at),
            f"{item.symbol}: {item.message}" if item.message else item.symbol,
            ", ".join(item.moved_to),
            item.feature,
            ", ".join(item.entry_points),
        )
        lines.append(f"| {' | '.join(escaped(column) for column in columns)} |")
    return "\n".join(lines)


def _annotation(item: Finding) -> str:
    """Return a workflow command of GitHub's CI; one that is not certain is no more than a notice."""
    level = _LEVELS.get(item.effect, "notice") if item.certain else "notice"
    title = _property(EFFECTS[item.effect] + (f" ({item.feature})" if item.feature else ""))
    line = f",line={item.used_at.line}" if item.used_at.line else ""
    now = f" Now: {', '.join(item.moved_to)}." if item.moved_to else ""
    text = one_line(f"{item.symbol}: {item.message}{now}").replace("%", "%25")
    return f"::{level} file={_property(item.used_at.path)}{line},title={title}::{text}"


def _property(text: str) -> str:
    return one_line(text).replace("%", "%25").replace(":", "%3A").replace(",", "%2C")
