"""Subjects and sections as probes read them: what cannot be tried is a skip, what failed is red, the rest is data."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.unit.kit_import import COMPAT, fresh_kit

_kit = pytest.fixture(autouse=True)(fresh_kit)


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module, with subjects of this test's own."""
    from kit import measure as module

    monkeypatch.setattr(module, "SUBJECTS", tmp_path)
    return module


def stage_of(*lines: dict[str, Any]) -> Any:
    from kit.stage import Stage

    return Stage(script="a.py", code=1, text="the end of it", seconds=1.0, lines=lines)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("print('READY'); print('{\"a\": 1}')", {"a": 1}),
        ("import nothing_of_that_name", "does not import here: ModuleNotFoundError"),
        ("print('READY'); raise ValueError('no')", "ValueError: no"),
    ],
)
def test_numbers_of_a_subject(measure: ModuleType, tmp_path: Path, script: str, expected: object) -> None:
    (tmp_path / "one.py").write_text(script)
    if isinstance(expected, dict):
        assert measure.measure("one") == expected
        return
    # A skip is an exception of pytest's own; both kinds carry the reason.
    with pytest.raises(BaseException, match=str(expected)) as raised:
        measure.measure("one")
    assert isinstance(raised.value, AssertionError) is script.endswith("'no')")


def test_a_subject_with_nothing_to_try_is_a_skip(measure: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("import sys; sys.exit('UNTESTED this release has none')")
    (tmp_path / "two.py").write_text("print(1); raise SystemExit(3)")
    with pytest.raises(pytest.skip.Exception, match="this release has none"):
        measure.started("one")
    assert measure.started("two").code == 3


BEGUN = {"event": "begin", "section": "x", "at": 1.0}
ENDED = {"event": "end", "section": "x", "seconds": 1.0, "data": {"n": 2}}
FAULTED = {"event": "fault", "section": "x", "seconds": 1.0, "data": {}, "log": "", "traceback": "T\nValueError: no"}


def test_a_section_that_was_not_reached_is_a_skip(measure: ModuleType) -> None:
    with pytest.raises(pytest.skip.Exception, match=r"a\.py ended before x"):
        measure.reached(stage_of(), "x")


def test_a_section_that_failed_is_red_where_its_data_is_wanted(measure: ModuleType) -> None:
    stage = stage_of(BEGUN, FAULTED)
    assert "ValueError: no" in str(measure.reached(stage, "x").fault)
    with pytest.raises(AssertionError, match="ValueError: no"):
        measure.data(stage, "x")
    assert measure.data(stage_of(BEGUN, ENDED), "x") == {"n": 2}


@pytest.mark.parametrize(
    ("name", "device", "verl", "script", "told"),
    [
        ("engine", "cuda", "0.9.1", "trainer_engine_gpu.py", set()),
        ("engine", "cpu", "0.8.0", "trainer_engine_gpu.py", {"CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME"}),
        ("engine", "cpu", "0.9.1", "trainer_engine_gpu.py", {"VERL_PLATFORM", "CUDA_VISIBLE_DEVICES"}),
        ("pair", "cpu", "0.10.0", "trainer_pair_gpu.py", {"VERL_PLATFORM", "VERL_USE_EXTERNAL_MODULES"}),
        ("raw_gpu", "cuda", "0.9.1", "trainer_raw_gpu.py", set()),
    ],
)
def test_what_a_stage_is_told(
    measure: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
    device: str,
    verl: str,
    script: str,
    told: set[str],
) -> None:
    from kit import cell as cells

    asked: list[Any] = []
    monkeypatch.setattr(measure, "stage", lambda cell, script, *argv, **more: asked.append((script, argv, more)))
    monkeypatch.setattr(cells, "installed_version", lambda *_: verl)
    cell = cells.Cell(name="c", records={}, scratch=tmp_path)
    (measure.raw_gpu(cell) if name == "raw_gpu" else getattr(measure, name)(cell, device))
    ((ran, argv, more),) = asked
    assert (ran, argv) == (script, (device,))
    env = more.get("env", {})
    assert told <= set(env)
    assert bool(env) is bool(told)
    assert (COMPAT / "subjects" / script).is_file()


def test_the_stages_of_the_trainer_read_as_python(measure: ModuleType) -> None:
    for path in sorted((COMPAT / "subjects").glob("trainer_*.py")):
        compile(path.read_text(encoding="utf-8"), str(path), "exec")
