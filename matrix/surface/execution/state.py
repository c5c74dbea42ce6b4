"""The parts of an execution's state: guards, handlers, drafts of findings, modules, and how a block ends."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from matrix.finding import Kind
from matrix.surface.answer import ImportFailure, Ref
from matrix.surface.execution.syntax import Condition
from matrix.surface.execution.values import FunctionValue, Names, Value
from matrix.surface.subject import SubjectModule


class Jump(Enum):
    """A block ended early without a value: `break` or `continue`, an exception, or one that it raises on purpose.

    What `REFUSED` a block leaves the function, so that a run which goes on has not met the block's condition.
    """

    LOOP = "loop"
    ENDED = "ended"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Returned:
    """A block ended with `return value`."""

    value: Value


Flow = Jump | Returned | None
"""How a block ended; None is by reaching its end."""


@dataclass(slots=True, eq=False)
class Guard:
    """A condition around the code being executed.

    `decided` conditions held (or were taken negated); an undecided one makes what lies behind it conditional, and
    `doubtful` when it asks what is installed rather than how the run is configured. `root` is the package on whose
    version the condition depends, "" for none. `ordinary`: an undecided one that an ordinary run is known to meet.
    """

    condition: Condition
    taken: bool
    decided: bool
    root: str = ""
    doubtful: bool = False
    ordinary: bool = False

    @property
    def optional(self) -> bool:
        """Return whether an ordinary run may or may not meet it."""
        return not self.decided and not self.ordinary

    @property
    def text(self) -> str:
        """Return the condition as source text, negated where its other branch was taken."""
        return self.condition.text if self.taken else f"not ({self.condition.text})"


@dataclass(slots=True, eq=False)
class Frame:
    """A `try` (or `contextlib.suppress`) around the code being executed; `caught` are exception names, None is all."""

    node: ast.AST
    caught: frozenset[str] | None


@dataclass(slots=True, eq=False)
class Draft:
    """A finding in the making: what was seen where, before it is known what comes of it.

    `inside` is set when it is not the subject's own use that does not fit, but one in the code that it imports.
    """

    kind: Kind
    symbol: str
    target: str
    module: ModuleState
    node: ast.AST
    exception: str
    at_import: bool
    function: FunctionValue | None
    scope: str
    guards: tuple[Guard, ...]
    certain: bool
    doubtful: bool
    ref: Ref | None = None
    detail: str = ""
    handler: ast.AST | None = None
    shown: str = ""
    inside: ImportFailure | None = None


@dataclass(slots=True, eq=False)
class ModuleState:
    """A module of the subject in this run: its namespace, what it imports, and why importing it raises.

    `open_ended` when some branch of its own code could not be decided; imports are `hard` (they raise when the imported
    module does), `guarded` by a handler, or `lazy` (in a function, or behind a condition).
    """

    module: SubjectModule
    names: Names = field(default_factory=dict)
    finished: bool = False
    open_ended: bool = False
    fatal: list[Draft] = field(default_factory=list)
    hard: list[str] = field(default_factory=list)
    guarded: list[tuple[str, ast.AST | None]] = field(default_factory=list)
    lazy: list[tuple[str, FunctionValue | None]] = field(default_factory=list)
    functions: list[FunctionValue] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Return the module's dotted name."""
        return self.module.name


class Raised(Exception):  # noqa: N818  (an abstract exception of the subject, not an error of this program)
    """The executed code raises `exception`; `draft` says why, None when the reason is no misfit."""

    def __init__(self, exception: str, draft: Draft | None) -> None:
        """Keep the exception's name and the reason."""
        super().__init__(exception)
        self.exception = exception
        self.draft = draft


_SUPERS: Final[Mapping[str, frozenset[str]]] = {
    "ModuleNotFoundError": frozenset({"ImportError"}),
    "PackageNotFoundError": frozenset({"ModuleNotFoundError", "ImportError"}),
    "NotImplementedError": frozenset({"RuntimeError"}),
    "KeyError": frozenset({"LookupError"}),
    "IndexError": frozenset({"LookupError"}),
}


def version_mark(root: str) -> str:
    """Return what stands in a draft's text for the installed version of a package; `classify` puts it there."""
    return f"\0{root}\0"


def catches(caught: frozenset[str] | None, exception: str) -> bool:
    """Return whether a handler for the names `caught` (None: a bare one) catches `exception`."""
    if caught is None or "Exception" in caught or "BaseException" in caught or exception in caught:
        return True
    # A missing module raises ModuleNotFoundError; `exception` says ImportError for both kinds of missing.
    if exception == "ImportError" and "ModuleNotFoundError" in caught:
        return True
    return bool(_SUPERS.get(exception, frozenset()) & caught)
