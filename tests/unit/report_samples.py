"""A whole result to render: every status, both axes apart, a deviation, an interrupt, and text that means harm."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from matrix.cell import Axis, Cell, Deviation, OpenAxis, Platform
from matrix.errors import IndexUnreachableError
from matrix.finding import Effect, Finding, Kind, Site
from matrix.job import RunResult, Tally
from matrix.observe import Observation
from matrix.plan import Planned
from matrix.tier import Outcome, Status, Tier
from matrix.verdict import Verdict, judge
from tests.unit.run_fakes import AT, cell, finding, observation

HOSTILE = "<script>alert(1)</script> | `x` ]]> \x1b[31m\x00 & \"quoted\" 'n' [a](b)\nsecond line"
CHAIN = (
    {"text": "the cell asks for verl 0.9.1 and vllm 0.33.0", "source": "cell"},
    {
        "text": "vllm 0.33.0 requires transformers>=5.16.1",
        "source": "vllm-0.33.0-cp38-abi3-manylinux_2_35.whl METADATA",
    },
    {"text": "verl 0.9.1 requires transformers<5.11", "source": "verl-0.9.1-py3-none-any.whl METADATA"},
)
LOCKED = {"torch": "2.11.0", "transformers": "5.9.0", "ray": "2.60.0", "tensordict": "0.14.3", "numpy": "1.26.4"}
FUSED = replace(
    finding(Effect.BREAKS_IMPORT, "vllm.model_executor.layers.fused_moe.layer.FusedMoE"),
    used_at=Site(path="verl/workers/rollout/vllm_rollout/utils.py", line=31),
    found_at=Site(path="vllm/model_executor/layers/fused_moe/fused_moe.py", line=112),
    moved_to=("vllm.model_executor.layers.fused_moe.FusedMoE",),
    message="FusedMoE is not in this module from vLLM 0.27.0 on.",
    entry_points=("verl.trainer.main_ppo", "verl.trainer.main_generation", "verl.workers.rollout.vllm_rollout"),
)
SWIZZLE = replace(
    finding(Effect.BREAKS_FEATURE, "vllm.model_executor.layers.quantization.utils.swizzle_blockscale", feature="qat"),
    used_at=Site(path="verl/utils/qat/vllm_patch.py", line=24, scope="patch_vllm"),
    message="The module has no swizzle_blockscale.",
)
GUARDED = replace(
    finding(Effect.GUARDED, "vllm.lora.models.LoRAModel", feature="lora"),
    kind=Kind.NAME_MISSING,
    guard="except ImportError",
    exception="",
)
DOUBT = finding(Effect.BREAKS_FEATURE, "vllm.engine.arg_utils.EngineArgs(seed=)", feature="rollout", certain=False)
QUIET = finding(Effect.DEGRADES, "VLLM_USE_V1", feature="rollout", message="vLLM no longer reads VLLM_USE_V1.")


def seen(
    of: Cell,
    resolve: Outcome | None,
    surface: Outcome | None,
    findings: tuple[Finding, ...] = (),
    reasons: tuple[str, str] = ("", ""),
) -> Verdict:
    """Return the verdict on these outcomes, with details as the real probes give them."""
    held: list[Observation] = []
    if resolve is not None:
        detail: dict[str, object] = {"versions": LOCKED, "notes": ["lock kept by digest"], "decided_by": "uv"}
        if resolve in (Outcome.CONFLICT, Outcome.BACKTRACKED, Outcome.UNAVAILABLE):
            detail = {"chain": list(CHAIN), "hints": ["another vllm resolves"]}
        held.append(observation(of.name, Tier.RESOLVE, resolve, reasons[0], detail=detail))
    if surface is not None:
        versions = {pin.axis.value: str(pin.version) for pin in of.pins}
        reads = {"verl-0.9.1-py3-none-any.whl": "sha256:" + "ab" * 32}
        held.append(
            observation(
                of.name,
                Tier.SURFACE,
                surface,
                reasons[1],
                detail={"versions": versions},
                findings=findings,
                reads=reads,
            )
        )
    return judge(of, held)


PAIR = cell(verl="0.9.1", vllm="0.24.0", torch="2.11.0", transformers="5.9.0", reason="What verl 0.9.1's extra pins.")
EXTRA = replace(PAIR, pins=(replace(PAIR.pins[0], extras=("vllm",)), *PAIR.pins[1:]))
FEATURE = cell(verl="0.9.1", vllm="0.26.0", reason="May verl 0.9.1 take this vLLM?")
MOVED = cell(verl="0.8.0", vllm="0.27.1", reason="May verl 0.8.0 take this vLLM?")
CLASH = cell(verl="0.9.1", vllm="0.33.0", reason="May verl 0.9.1 take this vLLM?")
IMAGE = cell(Deviation(no_deps=True, reason="as verl's image is built"), verl="0.7.1", vllm="0.17.0")
OLD = replace(cell(vllm="0.17.0"), open_axes=(OpenAxis(axis=Axis.VERL),), as_of=AT)
GUIDE = cell(torch="2.2.2", vllm="0.5.4.post1", transformers="4.38.2", reason="A guide's exact versions.")
UNREAD = replace(cell(verl="0.7.0", vllm="0.12.0"), platform=Platform(python="3.11"))
EVIL = cell(verl="0.6.1", vllm="0.11.0", reason=HOSTILE)


def sample(*, more: int = 0) -> RunResult:
    """Return a result of nine cells, and `more` plain ones."""
    ok, broken, degraded = Outcome.OK, Outcome.BROKEN, Outcome.DEGRADED
    moved = "vllm 0.27.1 has no vllm.model_executor.layers.fused_moe.layer.FusedMoE: main_ppo cannot be imported"
    verdicts = [
        seen(PAIR, ok, ok, (GUARDED, DOUBT)),
        seen(FEATURE, ok, degraded, (SWIZZLE, QUIET, GUARDED), ("", "2 features break or degrade: qat, rollout")),
        seen(MOVED, ok, broken, (FUSED, SWIZZLE, DOUBT), ("", moved)),
        seen(CLASH, Outcome.CONFLICT, broken, (FUSED,), ("; ".join(fact["text"] for fact in CHAIN[1:]), moved)),
        seen(IMAGE, Outcome.CONFLICT, ok, (), ("verl 0.7.1 requires vllm<=0.12.0", "")),
        seen(
            OLD, Outcome.BACKTRACKED, Outcome.UNTESTED, (), ("verl fell back to 0.4.1", "no release of verl is pinned")
        ),
        seen(GUIDE, Outcome.UNAVAILABLE, Outcome.UNTESTED, (), ("there is no vllm 0.5.4.post1", "no release of verl")),
        seen(
            UNREAD, Outcome.UNTESTED, Outcome.UNTESTED, (), ("The index did not answer.", "The index did not answer.")
        ),
        seen(EVIL, ok, broken, (replace(FUSED, symbol=HOSTILE, message=HOSTILE, guard=HOSTILE),), ("", HOSTILE)),
    ]
    outcomes = [(ok, ok), (ok, broken), (Outcome.CONFLICT, ok), (ok, degraded), (Outcome.CONFLICT, broken)]
    for number in range(more):
        of = cell(
            verl=f"0.{5 + number % 4}.0", vllm=f"0.{11 + number}.0", reason="A neighbour that a user would ask about."
        )
        resolve, surface = outcomes[number % len(outcomes)]
        found = {broken: (FUSED, SWIZZLE), degraded: (SWIZZLE,)}.get(surface, (GUARDED,))
        why = (
            CHAIN[1]["text"] + " and " + CHAIN[2]["text"] if resolve is not ok else "",
            moved if surface is not ok else "",
        )
        verdicts.append(seen(of, resolve, surface, found, why))
    return RunResult(
        verdicts=tuple(verdicts),
        tallies=(
            Tally(tier=Tier.RESOLVE, planned=len(verdicts), reused=2, new=len(verdicts) - 3, untested=1, seconds=4.25),
            Tally(tier=Tier.SURFACE, planned=len(verdicts), reused=0, new=len(verdicts) - 3, untested=3, seconds=11.5),
        ),
        at=AT + timedelta(minutes=3),
        tools={"verl-matrix": "0.1.0", "python": "3.12.4", "uv": "0.13.9"},
        notes=("1 line of observations.jsonl passed over, not readable as observations (first line 7: KeyError).",),
        plan={
            verdict.cell.name: Planned(
                cell=verdict.cell, groups=groups, source="https://pypi.org/simple/vllm/", date=AT
            )
            for verdict, groups in zip(verdicts, _groups(len(verdicts)), strict=True)
        },
    )


def _groups(count: int) -> list[tuple[str, ...]]:
    first: list[tuple[str, ...]] = [("ci", "released-pair"), ("neighbour",), ("neighbour",), ("neighbour",), ("image",)]
    return (first + [("guide",)] * 2 + [("released-pair",)] + [("neighbour",)] * count)[:count]


EXPECTED = {CLASH.name: Status.CONFLICT, PAIR.name: Status.BROKEN, MOVED.name: Status.BROKEN}
UNREACHED = IndexUnreachableError("The index did not answer.")
