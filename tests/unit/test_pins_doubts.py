"""What cannot be as people state it is told: contradictions, releases that do not exist, ranges that let nothing in."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from matrix.axes import load_axes
from matrix.cell import Axis, Platform
from matrix.errors import DataError
from matrix.pins.candidates import Ground, lattice
from matrix.pins.doubts import contradictions, doubts, no_release
from matrix.pins.policy import Policy
from matrix.pins.reading import read_stack
from matrix.pins.stack import Kind
from matrix.pins.telling import WIDTH, _wrapped
from matrix.pins.verification import Answer, What, _of_age, read_answer
from matrix.pins.want import Want

NOW = datetime(2026, 11, 30, tzinfo=UTC)


def ground(text: str) -> Ground:
    stack = read_stack(Path("req.txt"), text, Platform(), kind=Kind.REQUIREMENTS)
    return Ground(stack=stack, want=Want(), axes=load_axes(), platform=Platform())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("vllm==0.24.0\nvllm==0.20.0\n", ("vllm satisfies req.txt:1: vllm==0.24.0; req.txt:2: vllm==0.20.0",)),
        ("numpy==2.0.0\nnumpy<2\n", ("numpy satisfies req.txt:1: numpy==2.0.0; req.txt:2: numpy<2",)),
        ("numpy==2.0.0\nnumpy>=2\n", ()),
    ],
)
def test_pins_that_exclude_each_other_are_told_with_their_lines(text: str, told: tuple[str, ...]) -> None:
    assert contradictions(ground(text).stack) == tuple(f"no version of {line}" for line in told)


def test_a_release_that_does_not_exist_is_told_though_another_is_chosen() -> None:
    (line,) = doubts(ground("verl==0.9.1\nvllm==0.24.777\n"))
    assert line.startswith("req.txt:2: no vllm 0.24.777 is known; closest: 0.24.0")
    (line,) = doubts(ground("# nothing\n"))
    assert line.endswith("names no package")


@pytest.mark.parametrize("text", ["vllm>0.24,<0.20", "torch>=99"])
def test_a_range_that_lets_nothing_in_is_never_dropped(text: str) -> None:
    ground_ = ground(f"verl==0.9.1\n{text}\n")
    assert any(ground_.shut(axis) for axis in Axis)
    assert lattice(ground_) == ()
    assert any(f"req.txt:2: {text}" in line for line in no_release(ground_))


def test_a_long_line_is_continued_and_loses_nothing() -> None:
    line = "  but       " + ", ".join(f"package-{number} 1.{number}" for number in range(40))
    found = _wrapped([line], 12)
    assert len(found) > 1
    assert all(len(part) <= WIDTH for part in found)
    assert " ".join(" ".join(found).split()) == " ".join(line.split())


def test_evidence_that_is_to_come_has_no_age() -> None:
    answer = Answer(path=Path("x"), packages={}, hashes={}, policy=Policy(), python="3.12",
                    tried=(NOW + timedelta(days=400),))  # fmt: skip
    (fault,) = _of_age(answer, NOW, timedelta(days=30))
    assert fault.what is What.UNPROVEN
    assert "2028-01-04" in fault.text


@pytest.mark.parametrize("schema", [-1, "x", None])
def test_a_schema_that_never_was_is_refused(tmp_path: Path, schema: object) -> None:
    path = tmp_path / "evidence.json"
    path.write_text(json.dumps({"schema": schema}), encoding="utf-8")
    with pytest.raises(DataError, match="schema"):
        read_answer(path)
