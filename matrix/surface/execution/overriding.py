"""Signatures of overriding methods: how verl's own may be called, and whether that is as the target calls its own."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from matrix.surface.answer import Signature


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
