"""The platforms on which markers are tried, to see whether two statements can hold at once."""

from __future__ import annotations

from collections.abc import Mapping

_BASE = {
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
    "platform_release": "",
    "platform_version": "",
}
_SYSTEMS = (("linux", "Linux", "posix"), ("darwin", "Darwin", "posix"), ("win32", "Windows", "nt"))
_MACHINES = ("x86_64", "aarch64", "arm64", "AMD64")
_PYTHONS = ("3.9", "3.10", "3.11", "3.12", "3.13")


def _environment(python: str, system: tuple[str, str, str], machine: str) -> Mapping[str, str]:
    return {
        **_BASE,
        "python_version": python,
        "python_full_version": f"{python}.0",
        "implementation_version": f"{python}.0",
        "sys_platform": system[0],
        "platform_system": system[1],
        "os_name": system[2],
        "platform_machine": machine,
    }


ENVIRONMENTS = tuple(
    _environment(python, system, machine) for python in _PYTHONS for system in _SYSTEMS for machine in _MACHINES
)
"""Pythons that the stack's releases still have wheels for, on the systems and machines that markers name."""
