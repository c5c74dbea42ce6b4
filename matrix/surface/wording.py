"""One line for people about each misfit."""

from __future__ import annotations

from matrix.finding import Effect, Finding, Kind
from matrix.surface.answer import ImportFailure

_LONGEST_CHAIN = 3


def message(finding: Finding, detail: str, shown: str, moved: tuple[str, ...], similar: tuple[str, ...] = ()) -> str:
    """Return what does not fit, where it went, what a user sees and under which condition, in one line.

    `moved` are definitions of the very name elsewhere; `similar` only look alike, and are worded as the guess they are.
    `detail` and `shown` are what the execution noted: particulars, and the error that verl raises in its place.
    """
    effect, feature, guard = finding.effect, finding.feature, finding.guard
    parts = [_what(finding, detail)]
    if detail and finding.kind in (Kind.MODULE_MISSING, Kind.NAME_MISSING, Kind.ATTRIBUTE_MISSING):
        parts.append(detail)
    if moved:
        parts.append(f"now {moved[0]}")
    elif similar:
        parts.append(f"perhaps {similar[0]}")
    if shown and effect.is_break:
        parts.append(f"verl shows it as {shown}")
    if effect is Effect.BREAKS_FEATURE and feature:
        parts.append(f"breaks {feature}" + (f" when {guard}" if guard else ""))
    elif finding.kind is Kind.GATE_WRONG:
        parts.append("verl goes the wrong way")
    elif effect is Effect.DEGRADES:
        parts.append("no error is raised" + (f" (when {guard})" if guard else ""))
    elif effect is Effect.GUARDED and guard:
        parts.append(f"handled by {guard}")
    return "; ".join(parts)


def taken_by(failure: ImportFailure, when: str) -> str:
    """Return where the code of a target takes what is missing, and on the way from which import."""
    over = failure.chain[1:]
    if len(over) > _LONGEST_CHAIN:
        over = (*over[: _LONGEST_CHAIN - 1], "…", over[-1])
    through = f" → {' → '.join(over)}" if over else ""
    return f"needed by {failure.site} when {when} {failure.chain[0]}{through}"


def _what(finding: Finding, plain: str) -> str:
    symbol = finding.symbol
    detail = f": {plain}" if plain else ""
    match finding.kind:
        case Kind.MODULE_MISSING:
            return f"no module {symbol}"
        case Kind.OWN_MODULE_MISSING:
            return f"verl's own module {symbol} is not in its wheel"
        case Kind.NAME_MISSING:
            module, _, name = symbol.rpartition(".")
            return f"cannot import {name} from {module}"
        case Kind.ATTRIBUTE_MISSING | Kind.INSTANCE_ATTRIBUTE_MISSING:
            owner, _, name = symbol.rpartition(".")
            return f"{owner} has no attribute {name}"
        case Kind.PATCH_TARGET_MISSING:
            return f"patches {symbol}, which is not there{detail}"
        case Kind.DOTTED_STRING_MISSING:
            return f"loads {symbol} by name, which is not there{detail}"
        case Kind.KEYWORD_REMOVED:
            return f"{symbol.replace('(', '() takes no keyword ').rstrip('=)')}"
        case Kind.ARGUMENT_REQUIRED:
            return f"{symbol.replace('(', '() needs ').rstrip('=)')}, which verl does not pass"
        case Kind.POSITIONAL_EXCESS | Kind.KEYWORD_ADDED:
            return f"{symbol}{detail}"
        case Kind.OVERRIDE_MISMATCH:
            return f"verl's override of {symbol} {plain}"
        case Kind.OVERRIDE_ORPHANED:
            return f"{symbol} is gone{detail}"
        case Kind.ENGINE_KEY_UNKNOWN:
            return f"unknown engine option {symbol.rpartition('.')[2]}{detail}"
        case Kind.GATE_REFUSES:
            return f"verl refuses {symbol}{detail}"
        case Kind.GATE_WRONG:
            return f"wrong version gate for {symbol}{detail}"
        case Kind.PACKAGE_ABSENT:
            return f"package {finding.target} is not in this cell ({plain})"
