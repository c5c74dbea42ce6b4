"""What a cell asks of machines, which kinds of GPU meet it, and how it is visited on this one."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from matrix.errors import DataError
from matrix.executors.demand import (
    GIB,
    Accelerator,
    Demand,
    Machine,
    kinds_that_do,
    load_accelerators,
    most_gpus,
    needs_of,
)
from matrix.executors.local import Local
from matrix.executors.manner import Manner
from matrix.gpus.need import Need
from matrix.job import Probed
from matrix.tier import Tier
from tests.unit.executor_fakes import H200, PLAIN, SMALL, T4
from tests.unit.run_fakes import cell

GOOD = cell(verl="0.9.1", vllm="0.24.0")
MANNER = Manner(
    tiers=frozenset({Tier.IMPORT, Tier.GPU}), patterns=("ray",), memory_gib=8, keep=True, offline=True,
    index_url="https://index.example/simple", here=Path("/env/bin/python"), cell=GOOD.name,
)  # fmt: skip


def test_the_needs_of_the_shipped_probes_are_read_from_their_marks(tmp_path: Path) -> None:
    needs = needs_of(Path(__file__).parents[1] / "compat")
    assert Need(gpus=2, capability=(8, 0), memory_gib=16) in needs
    assert max(need.gpus for need in needs) == 2
    text = "n = 3\n@pytest.mark.gpus(n)\ndef test_a(): ...\n@pytest.mark.gpus(1, capability='9.0')\ndef test_b(): ..."
    (tmp_path / "test_a.py").write_text(text, encoding="utf-8")
    assert needs_of(tmp_path) == (Need(gpus=1, capability=(9, 0)),)


@pytest.mark.parametrize(
    ("needs", "there", "expected"),
    [((), [], 0), ((1, 2), [H200], 2), ((1, 2), [T4, SMALL], 1), ((1, 4), [PLAIN], 2), ((2,), [SMALL], 0)],
)
def test_a_cell_gets_as_many_gpus_as_its_probes_ask_for(
    needs: tuple[int, ...], there: list[Machine], expected: int
) -> None:
    assert most_gpus([Need(gpus=count) for count in needs], there) == expected


@pytest.mark.parametrize(
    ("capability", "memory", "there", "expected"),
    [
        ((8, 0), 0, [T4, H200], ("H200",)),
        ((7, 0), 0, [T4, H200], ()),
        ((9, 0), 100, [replace(H200, kinds=frozenset({"H100"})), H200], ("H200",)),
        ((8, 0), 0, [replace(T4, kinds=frozenset({"Strange"})), H200], ("H200",)),
        ((8, 0), 0, [replace(T4, kinds=frozenset({"Strange"}))], ()),
        ((8, 0), 0, [PLAIN, SMALL], ()),
        ((8, 0), 0, [], ()),
    ],
)
def test_kinds_of_gpu_that_meet_the_most(
    capability: tuple[int, int], memory: float, there: list[Machine], expected: tuple[str, ...]
) -> None:
    assert kinds_that_do([Need(capability=capability, memory_gib=memory)], there) == expected


def test_the_kinds_have_what_cards_of_their_name_have() -> None:
    from matrix.memory.gpu import load_gpus

    kinds, cards = load_accelerators(), load_gpus()
    assert kinds["H200"] == Accelerator(name="H200", capability=(9, 0), memory_gib=140)
    of = {"A100": "A100-40GB", "A100-40G": "A100-40GB", "A100-80G": "A100-80GB", "H100": "H100-80GB",
          "H200": "H200-141GB", "GeForce-RTX-4090": "RTX-4090"}  # fmt: skip
    for kind in kinds.values():
        card = cards.get(of.get(kind.name, kind.name))
        if card is not None:
            assert (kind.capability, kind.memory_gib) == (card.capability, card.nvidia_smi_mib >> 10)


def test_a_file_of_kinds_that_is_wrong_is_told(tmp_path: Path) -> None:
    path = tmp_path / "accelerators.toml"
    row = '[[accelerator]]\nname = "X"\ncapability = "9.0"\nsource = "s"\nchecked = 2026-12-01\n'
    path.write_text(f"schema = 1\n{row}{row}", encoding="utf-8")
    with pytest.raises(DataError, match="`X` is there twice"):
        load_accelerators(path)


@pytest.mark.parametrize(
    ("demand", "words"),
    [
        (Demand(), "1 core"),
        (Demand(gpus=2, cpus=2, memory=16 * GIB, kinds=("H100", "H200")), "2 GPUs of H100 or H200, 2 cores, 16 GiB"),
        (Demand(gpus=1), "1 GPU, 1 core"),
    ],
)
def test_what_is_asked_for_in_words(demand: Demand, words: str) -> None:
    assert demand.words == words


def test_without_gpus_cells_of_this_machine_come_one_after_the_other() -> None:
    class Visitor:
        width = 4

        def stop(self) -> None: ...

        def visit(self, cell: Any, resolved: Any, tell: Any) -> Probed:
            return Probed(asked=7)

    made = Local(visitor=Visitor(), tiers=frozenset({Tier.IMPORT, Tier.GPU}))
    assert made.width == 4
    assert replace(made, tiers=frozenset({Tier.IMPORT})).width == 1
    assert made.visit(GOOD, None, print).asked == 7
    made.stop()
    made.close()


def test_the_manner_keeps_to_itself_what_was_answered() -> None:
    told = replace(MANNER, again=True, since=datetime(2026, 1, 1, tzinfo=UTC))
    assert Manner.from_json(told.to_json()) == MANNER
