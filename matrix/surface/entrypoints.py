"""What the data file `verl.toml` says of a verl release: entry points, features, assumptions, engine options."""

from __future__ import annotations

import ast
import hashlib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import translate
from functools import lru_cache
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from matrix.errors import DataError
from matrix.surface.execution.syntax import Condition

DATA = Path(__file__).with_name("verl.toml")
SCHEMA = 1

Place = tuple[re.Pattern[str], re.Pattern[str]]
"""Which modules, and which functions in them (`Class.method`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryPoint:
    """A module where users or verl's own registries enter; `needed_by` are the entries that fail when this one does."""

    name: str
    module: str
    feature: str
    core: bool
    needed_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureRule:
    """Which code belongs to a feature: globs over the path, the scope inside the file, and the conditions around it."""

    name: str
    paths: re.Pattern[str] | None
    scopes: re.Pattern[str] | None
    guards: re.Pattern[str] | None = None
    needs: tuple[str, ...] = ()

    def matches(self, path: str, scope: str) -> bool:
        """Return whether this rule claims the place, whatever the conditions around it."""
        if self.guards is not None:
            return False
        by_path = self.paths is None or self.paths.match(path) is not None
        return by_path and (self.scopes is None or self.scopes.match(scope) is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """An architecture that the engine loads in a process of its own, and the modules that may hold it, newest first."""

    architecture: str
    modules: tuple[str, ...]
    usual: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What is known of one verl release beside its code."""

    entries: tuple[EntryPoint, ...]
    features: tuple[FeatureRule, ...]
    default_path: tuple[Place, ...] = ()
    calls: Mapping[str, bool] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()
    factories: re.Pattern[str] | None = None
    absent: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    forwards: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    followed: frozenset[str] = frozenset()
    models: tuple[Model, ...] = ()
    holding: re.Pattern[str] | None = None
    failing: re.Pattern[str] | None = None
    # Asked for thousands of functions and conditions in every check of the same release.
    _held: dict[str, bool | None] = field(default_factory=dict, compare=False, repr=False)
    _on_path: dict[tuple[str, str], bool] = field(default_factory=dict, compare=False, repr=False)

    def feature(self, path: str, scope: str) -> str:
        """Return the feature in whose code the place lies, "" when no rule claims it."""
        return next((rule.name for rule in self.features if rule.matches(path, scope)), "")

    def feature_behind(self, guards: Iterable[str]) -> str:
        """Return the feature that one of these conditions turns on, "" when no rule says so."""
        texts = list(guards)
        found = (rule for rule in self.features if rule.guards is not None and any(map(rule.guards.match, texts)))
        return next((rule.name for rule in found), "")

    def holds(self, condition: Condition) -> bool | None:
        """Return whether an ordinary run meets a condition of its configuration, None when nothing says so."""
        text = condition.text
        if text not in self._held:
            self._held[text] = self._truth(condition.node)
        return self._held[text]

    def _truth(self, node: ast.expr) -> bool | None:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self._truth(node.operand)
            return None if inner is None else not inner
        if isinstance(node, ast.BoolOp):
            parts = [self._truth(part) for part in node.values]
            ends = isinstance(node.op, ast.Or)
            return ends if ends in parts else None if None in parts else not ends
        text = " ".join(ast.unparse(node).split())
        if self.holding is not None and self.holding.match(text):
            return True
        return False if self.failing is not None and self.failing.match(text) else None

    def cannot_run(self, feature: str) -> bool:
        """Return whether the feature needs a package that no cell holds."""
        return any(root in self.absent for rule in self.features if rule.name == feature for root in rule.needs)

    def is_factory(self, dotted: str) -> bool:
        """Return whether a class only makes instances of other classes."""
        return self.factories is not None and self.factories.match(dotted) is not None

    def on_default_path(self, module: str, scope: str) -> bool:
        """Return whether an ordinary run calls the function `scope` of `module`."""
        key = (module, scope)
        found = self._on_path.get(key)
        if found is None:
            found = any(first.match(module) and second.match(scope) for first, second in self.default_path)
            self._on_path[key] = found
        return found


def digest() -> str:
    """Return `sha256:<hex>` of the data file: answers depend on it."""
    return "sha256:" + hashlib.sha256(DATA.read_bytes()).hexdigest()


def absent_packages() -> frozenset[str]:
    """Return the import roots that no cell holds."""
    return frozenset(load(Version("0")).absent)


@lru_cache(maxsize=64)
def load(version: Version, path: Path = DATA) -> Profile:
    """Return the profile of the verl release `version`; raises DataError for a file that does not fit."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise DataError(path, "", str(error)) from error
    if data.get("schema") != SCHEMA:
        raise DataError(path, "schema", f"expected {SCHEMA}, found {data.get('schema')!r}")
    entries = [_entry(path, index, item, version) for index, item in enumerate(data.get("entry", ()))]
    assume, engine = data.get("assume", {}), data.get("engine", {})
    rules = [_feature(path, index, item, version) for index, item in enumerate(data.get("feature", ()))]
    ordinary = [_condition(path, index, item, version) for index, item in enumerate(data.get("ordinary", ()))]
    return Profile(
        entries=tuple(entry for entry in entries if entry is not None),
        features=tuple(rule for rule in rules if rule is not None),
        default_path=tuple(
            place
            for index, item in enumerate(data.get("default_path", ()))
            for place in _places(path, f"default_path[{index}]", item, version)
        ),
        calls=dict(assume.get("calls", {})),
        missing=frozenset(assume.get("missing", ())),
        factories=_globs(assume["factories"]) if "factories" in assume else None,
        absent=dict(assume.get("absent", {})),
        flags=tuple(engine.get("flags", ())),
        forwards=dict(engine.get("forwards", {})),
        environment=dict(engine.get("environment", {})),
        followed=frozenset(data.get("inside", {}).get("followed", ())),
        models=tuple(_model(path, index, item) for index, item in enumerate(data.get("model", ()))),
        holding=_globs([text for texts, holds in ordinary if holds for text in texts]),
        failing=_globs([text for texts, holds in ordinary if not holds for text in texts]),
    )


def _entry(path: Path, index: int, item: Mapping[str, object], version: Version) -> EntryPoint | None:
    """Return the entry point, or None when its `verl` range does not hold this release."""
    where = f"entry[{index}]"
    for key, kind in (("name", str), ("module", str), ("feature", str), ("core", bool)):
        if not isinstance(item.get(key), kind):
            raise DataError(path, f"{where}.{key}", f"expected {kind.__name__}, found {item.get(key)!r}")
    if not _concerns(path, where, item, version):
        return None
    needed = item.get("needed_by", ())
    if not isinstance(needed, list | tuple):
        raise DataError(path, f"{where}.needed_by", f"expected a list of names, found {needed!r}")
    return EntryPoint(
        name=str(item["name"]),
        module=str(item["module"]),
        feature=str(item["feature"]),
        core=bool(item["core"]),
        needed_by=tuple(str(name) for name in needed),
    )


def _concerns(path: Path, where: str, item: Mapping[str, object], version: Version) -> bool:
    """Return whether the range `verl` of a table holds this release; raises DataError for what is no range."""
    try:
        ranges = SpecifierSet(str(item.get("verl", "")))
    except InvalidSpecifier as error:
        raise DataError(path, f"{where}.verl", str(error)) from error
    return ranges.contains(version, prereleases=True)


def _condition(path: Path, index: int, item: Mapping[str, object], version: Version) -> tuple[tuple[str, ...], bool]:
    """Return the globs of some conditions and whether an ordinary run meets them; none outside its `verl` range."""
    where, texts, holds = f"ordinary[{index}]", item.get("texts"), item.get("holds")
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise DataError(path, f"{where}.texts", f"expected a list of globs, found {texts!r}")
    if not isinstance(holds, bool):
        raise DataError(path, f"{where}.holds", f"expected bool, found {holds!r}")
    return tuple(texts) if _concerns(path, where, item, version) else (), holds


def _feature(path: Path, index: int, item: Mapping[str, object], version: Version) -> FeatureRule | None:
    """Return the rule, or None when its `verl` range does not hold this release."""
    if not isinstance(item.get("name"), str):
        raise DataError(path, f"feature[{index}].name", f"expected a name, found {item.get('name')!r}")
    if not {"paths", "scopes", "guards"} & item.keys():
        raise DataError(path, f"feature[{index}]", "needs `paths`, `scopes` or `guards`")
    if not _concerns(path, f"feature[{index}]", item, version):
        return None
    paths, scopes, guards = (_globs(item[key]) if key in item else None for key in ("paths", "scopes", "guards"))
    needs = item.get("needs", ())
    if not isinstance(needs, list | tuple):
        raise DataError(path, f"feature[{index}].needs", f"expected a list of import roots, found {needs!r}")
    roots = tuple(str(root) for root in needs)
    return FeatureRule(name=str(item["name"]), paths=paths, scopes=scopes, guards=guards, needs=roots)


def _model(path: Path, index: int, item: Mapping[str, object]) -> Model:
    architecture, modules, usual = item.get("architecture"), item.get("modules"), item.get("usual", False)
    if not isinstance(architecture, str) or not isinstance(usual, bool):
        raise DataError(path, f"model[{index}]", "needs `architecture`, a name, and at most `usual`, true or false")
    if not isinstance(modules, list) or not modules or not all(isinstance(name, str) for name in modules):
        raise DataError(path, f"model[{index}].modules", f"expected a list of modules, found {modules!r}")
    return Model(architecture=architecture, modules=tuple(modules), usual=usual)


def _globs(value: object) -> re.Pattern[str]:
    """Return one pattern that matches what any of the globs does, and nothing when there is none."""
    globs = value if isinstance(value, list) else [value]
    return re.compile("|".join(translate(str(glob)) for glob in globs) or r"(?!)")


def _places(path: Path, where: str, item: Mapping[str, object], version: Version) -> Iterable[Place]:
    """Return the places that a table of the default path names; none outside its `verl` range."""
    functions = item.get("functions")
    if not isinstance(functions, list):
        raise DataError(path, f"{where}.functions", f"expected a list of `module:scope`, found {functions!r}")
    return [_place(path, where, text) for text in functions] if _concerns(path, where, item, version) else []


def _place(path: Path, where: str, item: object) -> Place:
    module, colon, scope = str(item).partition(":")
    if not colon:
        raise DataError(path, f"{where}.functions", f"expected `module:scope`, found {item!r}")
    return re.compile(translate(module)), re.compile(translate(scope))
