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
    fault = misfit(ours, theirs)
    if fault:
        symbol = f"{base.dotted}.{name}"
        run.report(Kind.OVERRIDE_MISMATCH, symbol, function.node, "TypeError", ref=method, detail=fault, certain=False)
        if not run.quiet and run.drafts and run.drafts[-1].node is function.node:
            # Only what every caller of the base passes is sure to arrive.
            run.drafts[-1].certain = fault.startswith("cannot take") and not run.doubts and not run.unreached


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


def misfit(ours: Signature, theirs: Signature) -> str:
    """Return why an override cannot be called as the base is, "" when it can.

    "cannot take …" is sure to fail at every call that the base allows; "may not take …" fails for callers that pass an
    optional argument.
    """
    if theirs.var_positional or theirs.var_keyword:
        return ""
    needed = [name for name in theirs.positional if name in theirs.required]
    accepted = {*ours.positional, *ours.keyword_only}
    if not ours.var_positional and len(needed) > len(ours.positional) and not ours.var_keyword:
        lost = [name for name in needed if name not in accepted]
        if lost:
            return f"cannot take {', '.join(f'`{name}`' for name in lost)}, which the base's callers pass"
    lost = sorted((theirs.keyword_only & theirs.required) - accepted)
    if lost and not ours.var_keyword:
        return f"cannot take {', '.join(f'`{name}`' for name in lost)}, which the base's callers pass"
    offered = {*theirs.positional, *theirs.keyword_only}
    extra = [name for name in sorted(ours.required - offered) if name in ours.keyword_only]
    if len([name for name in ours.positional if name in ours.required]) > len(theirs.positional):
        extra += [name for name in ours.positional[len(theirs.positional) :] if name in ours.required]
    if extra:
        return f"cannot take the base's calls: it requires {', '.join(f'`{name}`' for name in extra)} as well"
    if not ours.var_keyword:
        lost = [name for name in (*theirs.positional, *sorted(theirs.keyword_only)) if name not in accepted]
        renamed = len(ours.positional) == len(theirs.positional) and not theirs.keyword_only - accepted
        if lost and not renamed and not (ours.var_positional and not theirs.keyword_only):
            return f"may not take {', '.join(f'`{name}`' for name in lost)}, which the base's signature has"
    return ""
