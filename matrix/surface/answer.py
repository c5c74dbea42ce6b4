"""What the target world answers: is it there, and what is it.

Shared by the two halves of the tier: `matrix.surface.world` answers questions about the target packages (vllm,
transformers, …), `matrix.surface.subject` executes the subject (verl) abstractly and asks them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from matrix.finding import Kind, Site


class Presence(StrEnum):
    """Whether a name is there: yes, no, or the static view cannot tell (compiled, dynamic, outside the world)."""

    PRESENT = "present"
    MISSING = "missing"
    OPAQUE = "opaque"


RefKind = Literal["module", "class", "function", "method", "value"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ref:
    """A definition in a target package, after following imports and re-exports to where it is defined.

    Attributes:
        kind: what it is; a `method` is a function found on a class, a `value` anything that is assigned.
        package: the import root, e.g. `vllm`.
        module: the dotted module that defines it, e.g. `vllm.engine.arg_utils`.
        name: its qualified name inside the module, e.g. `EngineArgs.from_cli_args`; "" for a module.
        owner: for a method, the class through which it was reached (a subclass may have been asked).
    """

    kind: RefKind
    package: str
    module: str
    name: str = ""
    owner: Ref | None = None

    @property
    def dotted(self) -> str:
        """Return the full dotted name."""
        return f"{self.module}.{self.name}" if self.name else self.module


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Presence of a name, and what it is where that is known.

    `ref` is None for something present of unknown nature. `constant` holds a literal (str, int, bool, None, tuple of
    these) when the name is bound to one; `has_constant` tells it from "unknown". `instance_of` is the class of which
    the name holds an instance (module-level singleton, annotated attribute or property); `exact` is False where only
    an annotation says so, since the runtime object may then be a subclass.
    """

    presence: Presence
    ref: Ref | None = None
    constant: object = None
    has_constant: bool = False
    instance_of: Ref | None = None
    exact: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """How a callable may be called, without `self`/`cls` where it is bound.

    `positional` are the names that can be given by position (in order), `positional_only` how many of them cannot be
    given by keyword, `keyword_only` the rest, `required` those without a default. `certain` is False when a decorator
    or an incomplete class hierarchy may change it.
    """

    positional: tuple[str, ...]
    keyword_only: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()
    positional_only: int = 0
    var_positional: bool = False
    var_keyword: bool = False
    certain: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """The method resolution order of a class as far as it is known, the class itself first.

    `complete` is True when every base was found, or is one whose attributes are known (`object`, `enum.Enum`, …);
    only then can an attribute be said to be missing. `external` names the bases outside the world, as written.
    """

    order: tuple[Ref, ...]
    complete: bool
    external: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportFailure:
    """Why importing a module of one target raises: what another target lacks.

    Attributes:
        kind: MODULE_MISSING, NAME_MISSING or ATTRIBUTE_MISSING.
        symbol: the full dotted name that is missing, e.g. `transformers.configuration_utils.ALLOWED_LAYER_TYPES`.
        exception: what the import raises.
        site: the statement that takes it, e.g. `vllm/config/model.py:14`.
        chain: the modules from the one that was asked about to the one of `site`, each importing the next.
    """

    kind: Kind
    symbol: str
    exception: str
    site: Site
    chain: tuple[str, ...]
