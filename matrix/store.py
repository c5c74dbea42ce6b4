"""The store: observations as JSON Lines, appended safely and read quickly; nothing is ever edited.

`observations.jsonl` holds one observation a line. What is large in an observation's detail (a lock, a list of findings)
lies beside it in `details/`, gzipped and named by its SHA-256, and is read only when somebody looks at it: opening a
store and finding what is answered costs no more than its short lines.

Two runs at once are safe: a line goes out in one write to a file opened for appending, under a lock. A line that a kill
left half written is moved to `set-aside.jsonl` by the next writer, and ignored by every reader until then.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from matrix.detail import Detail, Large, write_large
from matrix.errors import BusyError, DataError, NewerSchemaError, NoSpaceError
from matrix.observe import SCHEMA, Observation, Question
from matrix.tier import Outcome, Tier

LOCK_TIMEOUT_S = 60.0
LARGE_BYTES = 4_000
"""A value of a detail whose JSON is longer than this lies in a file of its own; the versions of a lock do not."""

Record = dict[str, object]
Migration = Callable[[Record], Record]
MIGRATIONS: tuple[Migration, ...] = ()
"""`MIGRATIONS[n - 1]` turns a record of schema n into one of schema n + 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A line of the store that is no observation, and what is wrong with it; it stays there and is passed over."""

    line: int
    what: str


def _now() -> datetime:
    return datetime.now(UTC)


class Store:
    """All observations ever made, by question and by cell; later lines are newer.

    Attributes:
        folder: where the files lie; made at the first `add`.
        damage: lines that were passed over because they are no observations.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], datetime] = _now) -> None:
        """Read the lines that are there; raises NewerSchemaError, DataError (the file cannot be read)."""
        self.folder = folder
        self.path = folder / "observations.jsonl"
        self.damage: list[Damage] = []
        self._details = folder / "details"
        self._clock = clock
        self._guard = threading.Lock()
        self._lines: list[bytes] = []
        self._by_key: dict[str, int] = {}
        self._by_cell: dict[str, list[int]] = {}
        self._read_to = 0
        self._seen = 0
        self.refresh()

    def __len__(self) -> int:
        """Return how many observations there are."""
        return len(self._lines)

    def __iter__(self) -> Iterator[Observation]:
        """Yield every observation, oldest line first."""
        for line in tuple(self._lines):
            yield self._observation(line)

    def get(self, key: str, max_age: timedelta | None = None) -> Observation | None:
        """Return the latest answer to the question of that key; None if there is none, or none as young as `max_age`.

        An answer whose large details have gone or shrunk counts as none, so the question is asked again.
        """
        if key not in self._by_key:
            self.refresh()
        line = self._by_key.get(key)
        if line is None:
            return None
        observation = self._observation(self._lines[line])
        if max_age is not None and self._clock() - observation.at > max_age:
            return None
        detail = observation.detail
        return observation if not isinstance(detail, Detail) or detail.is_whole() else None

    @property
    def cells(self) -> tuple[str, ...]:
        """Return the names of the cells that were observed, each once, in the order of their first observation."""
        return tuple(self._by_cell)

    def for_cell(self, name: str) -> tuple[Observation, ...]:
        """Return the observations of the cell of that name, oldest first."""
        return tuple(self._observation(self._lines[line]) for line in self._by_cell.get(name, ()))

    def find(
        self, *, cell: str = "*", probe: str = "*", tier: Tier | None = None, outcome: Outcome | None = None
    ) -> Iterator[Observation]:
        """Yield the observations that match all of these; `cell` and `probe` are globs, matched by case."""
        # Reading a line costs more than looking whether it can be of the tier at all.
        needed = b'"' + tier.value.encode() + b'"' if tier is not None else b""
        for line in tuple(self._lines):
            if needed not in line:
                continue
            observation = self._observation(line)
            question = observation.question
            if (
                fnmatch.fnmatchcase(question.cell, cell)
                and fnmatch.fnmatchcase(question.probe, probe)
                and tier in (None, question.tier)
                and outcome in (None, observation.outcome)
            ):
                yield observation

    def add(self, *observations: Observation) -> None:
        """Append these; when it returns they are on the disk, and when it raises none of them is half there.

        Raises:
            NoSpaceError: the disk is full; what was stored before stays.
            BusyError: another run held the lock for a minute.
            DataError: the folder cannot be written.
        """
        if not observations:
            return
        with _refusals(self.path):
            block = b"".join(self._line(observation) for observation in observations)
            with self._locked():
                _append(self.path, self.folder / "set-aside.jsonl", block)
        self.refresh()

    def refresh(self) -> None:
        """Read the lines that came since; another process may have written them."""
        with self._guard, _refusals(self.path):
            try:
                size = self.path.stat().st_size
            except FileNotFoundError:
                return
            if size < self._read_to:
                self._forget()
            if size == self._read_to:
                return
            with self.path.open("rb") as file:
                file.seek(self._read_to)
                block = file.read()
            whole = block[: block.rfind(b"\n") + 1]
            for line in whole.split(b"\n")[:-1]:
                self._seen += 1
                self._admit(line)
            self._read_to += len(whole)

    def _forget(self) -> None:
        """Start over: somebody has put another file in the place of this one."""
        self.damage.clear()
        self._lines.clear()
        self._by_key.clear()
        self._by_cell.clear()
        self._read_to = self._seen = 0

    def _admit(self, line: bytes) -> None:
        """Put a line into the index, or note what is wrong with it."""
        if not line.strip():
            return
        try:
            record = _parsed(line)
            key = str(record["key"])
            cell = _from_record(record, self._details).question.cell
        except NewerSchemaError as error:
            raise NewerSchemaError(f"{self.path}:{self._seen}: {error.what}", then=error.then) from None
        except (ValueError, KeyError, TypeError) as error:
            self.damage.append(Damage(line=self._seen, what=f"{type(error).__name__}: {error}"))
            return
        # The line first: a thread that looks a key up meanwhile finds what it names.
        self._lines.append(line)
        self._by_key[key] = len(self._lines) - 1
        self._by_cell.setdefault(cell, []).append(len(self._lines) - 1)

    def _observation(self, line: bytes) -> Observation:
        return _from_record(_parsed(line), self._details)

    def _line(self, observation: Observation) -> bytes:
        """Return the line of an observation, its large details already on the disk."""
        small: Record = {}
        large: Record = {}
        for name, value in observation.detail.items():
            text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
            if len(text) > LARGE_BYTES:
                large[name] = write_large(self._details, text.encode()).to_json()
            else:
                small[name] = value
        self.folder.mkdir(parents=True, exist_ok=True)
        record = _to_record(observation) | {"detail": small, "large": large}
        return json.dumps(record, separators=(",", ":"), allow_nan=False).encode() + b"\n"

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        import filelock

        lock = filelock.FileLock(self.folder / "observations.lock", timeout=LOCK_TIMEOUT_S)
        try:
            with lock:
                yield
        except filelock.Timeout:
            raise BusyError(
                f"{self.path} is locked by another run.",
                why=f"It did not let go within {LOCK_TIMEOUT_S:.0f} s.",
                then="Wait for that run, or stop it, and run again: what is stored stays.",
            ) from None


def to_line(observation: Observation) -> str:
    """Return the observation as one line of JSON with its whole detail, for a store on another machine."""
    record = _to_record(observation) | {"detail": dict(observation.detail)}
    return json.dumps(record, separators=(",", ":"), allow_nan=False)


def from_line(line: str) -> Observation:
    """Return the observation that `to_line` wrote; raises NewerSchemaError, and ValueError for any other text."""
    record = json.loads(line)
    if not isinstance(record, dict):
        raise ValueError("it is no object")
    try:
        # Nothing of it lies in files, so no folder is looked into.
        return _from_record(upgrade(record), Path())
    except (KeyError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def upgrade(record: Record, migrations: tuple[Migration, ...] | None = None, schema: int = SCHEMA) -> Record:
    """Return the record as one of `schema`; raises NewerSchemaError for a later one, ValueError for none at all."""
    steps = MIGRATIONS if migrations is None else migrations
    version = record.get("schema")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ValueError(f"schema is {version!r}")
    if version > schema:
        raise NewerSchemaError(
            f"written with schema {version}; this release reads up to {schema}.",
            then="Upgrade verl-matrix, or give another --home.",
        )
    for step in steps[version - 1 : schema - 1]:
        record = step(record)
    return record


def _parsed(line: bytes) -> Record:
    record = json.loads(line)
    if not isinstance(record, dict):
        raise TypeError("not an object")
    return upgrade(record)


def _to_record(observation: Observation) -> Record:
    question = observation.question
    return {
        "schema": SCHEMA,
        "key": question.key,
        "cell": question.cell,
        "probe": question.probe,
        "tier": question.tier.value,
        "tool": question.tool,
        "reads": dict(question.reads),
        "outcome": observation.outcome.value,
        "reason": observation.reason,
        "machine": observation.machine,
        "at": observation.at.astimezone(UTC).isoformat(),
        "seconds": round(observation.seconds, 4),
    }


def _from_record(record: Mapping[str, object], details: Path) -> Observation:
    reads, small, large = record["reads"], record.get("detail") or {}, record.get("large") or {}
    if not (isinstance(reads, dict) and isinstance(small, dict) and isinstance(large, dict)):
        raise TypeError("reads, detail and large must be objects")
    question = Question(
        cell=str(record["cell"]),
        probe=str(record["probe"]),
        tier=Tier(str(record["tier"])),
        tool=str(record["tool"]),
        reads=reads,
    )
    return Observation(
        question=question,
        outcome=Outcome(str(record["outcome"])),
        reason=str(record["reason"]),
        detail=Detail(details, small, {name: Large.from_json(value) for name, value in large.items()}),
        machine=str(record["machine"]),
        at=datetime.fromisoformat(str(record["at"])),
        seconds=float(str(record["seconds"])),
    )


def _append(path: Path, aside: Path, block: bytes) -> None:
    """Append `block` whole or not at all; the caller holds the lock."""
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        _mend(fd, aside)
        size = os.fstat(fd).st_size
        try:
            _write_whole(fd, block)
            os.fsync(fd)
        except OSError:
            os.ftruncate(fd, size)
            raise
        except BaseException:
            # Ctrl-C: what is whole in the file was finished and stays; a block that is only partly out does not.
            if os.fstat(fd).st_size != size + len(block):
                os.ftruncate(fd, size)
            raise
    finally:
        os.close(fd)


def _write_whole(fd: int, block: bytes) -> None:
    written = os.write(fd, block)
    if written != len(block):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _mend(fd: int, aside: Path) -> None:
    """Deal with a last line that a kill left without its newline: finish it if it is whole, else move it to `aside`."""
    size = os.fstat(fd).st_size
    if size == 0 or os.pread(fd, 1, size - 1) == b"\n":
        return
    start, tail = size, b""
    while start > 0 and b"\n" not in tail:
        step = min(start, 1 << 16)
        start -= step
        tail = os.pread(fd, step, start) + tail
    half = tail[tail.rfind(b"\n") + 1 :]
    try:
        json.loads(half)
    except ValueError:
        with aside.open("ab") as file:
            file.write(half + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.ftruncate(fd, size - len(half))
    else:
        # No proper beginning of a JSON object is JSON itself, so this line is all there.
        _write_whole(fd, b"\n")


@contextlib.contextmanager
def _refusals(path: Path) -> Iterator[None]:
    """Turn what the operating system refuses into this project's errors."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpaceError(
                f"No space left for {path}.",
                why="Every observation stored before is kept.",
                then="Free some space, or give a --home on another disk, and run again: no answer is asked for twice.",
            ) from error
        raise DataError(
            path, "", error.strerror or str(error), then="Check the folder's rights, or give another --home."
        ) from error
