"""Unpacks a bundle on a host without a network: `python3 unbundle.py --into DIR [PARTS ...]`; needs its Python only.

Each PARTS is a folder with parts, a part, or a file into which parts were appended one after another (a beginning of
the whole is enough for the cells that lie in it). Everything is checked before anything is installed, all work is done
in DIR.partial, and what is complete is moved into DIR at the end; a second try goes on where the first one stopped.
Runs on Python 3.10 and newer, with the standard library alone.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import fnmatch
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from matrix.bundle.host.arrival import Json, Stopped, Stream, read_bundle, tell
from matrix.bundle.host.fit import misfits
from matrix.bundle.host.unpacking import Unpacking

EXPANSION = 4
"""Bytes on disk a byte of the bundle: the files, unpacked about 2.3 times as much, and bytecode."""


def chosen(cells: Sequence[Json], patterns: Sequence[str]) -> list[Json]:
    """Return the cells that the patterns name, all without one; raises Stopped for a pattern that names none."""
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(cell["name"], pattern) for cell in cells):
            raise Stopped(f"--cell {pattern} names none of: {', '.join(cell['name'] for cell in cells) or 'no cells'}")
    return [cell for cell in cells if not patterns or any(fnmatch.fnmatchcase(cell["name"], p) for p in patterns)]


def files_of(bundle: Json, cells: Sequence[Json]) -> list[str]:
    """Return the files that these cells, the tool and the workload need, each once."""
    shared = [path for path in bundle["files"] if path.startswith("workload/")]
    own = [path for cell in cells for path in (cell["lock_file"], *cell["wheels"])]
    return list(dict.fromkeys([*bundle["tool"], bundle["uv"], *shared, *own]))


def check_parts(stream: Stream, needed: Sequence[Json], jobs: int) -> None:
    """Raise Stopped where one of the parts is missing, cut off or corrupt, naming each."""
    with ThreadPoolExecutor(jobs) as pool:
        wrong = [line for line in pool.map(stream.wrong, needed) if line]
    if wrong:
        raise Stopped(
            f"{len(wrong)} of the {len(needed)} parts that are needed are not as they should be:\n  "
            + "\n  ".join(wrong)
            + "\nNothing was installed. Bring them and run this again."
        )


def check_room(root: Path, size: int) -> None:
    """Raise Stopped where the disk has less room than it takes."""
    free = shutil.disk_usage(next(place for place in root.parents if place.exists())).free
    if free < size * EXPANSION:
        raise Stopped(f"{root} takes about {size * EXPANSION / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free")


@contextlib.contextmanager
def alone(root: Path) -> Iterator[None]:
    """Keep a second run from the same folder; raises Stopped where one is under way, or it holds something else."""
    if root.exists() and not root.is_dir():
        raise Stopped(f"{root} is a file: give a folder with --into")
    if root.exists() and any(root.iterdir()) and not (root / "bin" / "verl-matrix").exists():
        raise Stopped(f"{root} is there and is nothing that was unbundled: give another folder with --into")
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        root.with_name(f".{root.name}.lock").touch()
    except OSError as error:
        raise Stopped(f"{root.parent} cannot be written to ({error.strerror}): give another --into") from error
    with root.with_name(f".{root.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Stopped(f"another run unpacks into {root}: let it end") from error
        yield


def unbundle(asked: argparse.Namespace, beside: Path) -> None:
    """Check everything, then unpack and install; raises Stopped with every reason at once."""
    sources = [path.absolute() for path in asked.parts] or [beside]
    bundle, root = read_bundle(sources, beside), Path(os.path.abspath(asked.into))
    cells = chosen(bundle["cells"], asked.cell)
    if not asked.unpack_only:
        if lines := misfits(bundle["target"], cells):
            raise Stopped("This host is not what the bundle was made for:\n  " + "\n  ".join(lines))
        tell(f"this host fits: {sys.executable}, Python {platform.python_version()}")
    work = Unpacking(bundle, root, asked.jobs)
    todo = [cell for cell in cells if not work.has(cell, root)]
    stream = Stream(bundle["parts"], sources)
    paths = files_of(bundle, todo)
    needed = stream.covering([bundle["files"][path] for path in work.lacking(paths)])
    check_parts(stream, needed, asked.jobs)
    tell(f"{len(needed)} parts are whole; {len(cells) - len(todo)} of {len(cells)} cells are there already")
    if asked.check:
        return
    with alone(root):
        unpack(work, stream, paths)
        if asked.unpack_only:
            return
        install(work, todo)
    tell("done; to try it:")
    pythons = [f"{root}/cells/{cell['folder']}/bin/python" for cell in cells] or ["PYTHON"]
    for python in pythons:
        print(f"{root}/bin/verl-matrix run --here --python {python}")


def unpack(work: Unpacking, stream: Stream, paths: Sequence[str]) -> None:
    """Have all these files in the working folder; raises Stopped where the disk has too little room."""
    lacking = work.lacking(paths)
    size = sum(work.bundle["files"][path]["size"] for path in lacking)
    check_room(work.root, size)
    work.work.mkdir(parents=True, exist_ok=True)
    work.reuse([path for path in paths if path not in set(lacking)])
    work.unpack(stream, lacking)
    tell(f"{len(lacking)} files unpacked, {size / 1e9:.2f} GB")


def install(work: Unpacking, todo: Sequence[Json]) -> None:
    """Make the tool and the cells and move them to where they are used."""
    work.tool()
    tell("the tool is there")
    for cell in todo:
        work.cell(cell)
    work.publish()


def words() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description="Unpack a bundle of verl-matrix on a host without a network.")
    parser.add_argument(
        "parts", nargs="*", type=Path, metavar="PARTS", help="folders with parts, parts, appended parts"
    )
    parser.add_argument("--into", required=True, type=Path, metavar="DIR", help="where it goes; cells are added there")
    parser.add_argument("--cell", action="append", default=[], metavar="NAME", help="only these cells (globs)")
    parser.add_argument("--check", action="store_true", help="check host and parts, and do nothing")
    parser.add_argument("--unpack-only", action="store_true", help="unpack files into DIR.partial and install nothing")
    parser.add_argument("--jobs", type=count, default=len(os.sched_getaffinity(0)), metavar="N", help="at a time")
    return parser


def count(text: str) -> int:
    """Return a whole number above 0, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"`{text}` is no whole number above 0")
    return int(text)


def main() -> int:
    """Return 0 once all is installed, 1 with the reasons on standard error, 130 where it was interrupted."""
    try:
        unbundle(words().parse_args(), Path(__file__).resolve().parent)
    except Stopped as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {error}\nWhat was finished is kept; once that is mended run this again.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; what was finished is kept, and the next try goes on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
