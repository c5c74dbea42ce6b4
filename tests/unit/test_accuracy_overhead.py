"""What watching costs: the bare command and the launcher take turns, and are kept in one form."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.gathered import gathered, launches_of
from bench.sample import Side
from bench.series import Series, run
from matrix.gpus.nvml import GIB
from matrix.store import Store
from tests.accuracy import overhead
from tests.accuracy.launches import strange_launch
from tests.accuracy.overhead import Both, lines_of, main
from tests.unit.bench_launches import FakeDriver, environment, launcher, on_gpus, pairing, place, probes


def test_both_sides_are_kept_in_one_form(tmp_path: Path) -> None:
    asked = Series(name="s", pairings=(pairing(),), launches=2)
    with launcher(tmp_path) as made:
        found = list(run(asked, Both(launcher=made)))
        assert [item.recalled for item in run(asked, Both(launcher=made))] == [True] * 4
    assert [item.side for item in found] == [Side.A, Side.B, Side.B, Side.A]
    assert [item.fault for item in found] == [None] * 4
    assert [list(strange_launch(item.observation.detail)) for item in found] == [[]] * 4
    store = Store(tmp_path / "store")
    lines = lines_of(gathered(store), launches_of(store))
    assert lines[0].startswith("throughput, watched over bare: 1.0000")
    assert any(line.startswith("seconds/step, watched over bare: 1.0000") for line in lines)
    assert "  A bare: 1, 1" in lines
    assert "  B watched: 1, 1" in lines
    assert lines[-1] == "watching took 1.00% of one core (0.1 s of processor time in 6 s)"
    assert any(line.startswith("a whole launch, bare: ") for line in lines)


def test_a_bare_launch_that_fails_is_a_fault(tmp_path: Path) -> None:
    with launcher(tmp_path) as made:
        ended = Both(launcher=made).launch(place(pairing(("fake.does=silent",))))
    assert ended.fault is not None


def test_a_bare_launch_on_a_gpu_leaves_nothing_there(tmp_path: Path) -> None:
    with launcher(tmp_path, driver=FakeDriver(held=[GIB, GIB])) as made:
        ended = Both(launcher=made).launch(place(on_gpus()))
        assert Both(launcher=made).closed == ""
    assert ended.fault is None
    assert ended.observation.detail["gpu_left_mib"] == 0
    assert ended.observation.detail["gpus"] == ["NVIDIA H200"]


def test_both_sides_on_a_gpu_compare(tmp_path: Path) -> None:
    asked = Series(name="s", pairings=(on_gpus(),), launches=1)
    with launcher(tmp_path) as made:
        list(run(asked, Both(launcher=made)))
    found = gathered(Store(tmp_path / "store"))
    assert [item.reasons for item in found] == [()] * len(found)
    assert found


def test_nothing_to_compare() -> None:
    assert lines_of((), ()) == []


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(overhead, "here", lambda python: environment())
    monkeypatch.setattr(overhead, "probes_folder", lambda: probes(tmp_path / "probes"))
    words = ["--python", "python", "--home", str(tmp_path), "--launches", "1"]
    assert main(words) == 0
    captured = capsys.readouterr()
    assert "seconds/step, watched over bare: 1.0000 (too few launches for an interval), n = 1 + 1" in captured.out
    assert "ppo-tiny harness 0" in captured.err
    assert main([*words, "--home", str(tmp_path / "other"), "--minutes", "0"]) == 1
