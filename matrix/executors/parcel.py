"""The parcel: this tool, what it needs to visit a cell, and uv, as bytes that a machine unpacks and runs from.

So nothing has to be installed on the machines of a cluster, no file system has to be shared, and every machine runs
the very code that asked: a visit needs pure Python packages only, and one program.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import platform
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from matrix.bundle.toolwheel import build_tool_wheel
from matrix.errors import ToolError
from matrix.resolve.solver import find_uv

NEEDS = ("filelock", "nvidia-ml-py", "packaging", "platformdirs")
"""What a visit imports beside this tool; the other packages that this tool depends on ask the index, or render."""
_MODULES = ("pynvml.py",)
"""Those of its modules that lie in no package; nvidia-ml-py brings an example too."""
UV = "bin/uv"
"""Where uv lies in the parcel."""
_MOMENT = (2020, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """The bytes of a zip file, what names them, and the architecture that the program in it is for."""

    body: bytes
    digest: str
    machine: str

    @property
    def size(self) -> int:
        """Return its size in bytes."""
        return len(self.body)


def make_parcel(uv: Path | None = None) -> Parcel:
    """Return the parcel of this tool as it runs now; the same files give the same bytes.

    Raises:
        ToolError: there is no uv, the probes are not here, or a package that a visit needs is not installed.
    """
    program = find_uv(uv)
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as parcel:
        with zipfile.ZipFile(io.BytesIO(build_tool_wheel())) as wheel:
            for name in wheel.namelist():
                if name.startswith("matrix/"):
                    _put(parcel, name, wheel.read(name))
        for name, body in _packages():
            _put(parcel, name, body)
        try:
            _put(parcel, UV, program.read_bytes(), mode=0o755)
        except OSError as error:
            raise ToolError(f"{program} cannot be read: {error.strerror or error}.") from error
    body = made.getvalue()
    return Parcel(body=body, digest=hashlib.sha256(body).hexdigest(), machine=platform.machine())


def _put(parcel: zipfile.ZipFile, name: str, body: bytes, mode: int = 0o644) -> None:
    info = zipfile.ZipInfo(name, _MOMENT)
    info.external_attr = (0o100000 | mode) << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    # The quickest: uv is most of it, and a machine fetches it once.
    parcel.writestr(info, body, compresslevel=1)


def _packages() -> Iterator[tuple[str, bytes]]:
    """Yield the files of the packages that a visit needs; pure Python, so they run on every machine alike."""
    for package in NEEDS:
        try:
            files = importlib.metadata.distribution(package).files or []
        except importlib.metadata.PackageNotFoundError:
            raise ToolError(f"{package} is not installed beside this tool.", then="Install the tool again.") from None
        for file in sorted(files, key=str):
            inside = len(file.parts) > 1 or file.name in _MODULES
            if inside and file.suffix in (".py", "") and not {"..", "__pycache__"} & set(file.parts):
                yield file.as_posix(), Path(str(file.locate())).read_bytes()
