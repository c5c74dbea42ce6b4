"""From a cell and its lock to an environment: found on the shelf or built there, held while it is used, let go."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from matrix.cell import Cell, Platform
from matrix.errors import ProvisionError, ToolError
from matrix.home import Home
from matrix.provision.alias import add_aliases
from matrix.provision.builds import BuildTable, load_builds
from matrix.provision.environment import MANIFEST, Environment, Manifest, read_manifest
from matrix.provision.installer import TIMEOUT_S, Installer, cache_folder
from matrix.provision.inventory import Inventory, differences, take_inventory
from matrix.provision.latch import Latch, Waiting, attempt
from matrix.provision.needs import NEEDS
from matrix.provision.pythons import Finder, downloads_allowed
from matrix.provision.recipe import Recipe, read_recipe, wheel_folders
from matrix.provision.room import Estimate, added_since, can_link, check_room, estimate, free_bytes, gigabytes
from matrix.provision.shelf import Shelf
from matrix.resolve.process import Children
from matrix.resolve.solver import find_uv

PATIENCE_S = 3600.0
PYPI = "https://pypi.org/simple"
_INDEXES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")


def _silent(_: str) -> None:
    """Say nothing."""


@dataclass(slots=True, kw_only=True)
class _Work:
    """One environment being built."""

    cell: Cell
    recipe: Recipe
    folder: Path
    latch: Latch
    notes: list[str] = field(default_factory=list)


class Provisioner:
    """Gives environments to cells; safe for threads, and for other processes on the same home.

    An environment is held from `provision` to `release`, and nobody removes or rebuilds it meanwhile. `release` removes
    it unless `keep`, or unless it was made or taken by a provisioner that keeps. `say` is told what takes long.
    """

    def __init__(
        self,
        *,
        home: Home,
        index_url: str | None = None,
        offline: bool = False,
        uv: Path | None = None,
        keep: bool = False,
        wheels: Iterable[str | Path] = (),
        uv_cache: Path | None = None,
        patience_s: float = PATIENCE_S,
        timeout_s: float = TIMEOUT_S,
        say: Callable[[str], None] = _silent,
        free: Callable[[Path], int] = free_bytes,
        builds: BuildTable | None = None,
        find_python: Callable[[str], Path] | None = None,
    ) -> None:
        """Start nothing yet. `wheels` are folders of wheels that the user built, besides VERL_MATRIX_WHEELS.

        `free`, `builds` and `find_python` (the interpreter of a version `X.Y`) stand in for the machine's own. uv's
        cache is `uv_cache`, else UV_CACHE_DIR, else in the home. Raises UsageError for a folder of wheels that is
        none, ToolError when there is no uv, DataError when `builds.toml` is not as it should be.
        """
        url = index_url or next((os.environ[name] for name in _INDEXES if os.environ.get(name)), PYPI)
        self.shelf = Shelf(root=home.cache / "environments")
        self.children = Children()
        self.installer = Installer(
            uv=find_uv(uv),
            cache=cache_folder(uv_cache, home.cache),
            index_url=url,
            offline=offline,
            timeout_s=timeout_s,
            children=self.children,
        )
        finder = Finder(
            uv=self.installer.uv,
            env=self.installer.environment | {"UV_PYTHON_DOWNLOADS": "automatic", "UV_PYTHON_INSTALL_BIN": "0"},
            managed=home.cache / "pythons",
            download=downloads_allowed(offline=offline),
            children=self.children,
        )
        self._find_python = find_python or finder.find
        self._keep = keep
        self._wheels = wheel_folders(wheels)
        self._patience_s = patience_s
        self._say = say
        self._free = free
        self._builds = builds or load_builds()
        self._guard = threading.Lock()
        self._held: dict[Path, list[Latch]] = {}

    def provision(self, cell: Cell, lock_text: str) -> Environment:
        """Return the cell's environment, with exactly what its lock says, and hold it.

        One that is there, complete and unchanged is reused. Raises ProvisionError (the cell cannot be installed, or
        what is installed differs from the lock), NoSpaceError, CorruptFileError, IndexUnreachableError, BusyError,
        ToolError, UsageError; nothing half-made stays.
        """
        recipe = read_recipe(lock_text, cell.platform, self._wheels)
        _refuse_machine(cell.platform)
        self._builds.check(recipe.to_build, cell.platform.python)
        folder = self.shelf.folder(cell.name)
        self.shelf.sweep()
        while True:
            latch, found = self._acquire(cell, recipe, folder)
            try:
                if found is None:
                    found = self._build(_Work(cell=cell, recipe=recipe, folder=folder, latch=latch))
                    latch.share()
                # Sharing lets go for a moment: if somebody removed it just then, it is built again.
                if read_manifest(folder) is not None and latch.path.exists():
                    return self._hold(folder, latch, found)
            except BaseException:
                latch.drop()
                raise
            latch.drop()

    def release(self, environment: Environment) -> None:
        """Let the environment go; it is removed unless it is to be kept or somebody else uses it."""
        folder = environment.python.parents[1]
        with self._guard:
            latches = self._held.get(folder)
            if not latches:
                return
            latch = latches.pop()
        latch.drop()
        manifest = read_manifest(folder)
        if not self._keep and not (manifest is not None and manifest.kept):
            self.shelf.try_remove(folder)

    def needed_bytes(self, lock_text: str) -> int:
        """Return about how many bytes an environment of that lock would add to the disk, by what uv has already.

        The Python is taken from the lock; where this machine has none of it, nothing is assumed to be there.
        """
        where = Platform(python=_python_of(lock_text))
        recipe = read_recipe(lock_text, where, self._wheels)
        try:
            return self._estimate(recipe, self._find_python(where.python)).total
        except ToolError:
            return estimate(recipe.sizes, recipe.wanted, linked=self._linked()).total

    def stop(self) -> None:
        """Kill every program that runs for this provisioner; what waits for one of them raises ToolError."""
        self.children.stop()

    def _acquire(self, cell: Cell, recipe: Recipe, folder: Path) -> tuple[Latch, Environment | None]:
        """Return a shared latch and the environment that is there, or the only latch and None: it is to be built.

        Raises BusyError where neither can be had in time: others use an environment of another lock, or build.
        """
        path = self.shelf.latch(folder)
        what = f"The environment {folder.name}"
        waiting = Waiting(path=path, what=what, patience_s=self._patience_s, say=self._say)
        while True:
            # Looked at again after every pause: whoever was waited for may have built what is wanted, and stay in it.
            for shared in (True, False):
                latch = attempt(path, shared=shared)
                if latch is None:
                    continue
                try:
                    found = self._reusable(cell, recipe, folder)
                except BaseException:
                    latch.drop()
                    raise
                if shared is (found is not None):
                    return latch, found
                latch.drop()
            waiting.pause()

    def _hold(self, folder: Path, latch: Latch, environment: Environment) -> Environment:
        manifest = read_manifest(folder)
        if self._keep and manifest is not None:
            manifest.keep(folder)
        (folder / MANIFEST).touch()
        with self._guard:
            self._held.setdefault(folder, []).append(latch)
        return environment

    def _reusable(self, cell: Cell, recipe: Recipe, folder: Path) -> Environment | None:
        """Return the environment that is there, or None where it is half-finished, of another lock or was changed."""
        manifest = read_manifest(folder)
        if manifest is None or (manifest.cell, manifest.lock) != (cell.name, _identity(recipe)):
            return None
        try:
            inventory = take_inventory(folder / "bin" / "python", self.installer.environment, children=self.children)
        except ToolError:
            return None
        if differences(manifest.installed, _without_needs(inventory, recipe)):
            return None
        return replace(manifest.environment(folder, reused=True), lock=recipe.digest)

    def _build(self, work: _Work) -> Environment:
        """Build the environment anew; what was there is removed first, and what was begun when it fails."""
        if work.folder.exists():
            work.notes.append(_why_anew(read_manifest(work.folder)))
            self.shelf.discard(work.folder)
        try:
            return self._built(work)
        except BaseException:
            self.shelf.discard(work.folder)
            raise

    def _built(self, work: _Work) -> Environment:
        start, moment = time.monotonic(), time.time()
        recipe, folder = work.recipe, work.folder
        python = self._find_python(work.cell.platform.python)
        needed = self._estimate(recipe, python)
        check_room(needed, self.installer.cache, self.shelf.root, self._free)
        self._say(f"installing {len(recipe.packages)} packages, about {gigabytes(needed.total)} more on disk")
        held = (work.latch.fd,)
        inside = self.installer.venv(python, folder, held)
        self.installer.sync(recipe, inside, self._builds, held)
        aliases = add_aliases(work.cell, folder)
        inventory = take_inventory(inside, self.installer.environment, children=self.children)
        wrong = differences({**recipe.wanted, **aliases}, inventory.packages)
        if wrong:
            raise ProvisionError(
                f"What was installed is not what the lock says: {'; '.join(wrong)}.",
                why="A wheel holds another version than its name says, perhaps.",
                then="Report it to that package; the cell cannot be judged as what it is named.",
                packages=tuple(line.split()[0] for line in wrong),
            )
        manifest = Manifest(
            cell=work.cell.name,
            lock=_identity(recipe),
            python_version=inventory.python,
            installed=inventory.packages,
            made=datetime.now(UTC),
            uv=self.installer.version(),
            seconds=round(time.monotonic() - start, 2),
            added_bytes=added_since(folder, moment),
            built=tuple(f"{package.name}=={package.version}" for package in recipe.to_build),
            notes=(*work.notes, *self._notes(recipe, aliases)),
        )
        manifest.write(folder)
        return replace(manifest.environment(folder, reused=False), lock=recipe.digest)

    def _notes(self, recipe: Recipe, aliases: dict[str, str]) -> Iterable[str]:
        for name, version in aliases.items():
            yield f"an empty dist-info says {name} {version}, so that those who ask for {name} find it"
        for wheel in recipe.local:
            told = f"{wheel.path.name} sha256:{wheel.sha256}"
            yield f"{wheel.name} {wheel.version} from a wheel given by the user: {told}"
        if not self._linked():
            yield (
                f"uv's cache {self.installer.cache} and {self.shelf.root} cannot share files by hard links (different "
                "file systems?), so every cell takes its full size"
            )

    def _estimate(self, recipe: Recipe, python: Path) -> Estimate:
        return estimate(recipe.sizes, self.installer.uncached(recipe, python), linked=self._linked())

    def _linked(self) -> bool:
        return can_link(self.installer.cache, self.shelf.root)


def _identity(recipe: Recipe) -> str:
    """Return what an environment was built from: the lock, and the local wheels where there are any."""
    return "+".join([recipe.digest, *(f"{wheel.name}:{wheel.sha256}" for wheel in recipe.local)])


def _without_needs(inventory: Inventory, recipe: Recipe) -> dict[str, str]:
    """Return what is installed but for what the probes added."""
    wanted = recipe.wanted
    return {name: version for name, version in inventory.packages.items() if name in wanted or name not in NEEDS}


def _why_anew(manifest: Manifest | None) -> str:
    if manifest is None:
        return "a half-finished installation was removed and done again"
    return "the environment that was there had another lock or was changed, and was built anew"


def _refuse_machine(asked: Platform) -> None:
    machine = platform.machine()
    if machine != asked.machine:
        raise ToolError(
            f"The cell is for {asked.machine}, and this machine is {machine}.",
            then="Install it on a machine of that kind, or choose cells with --platform.",
        )


def _python_of(lock_text: str) -> str:
    """Return the Python (`X.Y`) that the lock was made for, the default platform's where it does not say."""
    import re

    match = re.search(r'^requires-python = ">=(\d+\.\d+)', lock_text, re.MULTILINE)
    return match[1] if match else Platform().python
