"""The pages that the tests open: a plain one, one in which every text means harm, one whose answers are known."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from matrix.cell import Axis
from matrix.finding import Effect
from matrix.grid import grid_of
from matrix.job import RunResult
from matrix.observe import Observation
from matrix.tier import Outcome, Tier
from matrix.verdict import Verdict, judge
from reports.document import document
from reports.page import page
from tests.unit.gpu_samples import threshold, visit
from tests.unit.report_samples import CLASH, MOVED, PAIR, sample, seen
from tests.unit.run_fakes import cell, finding, observation
from tests.unit.test_reports_benches import sample as made_up_benches

H200 = "x86_64, 16 cores, 128 GiB, 1 x NVIDIA H200"
CPU = "x86_64, 2 cores, 24 GiB, no GPU"
EVIL_TEXTS = (
    "</script><script>window.hit = 1</script>",
    '<img src=x onerror="window.hit = 1">',
    '" onmouseover="window.hit = 1" x=\'',
    "javascript:window.hit=1//",
    "\u2028window.hit = 1\u2029 \\u003cb\\u003e &lt;b&gt; ${window.hit = 1} `",
    "{{ 7 * 7 }} {% raw %} <!-- <b>bold</b> ]]> __proto__",
)
CLAIM: dict[str, Any] = {
    "id": "A004", "topic": "pins", "statement": "torch 2.6.0 with vLLM 0.6.3 is the steadiest",
    "guide": "beginners",
    "section": "1.1", "verdict": "false", "how": "computed", "why": "vllm 0.6.3 wants torch 2.4.0",
    "evidence": [{"text": "vllm 0.6.3 requires torch==2.4.0", "subject": "vllm 0.6.3", "place": "METADATA",
                  "supports": False}],
    "more": 2, "releases": {"holds": ["0.2"], "fails": ["0.9.1"]}, "failures": ["vllm-013-lora-models-path"],
    "pairings": ["ulysses"], "instead": "take what the release names", "checked": "2026-11-30",
}  # fmt: skip
CLAIMS: dict[str, Any] = {
    "schema": 1, "checked": "2026-11-30", "tool": "0.1.0", "counts": {"holds": 1, "false": 1}, "hows": {"computed": 2},
    "guides": [{"id": "beginners", "title": "A guide", "about": "x", "published": "spring 2025", "language": "zh"}],
    "topics": [{"id": "pins", "title": "Versions and pins", "count": 1}, {"id": "mfu", "title": "MFU", "count": 1}],
    "claims": [CLAIM, {**CLAIM, "id": "B001", "topic": "mfu", "verdict": "holds", "statement": "MFU is logged"}],
}  # fmt: skip
COUNTS = {"works": 1, "degraded": 1, "broken": 2, "conflict": 1, "untested": 1, "planned": 6, "ran": 5}
CHANGED = {"new failure": 1, "flaky": 0, "not run": 1, "fixed": 1, "still failing": 1, "unchanged": 2}


def _shift(name: str, kind: str, before: str, now: str) -> dict[str, Any]:
    turn = {"tier": "surface", "probe": "surface", "before": "ok", "now": "broken", "tries": ["broken", "broken"],
            "reason": "r", "machine": "static", "line": "surface: ok → broken"}  # fmt: skip
    cause = {
        "label": "release changed",
        "facts": [{"label": "release", "what": "vllm 0.27.1"}],
        "line": "vllm 0.27.1 is new",
    }
    return {"name": name, "cell": name, "kind": kind, "before": before, "now": now, "turns": [turn], "cause": cause,
            "retry": "tried twice", "boundary": "vllm 0.27.0", "why": ["w"]}  # fmt: skip


NIGHT: dict[str, Any] = {
    "schema": 1, "title": "1 new failure, 1 fixed", "at": "2026-11-30T02:00:00+00:00",
    "stamp": "n2", "kept": True, "interrupted": False, "first": False,
    "before_at": "2026-11-29T02:00:00+00:00", "denominator": "5 of 6 cells ran",
    "snapshot": {"at": None, "as_of": None, "index": "", "digest": "", "tools": {}, "machine": {}}, "counts": COUNTS,
    "changed": CHANGED,
    "shifts": [_shift(MOVED.name, "new failure", "works", "broken"), _shift(PAIR.name, "fixed", "broken", "works"),
               _shift(CLASH.name, "still failing", "conflict", "conflict")],
    "releases": ["+ vllm 0.33.0 2026-11-25"], "dropped": ["verl0.1-vllm0.6.0"], "notes": ["a note"], "seconds": 12.0,
    "history": [{"stamp": stamp, "at": f"2026-11-{day}T02:00:00+00:00", "counts": COUNTS, "changed": CHANGED}
                for stamp, day in (("a", 30), ("b", 29))],
}  # fmt: skip
with pytest.MonkeyPatch.context() as patch:
    BENCHES = made_up_benches(patch)
SECTIONS: Mapping[str, object] = {"benches": BENCHES, "claims": CLAIMS, "nightly": NIGHT}


def _held(of: str, *, deep: bool, machine: str = H200, shipped: str = "gpu") -> list[Observation]:
    """Return what was observed of a cell that resolves and fits, and on a machine down to the tier `gpu`."""
    found = [
        observation(
            of, Tier.RESOLVE, detail={"versions": {"torch": "2.11.0"}, "packages": 200, "lock": "sha256:" + "ab" * 32}
        ),
        observation(of, Tier.SURFACE, findings=[]),
    ]
    if deep:
        found += [
            replace(
                observation(of, tier, probe="compat/test_ppo_gpu.py::test_ppo_trains", machine=machine), shipped=shipped
            )
            for tier in (Tier.IMPORT, Tier.GPU)
        ]
    return found


PROVEN = cell(verl="0.9.1", vllm="0.24.0", torch="2.11.0")
NEWER = cell(verl="0.9.1", vllm="0.26.0", torch="2.11.0")
BROKEN = cell(verl="0.8.0", vllm="0.27.1")


def known_answers() -> RunResult:
    """Return a run of four cells: one proven on an H200, one newer that breaks LoRA, one broken, one in conflict."""
    lora = finding(Effect.BREAKS_FEATURE, "vllm.lora.x", feature="lora")
    hurt = observation(NEWER.name, Tier.SURFACE, Outcome.DEGRADED, "lora breaks", findings=[lora])
    verdicts = (
        judge(PROVEN, _held(PROVEN.name, deep=True)),
        judge(NEWER, [*_held(NEWER.name, deep=False)[:1], hurt]),
        seen(BROKEN, Outcome.OK, Outcome.BROKEN, (finding(),), ("", "cannot be imported")),
        seen(CLASH, Outcome.CONFLICT, Outcome.BROKEN, (), ("no such set", "x")),
    )
    return replace(sample(), verdicts=verdicts, plan={}, notes=())


def lattice_of(verls: int, vllms: int) -> RunResult:
    """Return the result of a grid: a verdict a pair, of every kind."""
    verdicts: list[Verdict] = []
    kinds = (
        (Outcome.OK, Outcome.OK),
        (Outcome.OK, Outcome.BROKEN),
        (Outcome.CONFLICT, Outcome.OK),
        (Outcome.OK, Outcome.DEGRADED),
    )
    for x in range(verls):
        for y in range(vllms):
            resolve, surface = kinds[(x * 3 + y // 4) % len(kinds)]
            found = (finding(Effect.BREAKS_FEATURE, feature="qat"),) if surface is Outcome.DEGRADED else ()
            verdicts.append(
                seen(cell(verl=f"0.{x}.0", vllm=f"0.{y}.0"), resolve, surface, found, ("no such set", "gone"))
            )
    return replace(sample(), verdicts=tuple(verdicts))


def full() -> RunResult:
    """Return a run with everything that a page can show: pairs of a grid, GPU evidence, several cells of one pair."""
    base = sample(more=31)
    static = [observation(PAIR.name, Tier.RESOLVE), observation(PAIR.name, Tier.SURFACE)]
    deep = [
        replace(item, question=replace(item.question, cell=PAIR.name), shipped="gpu")
        for item in (*visit(), threshold())
    ]
    other = cell(verl="0.9.1", vllm="0.24.0", torch="2.10.0")
    verdicts = (
        judge(PAIR, [*static, *deep]),
        seen(other, Outcome.CONFLICT, Outcome.BROKEN, (), ("no such set", "x")),
        *base.verdicts[1:],
    )
    return replace(base, verdicts=verdicts, lattice=grid_of(Axis.VERL, Axis.VLLM, lattice_of(6, 20)).rows)


_WORDS = frozenset(
    {"schema", "at", "status", "resolvable", "works", "deepest", "tier", "outcome", "effect", "kind", "checked", "key",
     "cell", "id", "verl", "vllm", "standing", "shipped", "verdict", "now", "before", "before_at", "stamp", "topic",
     "seen", "source_date", "as_of"}
)  # fmt: skip
"""Fields that hold a word of a closed set, a name that is looked up, or a time; every other text may be any text."""


def poisoned(value: Any, field: str = "", count: list[int] | None = None) -> Any:
    """Return JSON data with every free text replaced by one that means harm."""
    count = [0] if count is None else count
    if isinstance(value, dict):
        named = field in ("counts", "changed", "against", "affects", "axes", "variants", "extras", "conditional")
        return {
            key: inner if named and isinstance(inner, int) else poisoned(inner, field if named else key, count)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [poisoned(item, field, count) for item in value]
    if not isinstance(value, str) or field in _WORDS or field == "axes":
        return value
    count[0] += 1
    return EVIL_TEXTS[count[0] % len(EVIL_TEXTS)] + value


def evil() -> str:
    """Return the page of a report in which every text means harm."""
    doc = json.loads(json.dumps(document(full(), sections=SECTIONS)))
    tools, tiers = doc["tools"], doc["tiers"]
    doc = poisoned(doc)
    # Its words are those of closed sets; where they are not, it means harm of itself.
    doc["sections"]["benches"] = BENCHES
    doc["tiers"], doc["tools"] = tiers, {**tools, EVIL_TEXTS[0]: EVIL_TEXTS[1]}
    doc["cells"][0]["cell"] = EVIL_TEXTS[1]
    doc["failures"][0]["sources"] = list(EVIL_TEXTS)
    return page(full(), doc=doc)


def _page(result: RunResult, sections: Mapping[str, object] | None = None) -> str:
    return page(result, doc=document(result, sections=sections))


PAGES: Mapping[str, Callable[[], str]] = {
    "full": lambda: _page(full(), SECTIONS),
    "known": lambda: _page(known_answers()),
    "evil": evil,
    "empty": lambda: _page(replace(sample(), verdicts=(), tallies=(), plan={})),
}
