"""What has arrived of a bundle on its host: `bundle.json`, and the parts as far as they are there."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

SCHEMA = 1
BLOCK = 1 << 20
START = time.monotonic()

Json = dict[str, Any]


class Stopped(Exception):  # noqa: N818 - it is what the user is told, not a fault
    """What keeps the bundle from being unpacked, a line each; nothing half-made is left where it would be used."""


def tell(text: str) -> None:
    """Print a line with the seconds since the start."""
    print(f"[{time.monotonic() - START:6.1f} s] {text}", flush=True)


def read_bundle(sources: Sequence[Path], beside: Path) -> Json:
    """Return the content of bundle.json: named, in a named folder, beside a named file, or in the folder `beside`."""
    places = [source / "bundle.json" if source.is_dir() else source.with_name("bundle.json") for source in sources]
    places.append(beside / "bundle.json")
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        looked = ", ".join(str(place) for place in dict.fromkeys(places))
        raise Stopped(f"bundle.json is not there; looked for {looked}")
    try:
        bundle: Json = json.loads(found.read_text(encoding="utf-8"))
        schema = bundle["schema"]
    except (ValueError, KeyError, TypeError) as error:
        raise Stopped(f"{found} is damaged: {error}") from error
    if schema != SCHEMA:
        raise Stopped(
            f"{found} has schema {schema}, this program reads {SCHEMA}: take the unbundle.py that came with it"
        )
    for name in named(bundle, found):
        if name.startswith("/") or {"", ".", ".."} & set(name.split("/")):
            raise Stopped(f"{found} is damaged: `{name}` lies outside of the folder that it goes to; bring it again")
    return bundle


def named(bundle: Json, found: Path) -> list[str]:
    """Return every path that the bundle names below the folder it goes to; raises Stopped where it is no bundle."""
    try:
        cells = bundle["cells"]
        sizes = [int(item["size"]) for item in (*bundle["files"].values(), *bundle["parts"])]
        if min(sizes, default=0) < 0:
            raise ValueError("a size is below 0")
        folders = [str(cell["folder"]) for cell in cells]
        if any("/" in folder for folder in folders):
            raise ValueError(f"a cell's folder is {', '.join(folders)}")
        own = [str(path) for cell in cells for path in (cell["lock_file"], *cell["wheels"])]
        parts = [str(part["name"]) for part in bundle["parts"]]
        wanted = [*own, *bundle["tool"], *([bundle["uv"]] if bundle["uv"] else [])]
        if absent := [path for path in wanted if path not in bundle["files"]]:
            raise ValueError(f"it does not list {absent[0]}")
        return [*map(str, bundle["files"]), *folders, *parts]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Stopped(f"{found} is damaged: {error}; bring it again") from error


class Stream:
    """The bundle as one run of bytes, over the parts that are there, wherever they lie."""

    def __init__(self, parts: list[Json], sources: Sequence[Path]) -> None:
        """Find each part: by its name, or as a stretch of a file into which parts were appended."""
        self.parts = parts
        self.begins: dict[str, int] = {}
        self.where: dict[str, tuple[Path, int]] = {}
        begin = 0
        for part in parts:
            self.begins[part["name"]] = begin
            place = self._place(part["name"], begin, sources)
            if place is not None:
                self.where[part["name"]] = place
            begin += part["size"]

    def _place(self, name: str, begin: int, sources: Sequence[Path]) -> tuple[Path, int] | None:
        for source in sources:
            if source.is_dir() and (source / name).is_file():
                return source / name, 0
            if source.is_file() and source.name == name:
                return source, 0
        names = {part["name"] for part in self.parts}
        for source in sources:
            if source.is_file() and source.name not in names and source.stat().st_size > begin:
                return source, begin
        return None

    def covering(self, files: Sequence[Json]) -> list[Json]:
        """Return the parts in which these files lie."""
        spans = [(file["offset"], file["offset"] + file["size"]) for file in files]

        def needed(part: Json) -> bool:
            begin = self.begins[part["name"]]
            return any(first < begin + part["size"] and last > begin for first, last in spans)

        return [part for part in self.parts if needed(part)]

    def wrong(self, part: Json) -> str:
        """Return what is wrong with a part, "" for nothing."""
        name, left, digest = part["name"], part["size"], hashlib.sha256()
        if name not in self.where:
            return f"{name} is missing ({left} bytes)"
        path, at = self.where[name]
        with path.open("rb") as file:
            file.seek(at)
            while left and (block := file.read(min(BLOCK, left))):
                digest.update(block)
                left -= len(block)
            more = path.name == name and bool(file.read(1))
        if left:
            return f"{name} is cut off: {left} of its {part['size']} bytes are missing in {path}"
        if more or digest.hexdigest() != part["sha256"]:
            return f"{name} is corrupt in {path}: it has not the SHA-256 {part['sha256']}"
        return ""

    def blocks(self, offset: int, size: int) -> Iterator[bytes]:
        """Yield the bytes of the stream from `offset` on, `size` of them where they are there."""
        for part in self.parts:
            begin = self.begins[part["name"]]
            first, last = max(offset, begin), min(offset + size, begin + part["size"])
            if first >= last:
                continue
            path, at = self.where[part["name"]]
            with path.open("rb") as file:
                file.seek(at + first - begin)
                left = last - first
                while left and (block := file.read(min(BLOCK, left))):
                    yield block
                    left -= len(block)

    def extract(self, entry: Json, target: Path) -> None:
        """Write a file of the bundle to `target`, whole and checked, or raise Stopped."""
        target.parent.mkdir(parents=True, exist_ok=True)
        aside, digest = target.with_name(f".{target.name}.part"), hashlib.sha256()
        with aside.open("wb") as file:
            for block in self.blocks(entry["offset"], entry["size"]):
                file.write(block)
                digest.update(block)
        if digest.hexdigest() != entry["sha256"]:
            raise Stopped(f"{target.name} has not the SHA-256 {entry['sha256']} that bundle.json states")
        aside.chmod(entry["mode"])
        aside.replace(target)
