"""The JSON report: everything a run found out, as plain data (`schema.json`); the HTML page is made from the same."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from matrix.cell import Axis
from matrix.failure import Failure
from matrix.figures import left_mib
from matrix.grid import Row
from matrix.job import RunResult
from matrix.observe import Observation
from matrix.plan import Planned
from matrix.records import load_failures
from matrix.tier import Status, Tier
from matrix.verdict import Verdict
from reports import headline
from reports.choice import choice_document, weighed
from reports.failures import Matcher, failures_document
from reports.gpu import cell_gpu, gpu_document, recorded_line
from reports.install import install_document
from reports.sections import sections_of

SCHEMA = 1


def document(
    result: RunResult,
    *,
    failures: Sequence[Failure] | None = None,
    sections: Mapping[str, object] | None = None,
) -> dict[str, object]:
    """Return the report as plain JSON data; reads the details of the observations, one cell after the other.

    `failures` are the records that cells are matched with, by default those that are shipped; `sections` are made
    already, and stand beside those that are made of the run itself.

    Raises:
        CorruptFileError: a stored detail cannot be read.
        DataError: a record of a known failure is malformed.
    """
    records = _shipped_records() if failures is None else tuple(failures)
    matcher = Matcher(records)
    return {
        "schema": SCHEMA,
        "title": headline.title(result),
        "denominator": headline.denominator(result),
        "at": result.at.isoformat(),
        "planned": result.planned,
        "ran": result.ran,
        "interrupted": result.interrupted,
        "counts": {status.value: count for status, count in result.counts.items()},
        "tiers": [tally.to_json() for tally in result.tallies],
        "tools": dict(result.tools),
        "notes": list(result.notes),
        "recorded": recorded_line(result.verdicts),
        "gpu": gpu_document(result.verdicts),
        "cells": [cell_document(verdict, result.plan, result.expected, matcher) for verdict in result.verdicts],
        "lattice": [pair_document(row) for row in result.lattice],
        "failures": failures_document(records, result.verdicts),
        "sections": {**sections_of(result), **(sections or {})},
    }


def of_its_cells(doc: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report without the records that apply to none of its cells, for an answer about a few of them."""
    known = {name for cell in doc["cells"] for names in cell["known"].values() for name in names}
    return {**doc, "failures": [row for row in doc["failures"] if row["id"] in known or row["seen"]]}


@functools.cache
def _shipped_records() -> tuple[Failure, ...]:
    return load_failures()


def cell_document(
    verdict: Verdict,
    plan: Mapping[str, Planned] | None = None,
    expected: Mapping[str, Status] | None = None,
    matcher: Matcher | None = None,
) -> dict[str, Any]:
    """Return one cell of the report (`schema.json`: `verdict`); raises CorruptFileError."""
    name = verdict.cell.name
    planned = (plan or {}).get(name) or Planned(cell=verdict.cell)
    wanted = (expected or {}).get(name)
    matcher = matcher or Matcher(())
    known = matcher.known(verdict)
    kept = weighed(verdict, known)
    return verdict.to_json() | {
        "groups": list(planned.groups),
        "source": planned.source,
        "source_date": planned.date.date().isoformat() if planned.date else None,
        "expected": wanted.value if wanted else None,
        "resolve": _resolve(verdict.observation(Tier.RESOLVE)),
        "surface": _surface(verdict.observation(Tier.SURFACE)),
        "probes": [probe_document(item) for item in verdict.evidence if is_probe(item)],
        "patches": patches(verdict),
        "disagreements": len(verdict.disagreements),
        "gpu": cell_gpu(verdict),
        "install": install_document(verdict),
        "known": {
            "against": [failure.id for failure in kept.against],
            "conditional": [failure.id for failure in kept.conditional],
            "elsewhere": [failure.id for failure in kept.elsewhere],
        },
        "choice": choice_document(verdict, kept, matcher),
    }


def pair_document(row: Row) -> dict[str, object]:
    """Return a pair that is no cell of the plan, as an earlier grid left it (`schema.json`: `pair`)."""
    return {
        "cell": row.cell,
        "verl": str(row.x),
        "vllm": str(row.y),
        "status": row.status.value,
        "resolvable": row.resolvable.value,
        "works": row.works.value,
        "deepest": row.deepest.value if row.deepest else None,
        "resolve_reason": row.resolve_reason,
        "surface_reason": row.surface_reason,
        "features": list(row.features),
        "at": row.at.isoformat() if row.at else None,
    }


def is_probe(observation: Observation) -> bool:
    """Return whether it is a probe of an installed tier; what only measures has a place of its own."""
    return observation.question.tier.is_deep and not observation.question.measures


def probe_document(observation: Observation) -> dict[str, object]:
    """Return one probe of an installed tier: its outcome, and for a known failure what was predicted, seen, advised."""
    detail = observation.detail
    return {
        "tier": observation.question.tier.value,
        "probe": observation.question.probe,
        "outcome": observation.outcome.value,
        "reason": observation.reason,
        "failure": str(detail.get("failure") or ""),
        "title": str(detail.get("title") or ""),
        "predicted": str(detail.get("predicted") or ""),
        "seen": str(detail.get("seen") or ""),
        "disagreement": str(detail.get("disagreement") or ""),
        "proposal": str(detail.get("proposal") or ""),
        "way_out": [str(step) for step in _sequence(detail.get("way_out"))],
        "seconds": observation.seconds,
        "shipped": observation.shipped,
        "left_mib": left_mib(observation),
    }


def patches(verdict: Verdict) -> list[str]:
    """Return what was patched so that the cell's probes run at all, each once; none where nothing was."""
    found = (str(patch) for item in verdict.evidence for patch in _sequence(item.detail.get("patches")))
    return list(dict.fromkeys(found))


def _resolve(observation: Observation | None) -> dict[str, object] | None:
    """Return what the resolver said: the chain of facts, the versions that were locked, what to know of them."""
    if observation is None:
        return None
    detail = observation.detail
    versions, packages = _mapping(detail.get("versions")), detail.get("packages")
    axes = {axis.value: versions[axis.value] for axis in Axis if axis.value in versions}
    return {
        "outcome": observation.outcome.value,
        "reason": observation.reason,
        "chain": [_fact(item) for item in _sequence(detail.get("chain"))],
        "axes": axes,
        "packages": packages if isinstance(packages, int) else len(versions),
        "versions": {name: str(version) for name, version in sorted(versions.items())},
        "notes": [str(note) for note in (*_sequence(detail.get("notes")), *_sequence(detail.get("hints")))],
    }


def _fact(item: object) -> dict[str, str]:
    fact = _mapping(item)
    if not fact:
        return {"text": str(item), "source": ""}
    return {"text": str(fact.get("text", "")), "source": str(fact.get("source", ""))}


def _surface(observation: Observation | None) -> dict[str, object] | None:
    """Return what the surface check found, and at which versions it looked."""
    if observation is None:
        return None
    detail = observation.detail
    return {
        "outcome": observation.outcome.value,
        "reason": observation.reason,
        "versions": {str(name): str(version) for name, version in _mapping(detail.get("versions")).items()},
        "findings": [dict(item) for item in _sequence(detail.get("findings")) if isinstance(item, Mapping)],
    }


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _sequence(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()
