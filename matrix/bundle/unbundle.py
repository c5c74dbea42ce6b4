"""Unpacks a bundle on a host without a network: `python3 unbundle.py --into DIR [PARTS ...]`; needs its Python only.

Each PARTS is a folder with parts, a part, or a file into which parts were appended one after another (a beginning of
the whole is enough for the cells that lie in it). Everything is checked before anything is installed, all work is done
in DIR.partial, and what is complete is moved into DIR at the end; a second try goes on where the first one stopped.
Runs on Python 3.10 and newer, with the standard library alone.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import fnmatch
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

SCHEMA = 1
BLOCK = 1 << 20
LINK_S = 0.2
"""A hard link takes microseconds; one that takes longer was a copy (overlayfs copies what lies in a lower layer)."""
ASK = """
import importlib.metadata, json, re
found = {}
for dist in importlib.metadata.distributions():
    name = dist.metadata["Name"] if dist.metadata is not None else None
    if name:
        found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), dist.version or "")
print("verl-matrix:" + json.dumps(found))
"""


class Stopped(Exception):  # noqa: N818 - it is what the user is told, not a fault
    """What keeps the bundle from being unpacked, a line each; nothing half-installed is left where it would be used."""


def tell(text: str) -> None:
    """Print a line with the seconds since the start."""
    print(f"[{time.monotonic() - START:6.1f} s] {text}", flush=True)  # noqa: T201 - this file is a program


START = time.monotonic()


# ---- what there is: bundle.json, and the parts as far as they have arrived ----


def read_bundle(sources: list[Path]) -> dict[str, Any]:
    """Return the content of bundle.json: named, in a named folder, beside a named file, or beside this program."""
    here = Path(__file__).resolve().parent
    places = [path if path.name == "bundle.json" else (path if path.is_dir() else path.parent) / "bundle.json"
              for path in [*sources, here / "bundle.json"]]  # fmt: skip
    found = next((path for path in places if path.is_file()), None)
    if found is None:
        raise Stopped(f"bundle.json is not there; looked at {', '.join(map(str, dict.fromkeys(places)))}")
    try:
        bundle: dict[str, Any] = json.loads(found.read_text(encoding="utf-8"))
    except ValueError as error:
        raise Stopped(f"{found} is damaged: {error}") from error
    if bundle.get("schema") != SCHEMA:
        raise Stopped(f"{found} has schema {bundle.get('schema')}; this unbundle.py reads {SCHEMA}: take the one with it")
    return bundle


class Stream:
    """The bundle as one run of bytes, over the parts that are there, wherever they lie."""

    def __init__(self, bundle: dict[str, Any], sources: list[Path]) -> None:
        """Find each part: by its name, or as a stretch of a file into which parts were appended."""
        self.parts: list[dict[str, Any]] = bundle["parts"]
        names = {part["name"] for part in self.parts}
        self.where: dict[str, tuple[Path, int]] = {}
        self.begins: dict[str, int] = {}
        begin = 0
        for part in self.parts:
            self.begins[part["name"]] = begin
            for source in sources:
                if source.is_dir() and (source / part["name"]).is_file():
                    self.where.setdefault(part["name"], (source / part["name"], 0))
                elif source.is_file() and source.name == part["name"]:
                    self.where.setdefault(part["name"], (source, 0))
                elif source.is_file() and source.name not in names and source.stat().st_size > begin:
                    self.where.setdefault(part["name"], (source, begin))
            begin += part["size"]

    def covering(self, files: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the parts in which these files lie."""
        spans = [(file["offset"], file["offset"] + file["size"]) for file in files]
        return [part for part in self.parts if any(
            first < self.begins[part["name"]] + part["size"] and last > self.begins[part["name"]] for first, last in spans
        )]  # fmt: skip

    def wrong(self, part: dict[str, Any]) -> str:
        """Return what is wrong with a part, "" for nothing."""
        if part["name"] not in self.where:
            return f"{part['name']} is missing ({part['size']} bytes)"
        path, at = self.where[part["name"]]
        digest, left = hashlib.sha256(), part["size"]
        with path.open("rb") as file:
            file.seek(at)
            while left and (block := file.read(min(BLOCK, left))):
                digest.update(block)
                left -= len(block)
            extra = at == 0 and path.name == part["name"] and file.read(1)
        if left:
            return f"{part['name']} is cut off: {left} of {part['size']} bytes are missing in {path}"
        if extra or digest.hexdigest() != part["sha256"]:
            return f"{part['name']} is corrupt in {path}: its SHA-256 is not {part['sha256']}"
        return ""

    def blocks(self, offset: int, size: int) -> Any:
        """Yield the bytes from `offset` on, `size` of them."""
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

    def extract(self, entry: dict[str, Any], target: Path) -> None:
        """Write a file of the bundle, whole and checked, or raise Stopped."""
        target.parent.mkdir(parents=True, exist_ok=True)
        aside, digest = target.with_name(f".{target.name}.part"), hashlib.sha256()
        with aside.open("wb") as file:
            for block in self.blocks(entry["offset"], entry["size"]):
                file.write(block)
                digest.update(block)
        if digest.hexdigest() != entry["sha256"]:
            raise Stopped(f"{target.name} is corrupt although its parts are not: make the bundle anew")
        aside.chmod(entry["mode"])
        aside.replace(target)


# ---- whether this host is the one that the bundle is for ----


def same(wanted: str, found: str) -> bool:
    """Return whether two versions are one release; a local suffix (+cu130) that one of them lacks counts nothing."""
    left, right = wanted.lower(), found.lower()
    if "+" not in left or "+" not in right:
        left, right = left.partition("+")[0], right.partition("+")[0]
    return re.sub(r"(\.0)+$", "", left) == re.sub(r"(\.0)+$", "", right)


def host_version(name: str) -> str | None:
    """Return the version of a distribution that this Python has, None where it has none."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def misfits(bundle: dict[str, Any], cells: list[dict[str, Any]]) -> list[str]:
    """Return a line for each thing in which this host is not what the bundle is for."""
    target, lines = bundle["target"], []
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if python != target["python"] or sys.implementation.name != "cpython":
        lines.append(f"the bundle is for CPython {target['python']}; {sys.executable} is {sys.implementation.name} {python}")
    if platform.machine() != target["machine"]:
        lines.append(f"the bundle is for {target['machine']}; this machine is {platform.machine()}")
    glibc = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else None
    numbers = [tuple(map(int, re.findall(r"\d+", text)[:2])) for text in (glibc or "", target["glibc"])]
    if numbers[0] < numbers[1]:
        lines.append(f"the bundle needs glibc {target['glibc']} or newer; this system has {glibc or 'another C library'}")
    wanted = {name: version for cell in cells for name, version in cell["host"].items()}
    for name, version in sorted(wanted.items()):
        found = host_version(name)
        if found is None:
            lines.append(f"{name} {version} was said to be here (--have), and {sys.executable} has none")
        elif not same(version, found):
            lines.append(f"{name} {version} was said to be here (--have), and {sys.executable} has {found}")
    return lines


# ---- making environments ----


def run(command: list[str], log: Path, env: dict[str, str], what: str, limit: float = 1800.0) -> None:
    """Run a program to its end; raises Stopped with the end of its output where it fails."""
    with log.open("wb") as out:
        try:
            code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=env,
                                  timeout=limit, check=False).returncode  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Stopped(f"{what}: {error}") from error
    if code != 0:
        said = "\n  ".join(log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-15:])
        raise Stopped(f"{what} failed with exit code {code}:\n  {said}")


class Unpacking:
    """One run over one bundle: `root` is where everything is to be in the end, `work` where it is made."""

    def __init__(self, bundle: dict[str, Any], root: Path, jobs: int) -> None:
        self.bundle, self.root, self.jobs = bundle, root, jobs
        self.work = root.with_name(f"{root.name}.partial")
        self.cache = (root if root.exists() else self.work) / ".uv-cache"
        self.logs = self.work / "logs"
        self.env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self.work), "LANG": "C.UTF-8",
                    "UV_NO_PROGRESS": "1", "UV_PYTHON_DOWNLOADS": "never", "UV_NO_CONFIG": "1"}  # fmt: skip
        if "LD_LIBRARY_PATH" in os.environ:
            self.env["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]

    def lacking(self, paths: list[str]) -> list[str]:
        """Return those of the files that are not unpacked yet; what an earlier run left in DIR is linked to."""
        lacking = []
        for path in paths:
            size, work, done = self.bundle["files"][path]["size"], self.work / path, self.root / path
            if not work.exists() and done.is_file() and done.stat().st_size == size:
                work.parent.mkdir(parents=True, exist_ok=True)
                os.link(done, work)
            if not work.is_file() or work.stat().st_size != size:
                lacking.append(path)
        return lacking

    def unpack(self, stream: Stream, paths: list[str]) -> None:
        """Write the files, several at a time."""
        with ThreadPoolExecutor(self.jobs) as pool:
            for done in [pool.submit(stream.extract, self.bundle["files"][path], self.work / path) for path in paths]:
                done.result()
        uv = self.work / "bin" / "uv"
        if not uv.is_file():
            uv.parent.mkdir(parents=True, exist_ok=True)
            with zipfile.ZipFile(self.work / self.bundle["uv"]) as wheel:
                (inside,) = [name for name in wheel.namelist() if name.endswith(".data/scripts/uv")]
                aside = uv.with_name(".uv.part")
                with wheel.open(inside) as source, aside.open("wb") as target:
                    shutil.copyfileobj(source, target, BLOCK)
            aside.chmod(0o755)
            aside.replace(uv)

    def venv(self, folder: Path, wheels: list[str], name: str) -> Path:
        """Return the site-packages of a new environment with these wheels in it; what was half-made there is removed."""
        shutil.rmtree(folder, ignore_errors=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        log = self.logs / f"{name}.log"
        run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(folder)], log, self.env, "python -m venv")
        wanted = self.logs / f"{name}.txt"
        wanted.write_text("".join(f"{pinned(Path(path).name)}\n" for path in wheels), encoding="utf-8")
        command = [str(self.work / "bin" / "uv"), "pip", "install", "--python", str(folder / "bin" / "python")]
        command += ["--no-index", "--no-deps", "--offline", "--find-links", str(self.work / "wheels")]
        command += ["--link-mode", "hardlink", "--cache-dir", str(self.cache), "--requirements", str(wanted)]
        run(command, log, self.env, f"installing {name}")
        return next(folder.glob("lib/python*/site-packages"))

    def tool(self) -> None:
        """Make the environment of the tool itself, apart from every cell."""
        stamp, mark = json.dumps([[path, self.bundle["files"][path]["sha256"]] for path in self.bundle["tool"]]), ""
        for place in (self.root, self.work):
            with contextlib.suppress(OSError):
                mark = (place / "tool" / "bundle-tool.json").read_text(encoding="utf-8")
            if mark == stamp:
                return
        folder = self.work / "tool"
        packages = self.venv(folder, self.bundle["tool"], "tool")
        self.settle(folder, packages)
        (folder / "bundle-tool.json").write_text(stamp, encoding="utf-8")

    def cell(self, cell: dict[str, Any]) -> None:
        """Make a cell's environment, look at what is really in it, and write its manifest last."""
        began, folder = time.monotonic(), self.work / "cells" / cell["folder"]
        packages = self.venv(folder, cell["wheels"], cell["folder"])
        installed = time.monotonic()
        notes = [*cell["notes"], *self.bring(cell, folder, packages)]
        for name, version in cell["aliases"].items():
            alias(packages, name, version)
        linked = time.monotonic()
        self.settle(folder, packages)
        found = self.inventory(folder / "bin" / "python")
        differing = [f"{name} is {found.get(name, 'missing')}, wanted {cell['wanted'].get(name, 'not at all')}"
                     for name in sorted(found.keys() | cell["wanted"].keys())
                     if name not in found or name not in cell["wanted"] or not same(cell["wanted"][name], found[name])]  # fmt: skip
        if differing:
            raise Stopped(f"{cell['name']} is not what its lock says once installed:\n  " + "\n  ".join(differing))
        shutil.copyfile(self.work / cell["lock_file"], folder / "verl-matrix.pylock.toml")
        self.manifest(cell, folder, found, notes, time.monotonic() - began)
        tell(f"{cell['name']}: {len(found)} packages; wheels {installed - began:.1f} s, host's {linked - installed:.1f} s, "
             f"bytecode and check {time.monotonic() - linked:.1f} s")  # fmt: skip

    def bring(self, cell: dict[str, Any], folder: Path, packages: Path) -> list[str]:
        """Link what the host has as locked into the cell, file by file, so that nothing else of the host's shows."""
        notes: list[str] = []
        linker = Linker()
        for name in sorted(cell["host"]):
            found = importlib.metadata.distribution(name)
            record = found.read_text("RECORD")
            if not record:
                raise Stopped(f"{name} of this host does not list its files (no RECORD), so it cannot be linked: carry it")
            base = str(found.locate_file(""))
            for row in csv.reader(record.splitlines()):
                if row and not os.path.isabs(row[0]):
                    linker.add(os.path.normpath(os.path.join(base, row[0])),
                               os.path.normpath(os.path.join(packages, row[0])))  # fmt: skip
        missing = linker.link(str(folder), str(self.final(folder)))
        if cell["host"]:
            kind = "hard links" if linker.hard else "symbolic links"
            notes.append(f"{len(cell['host'])} packages of the host by {len(linker.files)} {kind}")
        if missing:
            notes.append(f"{len(missing)} files that the host's packages list are not there, e.g. {missing[0]}")
        return notes

    def settle(self, folder: Path, packages: Path) -> None:
        """Compile the bytecode with all cores, and have scripts name the place where the environment will be."""
        old, new = str(folder).encode(), str(self.final(folder)).encode()
        for path in [*(folder / "bin").iterdir(), folder / "pyvenv.cfg"]:
            if not path.is_symlink() and path.is_file() and path.stat().st_size < BLOCK:
                body = path.read_bytes()
                if old in body and b"\0" not in body:
                    aside = path.with_name(f".{path.name}.part")
                    aside.write_bytes(body.replace(old, new))
                    aside.chmod(path.stat().st_mode)
                    aside.replace(path)
        command = [str(folder / "bin" / "python"), "-m", "compileall", "-qq", "-j", str(self.jobs)]
        command += ["-s", str(folder), "-p", str(self.final(folder)), str(packages)]
        # A package may carry files for another Python, which do not compile: that fails no cell.
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                           env=self.env, timeout=1800, check=False)  # fmt: skip

    def final(self, folder: Path) -> Path:
        """Return where a folder below the working folder will be."""
        return self.root / folder.relative_to(self.work)

    def inventory(self, python: Path) -> dict[str, str]:
        """Return what is really installed for an interpreter, as it says itself."""
        log = self.logs / "inventory.log"
        run([str(python), "-c", ASK], log, self.env, f"asking {python}", 300)
        line = next(line for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("verl-matrix:"))
        return dict(json.loads(line.removeprefix("verl-matrix:")))

    def manifest(self, cell: dict[str, Any], folder: Path, found: dict[str, str], notes: list[str], spent: float) -> None:
        """Write what the environment is, in the form of the tool's own environments."""
        own = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and path.lstat().st_nlink == 1)
        told = [f"not carried: {name} {version}" for name, version in cell["left_out"].items()]
        data = {
            "schema": 1, "cell": cell["name"], "lock": cell["identity"], "python": platform.python_version(),
            "installed": {name: version for name, version in sorted(found.items()) if name not in cell["needs"]},
            "made": datetime.now(timezone.utc).isoformat(), "uv": Path(self.bundle["uv"]).name.rsplit("-", 3)[0],
            "seconds": round(spent, 2), "added_bytes": own, "built": cell["built"], "kept": True, "notes": told + notes,
            "bundle": {"lock": cell["lock"], "host": cell["host"], "left_out": cell["left_out"], "needs": cell["needs"]},
        }  # fmt: skip
        (folder / "verl-matrix.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")

    def publish(self, cells: list[dict[str, Any]]) -> None:
        """Move what is complete to where it is to be; from then on it is used."""
        starter = self.work / "bin" / "verl-matrix"
        starter.write_text(STARTER, encoding="utf-8")
        starter.chmod(0o755)
        shutil.copyfile(__file__, self.work / "bin" / "unbundle.py")
        shutil.rmtree(self.logs, ignore_errors=True)
        if not self.root.exists():
            self.work.rename(self.root)
            return
        for path in sorted(self.work.glob("cells/*")) + [self.work / "tool"]:
            if path.exists():
                swap(path, self.final(path))
        for path in [path for path in self.work.rglob("*") if path.is_file() and not path.is_symlink()]:
            self.final(path).parent.mkdir(parents=True, exist_ok=True)
            path.replace(self.final(path))
        shutil.rmtree(self.work)


STARTER = """#!/bin/sh
# Starts the tool of this bundle with the host's Python; what it finds out is kept in home/ unless --home says otherwise.
here="$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)"
export VERL_MATRIX_HOME="${VERL_MATRIX_HOME:-$here/home}"
exec "$here/tool/bin/python" -P -m matrix "$@"
"""


class Linker:
    """Files of the host to be linked into a cell: hard links where they are links, else symbolic ones."""

    def __init__(self) -> None:
        self.files: list[tuple[str, str]] = []
        self.hard = True

    def add(self, source: str, target: str) -> None:
        """Have `source` appear at `target`."""
        self.files.append((source, target))

    def link(self, inside: str, final: str) -> list[str]:
        """Link all files whose target is inside the cell; return those that are listed and not there."""
        missing: list[str] = []
        made: set[str] = set()
        self.files = [(source, target) for source, target in self.files if target.startswith(inside + os.sep)]
        # The largest first: where a link is a copy in truth, that is seen at the first file.
        sizes = {source: os.path.getsize(source) if os.path.isfile(source) else -1 for source, _ in self.files}
        for source, target in sorted(self.files, key=lambda item: -sizes[item[0]]):
            if sizes[source] < 0:
                if not source.endswith(".pyc"):
                    missing.append(source)
                continue
            parent = os.path.dirname(target)
            if parent not in made:
                os.makedirs(parent, exist_ok=True)
                made.add(parent)
            if parent == os.path.join(inside, "bin") and self.script(source, target, inside, final):
                continue
            self.one(source, target)
        return missing

    def one(self, source: str, target: str) -> None:
        """Link one file."""
        if self.hard:
            began = time.monotonic()
            try:
                os.link(source, target)
            except FileExistsError:
                return
            except OSError:
                self.hard = False
            else:
                if time.monotonic() - began < LINK_S:
                    return
                os.unlink(target)
                self.hard = False
        with contextlib.suppress(FileExistsError):
            os.symlink(source, target)

    @staticmethod
    def script(source: str, target: str, inside: str, final: str) -> bool:
        """Return whether the file is a Python script and was written for the cell's own interpreter."""
        with open(source, "rb") as file:
            body = file.read(BLOCK)
        first, _, rest = body.partition(b"\n")
        if not (first.startswith(b"#!") and b"python" in first):
            return False
        with open(target, "wb") as file:
            file.write(b"#!" + os.path.join(final, "bin", "python").encode() + b"\n" + rest)
        os.chmod(target, 0o755)
        return True


def swap(new: Path, final: Path) -> None:
    """Put a folder where another one may be."""
    final.parent.mkdir(parents=True, exist_ok=True)
    old = final.with_name(f".{final.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if final.exists():
        final.rename(old)
    new.rename(final)
    shutil.rmtree(old, ignore_errors=True)


def pinned(wheel: str) -> str:
    """Return `name==version` of a wheel's file name."""
    name, version = wheel.split("-")[:2]
    return f"{name}=={version}"


def alias(packages: Path, name: str, version: str) -> None:
    """Write an empty distribution, so that those who ask for `name` find the build that stands in for it."""
    info = packages / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "WHEEL").write_text("Wheel-Version: 1.0\nGenerator: verl-matrix\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    (info / "INSTALLER").write_text("verl-matrix\n")
    files = ("METADATA", "WHEEL", "INSTALLER", "RECORD")
    (info / "RECORD").write_text("".join(f"{info.name}/{file},,\n" for file in files))


def made_already(root: Path, cell: dict[str, Any]) -> bool:
    """Return whether DIR has this very cell."""
    try:
        data = json.loads((root / "cells" / cell["folder"] / "verl-matrix.json").read_text(encoding="utf-8"))
        held = data["bundle"]
        return bool(data["lock"] == cell["identity"] and held["host"] == cell["host"]
                    and held["left_out"] == cell["left_out"] and held["needs"] == cell["needs"])  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError):
        return False


# ---- the program ----


def chosen(bundle: dict[str, Any], patterns: list[str]) -> list[dict[str, Any]]:
    """Return the cells that the patterns name, all without one; raises Stopped for a pattern that names none."""
    cells: list[dict[str, Any]] = bundle["cells"]
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(cell["name"], pattern) for cell in cells):
            raise Stopped(f"--cell {pattern} names none of: " + ", ".join(cell["name"] for cell in cells))
    return [cell for cell in cells if not patterns or any(fnmatch.fnmatchcase(cell["name"], p) for p in patterns)]


def unbundle(args: argparse.Namespace) -> None:
    """Check all, then unpack and install; raises Stopped with every reason at once."""
    sources = [path.absolute() for path in args.parts] or [Path(__file__).resolve().parent]
    bundle, root = read_bundle(sources), args.into.absolute()
    cells = chosen(bundle, args.cell)
    if lines := misfits(bundle, cells):
        raise Stopped("This host is not what the bundle was made for:\n  " + "\n  ".join(lines))
    work = Unpacking(bundle, root, args.jobs)
    todo = [cell for cell in cells if not made_already(root, cell)]
    shared = [path for path in bundle["files"] if path.startswith("workload/")]
    paths = list(dict.fromkeys([*bundle["tool"], bundle["uv"], *shared,
                                *(path for cell in todo for path in [cell["lock_file"], *cell["wheels"]])]))  # fmt: skip
    lacking, stream = work.lacking(paths), Stream(bundle, sources)
    needed = stream.covering([bundle["files"][path] for path in lacking])
    with ThreadPoolExecutor(args.jobs) as pool:
        wrong = [line for line in pool.map(stream.wrong, needed) if line]
    if wrong:
        raise Stopped(f"{len(wrong)} of the {len(needed)} parts that are needed are not as they should be:\n  "
                      + "\n  ".join(wrong) + "\nNothing was installed. Bring them and run this again.")  # fmt: skip
    tell(f"{len(needed)} parts checked; {len(cells)} cells, {len(cells) - len(todo)} there already")
    if args.check:
        return
    size = sum(bundle["files"][path]["size"] for path in lacking)
    space = shutil.disk_usage(next(place for place in root.parents if place.exists())).free
    if space < size * 4:
        raise Stopped(f"{root} takes about {size * 4 / 1e9:.1f} GB, and {space / 1e9:.1f} GB are free")
    work.work.mkdir(parents=True, exist_ok=True)
    work.unpack(stream, lacking)
    tell(f"{len(lacking)} files unpacked, {size / 1e9:.2f} GB")
    work.tool()
    tell("the tool is installed")
    for cell in todo:
        work.cell(cell)
    work.publish(todo)
    for cell in cells:
        print(f"{root}/bin/verl-matrix run --here --python {root}/cells/{cell['folder']}/bin/python")  # noqa: T201
    tell("done")


def main() -> int:
    """Return 0 once all is installed, 1 with the reasons on standard error."""
    parser = argparse.ArgumentParser(description="Unpack a bundle of verl-matrix on a host without a network.")
    parser.add_argument("parts", nargs="*", type=Path, metavar="PARTS", help="folders with parts, parts, appended parts")
    parser.add_argument("--into", required=True, type=Path, metavar="DIR", help="where it goes; cells are added to what is there")
    parser.add_argument("--cell", action="append", default=[], metavar="NAME", help="only these cells (globs)")
    parser.add_argument("--check", action="store_true", help="check host and parts, and do nothing")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--jobs", type=int, default=cores, metavar="N", help="at a time (default: the cores, %(default)s)")
    try:
        unbundle(parser.parse_args())
    except Stopped as stopped:
        print(f"error: {stopped}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
