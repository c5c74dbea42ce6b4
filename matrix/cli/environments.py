"""`env build|list|remove|cell`: the environments of cells, made, shown and taken away by hand, or told to pytest."""

from __future__ import annotations

import argparse
import json
import re
import sys
from datetime import UTC, datetime

from matrix.cell import Axis, Cell, parse_name
from matrix.cli import wiring
from matrix.cli.front import Front
from matrix.errors import NothingRanError, UsageError
from matrix.home import Home
from matrix.provision.room import gigabytes
from matrix.provision.shelf import Shelf, Shelved


def run(args: argparse.Namespace, front: Front) -> int:
    """Do what `args.action` says and print the answer; 0 when it was done."""
    if args.action == "build":
        return _build(args, front)
    if args.action == "cell":
        return _tell_cell(args)
    shelf = Shelf(root=Home.find(args.home).cache / "environments")
    if args.action == "list":
        _refuse_words(args.spec, "list")
        return _list(shelf, as_json=args.json)
    return _remove(args, shelf)


def _build(args: argparse.Namespace, front: Front) -> int:
    """Resolve the cell, install it and keep it; print where its interpreter is."""
    from matrix.provision import Provisioner

    if args.all:
        raise UsageError("`env build` builds one cell; --all goes with `env remove`.")
    cell, home = _cell(args), Home.find(args.home)
    text = wiring.lock_of(cell, args, front)
    provisioner = Provisioner(
        home=home,
        index_url=args.index_url,
        offline=args.offline,
        keep=True,
        wheels=args.find_links,
        say=_tell,
    )
    environment = provisioner.provision(cell, text)
    provisioner.release(environment)
    data = {
        "cell": environment.cell,
        "python": str(environment.python),
        "python_version": environment.python_version,
        "packages": len(environment.installed),
        "lock": environment.lock,
        "reused": environment.reused,
        "seconds": environment.seconds,
        "added_bytes": environment.added_bytes,
        "built": list(environment.built),
        "notes": list(environment.notes),
        "installed": dict(environment.installed),
    }
    if args.json:
        _say(json.dumps(data, indent=2, ensure_ascii=False))
        return 0
    cost = "was there already"
    if not environment.reused:
        cost = f"{environment.seconds:.1f} s, {gigabytes(environment.added_bytes)} more on disk"
    _say(f"{environment.cell}: {len(environment.installed)} packages; {cost}")
    _say(str(environment.python))
    for note in environment.notes:
        _say(f"note: {note}")
    return 0


def _tell_cell(args: argparse.Namespace) -> int:
    """Print the cell file of an environment: what probes are told of it when pytest is started by hand."""
    import tempfile
    from pathlib import Path

    from matrix.probing.cellfile import CellFacts, by_id
    from matrix.provision import here
    from matrix.records import load_failures

    if len(args.spec) > 1:
        raise UsageError("`env cell` takes one interpreter.", then="Like `env cell DIR/cells/NAME/bin/python`.")
    found = here(Path(args.spec[0]) if args.spec else None)
    if not found.cell:
        raise NothingRanError(f"{found.python} has none of the stack installed, so there is no cell to tell of.")
    facts = CellFacts(
        cell=found.cell,
        python=".".join(found.python_version.split(".")[:2]),
        installed=found.installed,
        failures=by_id(load_failures()),
    )
    # Left there for the probes that are started with it; the name is short because Ray's sockets lie below it.
    scratch = Path(tempfile.mkdtemp(prefix="vm-"))
    _say(json.dumps(facts.to_json(scratch), indent=1, ensure_ascii=False))
    return 0


def _list(shelf: Shelf, *, as_json: bool) -> int:
    """Print every environment with its size, age and whether it is in use."""
    entries = shelf.entries()
    if as_json:
        _say(json.dumps([_row(item) for item in entries], indent=2, ensure_ascii=False))
        return 0
    if not entries:
        _say(f"no environments in {shelf.root}")
        return 0
    width = max(len(item.name) for item in entries)
    _say(f"{'cell':<{width}}  {'own':>8}  {'shared':>8}  {'made':>7}  {'used':>7}  state")
    now = datetime.now(UTC)
    for item in entries:
        made = _age(now, item.manifest.made) if item.manifest else "?"
        own, shared = gigabytes(item.usage.own), gigabytes(item.usage.shared)
        _say(f"{item.name:<{width}}  {own:>8}  {shared:>8}  {made:>7}  {_age(now, item.used):>7}  {_state(item)}")
    freed = gigabytes(sum(item.usage.own for item in entries))
    _say(f"{len(entries)} in {shelf.root}; removing all frees {freed}, and `uv cache prune` what is shared then")
    return 0


def _remove(args: argparse.Namespace, shelf: Shelf) -> int:
    """Remove the named environments, or all that nobody uses."""
    if args.all == bool(args.spec):
        raise UsageError("`env remove` takes the name of a cell, or --all.", then="`env list` shows the names.")
    entries = {item.name: item for item in shelf.entries()}
    if args.all:
        chosen = [item for item in entries.values() if not item.in_use]
    else:
        chosen = [_named(word, args, entries) for word in _names(args)]
    for item in chosen:
        took = shelf.remove(item.folder)
        _say(f"removed {item.name}: {gigabytes(took.own)} freed, {gigabytes(took.shared)} shared with others")
    if args.all:
        left = [item.name for item in entries.values() if item.in_use]
        for name in left:
            _say(f"left {name}: it is in use")
        if not entries:
            _say(f"no environments in {shelf.root}")
    return 0


def _names(args: argparse.Namespace) -> list[str]:
    """Return the cells that the words name: each a name, or all together the specs of one cell."""
    if any(_is_spec(word) for word in args.spec):
        return [_cell(args).name]
    return list(args.spec)


def _named(name: str, args: argparse.Namespace, entries: dict[str, Shelved]) -> Shelved:
    if name in entries:
        return entries[name]
    from matrix.nearness import near_names

    near = near_names(name, entries)
    hint = f"Closest: {', '.join(near)}." if near else ""
    raise NothingRanError(f"There is no environment of {name}.", why=hint, then="`env list` shows those there are.")


def _cell(args: argparse.Namespace) -> Cell:
    """Return the cell that the words name, by its one name or by specs."""
    if not args.spec:
        raise UsageError(f"`env {args.action}` takes a cell.", then="Write its name, or PACKAGE==VERSION for its axes.")
    if len(args.spec) == 1 and not _is_spec(args.spec[0]):
        if args.override or args.no_deps or args.added or args.python or args.platform or args.exclude_newer:
            raise UsageError("The name of a cell says its platform and deviations; options do not change them.")
        return parse_name(args.spec[0])
    return wiring.cell_of(args)


def _is_spec(word: str) -> bool:
    """Return whether the word is a requirement, and not the name of a cell, which holds no operator."""
    return re.search(r"[=<>!~\[]", word) is not None or word in {name for axis in Axis for name in (axis, axis.short)}


def _refuse_words(words: list[str], action: str) -> None:
    if words:
        raise UsageError(f"`env {action}` takes no cell; it got `{words[0]}`.")


def _row(item: Shelved) -> dict[str, object]:
    manifest = item.manifest
    return {
        "cell": item.name,
        "folder": str(item.folder),
        "complete": manifest is not None,
        "in_use": item.in_use,
        "kept": manifest is not None and manifest.kept,
        "own_bytes": item.usage.own,
        "shared_bytes": item.usage.shared,
        "made": manifest.made.isoformat() if manifest else None,
        "used": item.used.isoformat(),
        "python": manifest.python_version if manifest else None,
        "lock": manifest.lock if manifest else None,
        "seconds": manifest.seconds if manifest else None,
        "added_bytes": manifest.added_bytes if manifest else None,
    }


def _state(item: Shelved) -> str:
    if item.in_use:
        return "in use" if item.manifest else "being built"
    if item.manifest is None:
        return "half-finished"
    return "kept" if item.manifest.kept else "complete"


def _age(now: datetime, moment: datetime) -> str:
    """Return how long ago that was, in its largest unit."""
    seconds = max(0.0, (now - moment).total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")
