"""`bundle`: cells, the probes and this tool as parts that are carried to a host without a network."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matrix.bundle import Bundle, Maker
    from matrix.cell import Cell, Platform
    from matrix.cli.front import Front
    from matrix.provision.recipe import LocalWheel

_GLOB = re.compile(r"[*?\[{!,:]")


def add(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Have `command` make the subcommand: it takes name, summary and epilog, and returns the parser."""
    parser = command("bundle", "make what a host without a network needs to try cells", _EPILOG)
    parser.add_argument("spec", nargs="*", metavar="CELL", help=_CELL)
    parser.add_argument("--out", default="bundle", metavar="DIR", help="where the parts go (default: %(default)s)")
    parser.add_argument("--part-size", default="60MB", metavar="SIZE", help="largest part (default: %(default)s)")
    parser.add_argument("--have", metavar="FILE", help="`pip freeze` of the host: what it has as locked stays behind")
    parser.add_argument("--build", action="append", default=[], metavar="NAME=WHL", help=_BUILD)
    parser.add_argument("--leave-out", nargs="+", action="extend", default=[], metavar="NAME", help=_LEAVE_OUT)
    parser.add_argument("--model", nargs="+", action="extend", default=[], metavar="SHAPE", help=_MODEL)
    parser.add_argument("--tool-only", action="store_true", help="only this tool and the probes, for `run --here`")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    target = parser.add_argument_group("target and deviation, for a cell written as PACKAGE==VERSION")
    target.add_argument("--python", metavar="X.Y", help="CPython version (default: 3.12)")
    target.add_argument("--platform", metavar="TAG", help="uv platform (default: x86_64-manylinux_2_35)")
    target.add_argument("--exclude-newer", metavar="DATE", help="resolve as of that day or moment")
    target.add_argument("--override", action="append", default=[], metavar="REQ", help="replace all statements")
    target.add_argument("--no-deps", action="store_true", help="take the pins and nothing they ask for")
    target.add_argument("--with", dest="added", action="append", default=[], metavar="REQ", help="carry this too")


_EPILOG = """

  verl-matrix bundle 'group:gpu' --have freeze.txt --build flash-attn=wheels/flash_attn-2.8.3.post2-….whl
  verl-matrix bundle verl==0.9.1 vllm==0.24.0 torch==2.11.0 tf==5.9.0 --part-size 58MB
  verl-matrix bundle --tool-only --python 3.11

On the host: python3 unbundle.py --into DIR, then DIR/bin/verl-matrix run --here --python DIR/cells/NAME/bin/python.
The cell that is named first is in the first parts."""
_CELL = "names of cells (globs, group:NAME), or PACKAGE==VERSION for the axes of one"
_BUILD = "a wheel that you built, for a release without one; may be repeated"
_LEAVE_OUT = "packages of the lock that are not carried; recorded as a deviation and told wherever the cell is shown"
_MODEL = "carry the tokenizer that models of this shape need, e.g. qwen2.5-0.5b"


def run(args: argparse.Namespace, front: Front) -> int:
    """Make the bundle and print what is in it; 0 when all of it is there."""
    from packaging.utils import canonicalize_name

    from matrix.bundle import Order
    from matrix.bundle.freeze import NOTHING, read_freeze
    from matrix.bundle.parts import parse_size
    from matrix.cell import Platform
    from matrix.cli import wiring
    from matrix.errors import UsageError

    if args.tool_only == bool(args.spec):
        raise UsageError("`bundle` takes cells, or --tool-only.", then="`run --list` shows the cells there are.")
    part_size = parse_size(args.part_size)
    have = read_freeze(Path(args.have)) if args.have else NOTHING
    for line in have.passed_over:
        sys.stderr.write(f"{args.have}: passed over, no version: {line}\n")
    cells = _cells(args)
    platform = cells[0].platform if cells else wiring.platform(args) or Platform()
    builds = _builds(args.build, platform)
    order = Order(
        cells=tuple((cell, wiring.lock_of(cell, args, front)) for cell in cells),
        platform=platform,
        part_size=part_size,
        have=have,
        builds=builds,
        leave_out=tuple(str(canonicalize_name(name)) for name in args.leave_out),
        models=tuple(args.model),
    )
    out = Path(args.out).absolute()
    bundle = _maker(args).make(order, out)
    if args.json:
        sys.stdout.write(json.dumps({**bundle.to_json(), "out": str(out)}, indent=2, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write("".join(f"{line}\n" for line in _lines(bundle, out)))
    return 0


def _cells(args: argparse.Namespace) -> list[Cell]:
    """Return the cells that the words name, in their order; raises UsageError for a word that names none."""
    from matrix.cell import parse_name
    from matrix.cli import wiring
    from matrix.errors import UsageError
    from matrix.plan import SHIPPED, load_cells, plan

    if any(_is_spec(word) for word in args.spec):
        return [wiring.cell_of(args)]
    if args.override or args.no_deps or args.added:
        raise UsageError("The name of a cell says its deviations; options do not change them.")
    shipped = load_cells(SHIPPED)
    found: dict[str, Cell] = {}
    for word in args.spec:
        if _GLOB.search(word) or any(item.cell.name == word for item in shipped):
            asked = plan(shipped, selectors=[word], platform=wiring.platform(args), as_of=wiring.as_of(args)).cells
        else:
            asked = (parse_name(word),)
        found |= {cell.name: cell for cell in asked if cell.name not in found}
    return list(found.values())


def _is_spec(word: str) -> bool:
    """Return whether the word is a requirement, and not the name of a cell, which holds no operator."""
    from matrix.cell import Axis

    return re.search(r"[=<>~]", word) is not None or word in {name for axis in Axis for name in (axis, axis.short)}


def _builds(words: list[str], platform: Platform) -> dict[str, LocalWheel]:
    from matrix.bundle.wheelhouse import local_wheel
    from matrix.errors import UsageError

    found = {}
    for word in words:
        name, sign, path = word.partition("=")
        if not sign or not path:
            raise UsageError(f"--build takes NAME=WHEEL, not `{word}`.", then="Like flash-attn=PATH.whl.")
        wheel = local_wheel(name, Path(path).expanduser(), platform)
        found[wheel.name] = wheel
    return found


def _maker(args: argparse.Namespace) -> Maker:
    from matrix.bundle import Maker
    from matrix.bundle.wheelhouse import Wheelhouse
    from matrix.cli import wiring
    from matrix.home import Home
    from matrix.index.fetch import Fetcher
    from matrix.provision.builds import load_builds
    from matrix.provision.installer import cache_folder
    from matrix.provision.pythons import Finder, downloads_allowed
    from matrix.resolve.process import surroundings
    from matrix.resolve.sdists import load_sdists
    from matrix.resolve.solver import Uv, find_uv

    home, uv = Home.find(args.home), find_uv()
    url = wiring.open_index(args, home).url
    finder = Finder(
        uv=uv, env=surroundings(), managed=home.cache / "pythons", download=downloads_allowed(offline=args.offline)
    )
    house = Wheelhouse(
        root=home.cache / "wheels",
        builds=load_builds(),
        uv=uv,
        uv_cache=cache_folder(None, home.cache),
        index_url=url,
        fetcher=Fetcher(offline=args.offline),
        find_python=finder.find,
        say=_tell,
        offline=args.offline,
    )
    solver = Uv(cache_dir=home.cache / "resolve", index_url=url, sdists=load_sdists())
    return Maker(wheelhouse=house, solver=solver, say=_tell)


def _lines(bundle: Bundle, out: Path) -> list[str]:
    """Return what there is to say of a bundle."""
    from matrix.provision.room import gigabytes

    lines = []
    before: frozenset[str] = frozenset()
    for cell in bundle.cells:
        before |= frozenset(bundle.parts_of(bundle.files_of(cell)))
        first = "part" if len(before) == 1 else f"{len(before)} parts"
        lines.append(f"{cell.name}: {len(cell.wheels)} wheels; complete with the first {first}")
        if cell.host:
            lines.append(f"  from the host, at the locked version: {_counted(len(cell.host), 'package')}")
        if cell.left_out:
            told = ", ".join(f"{name} {version}" for name, version in cell.left_out.items())
            lines.append(f"  not carried (a deviation): {told}")
        lines += [f"  note: {note}" for note in cell.notes]
    target = bundle.target
    lines.append(f"for CPython {target.python} on {target.machine}, glibc {target.glibc} or newer")
    lines.append(
        f"{_counted(len(bundle.parts), 'part')}, {gigabytes(bundle.size)}, and bundle.json and unbundle.py in {out}"
    )
    return lines


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")
