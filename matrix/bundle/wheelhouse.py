"""Wheels as files, each fetched or built once and kept by its digest, so that a bundle that was stopped goes on."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from packaging.version import Version

from matrix.bundle.parts import Source
from matrix.cell import Platform
from matrix.errors import CorruptFileError, NoSpaceError, ProvisionError, ToolError
from matrix.index.fetch import Fetcher
from matrix.index.tags import expand, tag_ranks
from matrix.provision.builds import BuildTable
from matrix.provision.recipe import LocalWheel
from matrix.resolve.lock import Locked
from matrix.resolve.process import Children, surroundings

LARGEST = 8 << 30
BUILD_TIMEOUT_S = 900.0
TRIES = 2


class Fetches(Protocol):
    """What fetches a whole file; `matrix.index.fetch.Fetcher` is the real one."""

    whole: Callable[..., int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A file that a lock names: where it is, its digest, and its bytes where the index tells them."""

    filename: str
    url: str
    sha256: str
    size: int | None = None


@dataclass(slots=True, kw_only=True)
class Wheelhouse:
    """Gives the wheel of a locked package as a file; safe for threads."""

    root: Path
    builds: BuildTable
    uv: Path
    uv_cache: Path
    index_url: str
    fetcher: Fetcher = field(default_factory=Fetcher)
    children: Children = field(default_factory=Children)
    find_python: Callable[[str], Path]
    say: Callable[[str], None] = lambda _: None
    offline: bool = False

    def wheel(self, package: Locked, data: Mapping[str, Any], platform: Platform) -> Source:
        """Return the wheel of a locked package, `data` being its entry as TOML: the best for the platform, else built.

        Raises ProvisionError (no wheel fits, or it may not be built), CorruptFileError, IndexUnreachableError,
        NoSpaceError, ToolError.
        """
        offers = [_offer(item) for item in data.get("wheels", ())]
        if not offers:
            self.builds.check([package], platform.python)
            return self._built(package, _offer(data["sdist"]), platform.python)
        ranks = tag_ranks(platform)
        fitting = [(rank, offer) for offer in offers if (rank := _rank(offer.filename, ranks)) is not None]
        if not fitting:
            raise ProvisionError(f"No wheel in the lock of {package.name} {package.version} fits {platform.uv}.",
                                 packages=(package.name,))  # fmt: skip
        return self.fetched(min(fitting, key=lambda item: item[0])[1])

    def fetched(self, offer: Offer) -> Source:
        """Return the file of that digest, from here or from where it is; raises as `wheel` does."""
        path = self.root / offer.sha256[:2] / offer.sha256 / offer.filename
        if path.is_file() and offer.size in (None, path.stat().st_size):
            return Source(path=path, size=path.stat().st_size, sha256=offer.sha256)
        aside = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            for _ in range(TRIES):
                with aside.open("w+b") as file:
                    size = self.fetcher.whole(offer.url, file, LARGEST)
                    file.seek(0)
                    found = hashlib.file_digest(file, "sha256").hexdigest()
                if found == offer.sha256:
                    aside.replace(path)
                    return Source(path=path, size=size, sha256=found)
        except OSError as error:
            raise _unwritable(self.root, error) from error
        finally:
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)
        raise CorruptFileError(
            f"{offer.filename} has not the SHA-256 that the lock states.",
            why=f"It was fetched again and was no better: {found}.",
            then="The index, a mirror or a proxy serves another file than when the cell was resolved; resolve it anew.",
        )

    def _built(self, package: Locked, sdist: Offer, python: str) -> Source:
        """Return the wheel that uv builds from the sdist, with the pinned backend of builds.toml."""
        folder = self.root / "built" / sdist.sha256 / f"py{python}"
        note = folder / "wheel.json"
        if note.is_file():
            data = json.loads(note.read_text(encoding="utf-8"))
            path = folder / data["filename"]
            if path.is_file() and digest(path) == data["sha256"]:
                return Source(path=path, size=path.stat().st_size, sha256=data["sha256"])
        source = self.fetched(sdist)
        self.say(f"building {package.name} {package.version}")
        try:
            with tempfile.TemporaryDirectory(prefix="verl-matrix-build-") as name:
                wheel = self._build(source.path, package, Path(name), self.find_python(python))
                folder.mkdir(parents=True, exist_ok=True)
                shutil.move(wheel, folder / wheel.name)
        except OSError as error:
            raise _unwritable(self.root, error) from error
        path = folder / wheel.name
        made = Source(path=path, size=path.stat().st_size, sha256=digest(path))
        note.write_text(json.dumps({"filename": path.name, "sha256": made.sha256}), encoding="utf-8")
        return made

    def _build(self, sdist: Path, package: Locked, folder: Path, python: Path) -> Path:
        (folder / "constraints.txt").write_text(self.builds.constraints([package]), encoding="utf-8")
        (folder / "uv.toml").write_text(f"[[index]]\nurl = {json.dumps(self.index_url)}\ndefault = true\n")
        command = [str(self.uv), "build", "--wheel", str(sdist), "--out-dir", str(folder / "out"), "--color", "never"]
        command += ["--python", str(python), "--build-constraints", "constraints.txt", "--require-hashes"]
        command += ["--cache-dir", str(self.uv_cache), "--config-file", "uv.toml", "--no-progress"]
        command += ["--offline"] if self.offline else []
        env = surroundings() | {"UV_PYTHON_DOWNLOADS": "never"}
        ended = self.children.run(command, folder=folder, env=env, timeout_s=BUILD_TIMEOUT_S)
        wheels = sorted((folder / "out").glob("*.whl"))
        if ended.code != 0 or len(wheels) != 1:
            raise ProvisionError(
                f"{package.name} {package.version} could not be built.",
                why="\n".join(ended.stderr.strip().splitlines()[-12:]),
                packages=(package.name,),
            )
        return wheels[0]


def local_wheel(name: str, path: Path, platform: Platform) -> LocalWheel:
    """Return the wheel of `--build NAME=PATH`; raises ToolError where it is none of that package, or does not fit."""
    from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

    then = "Give the wheel that you built: --build flash-attn=PATH.whl."
    if not path.is_file():
        raise ToolError(f"There is no wheel {path}.", then=then)
    try:
        found, version, _, _ = parse_wheel_filename(path.name)
    except InvalidWheelFilename as error:
        raise ToolError(f"{path.name} is not the name of a wheel.", why=str(error), then=then) from error
    if found != canonicalize_name(name):
        raise ToolError(f"{path.name} is a wheel of {found}, not of {name}.", then=then)
    if _rank(path.name, tag_ranks(platform)) is None:
        raise ToolError(f"{path.name} does not fit Python {platform.python} on {platform.uv}.", then=then)
    return LocalWheel(name=found, version=version, path=path.absolute(), sha256=digest(path))


def fits_release(wheel: LocalWheel, wanted: Version) -> bool:
    """Return whether a wheel is of that release; a local version (`2.8.3+cu13torch2.11`) is one of it (PEP 440)."""
    return wheel.version == wanted or (wanted.local is None and Version(wheel.version.public) == wanted)


def digest(path: Path) -> str:
    """Return the hex SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _offer(item: Mapping[str, Any]) -> Offer:
    """Return the file of a lock's entry; a name that is not stated is the address's last part."""
    from urllib.parse import unquote, urlsplit

    filename = item.get("name") or unquote(urlsplit(item["url"]).path.rpartition("/")[2])
    return Offer(filename=filename, url=item["url"], sha256=item["hashes"]["sha256"], size=item.get("size"))


def _rank(filename: str, ranks: Mapping[str, int]) -> int | None:
    found = [ranks[tag] for tag in expand("-".join(filename.removesuffix(".whl").split("-")[-3:])) if tag in ranks]
    return min(found, default=None)


def _unwritable(folder: Path, error: OSError) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpaceError(f"No room is left for wheels in {folder}.", then="Free some space, or use another --home.")
    return ToolError(f"A wheel cannot be kept in {folder}: {error.strerror or error}.")
