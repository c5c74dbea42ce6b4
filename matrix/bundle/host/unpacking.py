"""Makes the environments of a bundle: work is done in DIR.partial, and what is complete is moved into DIR."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path

from matrix.bundle.host.arrival import BLOCK, Json, Stopped, Stream, tell
from matrix.bundle.host.fit import same
from matrix.bundle.host.linking import Linker, share_bytecode, size_of

LIMIT_S = 1800.0
MANIFEST = "verl-matrix.json"
ASK = """
import importlib.metadata, json, re
found = {}
for dist in importlib.metadata.distributions():
    name = dist.metadata["Name"] if dist.metadata is not None else None
    if name:
        found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), dist.version or "")
print("verl-matrix:" + json.dumps(found))
"""
STARTER = """#!/bin/sh
# Starts the tool of this bundle; what it finds out is kept in home/ unless VERL_MATRIX_HOME or --home says otherwise.
here="$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)"
export VERL_MATRIX_HOME="${VERL_MATRIX_HOME:-$here/home}"
if [ -d "$here/workload/tokenizer" ]; then
    export VERL_MATRIX_TOKENIZER="${VERL_MATRIX_TOKENIZER:-$here/workload/tokenizer}"
fi
exec "$here/tool/bin/python" -P -m matrix "$@"
"""


class Unpacking:
    """One run over one bundle: `root` is where everything is to be in the end, `work` where it is made."""

    def __init__(self, bundle: Json, root: Path, jobs: int) -> None:
        self.bundle, self.root, self.jobs = bundle, root, jobs
        self.work = root.with_name(f"{root.name}.partial")
        self.logs = self.work / "logs"
        self.env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.work),
            "LANG": "C.UTF-8",
            "UV_CACHE_DIR": str((root if root.exists() else self.work) / ".uv-cache"),
            "UV_LINK_MODE": "hardlink",
            "UV_NO_CONFIG": "1",
            "UV_NO_PROGRESS": "1",
            "UV_OFFLINE": "1",
            "UV_PYTHON_DOWNLOADS": "never",
        }
        if "LD_LIBRARY_PATH" in os.environ:
            self.env["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]

    def has(self, cell: Json, place: Path) -> bool:
        """Return whether this very cell is there below `place`, complete."""
        try:
            data = json.loads((place / "cells" / cell["folder"] / MANIFEST).read_text(encoding="utf-8"))
            held = data["bundle"]
            return bool(data["lock"] == cell["identity"] and all(held[key] == cell[key] for key in own(cell)))
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def lacking(self, paths: Sequence[str]) -> list[str]:
        """Return those of the files that are not unpacked yet, here or in DIR."""

        def held(path: str, place: Path) -> bool:
            return size_of(str(place / path)) == int(self.bundle["files"][path]["size"])

        return [path for path in paths if not held(path, self.work) and not held(path, self.root)]

    def reuse(self, paths: Sequence[str]) -> None:
        """Link to what an earlier run left in DIR."""
        for path in paths:
            work = self.work / path
            if not work.exists():
                work.parent.mkdir(parents=True, exist_ok=True)
                os.link(self.root / path, work)

    def unpack(self, stream: Stream, paths: Sequence[str]) -> None:
        """Write the files, several at a time, and the uv that came along."""
        with ThreadPoolExecutor(self.jobs) as pool:
            for done in [pool.submit(stream.extract, self.bundle["files"][path], self.work / path) for path in paths]:
                done.result()
        uv = self.work / "bin" / "uv"
        if not uv.is_file() and (self.work / self.bundle["uv"]).is_file():
            uv.parent.mkdir(parents=True, exist_ok=True)
            aside = uv.with_name(".uv.part")
            with zipfile.ZipFile(self.work / self.bundle["uv"]) as wheel:
                (inside,) = [name for name in wheel.namelist() if name.endswith(".data/scripts/uv")]
                with wheel.open(inside) as source, aside.open("wb") as target:
                    shutil.copyfileobj(source, target, BLOCK)
            aside.chmod(0o755)
            aside.replace(uv)

    def run(self, command: Sequence[str], name: str, what: str) -> str:
        """Return the output of a program; raises Stopped with the end of it where it fails."""
        self.logs.mkdir(parents=True, exist_ok=True)
        log = self.logs / f"{name}.log"
        with log.open("wb") as out:
            try:
                code = subprocess.run(
                    list(command), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=self.env,
                    timeout=LIMIT_S, check=False,
                ).returncode  # fmt: skip
            except (OSError, subprocess.TimeoutExpired) as error:
                raise Stopped(f"{what}: {error}") from error
        said = log.read_text(encoding="utf-8", errors="replace")
        if code != 0:
            raise Stopped(f"{what} failed with exit code {code}:\n  " + "\n  ".join(said.strip().splitlines()[-15:]))
        return said

    def environment(self, folder: Path, wheels: Sequence[str], name: str) -> Path:
        """Return the site-packages of a new environment with these wheels; what was half-made there is removed."""
        uv, log = str(self.work / "bin" / "uv"), name[:100]
        shutil.rmtree(folder, ignore_errors=True)
        try:
            self.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(folder)], log, "python -m venv")
        except Stopped:
            # Some systems take venv out of Python's standard library and have it as a package of its own.
            shutil.rmtree(folder, ignore_errors=True)
            self.run([uv, "venv", "--no-project", "--python", sys.executable, str(folder)], log, "uv venv")
        wanted = self.logs / f"{log}.txt"
        pins = ["==".join(Path(wheel).name.split("-")[:2]) for wheel in wheels]
        wanted.write_text("".join(f"{pin}\n" for pin in pins), encoding="utf-8")
        command = [uv, "pip", "install", "--python", str(folder / "bin" / "python"), "--requirements", str(wanted)]
        command += ["--no-index", "--no-deps", "--find-links", str(self.work / "wheels")]
        self.run(command, log, f"installing {name}")
        return next(folder.glob("lib/python*/site-packages"))

    def tool(self) -> None:
        """Make the environment of the tool itself, apart from every cell, unless this very one is there."""
        stamp = json.dumps([[path, self.bundle["files"][path]["sha256"]] for path in self.bundle["tool"]])
        for place in (self.root, self.work):
            with contextlib.suppress(OSError):
                if (place / "tool" / "bundle-tool.json").read_text(encoding="utf-8") == stamp:
                    return
        folder = self.work / "tool"
        self.settle(folder, self.environment(folder, self.bundle["tool"], "tool"))
        (folder / "bundle-tool.json").write_text(stamp, encoding="utf-8")

    def cell(self, cell: Json) -> None:
        """Make a cell's environment, look at what is really in it, and write its manifest last."""
        began, folder = time.monotonic(), self.work / "cells" / cell["folder"]
        if self.has(cell, self.work):
            return
        packages = self.environment(folder, cell["wheels"], cell["folder"])
        installed = time.monotonic()
        notes = [*cell["notes"], *self.bring(cell, folder, packages)]
        for name, version in cell["aliases"].items():
            alias(packages, name, version)
        linked = time.monotonic()
        self.settle(folder, packages)
        said = self.run([str(folder / "bin" / "python"), "-c", ASK], "inventory", f"asking {folder.name}")
        line = next(line for line in said.splitlines() if line.startswith("verl-matrix:"))
        found: dict[str, str] = json.loads(line.partition(":")[2])
        if lines := differing(cell["wanted"], found):
            raise Stopped(f"{cell['name']} is not what its lock says, once installed:\n  " + "\n  ".join(lines))
        shutil.copyfile(self.work / cell["lock_file"], folder / "verl-matrix.pylock.toml")
        data = self.manifest(cell, found, notes, time.monotonic() - began) | {"added_bytes": own_bytes(folder)}
        aside = folder / f".{MANIFEST}"
        aside.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        aside.replace(folder / MANIFEST)
        tell(
            f"{cell['name']}: {len(found)} packages; wheels {installed - began:.1f} s, the host's "
            f"{linked - installed:.1f} s, bytecode and check {time.monotonic() - linked:.1f} s"
        )

    def bring(self, cell: Json, folder: Path, packages: Path) -> list[str]:
        """Link what the host has as locked into the cell; return what there is to note."""
        if not cell["host"]:
            return []
        linker = Linker(str(folder), str(self.final(folder)), str(packages))
        for name in sorted(cell["host"]):
            linker.add(name)
        linker.link()
        kind = "hard links" if linker.hard else "symbolic links"
        notes = [f"{len(cell['host'])} packages of the host by {len(linker.files)} {kind}"]
        if linker.missing:
            notes.append(f"{len(linker.missing)} files that they list are not there, e.g. {linker.missing[0]}")
        return notes

    def settle(self, folder: Path, packages: Path) -> None:
        """Compile the bytecode with all cores, and have scripts name the place where the environment will be."""
        old, new = str(folder).encode(), str(self.final(folder)).encode()
        for path in [*(folder / "bin").iterdir(), folder / "pyvenv.cfg"]:
            if path.is_file() and not path.is_symlink() and path.stat().st_size < BLOCK:
                body = path.read_bytes()
                if old in body and b"\0" not in body:
                    aside = path.with_name(f".{path.name}.part")
                    aside.write_bytes(body.replace(old, new))
                    aside.chmod(path.stat().st_mode)
                    aside.replace(path)
        others = [
            other for place in (self.work, self.root) for other in place.glob("cells/*/lib/python*/site-packages")
        ]
        share_bytecode(str(packages), [str(other) for other in others if other != packages])
        command = [str(folder / "bin" / "python"), "-m", "compileall", "-qq", "-j", str(self.jobs)]
        command += ["-s", str(folder), "-p", str(self.final(folder)), str(packages)]
        # Packages carry files for other Pythons too, which do not compile: that fails no cell.
        with contextlib.suppress(Stopped):
            self.run(command, "bytecode", "compiling the bytecode")

    def final(self, folder: Path) -> Path:
        """Return where what is in the working folder will be."""
        return self.root / folder.relative_to(self.work)

    def manifest(self, cell: Json, found: dict[str, str], notes: list[str], spent: float) -> Json:
        """Return what the environment is, in the form of the tool's own environments."""
        told = [f"not carried: {name} {version}" for name, version in cell["left_out"].items()]
        return {
            "schema": 1,
            "cell": cell["name"],
            "lock": cell["identity"],
            "python": platform.python_version(),
            "installed": {name: version for name, version in sorted(found.items()) if name not in cell["needs"]},
            "made": datetime.now(timezone.utc).isoformat(),
            "uv": " ".join(Path(self.bundle["uv"]).name.split("-")[:2]),
            "seconds": round(spent, 2),
            "built": cell["built"],
            "kept": True,
            "notes": told + notes,
            "bundle": own(cell),
        }

    def publish(self) -> None:
        """Move what is complete to where it is to be; from then on it is used."""
        starter = self.work / "bin" / "verl-matrix"
        starter.write_text(STARTER, encoding="utf-8")
        starter.chmod(0o755)
        shutil.rmtree(self.logs, ignore_errors=True)
        if not self.root.exists():
            self.work.rename(self.root)
            return
        for path in [*sorted(self.work.glob("cells/*")), self.work / "tool"]:
            if path.is_dir():
                swap(path, self.final(path))
        for folder in ("wheels", "locks", "workload", "bin"):
            for path in [path for path in (self.work / folder).rglob("*") if path.is_file()]:
                self.final(path).parent.mkdir(parents=True, exist_ok=True)
                path.replace(self.final(path))
        shutil.rmtree(self.work)


def own(cell: Json) -> Json:
    """Return what a cell's manifest keeps of the bundle."""
    return {key: cell[key] for key in ("lock", "host", "left_out", "needs")}


def differing(wanted: dict[str, str], found: dict[str, str]) -> list[str]:
    """Return a line for each package that is missing, of another version, or there though nobody wanted it."""
    return [
        f"{name} is {found.get(name, 'missing')}, and should be {wanted.get(name, 'not there')}"
        for name in sorted(wanted.keys() | found.keys())
        if name not in found or name not in wanted or not same(wanted[name], found[name])
    ]


def own_bytes(folder: Path) -> int:
    """Return the bytes of the files that are this folder's alone: not linked from elsewhere."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            stat = os.lstat(os.path.join(place, name))
            total += stat.st_size if stat.st_nlink == 1 else 0
    return total


def alias(packages: Path, name: str, version: str) -> None:
    """Write an empty distribution, so that those who ask for `name` find the build that stands in for it."""
    info = packages / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    tag = "Root-Is-Purelib: true\nTag: py3-none-any\n"
    (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nGenerator: verl-matrix\n{tag}")
    (info / "INSTALLER").write_text("verl-matrix\n")
    files = ("METADATA", "WHEEL", "INSTALLER", "RECORD")
    (info / "RECORD").write_text("".join(f"{info.name}/{file},,\n" for file in files))


def swap(new: Path, final: Path) -> None:
    """Put a folder where another one may be."""
    final.parent.mkdir(parents=True, exist_ok=True)
    old = final.with_name(f".{final.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if final.exists():
        final.rename(old)
    new.rename(final)
    shutil.rmtree(old, ignore_errors=True)
