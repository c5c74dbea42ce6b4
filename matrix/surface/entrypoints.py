"""What the data file `verl.toml` says of a verl release: entry points, features, assumptions, engine options."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import translate
from functools import lru_cache
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from matrix.errors import DataError

DATA = Path(__file__).with_name("verl.toml")
SCHEMA = 1


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
    """Which code belongs to a feature: compiled globs over the path and over the scope inside the file."""

    name: str
    paths: re.Pattern[str] | None
    scopes: re.Pattern[str] | None
    needs: tuple[str, ...] = ()

    def matches(self, path: str, scope: str) -> bool:
        """Return whether this rule claims the place."""
        by_path = self.paths is None or self.paths.match(path) is not None
        return by_path and (self.scopes is None or self.scopes.match(scope) is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What is known of one verl release beside its code."""

    entries: tuple[EntryPoint, ...]
    features: tuple[FeatureRule, ...]
    default_path: tuple[tuple[re.Pattern[str], re.Pattern[str]], ...] = ()
    calls: Mapping[str, bool] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()
    factories: re.Pattern[str] | None = None
    absent: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    forwards: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    # Asked for thousands of functions in every check of the same release.
    _on_path: dict[tuple[str, str], bool] = field(default_factory=dict, compare=False, repr=False)

    def feature(self, path: str, scope: str) -> str:
        """Return the feature in whose code the place lies, "" when no rule claims it."""
        return next((rule.name for rule in self.features if rule.matches(path, scope)), "")

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
    return Profile(
        entries=tuple(entry for entry in entries if entry is not None),
        features=tuple(_feature(path, index, item) for index, item in enumerate(data.get("feature", ()))),
        default_path=tuple(_place(path, item) for item in data.get("default_path", {}).get("functions", ())),
        calls=dict(assume.get("calls", {})),
        missing=frozenset(assume.get("missing", ())),
        factories=_globs(assume["factories"]) if "factories" in assume else None,
        absent=dict(assume.get("absent", {})),
        flags=tuple(engine.get("flags", ())),
        forwards=dict(engine.get("forwards", {})),
        environment=dict(engine.get("environment", {})),
    )


def _entry(path: Path, index: int, item: Mapping[str, object], version: Version) -> EntryPoint | None:
    """Return the entry point, or None when its `verl` range does not hold this release."""
    where = f"entry[{index}]"
    for key, kind in (("name", str), ("module", str), ("feature", str), ("core", bool)):
        if not isinstance(item.get(key), kind):
            raise DataError(path, f"{where}.{key}", f"expected {kind.__name__}, found {item.get(key)!r}")
    try:
        ranges = SpecifierSet(str(item.get("verl", "")))
    except InvalidSpecifier as error:
        raise DataError(path, f"{where}.verl", str(error)) from error
    if not ranges.contains(version, prereleases=True):
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


def _feature(path: Path, index: int, item: Mapping[str, object]) -> FeatureRule:
    if not isinstance(item.get("name"), str):
        raise DataError(path, f"feature[{index}].name", f"expected a name, found {item.get('name')!r}")
    if "paths" not in item and "scopes" not in item:
        raise DataError(path, f"feature[{index}]", "needs `paths` or `scopes`")
    paths, scopes = (_globs(item[key]) if key in item else None for key in ("paths", "scopes"))
    needs = item.get("needs", ())
    if not isinstance(needs, list | tuple):
        raise DataError(path, f"feature[{index}].needs", f"expected a list of import roots, found {needs!r}")
    return FeatureRule(name=str(item["name"]), paths=paths, scopes=scopes, needs=tuple(str(root) for root in needs))


def _globs(value: object) -> re.Pattern[str]:
    """Return one pattern that matches what any of the globs does."""
    globs = value if isinstance(value, list) else [value]
    return re.compile("|".join(translate(str(glob)) for glob in globs))


def _place(path: Path, item: object) -> tuple[re.Pattern[str], re.Pattern[str]]:
    module, colon, scope = str(item).partition(":")
    if not colon:
        raise DataError(path, "default_path.functions", f"expected `module:scope`, found {item!r}")
    return re.compile(translate(module)), re.compile(translate(scope))
