"""What the page shows of the JSON report: cells in brief for the matrix, each in full apart, words for people."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from packaging.version import InvalidVersion, Version

from matrix.finding import Effect, Kind
from matrix.tier import Outcome, Tier
from matrix.tried import short
from reports.gpu import THRESHOLD_HEADS, machine_rows, threshold_words
from reports.legend import EFFECTS, OUTCOMES, STATUSES, TIERS

ROWS = 200
"""So many findings of one effect are shown in a cell; the rest is in the JSON report."""
FOLDED_ROWS = 40
KEY_CHARS = 16
FEW = 3
ORDINARY = frozenset({"engine-workers", "fsdp-engine", "rollout", "training"})
"""Features that every PPO run uses, so nobody chooses them."""
STATIC = "static"
READING = "by reading"
"""What stands for a machine where nothing was installed or run."""


def overview(doc: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the page needs at once: the run, the cells in brief, the pairs, the records, the sections."""
    cells = [brief_cell(cell) for cell in doc["cells"]]
    return {
        **{name: doc[name] for name in ("title", "denominator", "planned", "ran", "counts", "tiers", "tools")},
        "at": when(doc["at"]),
        "words": words(),
        "versions": {axis: _versions(axis, doc) for axis in ("verl", "vllm")},
        "cells": cells,
        "lattice": [{**row, "at": when(row["at"]) if row["at"] else ""} for row in doc["lattice"]],
        "failures": [_record(item) for item in doc["failures"]],
        "gpu": _gpu(doc["gpu"]) if doc["gpu"] else None,
        "sections": {name: made for name, made in doc["sections"].items() if name != "benches"},
        "benched": _benched(doc["sections"].get("benches")),
        "machines": machines(cells),
        "gpus": sorted({name for cell in doc["cells"] for name in _gpus(cell)}),
        "features": _choosable(cells),
    }


def words() -> dict[str, Any]:
    """Return the legend: how each status, outcome, effect and tier is marked, called and explained."""
    return {
        "statuses": {
            status.value: {"mark": entry.mark, "name": entry.name, "means": entry.means}
            for status, entry in STATUSES.items()
        },
        "outcomes": {
            outcome.value: {"mark": entry.mark, "name": entry.name, "means": entry.means}
            for outcome, entry in OUTCOMES.items()
        },
        "tiers": {tier.value: means for tier, means in TIERS.items()},
        "effects": {effect.value: name for effect, name in EFFECTS.items()},
    }


def brief_cell(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Return a cell as the matrix, the list and the box of what to install need it."""
    marks = _marks(cell["tried"])
    answered = [item for item in marks if item["outcome"] not in ("", Outcome.UNTESTED)]
    fine = [item for item in answered if item["outcome"] in (Outcome.OK, Outcome.DEGRADED)]
    return {
        **{name: cell[name] for name in ("cell", "status", "resolvable", "works", "axes", "extras", "variants")},
        **{name: cell[name] for name in ("added", "open", "features", "groups", "requirements")},
        "known": [name for names in cell["known"].values() for name in names],
        "reason": cell["reasons"][0] if cell["reasons"] else "",
        "deepest": answered[-1]["tier"] if answered else "",
        "here": cell["deepest"] or "",
        "proven": fine[-1]["tier"] if fine else "",
        "marks": marks,
        "machines": machines([{"marks": marks}]),
        "gpus": _gpus(cell),
        "differs": _differs(cell),
        "locked": (cell["resolve"] or {}).get("axes", {}),
        "plain": cell["install"]["plain"],
        "exact": cell["install"]["exact"],
        "wrong": cell["disagreements"],
        "choice": cell["choice"],
    }


def machines(cells: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return on what cells were tried, each once, what only reads first."""
    found = {name for cell in cells for mark in cell["marks"] for name in mark["machines"]}
    return sorted(found, key=lambda name: (name != READING, name))


def _gpus(cell: Mapping[str, Any]) -> list[str]:
    """Return the kinds of GPU on which the tier `gpu` or deeper has an answer that is not bad."""
    deep = (Tier.GPU, Tier.BENCH)
    good = (Outcome.OK, Outcome.DEGRADED)
    tried = [item for item in cell["tried"] if item["tier"] in deep and item["outcome"] in good]
    return sorted({_kind(name) for item in tried for name in item["machines"]} - {""})


def _kind(machine: str) -> str:
    """Return the kind of GPU of a machine, `NVIDIA H200` for one and for eight of them; "" where it has none."""
    name = short(machine)
    return "" if name == machine else name.split(" x ")[-1]


def _marks(tried: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return for each tier how it came out, the best place to have tried it: here, else by the evidence."""
    found: dict[str, Mapping[str, Any]] = {}
    for item in tried:
        held = found.get(item["tier"])
        if held is None or (held["outcome"] == Outcome.UNTESTED and item["outcome"] != Outcome.UNTESTED):
            found[item["tier"]] = item
    return [_mark(tier, found.get(tier.value)) for tier in Tier]


def _mark(tier: Tier, item: Mapping[str, Any] | None) -> dict[str, Any]:
    if item is None:
        return {"tier": tier.value, "outcome": "", "line": "", "shipped": "", "machines": []}
    on = [READING if name == STATIC else short(name) for name in item["machines"]]
    return {**{name: item[name] for name in ("tier", "outcome", "line", "shipped")}, "machines": on}


def _differs(cell: Mapping[str, Any]) -> list[str]:
    """Return what sets the cell apart from its versions: deviation, patches, a date, another python or platform."""
    found = [f"deviation: {_brief_deviation(cell['deviation'])}"] if cell["deviation"] else []
    if cell["patches"]:
        found.append(f"patched: {len(cell['patches'])} {'patch' if len(cell['patches']) == 1 else 'patches'}")
    if cell["as_of"]:
        found.append(f"as of {when(cell['as_of'])}")
    return found


def _brief_deviation(text: str) -> str:
    """Return a deviation in which many packages that a machine lacked are only counted; the cell has all of them."""
    parts = []
    for part in text.split("; "):
        head, without, packages = part.partition(" without ")
        count = packages.count(", ") + 1
        parts.append(f"{head}{without}{count} packages of its lock" if count > FEW else part)
    return "; ".join(parts)


def _choosable(cells: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the features that somebody may use or not, of those that something is said of: words, as `pins` takes."""
    found = {name for cell in cells for name in (cell["choice"] or {}).get("against", ())}
    return sorted(name for name in found if re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) and name not in ORDINARY)


def _versions(axis: str, doc: Mapping[str, Any]) -> list[str]:
    """Return the versions of an axis that a cell or a pair has, newest first."""
    found = {cell["axes"][axis] for cell in doc["cells"] if axis in cell["axes"]}
    return sorted(found | {row[axis] for row in doc["lattice"]}, key=_order, reverse=True)


def _order(text: str) -> tuple[bool, Version | str]:
    try:
        return True, Version(text)
    except InvalidVersion:
        return False, text


def whole_cell(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Return all that the page of one cell shows."""
    shown = ("cell", "reasons", "expected", "why_here", "source", "source_date", "requirements", "python", "platform")
    also = ("deviation", "patches", "install", "gpu", "unlooked", "machine", "known")
    surface = cell["surface"]
    return {
        **{name: cell[name] for name in (*shown, *also)},
        "at": when(cell["at"]) if cell["at"] else "",
        "resolve": cell["resolve"],
        "surface": {**surface, "findings": _parts([_finding(item) for item in surface["findings"]])}
        if surface
        else None,
        "probes": _probing(cell["probes"]),
        "deep": [_told(item) for item in cell["tried"] if Tier(item["tier"]).is_deep],
        "evidence": [_evidence(item) for item in cell["evidence"]],
    }


def _told(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a tier that needs an installation came to, as a line with its denominators."""
    left = item["planned"] - item["ran"]
    count = f"{item['ran']} of {item['planned']} probes ran{f', {left} untested' if left else ''}"
    return {"line": f"{item['line']} ({count})", "shipped": item["shipped"]}


def _evidence(item: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **{name: item[name] for name in ("tier", "probe", "outcome", "machine", "shipped", "tool")},
        "at": when(item["at"]),
        "seconds": round(item["seconds"], 2),
        "reads": {name: brief(digest) for name, digest in item["reads"].items()},
        "key": item["key"][:KEY_CHARS],
    }


def _probing(probes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the probes by what a reader looks for: records that are wrong, what was seen, what failed, the others."""
    wrong = [item for item in probes if item["disagreement"]]
    known = [item for item in probes if item["seen"] == "reproduced" and not item["disagreement"]]
    good = (Outcome.OK, Outcome.UNTESTED)
    failed = [i for i in probes if i["outcome"] not in good and i not in wrong and i not in known]
    untested = [item for item in probes if item["outcome"] == Outcome.UNTESTED]
    passed = [item for item in probes if item["outcome"] == Outcome.OK and not item["disagreement"]]
    parts = (
        ("Record wrong", wrong, False),
        ("Known failures, seen as predicted", known, False),
        ("Failed", failed, False),
        ("Untested", untested, True),
        ("Passed", passed, True),
    )
    return [{"title": title, "rows": rows, "folded": folded} for title, rows, folded in parts if rows]


def _parts(findings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
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
            parts.append({"title": title, "total": len(rows), "rows": rows[:limit], "folded": folded})
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


def _record(item: Mapping[str, Any]) -> dict[str, Any]:
    return {**item, "seen": [{**seen, "at": when(seen["at"])} for seen in item["seen"]]}


def _benched(section: Mapping[str, Any] | None) -> dict[str, list[str]]:
    """Return by cell what was measured of it, a line a verdict."""
    found: dict[str, list[str]] = {}
    for group in section["groups"] if section else ():
        for one in group["pairings"]:
            main = [f"{item['metric']} {item['verdict']}" for item in one["judgements"] if item["main"]]
            line = f"{one['pairing']} on {one['recipe']}: {', '.join(main)}"
            for cell in dict.fromkeys(one["cells"].values()):
                found.setdefault(cell, []).append(line)
    return found


def _gpu(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the tier `gpu` said, with times and values for people."""
    return {
        "probes": data["probes"],
        "machines": [
            {**item, "facts": [list(row) for row in machine_rows(item["facts"])], "at": when(item["at"])}
            for item in data["machines"]
        ],
        "thresholds": [{**threshold_words(item), **_where(item)} for item in data["thresholds"]],
        "starts": [{"cell": item["cell"], "reached": item["reached"], **_where(item)} for item in data["starts"]],
        "heads": THRESHOLD_HEADS,
    }


def _where(item: Mapping[str, Any]) -> dict[str, Any]:
    return {"machine": item["machine"], "shipped": item["shipped"], "at": when(item["at"])}


def when(text: str) -> str:
    """Return an ISO time as people read it, UTC."""
    return f"{datetime.fromisoformat(text).astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def brief(digest: str) -> str:
    """Return a digest cut to what tells it from others; anything else as it is."""
    algorithm, _, value = digest.partition(":")
    return f"{algorithm}:{value[:10]}" if value and len(value) > KEY_CHARS else digest[:24]
