"""The page of a night: one HTML file that loads nothing; what packages or logs say is escaped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matrix.nightly.comparison import Kind
from matrix.tier import Status
from reports.legend import one_line
from reports.nightly import HEADS, MARKS, SHOWN

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 70rem; padding: 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; vertical-align: top;
padding: .35rem .6rem; border-bottom: 1px solid color-mix(in srgb, currentColor 25%, transparent); }
code { font-size: .9em; overflow-wrap: anywhere; } td { overflow-wrap: anywhere; }
ul { margin: 0; padding-left: 1.1rem; } .aside { opacity: .75; } summary { cursor: pointer; font-weight: 600; }
"""


def page(section: Mapping[str, Any]) -> str:
    """Return the page of a section of the report (reports/nightly.py: `section`)."""
    body = "\n".join(_body(section))
    name = _text(f"verl-matrix nightly: {section['title']}")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{name}</title><style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _text(value: object) -> str:
    from markupsafe import escape

    return str(escape(one_line(str(value))))


def _body(section: Mapping[str, Any]) -> Iterator[str]:
    yield f"<h1>verl-matrix nightly: {_text(section['title'])}</h1>"
    before = section["before_at"]
    compared = f" Compared with the night of {before[:16].replace('T', ' ')} UTC." if before else ""
    yield f"<p>{_text(section['denominator'])}{_text(compared)}</p>"
    for note in section["notes"]:
        yield f'<p class="aside">Note: {_text(note)}</p>'
    yield from _counts(section)
    for kind in SHOWN:
        head = "Failing" if section["first"] and kind is Kind.STILL_FAILING else HEADS[kind]
        yield from _kind(kind, head, [shift for shift in section["shifts"] if shift["kind"] == kind])
    if section["releases"]:
        yield f"<h2>Releases: {len(section['releases'])} changes</h2>"
        yield f"<ul>{''.join(f'<li>{_text(line)}</li>' for line in section['releases'])}</ul>"
    if section["dropped"]:
        yield f'<p class="aside">No longer planned: {_text(", ".join(section["dropped"]))}</p>'
    yield from _history(section["history"])
    tools = ", ".join(f"{name} {version}" for name, version in (section["snapshot"].get("tools") or {}).items())
    yield f'<p class="aside">{_text(tools)}</p>'


def _counts(section: Mapping[str, Any]) -> Iterator[str]:
    changed, counts = section["changed"], section["counts"]
    cells = [(f"{MARKS[kind]} {kind}", changed.get(kind, 0)) for kind in SHOWN]
    cells += [(status.value, counts.get(status, 0)) for status in Status]
    cells += [("ran", counts.get("ran", 0)), ("planned", counts.get("planned", 0))]
    heads = "".join(f"<th scope=col>{_text(name)}</th>" for name, _ in cells)
    yield f"<table><thead><tr>{heads}</tr></thead><tbody><tr>"
    yield "".join(f"<td>{count}</td>" for _, count in cells) + "</tr></tbody></table>"


def _kind(kind: Kind, head: str, shifts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not shifts:
        return
    folded = kind in (Kind.STILL_FAILING, Kind.NOT_RUN)
    heading = f"{MARKS[kind]} {head}: {len(shifts)}"
    yield f"<details><summary>{heading}</summary>" if folded else f"<h2>{heading}</h2>"
    heads = "".join(f"<th scope=col>{head}</th>" for head in ("cell", "status", "what"))
    yield f"<table><thead><tr>{heads}</tr></thead><tbody>"
    for shift in shifts:
        status = shift["now"] if shift["before"] in (None, shift["now"]) else f"{shift['before']} → {shift['now']}"
        lines = [turn["line"] for turn in shift["turns"]] or list(shift["why"])
        if shift["cause"]:
            lines.append(f"cause: {shift['cause']['line']}")
        lines += [f"first bad: {shift['boundary']}"] if shift["boundary"] else []
        lines += [shift["retry"]] if shift["retry"] else []
        told = "".join(f"<li>{_text(line)}</li>" for line in lines)
        yield f"<tr><td><code>{_text(shift['name'])}</code></td><td>{_text(status)}</td><td><ul>{told}</ul></td></tr>"
    yield "</tbody></table>" + ("</details>" if folded else "")


def _history(history: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if len(history) < 2:
        return
    heads = ("night", "new failures", "fixed", "flaky", "still failing", "work", "ran", "planned")
    yield "<h2>Nights</h2><table><thead><tr>"
    yield "".join(f"<th scope=col>{head}</th>" for head in heads) + "</tr></thead><tbody>"
    for night in history:
        changed, counts = night["changed"], night["counts"]
        kinds = (Kind.NEW_FAILURE, Kind.FIXED, Kind.FLAKY, Kind.STILL_FAILING)
        works = counts.get(Status.WORKS, 0) + counts.get(Status.DEGRADED, 0)
        cells = (
            str(night["at"])[:16].replace("T", " "),
            *(changed.get(kind, 0) for kind in kinds),
            works,
            counts.get("ran", 0),
            counts.get("planned", 0),
        )
        yield f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in cells)}</tr>"
    yield "</tbody></table>"
