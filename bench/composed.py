"""Configurations of verl as its releases compose them, recorded small: `python -m bench.composed`, over the index.

For each release: the defaults by key, interpolations as written, and which of its fields its code reads. On them hydra
puts overrides as it does on a release's own files, so that toggles are tested without a network.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from packaging.version import Version

from matrix.config.release import DEFAULT, Composed, ConfigRelease, Read

RECORD = Path(__file__).with_name("configurations.json.gz")
RELEASES = (
    "0.2", "0.2.0.post2", "0.3.0.post1", "0.4.0", "0.4.1", "0.5.0", "0.6.0", "0.6.1", "0.7.0", "0.7.1", "0.8.0",
    "0.9.0", "0.9.1",
)  # fmt: skip
"""Those of the axis, but for one that none can install and one that differs from its post-release in nothing here."""


class Composing(Protocol):
    """What is asked of a release's configuration; `ConfigRelease` is the real one."""

    version: Version

    def compose(self, config: str, overrides: Sequence[str]) -> Composed:
        """Return what hydra composes, or its refusal."""

    def reads(self) -> Mapping[str, tuple[Read, ...]]:
        """Return the places where code reads a field, by the field's name."""


class Recorded:
    """A release as the record has it: hydra's own overriding and parsing over the recorded defaults, no file read.

    Words that choose a file of the configuration cannot be composed from it.
    """

    def __init__(self, version: Version, entry: Mapping[str, object]) -> None:
        """Take the entry of a release from `load`."""
        keys, names = entry["keys"], entry["reads"]
        if not isinstance(keys, dict) or not isinstance(names, list):
            raise TypeError(f"the record of {version} has no keys or no reads")
        self.version = version
        self._keys: dict[str, object] = keys
        self._reads = {str(name): (Read(path="", line=0, chain=str(name)),) for name in names}

    def compose(self, config: str, overrides: Sequence[str]) -> Composed:
        """Return the defaults with the overrides as hydra puts them in, or its refusal."""
        from hydra._internal.config_loader_impl import ConfigLoaderImpl
        from hydra.core.override_parser.overrides_parser import OverridesParser
        from hydra.errors import HydraException
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        # Hydra's own node is composed apart, and refuses nothing that is set here.
        words = [word for word in overrides if not word.startswith("hydra.")]
        # Making a node of each of 900 keys takes longer than all else: those that no word touches stay as they are.
        asked = {word.partition("=")[0].lstrip("+~") for word in words}
        near = {part for key in asked for part in _above(key)}
        touched = {key: value for key, value in self._keys.items() if key in near or asked.intersection(_above(key))}
        made = OmegaConf.create(nested(touched))
        OmegaConf.set_struct(made, True)
        try:
            parsed = OverridesParser.create().parse_overrides(words)
            ConfigLoaderImpl._apply_overrides_to_config(parsed, made)
        except (HydraException, OmegaConfBaseException) as error:
            return Composed(refusal=str(error).strip())
        whole = OmegaConf.to_container(made, resolve=False)
        rest = {key: value for key, value in self._keys.items() if key not in touched}
        return Composed(keys={**rest, **dict(_leaves(whole, ()))})

    def reads(self) -> Mapping[str, tuple[Read, ...]]:
        """Return the recorded fields that code reads; their places are not recorded."""
        return self._reads


def _above(key: str) -> list[str]:
    """Return a dotted key and every node above it."""
    parts = key.split(".")
    return [".".join(parts[:at]) for at in range(1, len(parts) + 1)]


def _leaves(node: object, path: tuple[str, ...]) -> Iterator[tuple[str, object]]:
    """Yield every leaf with its dotted key, an empty mapping too, as `matrix.config.release` does."""
    if isinstance(node, dict) and node:
        for name, value in node.items():
            yield from _leaves(value, (*path, str(name)))
    else:
        yield ".".join(path), node


def recorded(release: ConfigRelease, names: Sequence[str]) -> dict[str, object]:
    """Return the defaults of a release by key, and which of its fields and of `names` its code reads."""
    reads, keys = release.reads(), release.defaults(DEFAULT).keys
    fields = {key.rpartition(".")[2] for key in keys}.union(names)
    return {"keys": keys, "reads": sorted(name for name in fields if name in reads)}


def load(path: Path) -> dict[str, dict[str, object]]:
    """Return a record by release."""
    found: dict[str, dict[str, object]] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def nested(keys: Mapping[str, object]) -> dict[str, object]:
    """Return dotted keys as the mappings that they stand for."""
    whole: dict[str, object] = {}
    for key, value in keys.items():
        *path, last = key.split(".")
        node = whole
        for part in path:
            inner = node.setdefault(part, {})
            if not isinstance(inner, dict):
                raise ValueError(f"{key} stands below a value")
            node = inner
        node[last] = value
    return whole


def main(argv: Sequence[str] | None = None) -> int:
    """Write the record of the releases, read from the index; 0 when it is what was recorded before, else 1."""
    from bench.toggle import load_toggles
    from matrix.home import Home
    from matrix.index.simple import SimpleIndex

    parser = argparse.ArgumentParser(prog="bench.composed", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("releases", nargs="*", default=list(RELEASES), help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=RECORD, help="default: %(default)s")
    args = parser.parse_args(argv)
    home = Home.find(None)
    index = SimpleIndex.from_environment(cache_dir=home.cache)
    names = sorted({key.rpartition(".")[2] for toggle in load_toggles() for key in toggle.names})
    found = {
        text: recorded(ConfigRelease(index, home.cache, Version(text)), names) for text in args.releases
    }  # fmt: skip
    before = load(args.out) if args.out.is_file() else {}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(found, sort_keys=True, default=str).encode()
    args.out.write_bytes(gzip.compress(text, mtime=0))
    same = json.loads(text) == before
    sys.stdout.write(f"{args.out}: {'the same' if same else 'differs'}, {len(found)} releases\n")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
