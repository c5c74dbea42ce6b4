"""A source archive opened like a folder: what it holds is written to a temporary folder, within limits, and removed."""

from __future__ import annotations

import contextlib
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from matrix.errors import CorruptFileError, UsageError

LARGEST = 1 << 30
"""No archive is unpacked that would become larger, in bytes."""
MOST = 40_000
"""Nor one of more files."""


@contextlib.contextmanager
def folder_of(path: Path) -> Iterator[Path]:
    """Give the folder that `path` is, or that the archive at `path` holds (`.tar.gz`, `.tar.bz2`, `.tar.xz`, `.zip`).

    An archive with one folder at its top is that folder. Links and whatever would leave the folder are refused.

    Raises:
        UsageError: it is neither, or too large to be looked at.
        CorruptFileError: the archive is broken, or holds what would be written elsewhere.
    """
    if path.is_dir():
        yield path
        return
    if not path.is_file():
        raise UsageError(
            f"There is no {path}.", then="Give the folder of a repository, or a source archive (.tar.gz, .zip)."
        )
    with tempfile.TemporaryDirectory(prefix="verl-matrix-unpacked-") as made:
        target = Path(made)
        try:
            _unpack(path, target)
        except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
            raise CorruptFileError(
                f"{path} cannot be unpacked: {error}.", then="Fetch it again, or unpack it and give the folder."
            ) from error
        inner = list(target.iterdir())
        yield inner[0] if len(inner) == 1 and inner[0].is_dir() else target


def _unpack(path: Path, target: Path) -> None:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            _refuse_large(path, [item.file_size for item in archive.infolist()])
            for item in archive.infolist():
                # `extract` takes what leads out of the folder out of a name.
                archive.extract(item, target)
    elif tarfile.is_tarfile(path):
        with tarfile.open(path) as tar:
            members = [member for member in tar if member.isfile() or member.isdir()]
            _refuse_large(path, [member.size for member in members])
            tar.extractall(target, members=members, filter="data")
    else:
        raise UsageError(f"{path} is no folder and no archive.", then="Give a folder, a .tar.gz or a .zip.")


def _refuse_large(path: Path, sizes: list[int]) -> None:
    if sum(sizes) > LARGEST or len(sizes) > MOST:
        raise UsageError(
            f"{path} would become {sum(sizes) >> 20} MiB in {len(sizes)} files.",
            then="Unpack it yourself and give the folder.",
        )
