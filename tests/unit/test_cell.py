"""Cells and their names: one spelling each, and the way back from the name to the cell."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from matrix.cell import MACHINES, Axis, Cell, Deviation, OpenAxis, Pin, Platform, parse_name
from matrix.errors import UsageError


def pin(axis: Axis, version: str, *extras: str) -> Pin:
    return Pin(axis=axis, version=Version(version), extras=extras)


VERL = pin(Axis.VERL, "0.9.1")
NAMES: list[tuple[str, Cell]] = [
    (
        "verl0.9.1-vllm0.24.0-torch2.11.0-tf5.9.0",
        Cell(
            pins=(
                pin(Axis.TRANSFORMERS, "5.9.0"),
                pin(Axis.TORCH, "2.11.0"),
                VERL,
                pin(Axis.VLLM, "0.24.0"),
            )
        ),
    ),
    ("verl0.9.1+vllm", Cell(pins=(pin(Axis.VERL, "0.9.1", "vllm"),))),
    (
        "verl0.9.1+flash_attn_cu130torch211+vllm",
        Cell(pins=(pin(Axis.VERL, "0.9.1", "vllm", "flash-attn-cu130torch211"),)),
    ),
    ("torch2.11.0@cu130", Cell(pins=(pin(Axis.TORCH, "2.11.0+cu130"),))),
    ("torch2.11.0@cu130_x+opt", Cell(pins=(pin(Axis.TORCH, "2.11.0+cu130.x", "opt"),))),
    ("torch2.11.0+cu130", Cell(pins=(pin(Axis.TORCH, "2.11.0", "cu130"),))),
    ("verl.any-vllm0.17.0", Cell(pins=(pin(Axis.VLLM, "0.17.0"),), open_axes=(OpenAxis(axis=Axis.VERL),))),
    (
        "verl+vllm.ge.0.7.lt.0.9",
        Cell(pins=(), open_axes=(OpenAxis(axis=Axis.VERL, specifier=SpecifierSet("<0.9,>=0.7"), extras=("vllm",)),)),
    ),
    ("tf.eq.5.9.x", Cell(pins=(), open_axes=(OpenAxis(axis=Axis.TRANSFORMERS, specifier=SpecifierSet("==5.9.*")),))),
    ("verl0.9.1-py3.11-glibc2.28", Cell(pins=(VERL,), platform=Platform(python="3.11", glibc="2.28"))),
    ("verl0.9.1-aarch64", Cell(pins=(VERL,), platform=Platform(machine="aarch64"))),
    ("verl0.9.1-asof20260102T030405Z", Cell(pins=(VERL,), as_of=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))),
    ("verl0.9.1-nodeps", Cell(pins=(VERL,), deviation=Deviation(no_deps=True))),
    ("verl0.9.1-ov.numpy.lt.2", Cell(pins=(VERL,), deviation=Deviation(overrides=("NumPy <2",)))),
    (
        "verl0.9.1-ov.opencv_python_headless.ge.4.13.lt.5-ov.verl+vllm.eq.0.9.1-nodeps",
        Cell(
            pins=(VERL,),
            deviation=Deviation(
                overrides=("verl[vllm]==0.9.1", "opencv.python-headless<5,>=4.13"), no_deps=True, reason=""
            ),
        ),
    ),
    ("vllmcpu0.24.0+opt", Cell(pins=(Pin(axis=Axis.VLLM, version=Version("0.24.0"), extras=("opt",), variant="cpu"),))),
    ("verl0.9.1-with.a_b.eq.1.0-with.kernels.eq.0.15.0", Cell(pins=(VERL,), added=("kernels==0.15.0", "A.b==1.0"))),
    ("verl0.9.1-ov.numpy", Cell(pins=(VERL,), deviation=Deviation(overrides=("numpy",)))),
]


@pytest.mark.parametrize(("name", "cell"), NAMES, ids=[name for name, _ in NAMES])
def test_a_cell_and_its_name_stand_for_each_other(name: str, cell: Cell) -> None:
    assert cell.name == name
    assert parse_name(name) == cell


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "none of its parts"),
        ("verl", "none of its parts"),
        ("verl0.9.1-", "none of its parts"),
        ("numpy1.26", "none of its parts"),
        ("verl0.9.1-verl0.9.0", "named twice"),
        ("vllm0.24.0-verl0.9.1", "would be written verl0.9.1-vllm0.24.0"),
        ("verl0.9.1-py3.12", "would be written verl0.9.1."),
        ("verl0.9.1-py3", "python is written X.Y"),
        ("verl0.9.1-glibc2.28.1", "glibc is written X.Y"),
        ("verl0.9.1-asof2026", "does not match format"),
        ("verl0.9.1-ov.numpy.<2", "not a specifier"),
        ("verl0.9,1", "Invalid version"),
        ("verl.ge.x", "Invalid"),
        ("nodeps", "at least one axis"),
        ("vllmcpu.ge.0.24", "leaves a variant open"),
        ("verlcpu0.9.1", "has no variant"),
        ("verl0.9.1-with.torch.eq.2.11.0", "is no axis"),
        ("verl0.9.1-with.kernels", "says its version"),
    ],
)
def test_a_word_that_is_no_name_is_refused_with_the_reason(name: str, says: str) -> None:
    with pytest.raises(UsageError, match="does not name a cell") as caught:
        parse_name(name)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Cell(pins=()), "at least one axis"),
        (lambda: Cell(pins=(VERL, VERL)), "named twice"),
        (lambda: Cell(pins=(VERL,), as_of=datetime(2026, 1, 2)), "time zone"),
        (lambda: Platform(machine="riscv64"), "the machine is one of"),
        (lambda: Deviation(), "does neither"),
        (lambda: Deviation(overrides=("numpy<2; python_version<'3.13'",)), "without marker"),
        (lambda: Deviation(overrides=("numpy @ https://example.org/numpy.whl",)), "without marker or address"),
        (lambda: Deviation(overrides=("numpy<2", "NumPy>1")), "overridden twice"),
        (lambda: OpenAxis(axis=Axis.VERL, specifier=SpecifierSet("===0.9")), "compares text"),
    ],
)
def test_what_is_no_cell_cannot_be_made(make: object, says: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=says):
        make()


def test_the_snapshot_is_kept_in_utc_and_whole_seconds() -> None:
    there = datetime(2026, 1, 2, 4, 4, 5, 999, tzinfo=timezone(timedelta(hours=1)))
    assert Cell(pins=(VERL,), as_of=there).as_of == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_platform_says_what_uv_and_markers_need() -> None:
    platform = Platform(python="3.11", machine="aarch64", glibc="2.28")
    assert platform.uv == "aarch64-manylinux_2_28"
    assert platform.environment()["python_full_version"] == "3.11.0"
    assert platform.environment()["platform_machine"] == "aarch64"


def test_requirements_are_what_the_resolver_is_given() -> None:
    cell = Cell(
        pins=(pin(Axis.VERL, "0.9.1", "vllm"),),
        open_axes=(OpenAxis(axis=Axis.VLLM, specifier=SpecifierSet(">=0.26")), OpenAxis(axis=Axis.RAY, extras=("a",))),
    )
    assert cell.requirements == ("verl[vllm]==0.9.1", "vllm>=0.26", "ray[a]")
    assert cell.pin(Axis.VERL) == cell.pins[0]
    assert cell.pin(Axis.VLLM) is None


numbers = st.integers(0, 30)
releases = st.lists(numbers, min_size=1, max_size=4).map(lambda parts: ".".join(map(str, parts)))
suffixes = st.sampled_from(["", "rc1", ".post1", ".dev3", "a2.post1", "+cu130", "+cu130.lt.3", ".post1+a.b"])
versions = st.builds(lambda release, suffix: Version(release + suffix), releases, suffixes)
extra_names = st.lists(st.sampled_from(["vllm", "verl-core", "Flash_Attn.cu130", "gpu"]), max_size=3).map(tuple)
pins = st.builds(lambda version, extras: (version, extras), versions, extra_names)
clauses = st.one_of(
    st.builds(lambda op, version: f"{op}{version}", st.sampled_from(["==", "!="]), versions),
    st.builds(lambda op, version: f"{op}{version.public}", st.sampled_from(["<=", ">=", "<", ">"]), versions),
    st.builds(lambda a, b: f"~={a}.{b}", numbers, releases),
    st.builds(lambda op, release: f"{op}{release}.*", st.sampled_from(["==", "!="]), releases),
)
specifiers = st.lists(clauses, max_size=3).map(lambda texts: SpecifierSet(",".join(texts)))
overridden = st.builds(
    lambda name, specifier: f"{name}{specifier}",
    st.sampled_from(["numpy", "opencv-python-headless", "Flash.Attn", "transformers[torch]"]),
    specifiers,
)


@st.composite
def cells(draw: st.DrawFn) -> Cell:
    axes = draw(st.lists(st.sampled_from(list(Axis)), min_size=1, unique=True))
    pinned: list[Pin] = []
    opened: list[OpenAxis] = []
    for axis in axes:
        version, extras = draw(pins)
        if draw(st.booleans()):
            pinned.append(Pin(axis=axis, version=version, extras=extras))
        else:
            opened.append(OpenAxis(axis=axis, specifier=draw(specifiers), extras=extras))
    overrides = draw(st.lists(overridden, max_size=2, unique_by=lambda text: text[:4].lower()))
    no_deps = draw(st.booleans())
    deviation = Deviation(overrides=tuple(overrides), no_deps=no_deps) if overrides or no_deps else None
    return Cell(
        pins=tuple(pinned),
        open_axes=tuple(opened),
        platform=Platform(
            python=draw(st.sampled_from(["3.10", "3.12"])),
            machine=draw(st.sampled_from(MACHINES)),
            glibc=draw(st.sampled_from(["2.28", "2.35"])),
        ),
        as_of=draw(st.none() | st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))),
        deviation=deviation,
    )


@given(cells())
def test_every_name_leads_back_to_its_cell(cell: Cell) -> None:
    name = cell.name
    assert parse_name(name) == cell
    assert not set(name) & set("/[]*?{}, \t\\")


@given(cells())
def test_the_reasons_are_no_part_of_the_name(cell: Cell) -> None:
    deviation = replace(cell.deviation, reason="why") if cell.deviation else None
    assert replace(cell, reason="why", deviation=deviation).name == cell.name


def test_every_axis_has_one_short_name_and_a_module() -> None:
    assert len({axis.short for axis in Axis}) == len(Axis)
    assert {axis.value: axis.module for axis in Axis if axis.value != axis.module} == {"flash-attn": "flash_attn"}
