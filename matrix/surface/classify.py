"""What comes of each misfit: which entry points or features it breaks, what guards it, what degrades silently."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from packaging.version import Version

from matrix.finding import Effect, Finding, Kind, Site
from matrix.surface.answer import Presence, Ref
from matrix.surface.entrypoints import EntryPoint
from matrix.surface.execution.reach import Reach, is_absence
from matrix.surface.execution.run import Run
from matrix.surface.execution.state import Draft, Guard
from matrix.surface.execution.target import Target
from matrix.surface.wording import message, taken_by

_RANK: Final = {Effect.BREAKS_IMPORT: 0, Effect.BREAKS_FEATURE: 1, Effect.DEGRADES: 2, Effect.GUARDED: 3}
_MARK: Final = re.compile("\0(\\w+)\0")
_WARNING: Final = frozenset({"warning", "warn", "error", "exception", "print", "warn_once", "warning_once", "critical"})
_GENERAL: Final = frozenset({"training", "rollout", "sft", "data", "vlm"})
"""Features that a use behind a model's type is only a part of."""
_MOVABLE: Final = frozenset(
    {
        Kind.MODULE_MISSING,
        Kind.NAME_MISSING,
        Kind.ATTRIBUTE_MISSING,
        Kind.PATCH_TARGET_MISSING,
        Kind.DOTTED_STRING_MISSING,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """A finding but for what depends on the very release: where things are now, and which version it is."""

    finding: Finding
    ref: Ref | None
    detail: str
    shown: str


def classify(run: Run) -> tuple[Sketch, ...]:
    """Return what a finished run found, the worst first, one sketch for each use that does not fit."""
    reach = Reach(run)
    best: dict[tuple[object, ...], Sketch] = {}
    for draft in (*run.drafts, *run.handled):
        made = _sketch(run, reach, draft)
        where = made.finding.used_at
        key: tuple[object, ...] = (draft.kind, draft.symbol, where.path, where.line)
        if draft.kind is Kind.PACKAGE_ABSENT:
            # One line for each package and feature; every import of it says the same.
            key = (draft.kind, draft.target, made.finding.feature)
        elif draft.inside is not None:
            # Many modules of verl may import what fails; each feature that does is told once.
            key = (*key, made.finding.feature)
            made = _joined(best.get(key), made)
        known = best.get(key)
        if known is None or draft.inside is not None or _order(made.finding) < _order(known.finding):
            best[key] = made
    return in_order(best.values())


def in_order(sketches: Iterable[Sketch]) -> tuple[Sketch, ...]:
    """Return sketches, the worst first."""
    return tuple(sorted(sketches, key=lambda sketch: _order(sketch.finding)))


def _joined(known: Sketch | None, made: Sketch) -> Sketch:
    """Return the worse of two sketches of one failure, with the entry points of both where they are of one effect."""
    if known is None:
        return made
    first, second = known.finding, made.finding
    worse = made if _order(second) < _order(first) else known
    if (first.effect, first.certain) != (second.effect, second.certain):
        return worse
    points = tuple(sorted({*first.entry_points, *second.entry_points}))
    finding = replace(worse.finding, entry_points=points, default_path=first.default_path or second.default_path)
    return replace(worse, finding=finding)


def _order(finding: Finding) -> tuple[object, ...]:
    where = finding.used_at
    # A fault of the pair says more of the pair than one that verl has with every release; and a target that cannot be
    # imported is the cause of what verl then tries instead (an `except ImportError` that looks for an older name).
    own = finding.target == "verl"
    cause = finding.effect is Effect.BREAKS_IMPORT and not where.path.startswith("verl/")
    worst = (_RANK[finding.effect], not finding.certain, not finding.default_path, not cause, own)
    return (*worst, where.path, where.line, finding.symbol)


def finish(sketch: Sketch, world: Target, versions: Mapping[str, Version]) -> Finding:
    """Return the finding for one world: with where the thing is there, and the version where it is named."""

    def named(text: str) -> str:
        return _MARK.sub(lambda match: str(versions[match[1]]), text) if "\0" in text else text

    found = replace(sketch.finding, symbol=named(sketch.finding.symbol))
    near: tuple[str, ...] = ()
    # Looking for what has moved reads much of the package, so it is done for what decides something.
    if found.certain and found.kind in _MOVABLE and world.covers(found.symbol):
        near = world.moved(found.symbol)
    moved = tuple(dotted for dotted in near if _is_home(world, found.symbol, dotted))
    text = message(found, named(sketch.detail), sketch.shown, moved, near)
    return replace(found, found_at=_found_at(world, sketch.ref, moved), moved_to=moved, message=text)


def _is_home(world: Target, symbol: str, dotted: str) -> bool:
    """Return whether `dotted` is the very name that is missed, defined elsewhere; what is only alike is a guess."""
    module, _, name = dotted.rpartition(".")
    return name in symbol.split(".") and world.module(dotted) is Presence.MISSING and bool(module)


def _found_at(world: Target, ref: Ref | None, moved: tuple[str, ...]) -> Site | None:
    if ref is not None:
        return world.site(ref)
    for dotted in moved[:1]:
        module, _, name = dotted.rpartition(".")
        answer = world.lookup(module, name) if module else None
        if answer is not None and answer.presence is Presence.PRESENT and answer.ref is not None:
            return world.site(answer.ref)
    return None


def _sketch(run: Run, reach: Reach, draft: Draft) -> Sketch:
    effect, entries, guard = _effect(run, reach, draft)
    certain = draft.certain
    feature = _feature(run, reach, draft)
    if effect is Effect.BREAKS_IMPORT:
        feature = next((entry.feature for entry in sorted(entries, key=lambda entry: not entry.core)), feature)
    elif is_absence(draft) or is_absence(run.failure(draft.module.name)):
        # A user may have the package that this cell does not hold; nothing in such a module was seen to run.
        certain = False
    used = Site(path=draft.module.module.path, line=getattr(draft.node, "lineno", 0), scope=draft.scope)
    detail = draft.detail if draft.inside is None else taken_by(draft.inside, f"{used} imports")
    finding = Finding(
        kind=draft.kind,
        effect=effect,
        target=draft.target,
        symbol=draft.symbol,
        used_at=used if draft.inside is None else draft.inside.site,
        feature=feature,
        entry_points=_names(entries),
        exception=draft.exception if effect.is_break else "",
        guard=guard,
        default_path=effect is Effect.BREAKS_FEATURE and on_default_path(reach, draft),
        certain=certain and not run.profile.cannot_run(feature),
    )
    return Sketch(finding=finding, ref=draft.ref, detail=detail, shown=draft.shown)


def _feature(run: Run, reach: Reach, draft: Draft) -> str:
    """Return the feature in whose code the use lies; of a missing module of verl, the feature that it would serve.

    Where a condition asks for a model or turns a feature on, it is that model or feature: nobody else meets it.
    """
    if draft.kind is Kind.OWN_MODULE_MISSING:
        missing = run.profile.feature(draft.symbol.replace(".", "/") + ".py", "")
        if missing not in ("", "training"):
            return missing
    feature = run.profile.feature(draft.module.module.path, draft.scope)
    if feature not in _GENERAL:
        return feature
    around = [guard for guard in _guards(reach, draft) if guard.optional]
    models = {name: None for guard in around if guard.taken for name in guard.condition.models}
    if models:
        return f"model:{'/'.join(models)}"
    return run.profile.feature_behind([guard.text for guard in around]) or feature


def _names(entries: Iterable[EntryPoint]) -> tuple[str, ...]:
    return tuple(sorted({name for entry in entries for name in (entry.name, *entry.needed_by)}))


# ------------------------------------------------------------------------------------------------------- effects
def _effect(run: Run, reach: Reach, draft: Draft) -> tuple[Effect, tuple[EntryPoint, ...], str]:
    """Return the effect, the entry points concerned and the guard's text."""
    name = draft.module.name
    if draft.handler is not None:
        effect, guard = _handled(run, draft)
        return effect, reach.reaching(name), guard
    if draft.kind is Kind.PACKAGE_ABSENT:
        return Effect.BREAKS_FEATURE, reach.reaching(name), ""
    if draft.kind is Kind.GATE_WRONG:
        # What breaks in the branch that it takes is told by itself, and may break in the other one too.
        return Effect.DEGRADES, reach.reaching(name), ""
    if not draft.exception:
        return Effect.DEGRADES, reach.reaching(name), _conditions(reach, draft)
    if not draft.at_import:
        guard = _conditions(reach, draft)
        if not reach.escapes(draft.function, draft.exception):
            return Effect.GUARDED, reach.reaching(name), guard or "every caller handles it"
        return Effect.BREAKS_FEATURE, reach.reaching(name), guard
    broken = reach.broken_by(name)
    if broken:
        return Effect.BREAKS_IMPORT, broken, _conditions(reach, draft)
    unguarded, guard = reach.importers(name)
    if unguarded or not guard:
        return Effect.BREAKS_FEATURE, reach.reaching(name), ""
    return Effect.GUARDED, reach.reaching(name), guard


def _conditions(reach: Reach, draft: Draft) -> str:
    """Return the undecided conditions around a use and around the calls of its function, outermost first."""
    return " and ".join(dict.fromkeys(guard.text for guard in _guards(reach, draft)))


def _guards(reach: Reach, draft: Draft) -> list[Guard]:
    """Return the undecided conditions around a use and around the calls of its function, outermost first."""
    called = reach.called_when(draft.function)
    around = [guard for guard in draft.guards if not guard.decided]
    return around if called is None else [called, *around]


def on_default_path(reach: Reach, draft: Draft) -> bool:
    """Return whether an ordinary run meets the use, whatever its configuration."""
    optional = any(guard.optional for guard in draft.guards)
    return draft.function is not None and id(draft.function) in reach.default and not optional


def _handled(run: Run, draft: Draft) -> tuple[Effect, str]:
    handler = draft.handler
    if isinstance(handler, ast.ExceptHandler):
        guard = f"except {run.subject.text(handler.type)}" if handler.type is not None else "except"
        body = handler.body
        if draft.kind is Kind.PACKAGE_ABSENT:
            return Effect.GUARDED, guard
        if _only_warns(body):
            return Effect.DEGRADES, guard
        if draft.kind is Kind.PATCH_TARGET_MISSING and all(isinstance(item, ast.Pass) for item in body):
            return Effect.DEGRADES, guard
        return Effect.GUARDED, guard
    if isinstance(handler, ast.With | ast.AsyncWith):
        return Effect.GUARDED, f"with {run.subject.text(handler.items[0].context_expr)}"
    return Effect.GUARDED, "try"


def _only_warns(body: list[ast.stmt]) -> bool:
    """Return whether a handler does nothing but say so: a log line, and no other way to the same end."""
    says = False
    for item in body:
        if isinstance(item, ast.Expr) and isinstance(item.value, ast.Call):
            function = item.value.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if name not in _WARNING:
                return False
            says = True
        elif isinstance(item, ast.Return) and (item.value is None or isinstance(item.value, ast.Constant)):
            continue
        elif not isinstance(item, ast.Pass | ast.Continue):
            return False
    return says
