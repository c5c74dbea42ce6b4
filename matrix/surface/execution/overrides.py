"""Overrides: methods of the subject's classes that stand in for methods of the target's."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from matrix.finding import Kind
from matrix.surface.answer import Presence, Ref, Signature
from matrix.surface.execution.run import Run
from matrix.surface.execution.values import ClassValue, FunctionValue, RefValue

# Called by who makes the object or by the language, not by the base class.
_OWN = frozenset(
    {"__init__", "__new__", "__post_init__", "__init_subclass__", "__class_getitem__", "__repr__", "__str__"}
)


def check_class(run: Run, cls: ClassValue) -> None:
    """Report the methods of a class that the target's base class can no longer call, or no longer knows."""
    bases = [base.ref for base in cls.bases if isinstance(base, RefValue) and base.ref.kind == "class"]
    if not bases:
        return
    saved = run.at_import
    run.at_import = False
    try:
        for name, function in cls.body.items():
            if isinstance(function, FunctionValue) and name not in _OWN:
                _check_method(run, cls, bases, name, function)
    finally:
        run.at_import = saved


def _check_method(run: Run, cls: ClassValue, bases: Sequence[Ref], name: str, function: FunctionValue) -> None:
    for base in bases:
        answer = run.world.attribute(base, name)
        if answer.presence is Presence.MISSING:
            continue
        if answer.ref is not None and answer.ref.kind == "method":
            _check_fit(run, base, name, answer.ref, function)
        return
    if len(bases) == len(cls.bases) and run.subject.function(function.node).overrides:
        symbol = f"{bases[0].dotted}.{name}"
        run.report(
            Kind.OVERRIDE_ORPHANED,
            symbol,
            function.node,
            "",
            ref=bases[0],
            detail=f"{cls.node.name}.{name} overrides nothing",
        )


def _check_fit(run: Run, base: Ref, name: str, method: Ref, function: FunctionValue) -> None:
    theirs = run.world.signature(method)
    if theirs is None or run.world.is_property(method) or not theirs.certain:
        return
    static = run.subject.function(function.node).static
    ours = own_signature(function.node, bound=not static)
    fault, sure = misfit(ours, theirs)
    if fault:
        symbol = f"{base.dotted}.{name}"
        run.report(Kind.OVERRIDE_MISMATCH, symbol, function.node, "TypeError", ref=method, detail=fault, certain=sure)


def own_signature(node: ast.FunctionDef | ast.AsyncFunctionDef, *, bound: bool) -> Signature:
    """Return how a function of the subject may be called, without its first parameter when `bound`."""
    arguments = node.args
    every = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    positional = tuple(every[1:] if bound else every)
    optional = set(every[len(every) - len(arguments.defaults) :]) if arguments.defaults else set()
    keyword_only = {argument.arg for argument in arguments.kwonlyargs}
    needed = {
        argument.arg
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is None
    }
    return Signature(
        positional=positional,
        keyword_only=frozenset(keyword_only),
        required=frozenset({name for name in positional if name not in optional} | needed),
        positional_only=max(len(arguments.posonlyargs) - bound, 0),
        var_positional=arguments.vararg is not None,
        var_keyword=arguments.kwarg is not None,
    )


def misfit(ours: Signature, theirs: Signature) -> tuple[str, bool]:
    """Return why an override cannot be called as the base is, and whether that is sure; ("", False) when it can.

    Sure is only a parameter that every caller of the base has to pass and the override does not take. An override that
    requires more than the base gives is as a rule called by the subject itself, and one that lacks an optional
    parameter fails only for callers that pass it.
    """
    accepted = {*ours.positional, *ours.keyword_only}
    offered = {*theirs.positional, *theirs.keyword_only}
    if theirs.var_positional or theirs.var_keyword or (accepted and offered and not accepted & offered):
        return "", False
    needed = [name for name in theirs.positional if name in theirs.required]
    if not ours.var_positional and not ours.var_keyword and len(needed) > len(ours.positional):
        lost = [name for name in needed if name not in accepted]
        if lost:
            return f"cannot take {_listed(lost)}, which the base's callers pass", True
    lost = sorted((theirs.keyword_only & theirs.required) - accepted)
    if lost and not ours.var_keyword:
        return f"cannot take {_listed(lost)}, which the base's callers pass", True
    extra = sorted(name for name in ours.required - offered if name in ours.keyword_only)
    if sum(name in ours.required for name in ours.positional) > len(theirs.positional):
        extra += [name for name in ours.positional[len(theirs.positional) :] if name in ours.required]
    if extra:
        return f"requires {_listed(extra)}, which the base's callers may not pass", False
    lost = [name for name in (*theirs.positional, *sorted(theirs.keyword_only)) if name not in accepted]
    renamed = len(ours.positional) == len(theirs.positional) and theirs.keyword_only <= accepted
    if lost and not ours.var_keyword and not renamed and not (ours.var_positional and not theirs.keyword_only):
        return f"does not take {_listed(lost)}, which the base's callers may pass", False
    return "", False


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
