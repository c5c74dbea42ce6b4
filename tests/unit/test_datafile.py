"""Data files: what they say is read or refused with path and field."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from packaging.version import Version

from matrix.datafile import Table, header, parse, read
from matrix.errors import DataError, NewerSchemaError

PATH = Path("cells.toml")


def table(text: str) -> Table:
    return parse(f"schema = 1\n{text}", PATH)


GOOD: list[tuple[str, Callable[[Table], object], object]] = [
    ('a = "x"', lambda t: t.text("a"), "x"),
    ("", lambda t: t.text("a", ""), ""),
    ("a = true", lambda t: t.flag("a"), True),
    ("", lambda t: t.flag("a", False), False),
    ("a = 3", lambda t: t.integer("a"), 3),
    ('a = ["x", "y"]', lambda t: t.texts("a"), ("x", "y")),
    ("", lambda t: t.texts("a", ()), ()),
    ('a = "1.0"', lambda t: t.version("a"), Version("1.0")),
    ('a = "1.0"', lambda t: t.versions("a"), (Version("1.0"),)),
    ('a = ["2", "1.0"]', lambda t: t.versions("a"), (Version("2"), Version("1.0"))),
    ("", lambda t: t.versions("a"), ()),
    ("a = 2026-01-02", lambda t: t.moment("a"), datetime(2026, 1, 2, tzinfo=UTC)),
    ("a = 2026-01-02T03:04:05+01:00", lambda t: t.moment("a"), datetime(2026, 1, 2, 2, 4, 5, tzinfo=UTC)),
    ("a.b.c = 1", lambda t: t.table("a").table("b").integer("c"), 1),
    ("[[a]]\nb = 1\n[[a]]\nb = 2", lambda t: [row.integer("b") for row in t.tables("a")], [1, 2]),
    ("", lambda t: t.tables("a"), ()),
    ("", lambda t: t.has("a"), False),
]


@pytest.mark.parametrize(("text", "ask", "expected"), GOOD)
def test_a_field_is_read_as_its_type(text: str, ask: Callable[[Table], object], expected: object) -> None:
    assert ask(table(text)) == expected


def _end_knowing_reason(whole: Table) -> None:
    whole.has("reason")
    whole.end()


BAD: list[tuple[str, Callable[[Table], object], str, str]] = [
    ("", lambda t: t.text("a"), "a", "is missing"),
    ("a = 1", lambda t: t.text("a"), "a", "must be a string, not 1"),
    ('a = " "', lambda t: t.text("a"), "a", "must not be empty"),
    ('a = "yes"', lambda t: t.flag("a"), "a", "must be true or false, not 'yes'"),
    ("a = true", lambda t: t.integer("a"), "a", "must be a whole number, not true"),
    ("a = 1.5", lambda t: t.integer("a"), "a", "must be a whole number, not 1.5"),
    ('a = "x"', lambda t: t.texts("a"), "a", "must be an array, not 'x'"),
    ('a = ["x", 2]', lambda t: t.texts("a"), "a[1]", "must be a string that is not empty, not 2"),
    ('a = "1,0"', lambda t: t.version("a"), "a", "`1,0` is not a version"),
    ('a = ["1", "x"]', lambda t: t.versions("a"), "a[1]", "`x` is not a version"),
    ('a = ["1.0", "1"]', lambda t: t.versions("a"), "a", "names a version twice"),
    ("a = []", lambda t: t.versions("a"), "a", "is empty"),
    ("a = 2026-01-02T03:04:05", lambda t: t.moment("a"), "a", "has no time zone"),
    ('a = "2026"', lambda t: t.moment("a"), "a", "must be a date, or a date and time, not '2026'"),
    ("a = 1", lambda t: t.table("a"), "a", "must be a table, not 1"),
    ("a = [1]", lambda t: t.tables("a"), "a[0]", "must be a table, not 1"),
    ("[[cell]]\n[[cell]]\nvllm = 1", lambda t: t.tables("cell")[1].text("vllm"), "cell[1].vllm", "must be a string"),
    ("[a]\nx = 1", lambda t: t.table("a").end(), "a.x", "unknown field; known are "),
    ("reasom = 1", _end_knowing_reason, "reasom", "unknown field; did you mean reason?"),
    (f'a = ["{"x" * 80}"]', lambda t: t.text("a"), "a", "..."),
]


@pytest.mark.parametrize(("text", "ask", "field", "what"), BAD)
def test_a_wrong_field_is_named_with_its_path(text: str, ask: Callable[[Table], object], field: str, what: str) -> None:
    with pytest.raises(DataError) as caught:
        ask(table(text))
    assert caught.value.field == field
    assert str(caught.value).startswith(f"cells.toml: {field}: ")
    assert what in caught.value.what


def test_fields_that_were_asked_for_are_known() -> None:
    whole = table('a = 1\nb = "x"')
    assert (whole.integer("a"), whole.text("b")) == (1, "x")
    whole.end()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "schema: is missing"),
        ('schema = "1"', "schema: must be a whole number"),
        ("schema = 0", "schema: 0 never existed"),
        ("schema = ", "is not TOML"),
    ],
)
def test_a_file_that_is_not_ours_is_refused(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(text)
    with pytest.raises(DataError, match=what):
        read(path)


def test_a_newer_schema_says_to_upgrade() -> None:
    with pytest.raises(NewerSchemaError, match="Upgrade verl-matrix"):
        parse("schema = 2", PATH)


def test_an_unreadable_file_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read") as missing:
        read(tmp_path / "none.toml")
    assert missing.value.exit_code == 3
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="cannot be read"):
        read(binary)


def test_the_header_is_the_leading_comment() -> None:
    assert header("# one\n# two\nschema = 1\n# three\n") == "# one\n# two\n"
    assert header("schema = 1") == ""


@pytest.mark.parametrize("path", sorted(Path(__file__).parents[2].glob("matrix/*.toml")), ids=lambda path: path.name)
def test_every_data_file_says_who_writes_it(path: Path) -> None:
    text = header(path.read_text(encoding="utf-8"))
    assert "updated by" in text.lower()
    read(path)
