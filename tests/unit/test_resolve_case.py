"""A pin made concrete: what it demands, or why it cannot be had."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from packaging.version import Version

from matrix.cell import Axis, Cell, Deviation, OpenAxis, Pin, Platform
from matrix.errors import UnknownReleaseError
from matrix.resolve.case import Case, Holding, Missing, hold, read_case
from matrix.resolve.sdists import load_sdists
from tests.unit.fakes import FakeIndex, FakeRelease

SDISTS = load_sdists()
OLD, NEW = datetime(2025, 1, 1, tzinfo=UTC), datetime(2026, 6, 1, tzinfo=UTC)
INDEX = FakeIndex(
    {
        "verl": {
            "0.9.1": FakeRelease(
                requires=["Ray[default]>=2.41", "numpy<2; python_version<'3.12'", "vllm>=0.8; extra=='vllm'", "torch"],
                extras=["vllm"],
                requires_python="<3.13,>=3.10",
                uploaded=NEW,
            ),
            "0.9.0": FakeRelease(yanked="a bad build"),
            "0.8.0": FakeRelease(yanked=""),
        },
        "vllm": {
            "0.20.2": FakeRelease(tags="cp38-abi3-manylinux_2_35_x86_64", uploaded=OLD),
            "0.20.1": FakeRelease(tags="cp38-abi3-manylinux_2_35_x86_64", requires=["torch @ https://x/torch.whl"]),
        },
        "ray": {},
        "flash-attn": {
            "2.6.3": FakeRelease(sdist_only=True, requires_python=">=3.8"),
            "1.0.9": FakeRelease(sdist_only=True, requires=["other"]),
        },
    }
)


def pin(axis: Axis, version: str, *extras: str) -> Pin:
    return Pin(axis=axis, version=Version(version), extras=extras)


def held(wanted: Pin, platform: Platform | None = None, as_of: datetime | None = None) -> Holding | Missing:
    return hold(wanted, Cell(pins=(wanted,), platform=platform or Platform(), as_of=as_of), INDEX, SDISTS)


@pytest.mark.parametrize(
    ("wanted", "platform", "as_of", "reason", "near"),
    [
        (
            pin(Axis.VLLM, "0.20.3"),
            None,
            None,
            "vllm 0.20.3 does not exist; closest: 0.20.2, 0.20.1",
            ("0.20.2", "0.20.1"),
        ),
        (pin(Axis.VERL, "99"), None, None, "verl 99 does not exist; closest: 0.9.1", ("0.9.1",)),
        (
            pin(Axis.VLLM, "0.20.3"),
            None,
            OLD,
            "vllm 0.20.3 was not released by 2025-01-01 00:00 UTC; closest: 0.20.2, 0.20.1",
            ("0.20.2", "0.20.1"),
        ),
        (
            pin(Axis.RAY, "2.0"),
            None,
            OLD,
            "ray 2.0 was not released by 2025-01-01 00:00 UTC; nothing of ray was there to take instead",
            (),
        ),
        (pin(Axis.VERL, "0.9.0"), None, None, "verl 0.9.0 was yanked: a bad build", ()),
        (pin(Axis.VERL, "0.8.0"), None, None, "verl 0.8.0 was yanked", ()),
        (
            pin(Axis.VLLM, "0.20.2"),
            Platform(glibc="2.28"),
            None,
            "vllm 0.20.2 has wheels only for manylinux_2_35_x86_64; this platform has glibc 2.28",
            (),
        ),
        (
            pin(Axis.VERL, "0.9.1"),
            Platform(python="3.13"),
            None,
            "verl 0.9.1 needs python <3.13,>=3.10; this platform has python 3.13",
            (),
        ),
        (
            pin(Axis.FLASH_ATTN, "2.6.3"),
            Platform(python="3.7"),
            None,
            "flash-attn 2.6.3 needs python >=3.8; this platform has python 3.7",
            (),
        ),
        (pin(Axis.VERL, "0.9.1", "vlm"), None, None, "verl 0.9.1 has no extra vlm; it has: vllm", ()),
        (pin(Axis.VLLM, "0.20.2", "x"), None, None, "vllm 0.20.2 has no extra x; it has: none", ()),
        (
            pin(Axis.VERL, "0.9.1"),
            None,
            datetime(2026, 1, 1, tzinfo=UTC),
            "verl 0.9.1 was released on 2026-06-01, after 2026-01-01",
            (),
        ),
    ],
    ids=lambda value: value.requirement if isinstance(value, Pin) else None,
)
def test_missing(
    wanted: Pin, platform: Platform | None, as_of: datetime | None, reason: str, near: tuple[str, ...]
) -> None:
    found = held(wanted, platform, as_of)
    assert isinstance(found, Missing)
    assert (found.reason, found.near) == (reason, near)
    assert [bool(fact.source) for fact in found.facts] == [True]


def test_a_package_that_the_index_lacks_is_an_error() -> None:
    with pytest.raises(UnknownReleaseError):
        held(pin(Axis.TORCH, "2.0"))


@pytest.mark.parametrize(
    ("wanted", "platform", "demands"),
    [
        (pin(Axis.VERL, "0.9.1"), None, ["ray[default]>=2.41", "torch"]),
        (pin(Axis.VERL, "0.9.1", "vllm"), None, ["ray[default]>=2.41", "vllm>=0.8", "torch"]),
        (pin(Axis.VERL, "0.9.1"), Platform(python="3.11"), ["ray[default]>=2.41", "numpy<2", "torch"]),
        (pin(Axis.VLLM, "0.20.1"), None, ["torch @ https://x/torch.whl"]),
        (pin(Axis.FLASH_ATTN, "2.6.3"), None, ["torch", "einops"]),
        (pin(Axis.FLASH_ATTN, "1.0.9"), None, ["other"]),
    ],
)
def test_demands(wanted: Pin, platform: Platform | None, demands: list[str]) -> None:
    found = held(wanted, platform)
    assert isinstance(found, Holding)
    assert [demand.requirement for demand in found.demands] == demands


@pytest.mark.parametrize(
    ("wanted", "source"),
    [
        (pin(Axis.VERL, "0.9.1"), "verl-0.9.1-py3-none-any.whl METADATA"),
        (pin(Axis.FLASH_ATTN, "2.6.3"), "flash_attn-2.6.3.tar.gz (sdists.toml)"),
        (pin(Axis.FLASH_ATTN, "1.0.9"), "flash_attn-1.0.9.tar.gz PKG-INFO"),
    ],
)
def test_a_demand_says_where_it_stands(wanted: Pin, source: str) -> None:
    found = held(wanted)
    assert isinstance(found, Holding)
    assert {demand.source for demand in found.demands} == {source}
    assert str(found.demands[0].fact).endswith(f"[{source}]")


def test_an_sdist_that_promises_nothing_needs_a_build(monkeypatch: pytest.MonkeyPatch) -> None:
    index = FakeIndex({"flash-attn": {"1.0.9": FakeRelease(sdist_only=True)}})
    promise = index.metadata
    monkeypatch.setattr(index, "metadata", lambda file: replace(promise(file), static=False))
    wanted = pin(Axis.FLASH_ATTN, "1.0.9")
    found = hold(wanted, Cell(pins=(wanted,)), index, SDISTS)
    assert isinstance(found, Missing)
    assert found.reason.startswith("needs a build of flash-attn==1.0.9")


def test_only_files_that_were_there_on_the_day_count() -> None:
    day = datetime(2025, 2, 1, tzinfo=UTC)
    found = held(pin(Axis.VLLM, "0.20.2"), None, day)
    assert isinstance(found, Holding)
    assert found.file.uploaded < day
    # uv takes what was uploaded before the date, not at it.
    assert isinstance(held(pin(Axis.VLLM, "0.20.2"), None, OLD), Missing)


def case(cell: Cell) -> Case:
    found = read_case(cell, (hold(pin, cell, INDEX, SDISTS) for pin in cell.pins))
    assert isinstance(found, Case)
    return found


def test_overrides_replace_every_other_word_on_their_package() -> None:
    cell = Cell(
        pins=(pin(Axis.VERL, "0.9.1"), pin(Axis.VLLM, "0.20.2")),
        deviation=Deviation(overrides=("torch==2.6.0", "vllm>=0.1")),
    )
    found = case(cell)
    assert {demand.requirement for demand in found.demands} == {
        "ray[default]>=2.41",
        "torch==2.6.0",
        "vllm>=0.1",
    }
    assert set(found.pins) == {"verl", "vllm"}
    assert set(found.in_force) == {"verl"}
    assert [demand.fact.text for demand in found.pinned] == ["the cell pins verl 0.9.1"]


def test_open_axes_are_demands_of_the_cell() -> None:
    found = case(Cell(pins=(pin(Axis.VLLM, "0.20.2"),), open_axes=(OpenAxis(axis=Axis.VERL, extras=("vllm",)),)))
    assert [(demand.requirement, demand.source) for demand in found.demands] == [("verl[vllm]", "cell")]


def test_the_first_pin_that_is_missing_is_the_reason() -> None:
    cell = Cell(pins=(pin(Axis.VERL, "0.9.0"), pin(Axis.VLLM, "0.1")))
    found = read_case(cell, (hold(pin, cell, INDEX, SDISTS) for pin in cell.pins))
    assert isinstance(found, Missing)
    assert found.reason == "verl 0.9.0 was yanked: a bad build"
