"""What a cell asks of a machine, and which kinds of GPU meet it (`accelerators.toml`: by the names that Ray has)."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matrix.datafile import read
from matrix.gpus.need import Need, read_capability

ACCELERATORS = Path(__file__).with_name("accelerators.toml")
GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """A kind of GPU under the name that Ray gives it; `memory_gib` is the least that is sold under it, 0 if unknown."""

    name: str
    capability: tuple[int, int]
    memory_gib: int = 0

    def meets(self, need: Need) -> bool:
        """Return whether one such GPU is enough, as far as is known."""
        return self.capability >= need.capability and (not self.memory_gib or self.memory_gib >= need.memory_gib)


@functools.cache
def load_accelerators(path: Path = ACCELERATORS) -> Mapping[str, Accelerator]:
    """Return the kinds of GPU by Ray's name for them; raises DataError where the file is wrong."""
    data = read(path)
    found = {}
    for row in data.tables("accelerator"):
        name, text = row.text("name"), row.text("capability")
        memory = row.integer("memory_gib") if row.has("memory_gib") else 0
        row.text("source")
        row.moment("checked")
        row.end()
        if name in found:
            raise row.error("name", f"`{name}` is there twice")
        found[name] = Accelerator(name=name, capability=read_capability(text), memory_gib=memory)
    data.end()
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a cell is given while it is visited: whole GPUs, cores, memory in bytes, and the kinds of GPU that do.

    `kinds` is empty where any will do.
    """

    gpus: int = 0
    cpus: int = 1
    memory: int = 0
    kinds: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """Return it in words, for people."""
        parts = [_counted(self.gpus, "GPU")] if self.gpus else []
        parts += [f"of {' or '.join(self.kinds)}"] if self.kinds else []
        parts.append(_counted(self.cpus, "core"))
        parts += [f"{self.memory / GIB:g} GiB"] if self.memory else []
        return ", ".join(parts).replace(", of ", " of ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine of a cluster: what it has in all, used or not, and what kind of GPUs where Ray knows."""

    id: str
    gpus: int = 0
    cpus: float = 0.0
    memory: int = 0
    kinds: frozenset[str] = frozenset()

    def fits(self, demand: Demand) -> bool:
        """Return whether it could ever give what is asked for, once it is idle."""
        enough = self.gpus >= demand.gpus and self.cpus >= demand.cpus and self.memory >= demand.memory
        return enough and (not demand.kinds or bool(self.kinds & set(demand.kinds)))

    @property
    def words(self) -> str:
        """Return it in words, without its name or address."""
        gpus = _counted(self.gpus, "GPU") + (f" ({', '.join(sorted(self.kinds))})" if self.kinds else "")
        return f"{gpus}, {_counted(int(self.cpus), 'core')}, {self.memory / GIB:.1f} GiB"


def most_gpus(needs: Iterable[Need], machines: Sequence[Machine]) -> int:
    """Return how many GPUs a cell is given: as many as its most demanding probe, no more than one machine has.

    Where no machine has any it goes without, and its probes on GPUs say that there is none, as on a machine by itself.
    """
    most = max((need.gpus for need in needs), default=1)
    return min(most, max((machine.gpus for machine in machines), default=0))


def kinds_that_do(needs: Sequence[Need], machines: Sequence[Machine]) -> tuple[str, ...]:
    """Return the kinds of GPU in the cluster on which most of the needs are met; () where all of them are alike.

    A kind that is not in the data counts as meeting nothing: it is taken where no known one is there, and what it has
    is read on the machine before a probe begins there.
    """
    known = load_accelerators()
    with_gpus = [machine for machine in machines if machine.gpus]
    names = sorted({kind for machine in with_gpus for kind in machine.kinds})
    if not names:
        return ()
    met = {name: sum(known[name].meets(need) for need in needs) if name in known else 0 for name in names}
    best = tuple(name for name in names if met[name] == max(met.values()))
    return () if all(machine.kinds & set(best) for machine in with_gpus) else best


@functools.cache
def needs_of(folder: Path) -> tuple[Need, ...]:
    """Return what the probes in a folder ask of GPUs, as their marks `gpus(n, capability=…, memory_gib=…)` say.

    Read from the text: collecting the probes needs an installed cell, and where that goes is the question here.
    """
    return tuple(need for path in sorted(folder.glob("test_*.py")) for need in _marks(path))


def _marks(path: Path) -> Iterator[Need]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "gpus"):
            continue
        values = [item.value for item in node.args if isinstance(item, ast.Constant)]
        more = {item.arg: item.value.value for item in node.keywords if isinstance(item.value, ast.Constant)}
        if values and isinstance(values[0], int):
            yield Need(
                gpus=values[0],
                capability=read_capability(str(more.get("capability") or "")),
                memory_gib=float(str(more.get("memory_gib") or 0)),
            )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
