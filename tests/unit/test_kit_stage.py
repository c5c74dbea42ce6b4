"""Stages run once, and what their sections found is read by many, whatever became of the stage."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.kit_import import COMPAT, fresh_kit

_kit = pytest.fixture(autouse=True)(fresh_kit)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that stages a script given as text in one cell."""
    from kit import stage as module
    from kit.cell import Cell

    monkeypatch.setattr(module, "COMPAT", tmp_path)
    (tmp_path / "subjects").mkdir()
    (tmp_path / "kit").symlink_to(COMPAT / "kit")
    cell = Cell(name="a-cell", records={}, scratch=tmp_path / "scratch")

    def staged(text: str, *argv: str, again: bool = False, **more: Any) -> Any:
        script = tmp_path / "subjects" / "a_script.py"
        script.write_text("import os, sys, time\nfrom kit.sections import section\n" + text)
        if again:
            module._ran.clear()
        return module.stage(cell, "a_script.py", *argv, **more)

    yield staged
    module._ran.clear()


def test_sections_end_fault_and_go_on(run: Any) -> None:
    found = run(
        """
with section("first") as out:
    out["argument"] = sys.argv[1]
with section("second") as out:
    out["noted"] = 7
    print("what was said", file=sys.stderr, flush=True)
    raise ValueError("wrong")
with section("third") as out:
    out["x"] = 3
""",
        "given",
    )
    assert found.code == 0
    first, second, third = (found.part(name) for name in ("first", "second", "third"))
    assert (first.reached, first.data, first.fault) == (True, {"argument": "given"}, None)
    assert (second.reached, second.data, second.found) == (True, {}, {"noted": 7})
    assert "what was said" in second.fault
    assert second.last_line == "ValueError: wrong"
    assert third.data == {"x": 3}
    assert first.last_line == ""


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ('with section("it"):\n    os._exit(7)', 7, "ended with exit code 7 in it"),
        ('with section("it"):\n    os.kill(os.getpid(), 9)', -9, "ended with exit code -9 in it"),
        ('with section("it"):\n    time.sleep(60)', None, "was killed when its time ran out in it"),
        ('with section("it", stop=True):\n    raise OSError("no")', 1, "OSError: no"),
        ('with section("it"):\n    sys.exit(4)', 4, "SystemExit: 4"),
    ],
)
def test_deaths_are_told_of_and_what_follows_is_not_reached(run: Any, text: str, code: int | None, words: str) -> None:
    found = run(f'with section("zero") as out:\n    out["kept"] = 1\n{text}\nwith section("after"):\n    pass', limit=3)
    assert found.code == code
    assert found.part("zero").data == {"kept": 1}
    assert words in found.part("it").last_line
    assert not found.part("after").reached
    assert found.part("after").data == {}
    assert "before after" in found.part("after").last_line


def test_runs_once_for_its_arguments_in_this_process_and_the_next(run: Any, tmp_path: Path) -> None:
    counted = tmp_path / "counted"
    text = f'open({str(counted)!r}, "a").write("x")\nwith section("it") as out:\n    out["a"] = sys.argv[1:]'
    assert run(text).part("it").data == {"a": []}
    assert run(text).part("it").data == {"a": []}
    assert run(text, again=True).part("it").data == {"a": []}
    assert counted.read_text() == "x"
    assert run(text, "b").part("it").data == {"a": ["b"]}
    assert run(text, "b", env={"C": "d"}).part("it").data == {"a": ["b"]}
    assert counted.read_text() == "xxx"


def test_one_that_died_with_its_pytest_process_is_not_run_again(run: Any, tmp_path: Path) -> None:
    text = 'with section("it") as out:\n    out["a"] = 1'
    run(text)
    (end,) = (tmp_path / "scratch" / "stages").glob("*.end")
    end.unlink()
    with end.with_suffix(".jsonl").open("a") as file:
        file.write('{"event": "begin", "section": "next"}\n{"half a li')
    found = run(text, again=True)
    assert found.code is None
    assert found.part("it").data == {"a": 1}
    assert "died with it" in found.part("next").fault


def test_the_last_of_several_counts(run: Any) -> None:
    text = 'for number in (1, 2):\n    with section("it") as out:\n        out["a"] = number'
    assert run(text).part("it").data == {"a": 2}


def test_without_a_stage_a_section_only_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from kit import sections

    monkeypatch.delenv(sections.VARIABLE, raising=False)
    with sections.section("it") as out:
        out["a"] = 1
        json.loads("{")
    assert out == {"a": 1}


def test_what_was_written_is_asked_of_files_only(tmp_path: Path) -> None:
    from kit import sections

    reading, writing = os.pipe()
    with (tmp_path / "log").open("wb") as file:
        assert sections._since(file.fileno(), 0) == ""
        file.write(b"before and after")
        file.flush()
        assert sections._since(file.fileno(), 7) == "and after"
        file.write(b"a" * 1_000_000 + b"\nthe end")
        file.flush()
        cut = sections._since(file.fileno(), 16)
        assert len(cut) < 3000
        assert cut.endswith("a [cut]\nthe end")
    assert sections._size(writing) == -1
    assert sections._since(writing, -1) == ""
    os.close(reading)
    os.close(writing)
    assert sections._size(writing) == -1


def test_numbers_that_json_does_not_know_are_written_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kit import sections

    monkeypatch.setenv(sections.VARIABLE, str(tmp_path / "lines"))
    with sections.section("it") as out:
        out["path"] = Path("/a")
    begun, ended = (json.loads(line) for line in (tmp_path / "lines").read_text().splitlines())
    assert begun["event"] == "begin"
    assert ended["data"] == {"path": "/a"}
