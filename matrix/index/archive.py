"""What wheels and sdists have in common as archives: the file they are of, and what it cost to read."""

from __future__ import annotations

from matrix.index import File


class FileArchive:
    """An archive that is one file of an index; `_read` is what its reader counts up."""

    _file: File
    _read: int

    @property
    def filename(self) -> str:
        """Return the file's name."""
        return self._file.filename

    @property
    def digest(self) -> str:
        """Return `sha256:<hex>` of the whole file as the index states it, `url:<hex>` where it states none."""
        return self._file.digest

    @property
    def bytes_read(self) -> int:
        """Return how many bytes came over the network for it so far, in this process."""
        return self._read
