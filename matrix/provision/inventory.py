"""What is really installed where an interpreter looks, as that interpreter itself says."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from matrix.errors import ToolError
from matrix.resolve.process import Children

TIMEOUT_S = 120.0
# Runs in the environment's own interpreter, so it is written for any Python from 3.8 and the standard library alone.
# A distribution found a second time on sys.path is shadowed by the first.
_ASK = """
import importlib.metadata, json, platform, re, sys
found, again, nameless = {}, [], 0
for dist in importlib.metadata.distributions():
    name = dist.metadata["Name"] if dist.metadata is not None else None
    if not name:
        nameless += 1
        continue
    name = re.sub(r"[-_.]+", "-", name).lower()
    if name in found:
        if found[name] != dist.version:
            again.append([name, dist.version])
    else:
        found[name] = dist.version or ""
print("verl-matrix:" + json.dumps({
    "python": platform.python_version(), "implementation": platform.python_implementation(),
    "machine": platform.machine(), "prefix": sys.prefix, "packages": found, "again": again, "nameless": nameless,
}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The interpreter (version, machine, prefix) and its distributions by canonical name.

    `shadowed` are `name==version` of distributions that are there a second time in another version; `nameless` counts
    dist-infos whose metadata is missing or empty, as an interrupted uninstall leaves them.
    """

    python: str
    implementation: str
    machine: str
    prefix: Path
    packages: Mapping[str, str]
    shadowed: tuple[str, ...] = ()
    nameless: int = 0


def take_inventory(
    python: Path, env: Mapping[str, str], *, children: Children | None = None, timeout_s: float = TIMEOUT_S
) -> Inventory:
    """Return what `python` finds installed when it is started with the variables `env`; raises ToolError."""
    try:
        with tempfile.TemporaryDirectory(prefix="verl-matrix-") as folder:
            command = [str(python), "-c", _ASK]
            ended = (children or Children()).run(command, folder=Path(folder), env=env, timeout_s=timeout_s)
    except OSError as error:
        raise ToolError(f"The interpreter cannot be started: {python}.", why=str(error)) from error
    answer = next((line for line in ended.stdout.splitlines() if line.startswith("verl-matrix:")), None)
    if ended.code != 0 or answer is None:
        how = "was stopped" if ended.code is None else f"ended with {ended.code}"
        raise ToolError(
            f"The interpreter {python} {how} and did not say what is installed.",
            why="\n".join(ended.stderr.strip().splitlines()[-5:]),
            then="Its start-up is broken: a sitecustomize or .pth file of a package perhaps.",
        )
    data = json.loads(answer.removeprefix("verl-matrix:"))
    return Inventory(
        python=data["python"],
        implementation=data["implementation"],
        machine=data["machine"],
        prefix=Path(data["prefix"]),
        packages=data["packages"],
        shadowed=tuple(f"{name}=={version}" for name, version in data["again"]),
        nameless=data["nameless"],
    )


def differences(wanted: Mapping[str, str], found: Mapping[str, str]) -> tuple[str, ...]:
    """Return a line for each package that is missing, of another version, or there though nobody wanted it.

    Versions are compared as PEP 440 compares them, local part included.
    """
    from packaging.version import InvalidVersion, Version

    def same(left: str, right: str) -> bool:
        try:
            return Version(left) == Version(right)
        except InvalidVersion:
            return left == right

    lines = []
    for name in sorted(wanted.keys() | found.keys()):
        if name not in found:
            lines.append(f"{name} {wanted[name]} is missing")
        elif name not in wanted:
            lines.append(f"{name} {found[name]} is not in the lock")
        elif not same(wanted[name], found[name]):
            lines.append(f"{name} is {found[name]}, the lock says {wanted[name]}")
    return tuple(lines)


def same_release(wanted: str, found: str) -> bool:
    """Return whether two versions are one release: a local suffix (`+cu130`) that only one of them has counts nothing.

    Wheels of torch from its own index carry one and those of PyPI do not, and they are built from one source.
    """
    from packaging.version import InvalidVersion, Version

    try:
        left, right = Version(wanted), Version(found)
    except InvalidVersion:
        return wanted == found
    if left.local is None or right.local is None:
        return Version(left.public) == Version(right.public)
    return left == right
