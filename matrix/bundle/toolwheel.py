"""This tool as a wheel of its own, with the probes in it, made from what runs now: a checkout or an installation."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

from matrix import __version__
from matrix.probing.folder import probes_folder

NAME = "verl-matrix"
FILENAME = f"verl_matrix-{__version__}-py3-none-any.whl"
PACKAGES = ("matrix", "reports", "bench")
_ROOT = Path(__file__).parents[2]
_INFO = f"verl_matrix-{__version__}.dist-info"
_MOMENT = (2020, 1, 1, 0, 0, 0)
_IGNORED = frozenset({"__pycache__", "out"})


def requirements() -> tuple[str, ...]:
    """Return what this tool needs to run, as its own metadata say: installed, else the checkout's pyproject.toml."""
    project = _ROOT / "pyproject.toml"
    if project.is_file():
        import tomllib

        data = tomllib.loads(project.read_text(encoding="utf-8"))
        if data.get("project", {}).get("name") == NAME:
            return tuple(data["project"]["dependencies"])
    import importlib.metadata

    return tuple(text for text in importlib.metadata.requires(NAME) or () if "extra ==" not in text)


def build_tool_wheel(root: Path = _ROOT, probes: Path | None = None) -> bytes:
    """Return the wheel: the packages below `root`, the probes as `matrix/compat`, metadata; the same files, same bytes.

    Needs no build backend and no network, so that a bundle is made from an installed tool as well as from a checkout.
    """
    files = dict(_files(root, probes or probes_folder()))
    files |= _metadata()
    record = "".join(f"{name},sha256={_digest(body)},{len(body)}\n" for name, body in files.items())
    files[f"{_INFO}/RECORD"] = f"{record}{_INFO}/RECORD,,\n".encode()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, body in files.items():
            info = zipfile.ZipInfo(name, _MOMENT)
            info.external_attr = 0o100644 << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(info, body)
    return made.getvalue()


def _files(root: Path, probes: Path) -> Iterator[tuple[str, bytes]]:
    for package in PACKAGES:
        for path in _below(root / package):
            name = path.relative_to(root).as_posix()
            if not name.startswith("matrix/compat/"):
                yield name, path.read_bytes()
    for path in _below(probes):
        yield f"matrix/compat/{path.relative_to(probes).as_posix()}", path.read_bytes()


def _below(folder: Path) -> list[Path]:
    def kept(path: Path) -> bool:
        inner = path.relative_to(folder).parts
        return not any(part in _IGNORED or part.startswith(".") for part in inner)

    return sorted(path for path in folder.rglob("*") if path.is_file() and kept(path))


def _metadata() -> dict[str, bytes]:
    needs = "".join(f"Requires-Dist: {text}\n" for text in requirements())
    head = f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {__version__}\nRequires-Python: >=3.11\n"
    return {
        f"{_INFO}/METADATA": f"{head}{needs}".encode(),
        f"{_INFO}/WHEEL": b"Wheel-Version: 1.0\nGenerator: verl-matrix\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{_INFO}/entry_points.txt": f"[console_scripts]\n{NAME} = matrix.__main__:main\n".encode(),
    }


def _digest(body: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b"=").decode()
