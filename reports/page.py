"""The HTML page: self-contained, made from the JSON report; everything that packages or logs say is escaped."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matrix.finding import Effect, Kind
from matrix.job import RunResult
from matrix.tier import Outcome, Status, Tier
from reports.document import document
from reports.gpu import THRESHOLD_HEADS, machine_rows, threshold_words
from reports.legend import EFFECTS, OUTCOMES, STATUSES, TIERS

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

TEMPLATES = Path(__file__).with_name("templates")
ROWS = 200
"""So many findings of one effect are shown in a cell; the rest is in the JSON report."""
FOLDED_ROWS = 40
_REPRODUCTION = "reproduction"
"""Cells that are there for a record stand together, whatever its family."""
_SECONDARY_GROUPS = frozenset({"ci", "gpu"})
_HAYSTACK_CHARS = 4_000


def page(result: RunResult, *, doc: dict[str, Any] | None = None) -> str:
    """Return the page; `doc` is the result's `document` where it was made already."""
    data: dict[str, Any] = document(result) if doc is None else doc
    template = environment().get_template("page.html.j2")
    return template.render(
        doc=data,
        groups=_groups([_shown(cell) for cell in data["cells"]]),
        statuses=STATUSES,
        outcomes=OUTCOMES,
        tiers=TIERS,
        when=when(data["at"]),
        gpu=_gpu(data["gpu"]) if data["gpu"] else None,
    )


def _gpu(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the tier `gpu` said, with times and values for people."""
    return {
        **data,
        "machines": [
            {**item, "rows": machine_rows(item["facts"]), "when": when(item["at"])} for item in data["machines"]
        ],
        "thresholds": [
            {**item, "words": threshold_words(item), "when": when(item["at"])} for item in data["thresholds"]
        ],
        "starts": [{**item, "when": when(item["at"])} for item in data["starts"]],
        "heads": THRESHOLD_HEADS,
    }


def environment() -> Environment:
    """Return the template environment: escapes everything, refuses names that are not there."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        finalize=printable,
    )
    made.filters["brief"] = brief
    made.filters["breakable"] = breakable
    return made


def printable(value: object) -> object:
    """Return text without control characters, which a log may hold and HTML does not allow; anything else as it is."""
    if not isinstance(value, str) or value.isprintable():
        return value
    return type(value)("".join(char for char in value if char.isprintable() or char in "\n\t"))


def breakable(text: str) -> Markup:
    """Return a dotted name or a path, escaped, that a browser may break after a dot, slash or underscore."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"([./_])(?=\w)", r"\1<wbr>", str(escape(printable(text)))))  # noqa: S704 - escaped just before


def _groups(cells: list[dict[str, Any]]) -> list[dict[str, object]]:
    """Return the cells under the first of their groups, in the order of the plan."""
    found: dict[str, list[dict[str, Any]]] = {}
    for cell in cells:
        names = [name for name in cell["groups"] if name not in _SECONDARY_GROUPS] or cell["groups"] or [""]
        names = [_REPRODUCTION] if _REPRODUCTION in names else names
        found.setdefault(names[0], []).append(cell)
    return [
        {"key": key or "other", "title": _title(key), "cells": members, "summary": _summary(members)}
        for key, members in found.items()
    ]


def _title(group: str) -> str:
    if group == "gpu":
        return "On a GPU"
    return group.replace("-", " ").capitalize() if group else "Cells"


def _summary(cells: list[dict[str, Any]]) -> str:
    """Return how the cells of a group came out, as `3 of 16 work, 13 in conflict`."""
    counts = Counter(cell["status"] for cell in cells)
    parts = [f"{counts[status]} {status}" for status in Status if counts[status]]
    return f"{len(cells)} {'cell' if len(cells) == 1 else 'cells'}: {', '.join(parts)}"


def _shown(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cell with what only the page needs: times for people, findings by effect, text to filter by."""
    effects = _parts([_finding(item) for item in (cell["surface"] or {}).get("findings", ())])
    differs = [f"deviation: {cell['deviation']}"] if cell["deviation"] else []
    if cell["patches"]:
        differs.append(f"patched: {len(cell['patches'])} {'patch' if len(cell['patches']) == 1 else 'patches'}")
    if cell["as_of"]:
        differs.append(f"as of {when(cell['as_of'])}")
    return {
        **cell,
        "effects": effects,
        "differs": differs,
        "probing": _probing(cell["probes"]),
        "deep": [{**item, "untested": item["planned"] - item["ran"]} for item in cell["tried"] if _is_deep(item)],
        "marks": _marks(cell["tried"]),
        "when": when(cell["at"]) if cell["at"] else "never",
        "evidence": [{**item, "when": when(item["at"])} for item in cell["evidence"]],
        "haystack": _haystack(cell, effects),
    }


def _is_deep(item: Mapping[str, Any]) -> bool:
    return Tier(item["tier"]).is_deep


def _marks(tried: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return for each tier how it came out, the best place to have tried it first: here, else by the evidence."""
    found: dict[str, dict[str, Any]] = {}
    for item in tried:
        held = found.get(item["tier"])
        if held is None or (held["outcome"] == Outcome.UNTESTED and item["outcome"] != Outcome.UNTESTED):
            found[item["tier"]] = item
    return [found.get(tier.value) or {"tier": tier.value, "outcome": "", "line": "", "shipped": ""} for tier in _MARKED]


_MARKED = tuple(tier for tier in Tier if tier is not Tier.BENCH)


def _probing(probes: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the probes by what a reader looks for: records that are wrong, what was seen, what failed, the others."""
    wrong = [item for item in probes if item["disagreement"]]
    known = [item for item in probes if item["seen"] == "reproduced" and not item["disagreement"]]
    failed = [
        item
        for item in probes
        if item["outcome"] not in (Outcome.OK, Outcome.UNTESTED) and item not in wrong and item not in known
    ]
    return {
        "parts": [
            {"title": title, "rows": rows, "folded": folded}
            for title, rows, folded in (
                ("Record wrong", wrong, False),
                ("Known failures, seen as predicted", known, False),
                ("Failed", failed, False),
                ("Untested", [item for item in probes if item["outcome"] == Outcome.UNTESTED], True),
                ("Passed", [i for i in probes if i["outcome"] == Outcome.OK and not i["disagreement"]], True),
            )
            if rows
        ],
    }


def _parts(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the findings by effect, those that decide nothing in parts of their own, which the page folds."""
    parts = []
    for key, title, rows, limit in (
        *(
            (effect.value, title, [item for item in findings if item["counts"] and item["effect"] == effect], ROWS)
            for effect, title in EFFECTS.items()
            if effect is not Effect.GUARDED
        ),
        ("uncertain", "Not certain", [i for i in findings if not i["certain"]], FOLDED_ROWS),
        ("absent", "About packages that are not in this cell", [i for i in findings if i["absent"]], FOLDED_ROWS),
        ("guarded", EFFECTS[Effect.GUARDED], [i for i in findings if i["guarded"]], FOLDED_ROWS),
    ):
        if rows:
            folded = key in ("uncertain", "absent", "guarded")
            left = max(len(rows) - limit, 0)
            part = {
                "key": key,
                "title": title,
                "total": len(rows),
                "rows": rows[:limit],
                "left": left,
                "folded": folded,
            }
            parts.append(part)
    return parts


def _finding(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return a finding with every field that the table shows, also where an older observation lacks one."""
    defaults: dict[str, Any] = {"found_at": None, "moved_to": [], "feature": "", "entry_points": [], "exception": ""}
    filled = {**defaults, "guard": "", "certain": True, "message": "", **item}
    for name in ("used_at", "found_at"):
        if filled[name]:
            filled[name] = {"line": 0, "scope": "", **filled[name]}
    filled["absent"] = filled["certain"] and filled["kind"] == Kind.PACKAGE_ABSENT
    filled["guarded"] = filled["certain"] and not filled["absent"] and filled["effect"] == Effect.GUARDED
    filled["counts"] = filled["certain"] and not filled["absent"] and not filled["guarded"]
    # The full name stands above the message, so in it the last part is enough.
    filled["message"] = filled["message"].replace(filled["symbol"], "…" + filled["symbol"].rpartition(".")[2])
    return filled


def _haystack(cell: Mapping[str, Any], effects: list[dict[str, Any]]) -> str:
    """Return the text in which the filter looks, lower case."""
    words = [
        cell["cell"],
        cell["status"],
        cell["resolvable"],
        cell["works"],
        *cell["groups"],
        *cell["requirements"],
        *cell["features"],
        *cell["reasons"],
        *(item["failure"] for item in cell["probes"] if item["failure"]),
        *(item["symbol"] for part in effects if not part["folded"] for item in part["rows"]),
    ]
    return " ".join(" ".join(words).lower().split())[:_HAYSTACK_CHARS]


def when(text: str) -> str:
    """Return an ISO time as people read it, UTC."""
    return f"{datetime.fromisoformat(text).astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def brief(digest: str) -> str:
    """Return a digest cut to what tells it from others; anything else as it is."""
    algorithm, _, value = digest.partition(":")
    return f"{algorithm}:{value[:10]}" if value and len(value) > 16 else digest[:24]
