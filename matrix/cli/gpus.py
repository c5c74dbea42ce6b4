"""The command `gpus`: which GPUs there are and who has them, the fingerprint, and failures forced on one."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from matrix.errors import NothingRanError, UsageError

if TYPE_CHECKING:
    from matrix.cli.front import Front
    from matrix.gpus.inventory import Inventory
    from matrix.gpus.nvml import Driver
    from matrix.probing.forced import Forced


class Adds(Protocol):
    """Makes a subcommand; `matrix.cli.parser` has it."""

    def __call__(self, name: str, summary: str, more: str = "", *, asks: bool = True) -> argparse.ArgumentParser:
        """Return its parser."""


_MORE = """

  verl-matrix gpus                            what there is, what is in use, what is granted to a run
  verl-matrix gpus --json                     the same, with the fingerprint that observations name
  verl-matrix gpus forced --python CELL/bin/python
                                              force some 50 failures; 1 where any left memory on the GPU"""


def add(command: Adds) -> None:
    """Add the words of the command."""
    parser = command("gpus", "list the GPUs and who has them, or force failures on one", _MORE, asks=False)
    parser.add_argument("action", nargs="?", choices=["list", "forced"], default="list", help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--python", metavar="PYTHON", help="forced: the interpreter to force them in (with pytest)")
    parser.add_argument(
        "--only", action="append", default=[], metavar="PATTERN", help="forced: only failures of that name"
    )
    parser.add_argument("--out", metavar="FILE", help="forced: write each as a line of JSON as it comes")


def run(args: argparse.Namespace, front: Front) -> int:
    """List the GPUs (0), or force failures on one: 0 where all came as meant and left nothing, else 1."""
    if args.action == "forced":
        return _force(args)
    if args.python or args.only or args.out:
        raise UsageError("--python, --only and --out go with `gpus forced`.")
    return _list(as_json=args.json)


def _list(*, as_json: bool) -> int:
    """Print the GPUs; raises NothingRanError where there is none, with the reason."""
    from matrix.gpus.inventory import take_inventory
    from matrix.gpus.nvml import driver
    from matrix.gpus.pool import Pool

    inventory = take_inventory()
    if not inventory.gpus:
        raise NothingRanError("This machine has no GPU that may be used.", why=inventory.why or _NO_DEVICE, then=_NONE)
    granted = Pool(inventory=inventory).granted()
    asked = driver()
    rows = [_row(asked, inventory, number, granted) for number in range(len(inventory.gpus))]
    facts = _facts(asked, inventory)
    if as_json:
        _say(json.dumps({"gpus": rows, **facts}, indent=2, ensure_ascii=False))
        return 0
    for row in rows:
        _say(_line(row))
    if inventory.why:
        _say(f"note: {inventory.why}")
    told = facts["facts"]
    _say(f"driver {told['driver']}, CUDA up to {told['cuda_driver']}; fingerprint {facts['fingerprint']}")
    return 0


_NO_DEVICE = (
    "/dev has no device of an NVIDIA driver (nvidia0, nvidiactl): none is loaded, or a container was given none."
)
_NONE = "`gpu` probes are then untested here; `memory` and `thresholds --plan` answer without one."


def _row(asked: Driver, inventory: Inventory, number: int, granted: frozenset[int]) -> dict[str, Any]:
    from matrix.gpus.nvml import MIB

    gpu = inventory.gpus[number]
    return {
        "index": gpu.index,
        "name": gpu.name,
        "capability": gpu.capability_text,
        "memory_mib": gpu.memory // MIB,
        "used_mib": asked.used(gpu.index) // MIB,
        "granted": gpu.index in granted,
        "holders": [{"pid": item.pid, "used_mib": item.used // MIB} for item in asked.holders(gpu.index)],
    }


def _line(row: Mapping[str, Any]) -> str:
    who = ", ".join(f"pid {item['pid']} ({item['used_mib']} MiB)" for item in row["holders"]) or "nobody named"
    state = "granted to a run" if row["granted"] else "free"
    return (
        f"{row['index']}  {row['name']}  {row['capability']}  {row['used_mib']} of {row['memory_mib']} MiB in use"
        f" by {who}  {state}"
    )


def _facts(asked: Driver, inventory: Inventory) -> dict[str, Any]:
    import platform

    from matrix.gpus.fingerprint import digest, fingerprint

    facts = fingerprint(asked, inventory, python=platform.python_version(), installed={}, environ=os.environ)
    return {"fingerprint": digest(facts), "facts": facts}


def _force(args: argparse.Namespace) -> int:
    """Force them and print a line each; the last line counts."""
    from matrix.probing.forced import force

    python = Path(args.python or sys.executable).absolute()
    if not python.is_file():
        raise UsageError(
            f"There is no interpreter {python}.", then="--python names that of a cell, or any with pytest."
        )
    out = Path(args.out) if args.out else None
    start = time.monotonic()

    def tell(forced: Forced) -> None:
        if out is not None:
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(forced.to_json()) + "\n")
        if not args.json:
            _say(_told(forced))

    found = force(python, patterns=args.only, tell=tell)
    if args.json:
        _say(json.dumps([item.to_json() for item in found], indent=2, ensure_ascii=False))
    else:
        _say(_summary(found, time.monotonic() - start))
    return 0 if _is_good(found) else 1


def _told(forced: Forced) -> str:
    if forced.told == "untested":
        return f"untested  {forced.name}: {forced.reason}"
    left = "? MiB" if forced.left_mib is None else f"{forced.left_mib} MiB"
    mark = "ok      " if forced.as_meant and not forced.left_mib else "NOT OK  "
    ended = forced.detail.get("left")
    more = f"; had to be ended: {', '.join(map(str, ended))}" if isinstance(ended, list) else ""
    why = f"; {forced.reason}" if forced.reason else ""
    return (
        f"{mark}  {forced.name}: {forced.told}, {left} left after {forced.settle_s:.2f} s,"
        f" peak {forced.peak_mib} MiB{more}{why}"
    )


def _summary(found: Sequence[Forced], seconds: float) -> str:
    ran = [item for item in found if item.told != "untested"]
    left = sum(item.left_mib or 0 for item in ran)
    meant = sum(item.as_meant for item in ran)
    slowest = max((item.settle_s for item in ran), default=0.0)
    return (
        f"{len(ran)} of {len(found)} failures forced, {meant} as meant: {left} MiB left in all,"
        f" the slowest back after {slowest:.2f} s; {seconds:.0f} s"
    )


def _is_good(found: Sequence[Forced]) -> bool:
    ran = [item for item in found if item.told != "untested"]
    return bool(ran) and all(item.as_meant and item.left_mib == 0 for item in ran)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
