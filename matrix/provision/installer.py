"""uv as the installer: an empty environment, what its cache lacks, a recipe into an environment, added packages."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from matrix.errors import ToolError
from matrix.provision.builds import BuildTable
from matrix.provision.recipe import Recipe
from matrix.provision.refusal import mismatched, refusal
from matrix.resolve.process import Children, Ended, surroundings

TIMEOUT_S = 7200.0
_UNCACHED = re.compile(r"DEBUG Identified uncached distribution: ([A-Za-z0-9._-]+?)(?:==| @ |$)", re.MULTILINE)
_CACHED = re.compile(r"DEBUG (?:Registry r|Path r|URL wheel r|R)equirement already cached: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Installer:
    """Runs uv by argument lists, with no configuration but ours; safe for threads.

    `cache` is uv's cache; `timeout_s` is for one whole installation. `held` are file descriptors that uv inherits, so
    that the latch of an environment stays held for as long as a uv that outlived its parent writes there.
    """

    uv: Path
    cache: Path
    index_url: str
    offline: bool = False
    timeout_s: float = TIMEOUT_S
    children: Children = field(default_factory=Children)

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that uv and what it starts are given."""
        return surroundings() | {"UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1"}

    def version(self) -> str:
        """Return e.g. `uv 0.13.9`; raises ToolError."""
        ended = self._run(["--version"])
        if ended.code != 0 or not ended.stdout.startswith("uv "):
            raise refusal("uv --version", ended)
        return " ".join(ended.stdout.split()[:2])

    def venv(self, python: Path, folder: Path, held: Sequence[int] = ()) -> Path:
        """Return the interpreter of a new, empty environment in `folder`; raises ToolError, NoSpaceError."""
        arguments = ["venv", "--no-project", "--python", str(python), str(folder)]
        ended = self._run(arguments, held=held)
        if ended.code != 0:
            raise refusal("uv venv", ended)
        return folder / "bin" / "python"

    def uncached(self, recipe: Recipe, python: Path) -> frozenset[str]:
        """Return the packages that uv would have to fetch or build; all of them where its log cannot be read."""
        with tempfile.TemporaryDirectory(prefix="verl-matrix-empty-") as empty:
            where = ["--python", str(python), "--target", empty, "--dry-run"]
            log = {"RUST_LOG": "uv_installer::plan=debug"}
            ended = self._sync(recipe, where, _binary(recipe), log=log)
        found = frozenset(_UNCACHED.findall(ended.stderr))
        complete = len(found) + len(_CACHED.findall(ended.stderr)) >= len(recipe.packages)
        known = found <= recipe.wanted.keys()
        return found if ended.code == 0 and complete and known else frozenset(recipe.wanted)

    def sync(self, recipe: Recipe, python: Path, builds: BuildTable, held: Sequence[int] = ()) -> None:
        """Install exactly the recipe into the environment of `python`, every file's digest checked.

        A file whose digest differs is fetched again once. Raises CorruptFileError, NoSpaceError, IndexUnreachableError,
        ProvisionError (a build failed, a file is not what the lock says), ToolError.
        """
        where = ["--python", str(python)]
        files, flags = {}, _binary(recipe)
        if constraints := builds.constraints(recipe.to_build):
            files["constraints.txt"] = constraints
            flags += ["--build-constraints", "constraints.txt"]
        ended = self._sync(recipe, where, flags, files, held=held)
        if ended.code not in (0, None) and (package := mismatched(ended.stderr)):
            again = ["--refresh-package", package.partition("==")[0]]
            ended = self._sync(recipe, where, [*flags, *again], files, held=held)
        if ended.code != 0:
            raise refusal("uv pip sync", ended)

    def add(self, python: Path, requirements: Sequence[str], constraints: Mapping[str, str]) -> None:
        """Install the requirements from wheels without moving any package of `constraints`; raises as `sync` does."""
        lines = "".join(f"{name}=={version}\n" for name, version in sorted(constraints.items()))
        arguments = ["pip", "install", "--python", str(python), "--only-binary", ":all:", "--link-mode", "hardlink"]
        ended = self._run([*arguments, "--constraints", "held.txt", *requirements], {"held.txt": lines})
        if ended.code != 0:
            raise refusal("uv pip install", ended)

    def _sync(
        self,
        recipe: Recipe,
        where: Sequence[str],
        flags: Sequence[str],
        files: Mapping[str, str] | None = None,
        *,
        log: Mapping[str, str] | None = None,
        held: Sequence[int] = (),
    ) -> Ended:
        arguments = ["pip", "sync", "pylock.toml", *where, "--require-hashes", "--link-mode", "hardlink", *flags]
        return self._run(arguments, {"pylock.toml": recipe.text(self.index_url), **(files or {})}, log, held)

    def _run(
        self,
        arguments: Sequence[str],
        files: Mapping[str, str] | None = None,
        log: Mapping[str, str] | None = None,
        held: Sequence[int] = (),
    ) -> Ended:
        """Return how uv ended; raises ToolError when it cannot be started, NoSpaceError for its own files."""
        shared = ["--color", "never", "--cache-dir", str(self.cache), "--config-file", "uv.toml"]
        shared += ["--offline"] if self.offline else []
        config = f"[[index]]\nurl = {json.dumps(self.index_url)}\ndefault = true\n"
        try:
            with tempfile.TemporaryDirectory(prefix="verl-matrix-uv-") as name:
                folder = Path(name)
                for file, text in {"uv.toml": config, **(files or {})}.items():
                    (folder / file).write_text(text, encoding="utf-8")
                return self.children.run(
                    [str(self.uv), *arguments, *shared],
                    folder=folder,
                    env=self.environment | dict(log or {}),
                    timeout_s=self.timeout_s,
                    pass_fds=held,
                )
        except OSError as error:
            raise ToolError(f"uv could not be started: {self.uv}.", why=str(error)) from error


def cache_folder(given: Path | None, home_cache: Path) -> Path:
    """Return uv's cache: the given folder, that of UV_CACHE_DIR, else one in the home."""
    named = os.environ.get("UV_CACHE_DIR")
    return (given or (Path(named) if named else home_cache / "uv")).expanduser().absolute()


def _binary(recipe: Recipe) -> list[str]:
    """Return the flags for wheels only, but for the named builds."""
    flags = ["--only-binary", ":all:"]
    for package in recipe.to_build:
        flags += ["--no-binary", package.name]
    return flags
