"""Updating axes.toml: what changed is told, what a person wrote stays, and nothing is lost on the way."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from matrix.axes import AXES, load_axes
from matrix.cell import Axis
from matrix.errors import DataError, IndexUnreachableError, NoSpaceError
from matrix.index import UNKNOWN_UPLOAD
from matrix.update import AxesDiff, Change, ChangeKind, update
from tests.unit.fakes import FakeIndex, FakeRelease

DAY = datetime(2026, 1, 1, 12, 30, 15, 999, tzinfo=UTC)
HEADER = "# Rules by hand, releases by the updater.\n# Updated by `nox -s update`.\n"


def release(*, yanked: str | None = None, uploaded: datetime = DAY) -> FakeRelease:
    return FakeRelease(uploaded=uploaded, yanked=yanked)


def index(**vllm: FakeRelease) -> FakeIndex:
    """Return an index with one release of every axis, and of vllm these (`v0_24_0=…`)."""
    packages: dict[str, Mapping[str, FakeRelease]] = {axis.value: {"1.0": release()} for axis in Axis}
    packages["vllm"] = {name.removeprefix("v").replace("_", "."): fake for name, fake in vllm.items()}
    return FakeIndex(packages)


def document(vllm: str) -> str:
    tables = []
    for axis in Axis:
        rows = vllm if axis is Axis.VLLM else '  { version = "1.0", uploaded = 2026-01-01T12:30:15Z },\n'
        tables.append(
            f'\n[axis.{axis.value}]\nindex = "{axis.value}"\nmodule = "{axis.module}"\nshort = "{axis.short}"\n'
            f'within = ">=0.20"  # a remark\nwhy = "test"\n# above the list\nreleases = [\n{rows}]\n'
        )
    return f"{HEADER}schema = 1\n{''.join(tables)}"


def row(version: str, rest: str = "") -> str:
    return f'  {{ version = "{version}", uploaded = 2026-01-01T12:30:15Z{rest} }},\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "axes.toml"
    path.write_text(document(row("0.20.0") + row("0.24.0")), encoding="utf-8")
    return path


CHANGES: list[tuple[dict[str, FakeRelease], str, tuple[str, ...], str]] = [
    (
        {
            "v0_20_0": release(),
            "v0_24_0": release(),
            "v0_25_0": release(),
            "v0_9_0": release(),
            "v0_26_0rc1": release(),
        },
        row("0.20.0") + row("0.24.0") + row("0.25.0"),
        ("+ vllm 0.25.0 2026-01-01",),
        "new",
    ),
    (
        {"v0_20_0": release(), "v0_24_0": release(yanked=' a "bad" one ')},
        row("0.20.0") + row("0.24.0", ', yanked = "a \\"bad\\" one"'),
        ('- vllm 0.24.0 2026-01-01 yanked: a "bad" one',),
        "yanked",
    ),
    (
        {"v0_20_0": release(), "v0_24_0": release(), "v0_25_0": release(yanked="")},
        row("0.20.0") + row("0.24.0") + row("0.25.0", ', yanked = ""'),
        ("~ vllm 0.25.0 2026-01-01 new, already yanked",),
        "new",
    ),
    ({"v0_24_0": release()}, row("0.24.0"), ("- vllm 0.20.0 2026-01-01 gone from the index",), "gone"),
    (
        {"v0_20_0": release(), "v0_24_0": release(uploaded=datetime(2025, 12, 31, tzinfo=UTC))},
        row("0.20.0") + '  { version = "0.24.0", uploaded = 2025-12-31T00:00:00Z },\n',
        ("~ vllm 0.24.0 2025-12-31 was dated 2026-01-01",),
        "redated",
    ),
]


@pytest.mark.parametrize(("vllm", "rows", "lines", "kind"), CHANGES, ids=[kind for *_, kind in CHANGES])
def test_a_change_is_told_and_written_and_then_is_none(
    path: Path, vllm: dict[str, FakeRelease], rows: str, lines: tuple[str, ...], kind: str
) -> None:
    before = path.read_bytes()
    checked = update(index(**vllm), path, check=True)
    assert (checked.lines, checked.written, path.read_bytes()) == (lines, False, before)

    diff = update(index(**vllm), path)
    assert (diff.lines, diff.written, bool(diff)) == (lines, True, True)
    assert [change.kind for change in diff.changes] == [kind]
    assert path.read_text(encoding="utf-8") == document(rows)
    assert load_axes(path)[Axis.VLLM].releases

    after = path.read_bytes()
    again = update(index(**vllm), path)
    assert (again.lines, again.written, bool(again), path.read_bytes()) == ((), False, False, after)
    assert os.listdir(path.parent) == ["axes.toml"]  # noqa: PTH208


def test_a_release_may_come_back(path: Path) -> None:
    path.write_text(document(row("0.20.0", ', yanked = "x"') + row("0.24.0")), encoding="utf-8")
    diff = update(index(v0_20_0=release(), v0_24_0=release()), path)
    assert diff.lines == ("+ vllm 0.20.0 2026-01-01 no longer yanked",)
    assert path.read_text(encoding="utf-8") == document(row("0.20.0") + row("0.24.0"))


def test_the_difference_is_plain_data(path: Path) -> None:
    diff = update(index(v0_20_0=release(), v0_24_0=release(yanked="bad"), v0_25_0=release()), path, check=True)
    data = json.loads(json.dumps(diff.data))
    assert (data["file"], data["written"], data["releases"]["vllm"]) == ("axes.toml", False, 2)
    assert data["changes"] == [
        {
            "axis": "vllm",
            "version": "0.24.0",
            "kind": "yanked",
            "uploaded": "2026-01-01T12:30:15+00:00",
            "yanked": "bad",
        },
        {"axis": "vllm", "version": "0.25.0", "kind": "new", "uploaded": "2026-01-01T12:30:15+00:00", "yanked": None},
    ]


@pytest.mark.parametrize(
    ("vllm", "message"),
    [
        ({"v0_1_0": release()}, "offers no release of vllm >=0.20"),
        ({"v0_24_0": release(uploaded=UNKNOWN_UPLOAD)}, "does not say when vllm 0.24.0 was uploaded"),
    ],
)
def test_an_index_that_cannot_be_right_changes_nothing(path: Path, vllm: dict[str, FakeRelease], message: str) -> None:
    before = path.read_bytes()
    with pytest.raises(IndexUnreachableError, match=f"{message}.*"):
        update(index(**vllm), path)
    assert path.read_bytes() == before


def test_a_layout_that_cannot_be_rewritten_is_refused(path: Path) -> None:
    path.write_text(path.read_text().replace("releases = [\n", "releases=[\n"), encoding="utf-8")
    before = path.read_bytes()
    with pytest.raises(DataError, match="has no block"):
        update(index(v0_25_0=release()), path)
    assert path.read_bytes() == before


def test_what_would_not_read_back_is_not_written(path: Path) -> None:
    # A bracket on a line of its own ends the block for the rewriter and not for TOML.
    odd = (
        document(row("0.20.0"))
        .replace("[axis.vllm]\n", "[axis.vllm]\n# releases = [\n")
        .replace('why = "test"', 'why = """\nreleases = [\n]\n"""', 2)
    )
    path.write_text(odd, encoding="utf-8")
    before = path.read_bytes()
    with pytest.raises(DataError, match="does not read back"):
        update(index(v0_20_0=release(), v0_25_0=release()), path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(("number", "error"), [(errno.ENOSPC, NoSpaceError), (errno.EACCES, DataError)])
def test_a_write_that_fails_keeps_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception]
) -> None:
    def refuse(_: int) -> None:
        raise OSError(number, os.strerror(number))

    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(error, match="cannot be written"):
        update(index(v0_25_0=release()), path)
    assert path.read_bytes() == before
    assert [item.name for item in path.parent.iterdir()] == ["axes.toml"]


def test_the_shipped_file_has_the_layout_that_is_rewritten(tmp_path: Path) -> None:
    axes = load_axes()
    packages = {
        axis.value: {
            str(item.version): FakeRelease(uploaded=item.uploaded, yanked=item.yanked) for item in axes[axis].recorded
        }
        for axis in Axis
    }
    copy = tmp_path / "axes.toml"
    text = AXES.read_text(encoding="utf-8")
    copy.write_text(text, encoding="utf-8")
    assert update(FakeIndex(packages), copy).lines == ()

    packages["ray"] = packages["ray"] | {"99.0.0": FakeRelease(uploaded=DAY)}
    assert update(FakeIndex(packages), copy).lines == ("+ ray 99.0.0 2026-01-01",)
    added = '  { version = "99.0.0", uploaded = 2026-01-01T12:30:15Z },\n'
    assert copy.read_text(encoding="utf-8").replace(added, "") == text


def test_a_change_of_nothing_is_none() -> None:
    with pytest.raises(ValueError, match="before or an after"):
        Change(axis=Axis.RAY, kind=ChangeKind.NEW, before=None, after=None)
    assert not AxesDiff(path=AXES, changes=(), counts={}, written=False)
