"""The finding: one typed result of a static check, with file and line on both sides (docs/architecture.md: Words)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What does not fit; the closed set of things the surface tier can see."""

    MODULE_MISSING = "module-missing"
    NAME_MISSING = "name-missing"
    ATTRIBUTE_MISSING = "attribute-missing"
    INSTANCE_ATTRIBUTE_MISSING = "instance-attribute-missing"
    PATCH_TARGET_MISSING = "patch-target-missing"
    DOTTED_STRING_MISSING = "dotted-string-missing"
    KEYWORD_REMOVED = "keyword-removed"
    KEYWORD_ADDED = "keyword-added"
    POSITIONAL_EXCESS = "positional-excess"
    ARGUMENT_REQUIRED = "argument-required"
    OVERRIDE_MISMATCH = "override-mismatch"
    OVERRIDE_ORPHANED = "override-orphaned"
    ENGINE_KEY_UNKNOWN = "engine-key-unknown"
    GATE_REFUSES = "gate-refuses"
    GATE_WRONG = "gate-wrong"
    OWN_MODULE_MISSING = "own-module-missing"
    PACKAGE_ABSENT = "package-absent"


class Effect(StrEnum):
    """What comes of it (docs/architecture.md: a missing name has four outcomes; only the first two are breaks)."""

    BREAKS_IMPORT = "breaks-import"
    BREAKS_FEATURE = "breaks-feature"
    GUARDED = "guarded"
    DEGRADES = "degrades"

    @property
    def is_break(self) -> bool:
        """Return whether a user meets an error."""
        return self in (Effect.BREAKS_IMPORT, Effect.BREAKS_FEATURE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A place in a package: path inside the distribution and line (1-based; 0 where only the file is known)."""

    path: str
    line: int = 0
    scope: str = ""

    def __str__(self) -> str:
        """Return `verl/utils/model.py:42`."""
        return f"{self.path}:{self.line}" if self.line else self.path


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that the subject (verl) uses and the target (e.g. vllm) does not have, or has otherwise.

    Attributes:
        kind: what does not fit.
        effect: what comes of it.
        target: the axis it is about, e.g. `vllm`; `verl` for a fault inside verl itself.
        symbol: the full dotted name used, e.g. `vllm.lora.models.LoRAModel`; for a call, `pkg.mod.func(keyword=)`.
        used_at: where in the subject.
        found_at: where the target has something of that name now (its file, line), or None.
        moved_to: the dotted names it may be found under now, best first.
        feature: the feature in whose code the use lies (`rollout`, `lora`, `fp8`, …), "" for every path.
        entry_points: the entry points that reach it, sorted.
        exception: the exception a user meets, e.g. `ImportError`; "" when none.
        guard: the condition or handler that stands around it, as source text; "".
        default_path: whether an ordinary PPO run meets it whatever its configuration.
        certain: False where the static view is partial (dynamic code, a condition that cannot be decided).
        message: one line for people.
    """

    kind: Kind
    effect: Effect
    target: str
    symbol: str
    used_at: Site
    found_at: Site | None = None
    moved_to: tuple[str, ...] = ()
    feature: str = ""
    entry_points: tuple[str, ...] = ()
    exception: str = ""
    guard: str = ""
    default_path: bool = False
    certain: bool = True
    message: str = ""

    @property
    def decides(self) -> bool:
        """Return whether a verdict may rest on it: certain, not guarded, and about a package that the cell holds."""
        return self.certain and self.effect is not Effect.GUARDED and self.kind is not Kind.PACKAGE_ABSENT

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data; `from_json` gives the equal finding back."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Finding:
        """Return the finding that `to_json` wrote; raises KeyError, TypeError or ValueError for anything else."""
        values = dict(data)
        found = values.get("found_at")
        values["kind"] = Kind(str(values["kind"]))
        values["effect"] = Effect(str(values["effect"]))
        values["used_at"] = Site(**values["used_at"])  # type: ignore[arg-type]
        values["found_at"] = Site(**found) if isinstance(found, Mapping) else None
        values["moved_to"] = tuple(values.get("moved_to") or ())  # type: ignore[arg-type]
        values["entry_points"] = tuple(values.get("entry_points") or ())  # type: ignore[arg-type]
        return cls(**values)  # type: ignore[arg-type]
