"""A release of verl's configuration: its keys as hydra composes them, and the names that its code reads."""

from __future__ import annotations

import ast
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.version import Version

from matrix.cache import Cache
from matrix.cell import Axis, Platform
from matrix.errors import UnknownReleaseError, UsageError
from matrix.index import Archive, PackageIndex

FOLDER = "verl/trainer/config/"
KIND = "config-1"
"""Changes when the same wheel may give other facts."""
DEFAULT = "ppo_trainer"
_CALLS = frozenset({"get", "pop", "getattr", "hasattr", "select", "setdefault"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """What hydra makes of a configuration: every key with its value, interpolations as written; or why it refuses.

    `targets` maps a node (`actor_rollout_ref.actor`) to the class that verl makes of it (`_target_`).
    """

    keys: Mapping[str, object] = field(default_factory=dict)
    refusal: str = ""

    @property
    def targets(self) -> dict[str, str]:
        """Return the node of each `_target_`, and the class it names."""
        return {key.removesuffix("._target_"): str(v) for key, v in self.keys.items() if key.endswith("._target_")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A place where code reads a field of some name: `chain` is how it is written, e.g. `self.config.actor.lr`."""

    path: str
    line: int
    chain: str

    def __str__(self) -> str:
        """Return `verl/trainer/main_ppo.py:42 config.trainer.lr`."""
        return f"{self.path}:{self.line} {self.chain}"


class ConfigRelease:
    """One release of verl; reads its wheel piecewise, and keeps what it derived in the cache."""

    def __init__(self, index: PackageIndex, cache_dir: Path, version: Version) -> None:
        """Find the wheel; raises UnknownReleaseError, IndexUnreachableError."""
        self.version = version
        release = index.require_release(Axis.VERL.value, version)
        file = index.best_file(release, Platform())
        if file is None:
            raise UnknownReleaseError(f"A wheel of verl=={version}", then="Its sdist is not read.")
        self._archive: Archive = index.archive(file)
        self._key = file.key
        self._cache = Cache(cache_dir)

    def names(self) -> tuple[str, ...]:
        """Return the configurations that can be composed by name, e.g. `ppo_trainer`, sorted."""
        found = (path.removeprefix(FOLDER) for path in self._archive.names() if path.startswith(FOLDER))
        return tuple(sorted(name.removesuffix(".yaml") for name in found if name.endswith(".yaml") and "/" not in name))

    def defaults(self, config: str = DEFAULT) -> Composed:
        """Return the configuration without any override."""
        kept = self._cache.get(KIND, f"{self._key}-{config}")
        if kept is not None:
            return Composed(keys=json.loads(kept))
        found = self.compose(config, ())
        if not found.refusal:
            self._cache.put(KIND, f"{self._key}-{config}", json.dumps(found.keys, default=str).encode())
        return found

    def compose(self, config: str, overrides: Sequence[str]) -> Composed:
        """Return what hydra composes of `config` with these overrides, or its refusal.

        Raises:
            UsageError: the release has no configuration of that name.
        """
        if config not in self.names():
            raise UsageError(
                f"verl {self.version} has no configuration `{config}`.", then=f"It has {', '.join(self.names())}."
            )
        with tempfile.TemporaryDirectory(prefix="verl-matrix-config-") as folder:
            self._unpack(Path(folder))
            return _composed(Path(folder), config, overrides)

    def reads(self) -> Mapping[str, tuple[Read, ...]]:
        """Return the places where code reads a field, by the field's name; at most a hundred of each."""
        kept = self._cache.get(KIND, f"{self._key}-reads")
        if kept is None:
            kept = json.dumps(self._derive_reads()).encode()
            self._cache.put(KIND, f"{self._key}-reads", kept)
        return _Reads(json.loads(kept))

    def fields(self) -> Mapping[str, tuple[str, ...]]:
        """Return the fields that each class of verl's typed configuration takes, inherited ones too, by class name."""
        kept = self._cache.get(KIND, f"{self._key}-fields")
        if kept is None:
            found = _inherited(dict(_classes(self._sources())))
            kept = json.dumps(found).encode()
            self._cache.put(KIND, f"{self._key}-fields", kept)
        return {name: tuple(fields) for name, fields in json.loads(kept).items()}

    def _unpack(self, folder: Path) -> None:
        wanted = [path for path in self._archive.names() if path.startswith(FOLDER) and path.endswith(".yaml")]
        for path, content in self._archive.read(wanted).items():
            target = folder / path.removeprefix(FOLDER)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)

    def _sources(self) -> Iterator[tuple[str, ast.Module]]:
        wanted = [path for path in self._archive.names() if path.startswith("verl/") and path.endswith(".py")]
        for path, content in sorted(self._archive.read(wanted).items()):
            try:
                yield path, ast.parse(content)
            except (SyntaxError, ValueError):
                continue

    def _derive_reads(self) -> dict[str, list[tuple[str, int, str]]]:
        found: dict[str, list[tuple[str, int, str]]] = {}
        for path, tree in self._sources():
            for name, line, chain in _reads(tree):
                places = found.setdefault(name, [])
                if len(places) < _PLACES:
                    places.append((path, line, chain))
        return found


_PLACES = 100


class _Reads(Mapping[str, tuple[Read, ...]]):
    """Places by name, made into objects when they are looked at."""

    def __init__(self, found: Mapping[str, Sequence[tuple[str, int, str]]]) -> None:
        self._found = found

    def __getitem__(self, name: str) -> tuple[Read, ...]:
        return tuple(Read(path=path, line=line, chain=chain) for path, line, chain in self._found[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def _composed(folder: Path, config: str, overrides: Sequence[str]) -> Composed:
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(config_dir=str(folder), version_base=None):
            made = compose(config, overrides=list(overrides))
        whole = OmegaConf.to_container(made, resolve=False)
    except (HydraException, OmegaConfBaseException) as error:
        return Composed(refusal=str(error).strip())
    return Composed(keys=dict(_flat(whole, ())))


def _flat(node: object, path: tuple[str, ...]) -> Iterator[tuple[str, object]]:
    """Yield every leaf of a configuration with its dotted key; an empty mapping is a leaf."""
    if isinstance(node, dict) and node:
        for name, value in node.items():
            yield from _flat(value, (*path, str(name)))
    else:
        yield ".".join(path), node


def _reads(tree: ast.Module) -> Iterator[tuple[str, int, str]]:
    """Yield name, line and chain of what reads a field: `x.name`, `x["name"]`, `x.get("name")`, `getattr(x, "name")`.

    A dotted string in such a call (`OmegaConf.select(config, "actor.lr")`) reads its last part.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name, ctx=ast.Load()):
                yield name, node.lineno, ast.unparse(node)[:120]
            case ast.Subscript(slice=ast.Constant(value=str(name)), ctx=ast.Load()):
                yield name.rpartition(".")[2], node.lineno, ast.unparse(node)[:120]
            case ast.Call(func=func, args=args) if _called(func) in _CALLS:
                for argument in args[:2]:
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                        yield argument.value.rpartition(".")[2], node.lineno, ast.unparse(node)[:120]


def _called(func: ast.expr) -> str:
    match func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


def _classes(sources: Iterator[tuple[str, ast.Module]]) -> Iterator[tuple[str, tuple[list[str], list[str]]]]:
    """Yield each class of the typed configuration with its base classes and its own fields."""
    for path, tree in sources:
        if "config" not in path:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                own = [item.target.id for item in node.body if isinstance(item, ast.AnnAssign)
                       and isinstance(item.target, ast.Name)]  # fmt: skip
                yield node.name, ([_called(base) for base in node.bases], own)


def _inherited(classes: Mapping[str, tuple[Sequence[str], Sequence[str]]]) -> dict[str, list[str]]:
    """Return the fields of each class with those of its bases."""

    def fields(name: str, seen: frozenset[str]) -> set[str]:
        if name not in classes or name in seen:
            return set()
        bases, own = classes[name]
        return set(own).union(*(fields(base, seen | {name}) for base in bases))

    return {name: sorted(fields(name, frozenset())) for name in classes}
