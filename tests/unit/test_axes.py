"""The axes: which releases are in the lattice, what the shipped file holds, and what a wrong file is told."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from matrix.axes import AxisRule, Recorded, axes_of, axis_named, load_axes
from matrix.cell import Axis
from matrix.datafile import parse
from matrix.errors import DataError, UnknownReleaseError, UsageError

WORDS: list[tuple[str, Axis]] = [
    *((axis.value, axis) for axis in Axis),
    *((axis.short, axis) for axis in Axis),
    *((axis.module, axis) for axis in Axis),
    ("Flash.Attn", Axis.FLASH_ATTN),
    ("VLLM", Axis.VLLM),
]


@pytest.mark.parametrize(("word", "axis"), WORDS)
def test_an_axis_answers_to_all_its_names(word: str, axis: Axis) -> None:
    assert axis_named(word) is axis


@pytest.mark.parametrize(
    ("word", "why"),
    [("vlm", "Closest: vllm"), ("transformer", "Closest: transformers"), ("numpy", "They are verl, vllm, torch")],
)
def test_another_word_is_refused_with_what_comes_close(word: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        axis_named(word)
    assert why in caught.value.why


def rule(*versions: str, yanked: str = "") -> AxisRule:
    stamp = datetime(2026, 1, 1, tzinfo=UTC)
    return AxisRule(
        axis=Axis.VLLM,
        within=SpecifierSet(">=0.5.4"),
        why="test",
        recorded=tuple(
            Recorded(version=Version(text), uploaded=stamp, yanked="bad" if text == yanked else None)
            for text in versions
        ),
    )


@pytest.mark.parametrize(
    ("version", "admitted"),
    [
        ("0.5.4", True),
        ("0.5.4.post1", True),
        ("0.33.0", True),
        ("0.5.3.post1", False),
        ("0.6.0rc1", False),
        ("0.6.0.dev3", False),
        ("0.6.0.post1.dev2", False),
        ("0.6.0+cu118", False),
    ],
)
def test_the_lattice_takes_final_releases_within_the_rule(version: str, admitted: bool) -> None:
    assert rule().admits(Version(version)) is admitted


def test_yanked_releases_are_recorded_but_not_in_the_lattice() -> None:
    vllm = rule("0.5.4", "0.6.0", "0.7.0", yanked="0.6.0")
    assert [str(version) for version in vllm.releases] == ["0.5.4", "0.7.0"]
    assert [str(version) for version in vllm.since(Version("0.6"))] == ["0.7.0"]
    assert vllm.release(Version("0.6")).yanked == "bad"
    with pytest.raises(UnknownReleaseError, match=r"0\.7\.1") as caught:
        vllm.release(Version("0.7.1"))
    assert caught.value.near[0] == "0.7.0"
    assert "vllm>=0.5.4" in str(caught.value)


def test_the_shipped_file_records_the_releases_the_project_is_about() -> None:
    axes = load_axes()
    assert " ".join(map(str, axes[Axis.VERL].releases[:16])) == (
        "0.1 0.2 0.2.0.post1 0.2.0.post2 0.3.0.post0 0.3.0.post1 0.4.0 0.4.1 "
        "0.5.0 0.6.0 0.6.1 0.7.0 0.7.1 0.8.0 0.9.0 0.9.1"
    )
    vllm = axes[Axis.VLLM].releases
    assert (str(vllm[0]), str(vllm[67])) == ("0.5.4", "0.33.0")
    assert Version("0.5.4.post1") not in vllm
    assert str(axes.respelled(Axis.VLLM, Version("0.24"))) == "0.24.0"
    assert str(axes.respelled(Axis.VLLM, Version("0.24.7"))) == "0.24.7"
    for axis in Axis:
        assert axes[axis].why
        assert axes[axis].releases
    yanked = [str(release.version) for release in axes[Axis.TRANSFORMERS].recorded if release.yanked is not None]
    assert yanked[:4] == ["4.46.0", "4.52.0", "4.57.0", "5.10.0"]


def document(**changes: str) -> str:
    """Return an axes file; `changes` replace lines of the vllm table."""
    lines = ["schema = 1"]
    for axis in Axis:
        fields = {
            "index": f'"{axis.value}"',
            "module": f'"{axis.module}"',
            "short": f'"{axis.short}"',
            "within": '">=0.1"',
            "why": '"test"',
            "releases": '[{ version = "0.1", uploaded = 2026-01-01 }]',
        }
        if axis is Axis.VLLM:
            fields |= changes
        lines += [f"[axis.{axis.value}]", *(f"{name} = {value}" for name, value in fields.items() if value)]
    return "\n".join(lines)


def test_a_file_that_says_everything_is_read() -> None:
    axes = axes_of(parse(document(), Path("axes.toml")))
    assert axes[Axis.VLLM].recorded == (Recorded(version=Version("0.1"), uploaded=datetime(2026, 1, 1, tzinfo=UTC)),)


WRONG: list[tuple[dict[str, str], str]] = [
    ({"short": '"v"'}, "axis.vllm.short: must be `vllm`"),
    ({"module": ""}, "axis.vllm.module: is missing"),
    ({"within": '">>1"'}, "axis.vllm.within: Invalid specifier"),
    ({"sort": "1"}, "axis.vllm.sort: unknown field; did you mean short?"),
    ({"releases": '[{ version = "0.1" }]'}, "axis.vllm.releases[0].uploaded: is missing"),
    (
        {"releases": '[{ version = "0.1rc1", uploaded = 2026-01-01 }]'},
        "axis.vllm.releases[0].version: 0.1rc1 is not a final release >=0.1",
    ),
    (
        {"releases": '[{ version = "0.2", uploaded = 2026-01-01 }, { version = "0.1", uploaded = 2026-01-01 }]'},
        "axis.vllm.releases[1].version: 0.1 must come before 0.2, once",
    ),
    (
        {"releases": '[{ version = "0.1", uploaded = 2026-01-01, yank = "" }]'},
        "axis.vllm.releases[0].yank: unknown field; did you mean yanked?",
    ),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_a_wrong_file_is_told_where(changes: dict[str, str], message: str) -> None:
    with pytest.raises(DataError) as caught:
        axes_of(parse(document(**changes), Path("axes.toml")))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[axis.vlm]\n", "axis.vlm: unknown field; did you mean vllm?"),
        ("[other]\n", "other: unknown field"),
    ],
)
def test_an_unknown_axis_or_table_is_refused(text: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        axes_of(parse(f"{document()}\n{text}", Path("axes.toml")))
    assert message in str(caught.value)
