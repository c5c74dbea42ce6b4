"""Whose line is it: prefixes taken off; and that no interleaving of two processes changes a diagnosis."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.doctor.streams import clean, split
from tests.unit.doctor_case import diagnosed

PREFIXES = [
    ("plain text", "", "plain text"),
    ("  File", "", "  File"),
    ("(TaskRunner pid=123, ip=1.2.3.4) x", "TaskRunner pid=123 1.2.3.4", "x"),
    ("(WorkerDict pid=7)   File", "WorkerDict pid=7", "  File"),
    ("(pid=9) x", "pid=9", "x"),
    ("(EngineCore_DP0 pid=3) ERROR 11-30 12:00:00 [core.py:1]   File", "EngineCore_DP0 pid=3", "  File"),
    ("(VllmWorker rank=1 pid=5) x", "VllmWorker pid=5", "x"),
    ("(Server pid=4, ip=1.1.1.1) (EngineCore_DP0 pid=3) x", "Server pid=4 1.1.1.1/EngineCore_DP0 pid=3", "x"),
    ("(raylet, ip=10.0.0.1) x", "raylet 10.0.0.1", "x"),
    ("(autoscaler +5s) x", "raylet", "x"),
    ("[rank3]: Traceback", "rank 3", "Traceback"),
    ("[default0]:Traceback", "rank 0", "Traceback"),
    ("2026-11-30T12:00:00.123Z stderr F Traceback", "", "Traceback"),
    ("trainer-1  | Traceback", "trainer-1", "Traceback"),
    ("12: Traceback", "task 12", "Traceback"),
    ("Aug 19 18:34:30 host vllm[8707]: (APIServer pid=8707)   File", "APIServer pid=8707", "  File"),
    ("ERROR 01-20 18:06:56 registry.py:296]   File", "", "  File"),
    ("[2026-11-30 12:00:00,123][hydra.utils][ERROR] - x", "", "x"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "process", "rest"), PREFIXES)
def test_prefixes_are_taken_off(text: str, process: str, rest: str) -> None:
    line = split(4, text)
    assert (line.process, line.text, line.number) == (process, rest, 4)


def test_the_level_and_the_repeats_are_kept() -> None:
    assert split(1, "WARNING 11-30 12:00:00 [a.py:1] x").logged == "WARNING"
    assert split(1, "[2026-11-30 12:00:00,123][a.b][INFO] - x").logged == "INFO"
    again = split(1, "(W pid=1) ValueError: a [repeated 3x across cluster] (Ray deduplicates logs by default)")
    assert (again.text, again.repeats) == ("ValueError: a", 3)
    assert split(1, "(W pid=1) spread across cluster] odd").repeats == 0


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"\x1b[36m(W pid=1)\x1b[0m x ", "(W pid=1) x"),
        (b"\x1b]0;title\x07x", "x"),
        (b"ab\x08c", "ac"),
        (b"\xff\xfe bad", "\ufffd\ufffd bad"),
    ],
)
def test_colours_and_struck_out_letters_go(raw: bytes, expected: str) -> None:
    assert clean(raw) == expected


WORKER = [
    "(W pid=1, ip=1.1.1.1) Initializing a V1 LLM engine (v0.9.2) with config: x",
    "(W pid=1, ip=1.1.1.1) transformers==4.57.6",
    "(W pid=1, ip=1.1.1.1) Traceback (most recent call last):",
    '(W pid=1, ip=1.1.1.1)   File "/srv/a.py", line 3, in go',
    "(W pid=1, ip=1.1.1.1)     register()",
    "(W pid=1, ip=1.1.1.1) ValueError: 'aimv2' is already used by a Transformers config, pick another name.",
    "(W pid=1, ip=1.1.1.1)",
    "(W pid=1, ip=1.1.1.1) The above exception was the direct cause of the following exception:",
    "(W pid=1, ip=1.1.1.1)",
    "(W pid=1, ip=1.1.1.1) Traceback (most recent call last):",
    '(W pid=1, ip=1.1.1.1)   File "/srv/b.py", line 4, in load',
    "(W pid=1, ip=1.1.1.1) RuntimeError: engine is gone",
]
DRIVER = [
    "(T pid=2) step:1 - loss:0.1",
    "(T pid=2) Traceback (most recent call last):",
    '(T pid=2)   File "/srv/main.py", line 30, in main',
    "(T pid=2)     ray.get(x)",
    "(T pid=2) ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
    "(T pid=2) \tclass_name: W",
    "(T pid=2) bye",
]


def _told(text: str) -> list[tuple[object, ...]]:
    found = diagnosed(text)
    return [
        (
            item.line,
            item.role,
            item.sureness,
            tuple(match.failure.id for match in item.matches),
            item.chain,
            item.processes,
            item.count,
        )
        for item in found.troubles
    ]


@given(st.lists(st.booleans(), min_size=len(WORKER) + len(DRIVER), max_size=len(WORKER) + len(DRIVER)))
def test_no_interleaving_changes_the_diagnosis(choice: list[bool]) -> None:
    left, right, mixed = list(WORKER), list(DRIVER), []
    for first in choice:
        source = left if (first and left) or not right else right
        mixed.append(source.pop(0))
    assert _told("\n".join(mixed) + "\n") == _told("\n".join(WORKER + DRIVER) + "\n")


def test_the_interleaved_diagnosis_is_the_right_one() -> None:
    root, other = _told("\n".join(WORKER + DRIVER) + "\n")
    assert root[0] == "ValueError: 'aimv2' is already used by a Transformers config, pick another name."
    assert root[3] == ("config-clash",)
    assert str(other[0]).startswith("ray.exceptions.ActorDiedError")
