"""Models that the engine cannot load, because its own code does not fit another package of the cell."""

from __future__ import annotations

from matrix.finding import Effect, Finding
from matrix.surface.answer import ImportFailure, Presence
from matrix.surface.classify import Sketch
from matrix.surface.entrypoints import Model
from matrix.surface.execution.run import Run
from matrix.surface.wording import taken_by

_ROLLOUT = "vllm-rollout"
# Of a misfit between targets: without a second one there is nothing to ask.
_SIDES = 2


def model_failures(run: Run, found: tuple[Sketch, ...]) -> tuple[Sketch, ...]:
    """Return a sketch for each architecture of the profile whose module cannot be imported by the engine.

    Where none of the usual ones can, an ordinary run meets it whatever its configuration. What `found` says already
    of every import of the engine is not said again of each model.
    """
    if len(run.versions) < _SIDES:
        return ()
    if not any(entry.name == _ROLLOUT and entry.module in run.modules for entry in run.profile.entries):
        return ()
    known = {
        (item.finding.symbol, item.finding.used_at) for item in found if item.finding.effect is Effect.BREAKS_IMPORT
    }
    tried = [(model, _failure(run, module)) for model in run.profile.models if (module := _module(run, model))]
    usual = [failure for model, failure in tried if model.usual]
    hopeless = bool(usual) and None not in usual
    return tuple(
        _sketch(run, model, failure, always=hopeless and model.usual)
        for model, failure in tried
        if failure is not None and (failure.symbol, failure.site) not in known
    )


def _module(run: Run, model: Model) -> str:
    present = (name for name in model.modules if run.world.covers(name))
    return next((name for name in present if run.world.module(name) is Presence.PRESENT), "")


def _failure(run: Run, module: str) -> ImportFailure | None:
    failure = run.world.import_failure(module)
    if failure is None or run.subject.stores(failure.symbol.rpartition(".")[2]):
        return None
    return failure


def _sketch(run: Run, model: Model, failure: ImportFailure, *, always: bool) -> Sketch:
    rollouts = [entry for entry in run.profile.entries if entry.name == _ROLLOUT]
    points = {name for entry in rollouts for name in (entry.name, *entry.needed_by)}
    finding = Finding(
        kind=failure.kind,
        effect=Effect.BREAKS_FEATURE,
        target=failure.symbol.partition(".")[0],
        symbol=failure.symbol,
        used_at=failure.site,
        feature=f"model:{model.architecture}",
        entry_points=tuple(sorted(points)),
        exception=failure.exception,
        default_path=always,
    )
    said = f"vLLM says that Model architectures ['{model.architecture}'] failed to be inspected"
    return Sketch(finding=finding, ref=None, detail=f"{taken_by(failure, 'it loads')}; {said}", shown="")
