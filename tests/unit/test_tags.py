from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from matrix.cell import Platform
from matrix.index import File, Release
from matrix.index.tags import best_wheel, build_number, expand, python_fits, rank, tag_ranks, why_no_wheel

X86 = "x86_64"


def release(*names: str, python: str = "", yanked: tuple[str, ...] = ()) -> Release:
    files = tuple(
        File(
            filename=name,
            url=f"https://x/{name}",
            sha256="0" * 64,
            version=Version("1.0"),
            uploaded=datetime(2026, 1, 1, tzinfo=UTC),
            requires_python=python,
            yanked="bad" if name in yanked else None,
            tags="-".join(name[:-4].split("-")[-3:]) if name.endswith(".whl") else "",
        )
        for name in names
    )
    return Release(project="demo", version=Version("1.0"), files=files)


def wheels(*tags: str, python: str = "") -> Release:
    return release(*(f"demo-1.0-{tag}.whl" for tag in tags), python=python)


@pytest.mark.parametrize(
    ("tags", "platform", "fits"),
    [
        ("py3-none-any", Platform(), True),
        ("py2.py3-none-any", Platform(), True),
        ("py2-none-any", Platform(), False),
        ("cp312-cp312-manylinux_2_28_x86_64", Platform(), True),
        ("cp312-cp312-manylinux_2_28_x86_64", Platform(glibc="2.27"), False),
        ("cp312-cp312-manylinux_2_28_x86_64", Platform(python="3.11"), False),
        ("cp312-cp312-manylinux_2_28_x86_64", Platform(machine="aarch64"), False),
        ("cp312-cp312t-manylinux_2_28_x86_64", Platform(), False),
        ("cp38-abi3-manylinux1_x86_64", Platform(), True),
        ("cp38-abi3-manylinux1_x86_64", Platform(glibc="2.5"), True),
        ("cp313-abi3-manylinux1_x86_64", Platform(), False),
        ("cp38-abi3-manylinux2014_aarch64", Platform(machine="aarch64"), True),
        ("cp38-abi3-manylinux2010_x86_64", Platform(glibc="2.11"), False),
        ("cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64", Platform(glibc="2.17"), True),
        ("cp312-cp312-linux_x86_64", Platform(), True),
        ("cp312-cp312-musllinux_1_2_x86_64", Platform(), False),
        ("cp312-cp312-macosx_11_0_arm64", Platform(), False),
        ("cp312-none-manylinux_2_31_x86_64", Platform(), True),
        ("py3-none-manylinux_2_31_x86_64", Platform(), True),
        ("py312-none-any", Platform(), True),
        ("py313-none-any", Platform(), False),
    ],
)
def test_which_wheels_fit(tags: str, platform: Platform, fits: bool) -> None:
    assert (best_wheel(wheels(tags), platform) is not None) is fits
    assert (why_no_wheel(wheels(tags), platform) == "") is fits


@pytest.mark.parametrize(
    ("tags", "best"),
    [
        (("py3-none-any", "cp312-cp312-manylinux_2_28_x86_64"), "cp312-cp312-manylinux_2_28_x86_64"),
        (("cp38-abi3-manylinux1_x86_64", "cp38-abi3-manylinux_2_31_x86_64"), "cp38-abi3-manylinux_2_31_x86_64"),
        (("cp38-abi3-manylinux_2_35_x86_64", "cp312-cp312-manylinux1_x86_64"), "cp312-cp312-manylinux1_x86_64"),
        (("1-py3-none-any", "py3-none-any", "10-py3-none-any", "2a-py3-none-any"), "10-py3-none-any"),
    ],
)
def test_the_most_specific_wheel_then_the_highest_build_is_taken(tags: tuple[str, ...], best: str) -> None:
    found = best_wheel(wheels(*tags), Platform())
    assert found is not None
    assert found.filename == f"demo-1.0-{best}.whl"


@pytest.mark.parametrize(
    ("requires", "python", "fits"),
    [
        ("", "3.12", True),
        (">=3.11,<3.15", "3.12", True),
        (">=3.9,<3.12", "3.12", False),
        ("<3.13,>=3.9", "3.13", False),
        (">=3.8", "3.14", True),
        ("<=3.12", "3.12", True),
        (">=3.12.1", "3.12", False),
        ("not a specifier", "3.12", True),
        ("!=3.12.*", "3.12", False),
    ],
)
def test_requires_python(requires: str, python: str, fits: bool) -> None:
    assert python_fits(requires, python) is fits
    assert (rank(wheels("py3-none-any", python=requires).files[0], Platform(python=python)) is not None) is fits


@pytest.mark.parametrize(
    ("made", "platform", "why"),
    [
        (
            wheels("cp38-abi3-manylinux_2_35_x86_64"),
            Platform(glibc="2.28"),
            "demo 1.0 has wheels only for manylinux_2_35_x86_64; this platform has glibc 2.28",
        ),
        (
            wheels("cp38-abi3-manylinux_2_35_aarch64", "cp38-abi3-manylinux_2_31_x86_64"),
            Platform(glibc="2.28"),
            "demo 1.0 has wheels only for manylinux_2_31_x86_64; this platform has glibc 2.28",
        ),
        (
            wheels("cp38-cp38-manylinux1_x86_64", "cp39-cp39-manylinux1_x86_64"),
            Platform(),
            "demo 1.0 has wheels only for cp38-cp38, cp39-cp39; this platform has python 3.12",
        ),
        (
            wheels("cp312-cp312-macosx_11_0_arm64", "cp312-cp312-win_amd64"),
            Platform(),
            "demo 1.0 has wheels only for macosx_11_0_arm64, win_amd64; this platform is Linux on x86_64",
        ),
        (
            wheels("cp38-abi3-manylinux1_x86_64", python="<3.12,>=3.8"),
            Platform(),
            "demo 1.0 needs python <3.12,>=3.8; this platform has python 3.12",
        ),
        (
            wheels(*(f"cp38-abi3-macosx_{major}_0_arm64" for major in range(11, 19))),
            Platform(),
            (
                "demo 1.0 has wheels only for macosx_11_0_arm64, macosx_12_0_arm64, macosx_13_0_arm64, "
                "macosx_14_0_arm64, macosx_15_0_arm64, macosx_16_0_arm64 and 2 more; "
                "this platform is Linux on x86_64"
            ),
        ),
        (release("demo-1.0.tar.gz"), Platform(), "demo 1.0 has no wheel, only an sdist"),
        (
            release("demo-1.0.tar.gz", "demo-1.0-py3-none-any.whl", yanked=("demo-1.0-py3-none-any.whl",)),
            Platform(),
            "demo 1.0 has yanked wheels only",
        ),
    ],
)
def test_why_no_wheel(made: Release, platform: Platform, why: str) -> None:
    assert best_wheel(made, platform) is None
    assert why_no_wheel(made, platform) == why


def test_a_yanked_wheel_is_taken_only_of_a_release_that_is_yanked_whole() -> None:
    good, bad = "demo-1.0-py3-none-any.whl", "demo-1.0-cp312-cp312-manylinux1_x86_64.whl"
    found = best_wheel(release(good, bad, yanked=(bad,)), Platform())
    assert found is not None
    assert found.filename == good
    found = best_wheel(release(good, bad, yanked=(good, bad)), Platform())
    assert found is not None
    assert found.filename == bad


def test_tags_are_ordered_as_installers_order_them() -> None:
    ranks = tag_ranks(Platform())
    order = [
        "cp312-cp312-manylinux_2_35_x86_64",
        "cp312-abi3-manylinux_2_35_x86_64",
        "cp38-abi3-linux_x86_64",
        "py3-none-any",
    ]
    assert sorted(order, key=ranks.__getitem__) == order
    assert ranks["cp312-cp312-manylinux_2_17_x86_64"] + 1 == ranks["cp312-cp312-manylinux2014_x86_64"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("demo-1.0-py3-none-any.whl", (0, "")),
        ("demo-1.0-2-py3-none-any.whl", (2, "")),
        ("demo-1.0-12abc-py3-none-any.whl", (12, "abc")),
    ],
)
def test_build_number(name: str, expected: tuple[int, str]) -> None:
    assert build_number(name) == expected


def test_expand() -> None:
    assert expand("py2.py3-none-any") == ("py2-none-any", "py3-none-any")


@given(st.integers(17, 40), st.integers(17, 40))
def test_a_wheel_fits_exactly_from_its_glibc_on(floor: int, glibc: int) -> None:
    made = wheels(f"cp38-abi3-manylinux_2_{floor}_x86_64")
    assert (best_wheel(made, Platform(glibc=f"2.{glibc}")) is not None) is (glibc >= floor)
