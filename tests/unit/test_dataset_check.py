"""Data files, good and bad: each ends in a remark that says what it is, and a good one in none."""

from __future__ import annotations

import errno
import importlib
import json
import os
import shutil
import sys
import tempfile
from array import array
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from matrix.dataset import check as checking
from matrix.dataset import opening
from matrix.dataset.check import Checked, Question, check, check_target
from matrix.dataset.opening import misfit
from matrix.dataset.remark import Kind, Remark
from matrix.dataset.rows import RowChecks
from matrix.errors import ToolError
from matrix.gravity import Gravity
from tests.unit.cli_stack import said
from tests.unit.test_dataset_scorer import READS, RULE_LAST, SECOND, _scorer

SCORER = _scorer(rewards=SECOND, gsm8k=RULE_LAST, reader=READS)
OLD = _scorer(rewards=SECOND, gsm8k=RULE_LAST)
ASKED = Question(scorers=(SCORER,))
Row = dict[str, Any]


def row(number: int, truth: Any = None, **other: Any) -> Row:
    made: Row = {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": f"What is {number} plus 2?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(number + 2) if truth is None else truth},
        "extra_info": {"split": "train", "index": number},
    }
    return {**made, **other}


def write(path: Path, rows: list[Row], **options: Any) -> Path:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, **options)
    return path


def _remarks(checked: Checked) -> list[tuple[Kind, Gravity, int]]:
    return [(item.kind, item.gravity, item.rows) for file in checked.files for item in file.remarks]


def test_a_good_file_has_no_remark(tmp_path: Path) -> None:
    path = write(tmp_path / "train.parquet", [row(number) for number in range(3000)], row_group_size=700)
    checked = check([path], ASKED)
    (file,) = checked.files
    assert file.remarks == ()
    assert (file.rows, file.row_groups, file.sources) == (3000, 5, {"openai/gsm8k": 3000})
    # Before pyarrow 19 a struct made of mappings has its fields in the order of their names.
    assert sorted(file.columns["reward_model"][7:-1].split(", ")) == ["ground_truth: string", "style: string"]
    assert file.figures == {"characters_least": 17, "characters_median": 20, "characters_most": 20}
    assert checked.fit
    assert json.dumps(checked.to_json())


ROWS: Mapping[str, tuple[Row, Kind, Gravity]] = {
    "no prompt": (row(0, prompt=[]), Kind.PROMPT, Gravity.ERROR),
    "null prompt": (row(0, prompt=None), Kind.PROMPT, Gravity.ERROR),
    "text prompt": (row(0, prompt="hello"), Kind.PROMPT, Gravity.ERROR),
    "no content": (row(0, prompt=[{"role": "user"}]), Kind.PROMPT, Gravity.ERROR),
    "blank": (row(0, prompt=[{"role": "user", "content": " "}]), Kind.PROMPT, Gravity.ERROR),
    "odd role": (row(0, prompt=[{"role": "human", "content": "x"}]), Kind.PROMPT, Gravity.WARNING),
    "answer in it": (row(0, prompt=[{"role": "assistant", "content": "x"}]), Kind.PROMPT, Gravity.WARNING),
    "unknown source": (row(0, data_source="data/gsm8k"), Kind.SOURCE, Gravity.ERROR),
    "no source": (row(0, data_source=None), Kind.SOURCE, Gravity.ERROR),
    "no reward": (row(0, reward_model=None), Kind.REWARD, Gravity.ERROR),
    "no truth": (row(0, ""), Kind.REWARD, Gravity.ERROR),
    "thousands": (row(0, "1,000"), Kind.ANSWER, Gravity.ERROR),
    "not extracted": (row(0, "48 + 24 = 72\n#### 72"), Kind.ANSWER, Gravity.ERROR),
    "number as number": (row(0, 72), Kind.ANSWER, Gravity.ERROR),
    "full stop": (row(0, "72."), Kind.ANSWER, Gravity.WARNING),
    "null extra": (row(0, extra_info=None), Kind.EXTRA, Gravity.ERROR),
}


@pytest.mark.parametrize(("bad", "kind", "gravity"), ROWS.values(), ids=ROWS.keys())
def test_a_bad_row_is_told_with_its_place(bad: Row, kind: Kind, gravity: Gravity) -> None:
    checks = RowChecks(scorers=(OLD,))
    checks.feed([row(1), bad, row(2), bad])
    (found,) = checks.remarks()
    assert (found.kind, found.gravity, found.rows, found.first) == (kind, gravity, 2, 1)


def test_a_null_extra_info_that_the_release_takes_is_no_matter() -> None:
    checks = RowChecks(scorers=(SCORER,))
    checks.feed([row(1, extra_info=None)])
    assert checks.remarks() == []


def test_other_sources_have_other_truths_and_content_may_be_a_list() -> None:
    checks = RowChecks(scorers=(SCORER,))
    content = [{"type": "text", "text": "x"}]
    checks.feed([row(0, "1,000", data_source="lighteval/MATH", prompt=[{"role": "user", "content": content}])])
    checks.feed([row(0, prompt=[{"role": "user", "content": "x"}, {"role": "system", "content": None}])])
    assert checks.remarks() == []
    assert RowChecks().figures() == {}


def test_releases_that_agree_are_told_once(tmp_path: Path) -> None:
    from dataclasses import replace

    older = replace(SCORER, version="0.5", names={})
    path = write(tmp_path / "a.parquet", [row(0, data_source="mine"), row(1)])
    (file,) = check([path], Question(scorers=(older, SCORER, replace(SCORER, version="2.0")))).files
    assert [item.message.split(" cannot")[0] for item in file.remarks] == ["verl 0.5", "verl 1.0, 2.0"]


def test_long_prompts_and_tokens() -> None:
    checks = RowChecks(count_tokens=lambda prompt: len(prompt[0]["content"]), longest_tokens=100)
    checks.feed([row(number) for number in range(20)])
    checks.feed([row(0, prompt=[{"role": "user", "content": "x" * 5000}])])
    kinds = [(item.kind, item.gravity, item.first) for item in checks.remarks()]
    assert kinds == [(Kind.LENGTH, Gravity.WARNING, 20), (Kind.LENGTH, Gravity.NOTE, 20)]
    assert checks.figures()["tokens_most"] == 5000


COLUMNS: Mapping[str, tuple[Row, list[tuple[Kind, Gravity]]]] = {
    "prompts": (
        {("prompts" if name == "prompt" else name): value for name, value in row(0).items()},
        [(Kind.COLUMN, Gravity.ERROR)],
    ),
    "nothing": ({"a": 1}, [(Kind.COLUMN, Gravity.ERROR)] * 3 + [(Kind.EXTRA, Gravity.NOTE)]),
    "reward as text": (row(0, reward_model="72"), [(Kind.REWARD, Gravity.ERROR)] * 2),
    "no style": (row(0, reward_model={"ground_truth": "2"}), [(Kind.REWARD, Gravity.NOTE)]),
    "no index": (row(0, extra_info={"split": "train"}), [(Kind.EXTRA, Gravity.NOTE)]),
}


@pytest.mark.parametrize(("one", "expected"), COLUMNS.values(), ids=COLUMNS.keys())
def test_columns(tmp_path: Path, one: Row, expected: list[tuple[Kind, Gravity]]) -> None:
    checked = check([write(tmp_path / "a.parquet", [one])], ASKED)
    assert [(kind, gravity) for kind, gravity, _ in _remarks(checked)] == expected


def test_a_missing_column_is_named_with_the_near_one(tmp_path: Path) -> None:
    renamed = {("prompts" if name == "prompt" else name): value for name, value in row(0).items()}
    path = write(tmp_path / "a.parquet", [renamed])
    ((remark,),) = [file.remarks for file in check([path], ASKED).files]
    assert remark.then.startswith("Did you mean `prompts`?")
    assert check([path], Question(prompt_key="prompts")).fit


def test_no_rows_and_duplicates_and_overlap(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    empty = tmp_path / "empty.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row(0)]).slice(0, 0), empty)
    twice = write(tmp_path / "twice.parquet", [row(number % 50) for number in range(60)])
    once = write(tmp_path / "once.parquet", [row(49), row(99), *(row(at) for at in range(200, 240)), row(99)])
    checked = check([empty, twice, once], ASKED)
    assert _remarks(checked) == [
        (Kind.NO_ROWS, Gravity.ERROR, 0),
        (Kind.DUPLICATE, Gravity.WARNING, 10),
        (Kind.DUPLICATE, Gravity.NOTE, 1),
    ]
    assert [(item.kind, item.rows) for item in checked.between] == [(Kind.OVERLAP, 1)]
    assert not checked.fit
    assert check([once, empty], ASKED).between == ()
    assert checking._duplicates(array("Q")) == []


def test_a_name_that_the_release_does_not_take(tmp_path: Path) -> None:
    path = write(tmp_path / "train.pq", [row(0)])
    assert _remarks(check([path], ASKED)) == [(Kind.SUFFIX, Gravity.ERROR, 0)]
    assert check([path], Question()).fit


FILES: Mapping[str, tuple[bytes, Kind, str]] = {
    "empty": (b"", Kind.EMPTY_FILE, "0 bytes"),
    "csv": (b"a,b\n1,2\n", Kind.NOT_PARQUET, "CSV"),
    "json": (b'{"prompt": 1}\n', Kind.NOT_PARQUET, "JSON"),
    "text": (b"hello world\n", Kind.NOT_PARQUET, "is text"),
    "blank": (b"\n\n", Kind.NOT_PARQUET, "is text"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\n", Kind.NOT_PARQUET, "Git LFS"),
    "page": (b"\n<!doctype html><html>", Kind.NOT_PARQUET, "web page"),
    "gzip": (b"\x1f\x8b\x08" + b"\0" * 40, Kind.NOT_PARQUET, "gzip"),
    "arrow": (b"ARROW1\0\0" + b"\0" * 40, Kind.NOT_PARQUET, "Arrow"),
    "binary": (b"\x00\x01\xfe\xff" * 40, Kind.NOT_PARQUET, "not PAR1"),
    "nul": (b"abc\0def" * 10, Kind.NOT_PARQUET, "not PAR1"),
    "long binary": (b"\xff\xfe\xfd" * 400 + b"\0" * 99, Kind.NOT_PARQUET, "first bytes are not PAR1"),
    "random bytes": (bytes((at * 197 + at // 7) % 256 for at in range(4096)), Kind.NOT_PARQUET, "first bytes are not"),
    "text that is cut in a sign": ("é".encode() * 900, Kind.NOT_PARQUET, "is text"),
    "text cut after an odd byte": (b"x" + "é".encode() * 900, Kind.NOT_PARQUET, "is text"),
    "control signs": (b"\x01\x02\x03\x04" * 40, Kind.NOT_PARQUET, "first bytes are not PAR1"),
    "encrypted": (b"PARE" + b"\0" * 40 + b"PARE", Kind.NOT_PARQUET, "encrypted"),
    "magic alone": (b"PAR1", Kind.TRUNCATED, "cut off"),
    "footer too long": (b"PAR1" + b"\0" * 40 + b"\xff\xff\xff\x7fPAR1", Kind.TRUNCATED, "damaged"),
    "footer of nothing": (b"PAR1" + b"\0" * 40 + b"\x04\0\0\0PAR1", Kind.UNREADABLE, "read through"),
}


@pytest.mark.parametrize(("content", "kind", "what"), FILES.values(), ids=FILES.keys())
def test_what_is_no_parquet_is_told_what_it_is(tmp_path: Path, content: bytes, kind: Kind, what: str) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(content)
    ((remark,),) = [file.remarks for file in check([path], ASKED).files]
    assert (remark.kind, remark.gravity) == (kind, Gravity.ERROR)
    assert what in remark.message


def test_a_truncated_and_a_scrambled_parquet(tmp_path: Path) -> None:
    content = write(tmp_path / "good.parquet", [row(number) for number in range(2000)]).read_bytes()
    (tmp_path / "cut.parquet").write_bytes(content[: len(content) // 2])
    scrambled = bytearray(content)
    scrambled[200:4000] = b"\xa5" * 3800
    (tmp_path / "scrambled.parquet").write_bytes(bytes(scrambled))
    checked = check([tmp_path / "cut.parquet", tmp_path / "scrambled.parquet"], ASKED)
    assert [kind for kind, _, _ in _remarks(checked)] == [Kind.TRUNCATED, Kind.UNREADABLE]


def test_files_that_are_not_there(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", [row(0)])
    near = misfit(tmp_path / "trian.parquet")
    far = misfit(tmp_path / "a" / "b" / "x.parquet")
    assert near is not None
    assert far is not None
    assert near.then == f"In {tmp_path}: train.parquet."
    assert far.then == f"{tmp_path} exists, and nothing below it of that name."
    (tmp_path / "bare").mkdir()
    bare = misfit(tmp_path / "bare" / "x.parquet")
    assert bare is not None
    assert bare.then.startswith("No parquet file lies in")


def test_paths_that_are_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, pipe = misfit(tmp_path), tmp_path / "pipe"
    os.mkfifo(pipe)
    queue = misfit(pipe)
    (tmp_path / "file").write_text("x")
    below = misfit(tmp_path / "file" / "x.parquet")
    assert [item.kind for item in (folder, queue, below) if item] == [Kind.UNREADABLE] * 3

    def refused(self: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refused)
    assert opening._near(tmp_path / "x") == ""


def test_nested_columns_that_pyarrow_cannot_assemble_are_told_how_to_be_written() -> None:
    remark = checking._unreadable(NotImplementedError("Nested data conversions not implemented for chunked array"))
    assert "row_group_size" in remark.then
    assert checking._unreadable(ValueError()).message.endswith("ValueError: ValueError")


def test_without_pyarrow_the_way_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError("pyarrow requires NumPy 2.0 or newer, found 1.26.4")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ToolError, match="pyarrow does not import") as caught:
        opening.pyarrow()
    assert "NumPy 2.0" in caught.value.why


def test_a_folder_is_tried_by_writing_into_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = check_target(tmp_path)
    assert good.fit
    assert good.figures["free_bytes"] > 0
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    assert not check_target(tmp_path).fit

    def refused(**_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", refused)
    (remark,) = check_target(tmp_path).remarks
    assert remark.message == "nothing can be written here: Read-only file system"


def test_memory_does_not_follow_the_rows(tmp_path: Path) -> None:
    """A batch of rows is let go before the next; what stays of a row is 16 bytes."""
    checks = RowChecks()
    checks.feed(row(number) for number in range(1000))
    assert sys.getsizeof(checks.digests) + sys.getsizeof(checks.lengths) < 16 * 1000


def test_the_command_line(tmp_path: Path) -> None:
    good = write(tmp_path / "good.parquet", [row(number) for number in range(30)])
    bad = write(tmp_path / "bad.parquet", [row(0, prompt=[]), row(100)])
    heard = said("data", str(good), str(tmp_path))
    assert heard.code == 0
    assert "  30 rows in 1 row group, " in heard.out
    assert "  data_source: openai/gsm8k (30)" in heard.out
    assert "give --verl VERSION" in heard.out
    assert heard.out.endswith("fit\n")
    heard = said("data", str(good), str(bad))
    assert (heard.code, heard.out.splitlines()[-1]) == (1, "not fit: 1 of 2 files")
    assert "  error: the prompt is empty: [] (1 row, first 0)" in heard.out
    heard = said("data", str(good), str(good), "--json")
    data = json.loads(heard.out)
    assert (heard.code, data["fit"], data["between"][0]["rows"]) == (1, False, 30)
    assert said("data", str(good), str(good)).out.endswith("not fit together\n")


def test_what_a_file_holds_does_not_steer_the_terminal(tmp_path: Path) -> None:
    odd = {f"column {at}": at for at in range(40)} | {"a\x1b[2J": 1}
    odd_file = write(tmp_path / "odd.parquet", [row(0, data_source="x\x1b[31my\nz" + "w" * 400, **odd)])
    heard = said("data", str(odd_file))
    assert "\x1b" not in heard.out
    assert "  data_source: x\\x1b[31my\\x0az" in heard.out
    assert "  … and 22 columns more; --json has all" in heard.out
    assert max(map(len, heard.out.splitlines())) < 500


def test_what_is_said_where_there_are_no_rows_to_look_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert said("data", str(tmp_path)).out.splitlines()[-1] == "fit"
    heard = said("data", "nofile")
    assert "No parquet file lies in this folder." in heard.out
    assert "--verl" not in heard.out
    assert (said("data", "").code, said("data", "").out) == (2, "")
    texts = write(tmp_path / "texts.parquet", [row(number, prompt="text") for number in range(5)])
    heard = said("data", str(texts))
    assert "characters" not in heard.out
    assert "  warning: 4 of 5 rows repeat the prompt of another\n" in heard.out


def test_the_command_line_with_a_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matrix.dataset import releases

    asked = []

    def scorer(index: object, version: object) -> object:
        asked.append(str(version))
        return SCORER

    monkeypatch.setattr(releases, "scorer_of_release", scorer)
    good = write(tmp_path / "good.parquet", [row(0)])
    home = str(tmp_path / "home")
    heard = said("data", str(good), "--verl", "0.9.1", "--home", home)
    assert (heard.code, asked) == (0, ["0.9.1"])
    assert "rewards looked up in verl 1.0" in heard.out
    assert said("data", str(good), "--verl", "all", "--home", home).code == 0
    assert len(asked) > 10
    monkeypatch.setattr(releases, "scorer_installed", lambda: SCORER)
    assert "verl 1.0" in said("data", str(good)).out


class _Tokenizer:
    def encode(self, text: str, add_special_tokens: bool) -> list[str]:
        return text.split()

    @classmethod
    def from_file(cls, path: str) -> _Tokenizer:
        if not Path(path).exists():
            raise RuntimeError("No such file")
        return cls()


def test_the_command_line_counts_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = write(tmp_path / "good.parquet", [row(0)])
    monkeypatch.setitem(sys.modules, "tokenizers", SimpleNamespace(Tokenizer=_Tokenizer))
    (tmp_path / "tokenizer.json").write_text("{}")
    heard = said("data", str(good), "--tokenizer", str(tmp_path), "--max-prompt-length", "3")
    assert heard.code == 1
    assert "prompts of 5 to 5 tokens, median 5" in heard.out
    assert "longer than max_prompt_length: 5 tokens" in heard.out
    assert said("data", str(good), "--tokenizer", str(tmp_path / "no.json")).code == 3
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert said("data", str(good), "--tokenizer", str(tmp_path)).code == 6


def test_a_remark_is_plain_data() -> None:
    remark = Remark(kind=Kind.PROMPT, gravity=Gravity.NOTE, message="x", rows=1, first=0, then="y")
    assert remark.to_json()["first_row"] == 0
    assert not remark.fails
    assert [gravity.rank for gravity in Gravity] == [0, 1, 2]
