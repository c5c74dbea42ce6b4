"""The command `workload`: where the ranks come from, where the tokenizer goes, and what probes are told of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from matrix.cli.main import main as command
from matrix.probing.surroundings import built
from reports.front import TerminalFront

RANKS = "dashscope/resources/qwen.tiktoken"


def main(words: list[str]) -> int:
    """Return the exit code of a command line."""
    return command(words, TerminalFront)


@dataclass
class FakeFile:
    """A file of a release."""

    is_wheel: bool


@dataclass
class FakeIndex:
    """An index with one release whose wheel has `members`, or an sdist alone."""

    members: dict[str, bytes]
    wheel: bool = True
    asked: list[str] = field(default_factory=list)

    def require_release(self, name: str, version: object) -> FakeIndex:
        self.asked.append(f"{name}=={version}")
        return self

    @property
    def files(self) -> list[FakeFile]:
        return [FakeFile(False), *([FakeFile(True)] if self.wheel else [])]

    def archive(self, file: FakeFile) -> FakeIndex:
        assert file.is_wheel
        return self

    def names(self) -> list[str]:
        return list(self.members)

    def read(self, names: Iterable[str]) -> dict[str, bytes]:
        return {name: self.members[name] for name in names}


@pytest.fixture
def building(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, Path]]:
    """Return what was built: the ranks and where the tokenizer went."""
    done: list[tuple[bytes, Path]] = []

    def build(ranks: Path, into: Path, probes: Path) -> None:
        assert (probes / "workload" / "build.py").is_file()
        done.append((ranks.read_bytes(), into))

    monkeypatch.setattr("matrix.bundle.tokenizer.build_tokenizer", build)
    return done


def test_ranks_are_read_out_of_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, building: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    index = FakeIndex({"dashscope/other.py": b"", RANKS: b"IQ== 0\n"})
    monkeypatch.setattr("matrix.cli.wiring.open_index", lambda args, home: index)
    assert main(["workload", "--home", str(tmp_path)]) == 0
    place = tmp_path / "cache" / "workload" / "tokenizer"
    assert building == [(b"IQ== 0\n", place)]
    assert index.asked == ["dashscope==2.0.2"]
    assert capsys.readouterr().out == f"{place}/tokenizer.json\n"


def test_a_file_of_ranks_is_taken_as_it_is(tmp_path: Path, building: Any) -> None:
    (tmp_path / "r.tiktoken").write_bytes(b"x")
    words = ["workload", "--ranks", str(tmp_path / "r.tiktoken"), "--into", str(tmp_path / "here")]
    assert main(words) == 0
    assert building == [(b"x", tmp_path / "here")]


@pytest.mark.parametrize("index", [FakeIndex({}, wheel=False), FakeIndex({"dashscope/other.py": b""})])
def test_a_release_without_ranks_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], index: FakeIndex
) -> None:
    monkeypatch.setattr("matrix.cli.wiring.open_index", lambda args, home: index)
    assert main(["workload", "--home", str(tmp_path)]) == 4
    assert "--ranks" in capsys.readouterr().err


def test_wrong_ranks_are_refused_by_the_build_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r.tiktoken").write_bytes(b"IQ== 0\n")
    assert main(["workload", "--ranks", str(tmp_path / "r.tiktoken"), "--into", str(tmp_path / "t")]) == 3
    assert "Qwen2.5's ranks are 0 to 151642" in capsys.readouterr().err


def test_probes_are_told_where_the_tokenizer_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VERL_MATRIX_TOKENIZER", raising=False)
    assert built(tmp_path) == {}
    place = tmp_path / "workload" / "tokenizer"
    place.mkdir(parents=True)
    (place / "tokenizer.json").write_text("{}", encoding="utf-8")
    assert built(tmp_path) == {"VERL_MATRIX_TOKENIZER": str(place)}
    monkeypatch.setenv("VERL_MATRIX_TOKENIZER", "/elsewhere")
    assert built(tmp_path) == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "ranks.tiktoken: cannot be read: No such file or directory"),
        ("", "ranks.tiktoken: no tokenizer can be built of it: it has 0 tokens; Qwen2.5's ranks are 0 to 151642"),
        ("x y z\n", "ranks.tiktoken: no tokenizer can be built of it: "),
    ],
)
def test_a_file_that_holds_no_ranks_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, said: str
) -> None:
    path = tmp_path / "ranks.tiktoken"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    assert main(["workload", "--ranks", str(path), "--into", str(tmp_path / "into")]) == 3
    told = capsys.readouterr().err
    assert said in told
    assert "Give qwen.tiktoken" in told


def test_a_build_step_that_fails_otherwise_is_a_fault_of_the_tool(tmp_path: Path) -> None:
    from matrix.bundle.tokenizer import build_tokenizer
    from matrix.errors import ToolError

    ranks, probes = tmp_path / "ranks", tmp_path / "probes"
    ranks.write_text("x", encoding="utf-8")
    (probes / "workload").mkdir(parents=True)
    (probes / "workload" / "build.py").write_text("raise SystemExit('it is broken')", encoding="utf-8")
    with pytest.raises(ToolError, match=r"(?s)build step failed.*it is broken"):
        build_tokenizer(ranks, tmp_path / "into", probes)
