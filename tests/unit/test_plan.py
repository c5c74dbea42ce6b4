"""The plan: what a cells file makes, what is chosen of it, and the default cells that are shipped."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from packaging.version import Version

from matrix.axes import load_axes
from matrix.cell import Axis, Cell, Pin, Platform, parse_name
from matrix.errors import DataError, NothingRanError, UsageError
from matrix.plan import Plan, load_cells, plan
from matrix.tier import Status

BASE = 'reason = "why"\nsource = "here"\ndate = 2026-01-02\n'


@pytest.fixture
def cells_file(tmp_path: Path) -> Path:
    return tmp_path / "cells.toml"


def written(path: Path, *entries: str) -> Path:
    path.write_text("schema = 1\n" + "".join(f"[[cell]]\n{entry}\n{BASE}" for entry in entries), encoding="utf-8")
    return path


MADE: list[tuple[str, list[str]]] = [
    ('verl = "0.9.1"', ["verl0.9.1"]),
    ('vllm = "0.24.0"\nverl = "0.9.1"', ["verl0.9.1-vllm0.24.0"]),
    ('verl = "0.9.1"\nvllm = ["0.24.0", "0.26.0"]', ["verl0.9.1-vllm0.24.0", "verl0.9.1-vllm0.26.0"]),
    (
        'verl = ["0.8.0", "0.9.1"]\nvllm = ["0.24.0", "0.26.0"]',
        ["verl0.8.0-vllm0.24.0", "verl0.8.0-vllm0.26.0", "verl0.9.1-vllm0.24.0", "verl0.9.1-vllm0.26.0"],
    ),
    ('verl = "0.9.1"\nextras = { verl = ["vllm"] }', ["verl0.9.1+vllm"]),
    ('torch = "2.6.0"\nflash-attn = "2.6.3"', ["torch2.6.0-fa2.6.3"]),
    ('verl = "0.9.1"\npython = "3.11"\nglibc = "2.28"', ["verl0.9.1-py3.11-glibc2.28"]),
    ('verl = "0.9.1"\nmachine = "aarch64"', ["verl0.9.1-aarch64"]),
    ('verl = "0.9.1"\nas_of = 2026-09-21T00:00:00Z', ["verl0.9.1-asof20260921T000000Z"]),
    ('verl = "0.9.1"\noverrides = ["numpy<2"]\ndeviation = "image"', ["verl0.9.1-ov.numpy.lt.2"]),
    ('verl = "0.9.1"\nno_deps = true\ndeviation = "image"', ["verl0.9.1-nodeps"]),
]


@pytest.mark.parametrize(("entry", "names"), MADE)
def test_an_entry_makes_the_cross_of_its_versions(cells_file: Path, entry: str, names: list[str]) -> None:
    found = load_cells([written(cells_file, entry)])
    assert [item.cell.name for item in found] == names
    assert {(item.cell.reason, item.source, item.date) for item in found} == {
        ("why", "here", datetime(2026, 1, 2, tzinfo=UTC))
    }


WRONG: list[tuple[str, str]] = [
    ("", "cell[1]: names no version of any axis (verl, vllm"),
    ('verl = "0.9,1"', "cell[1].verl: `0.9,1` is not a version"),
    ("verl = 0.9", "cell[1].verl: must be a version in quotes, or an array of them, not 0.9"),
    ('verl = ["0.9.1", "0.9.1"]', "cell[1].verl: names a version twice"),
    ('verrl = "0.9.1"\nvllm = "0.24.0"', "cell[1].verrl: unknown field; did you mean verl?"),
    ('verl = "0.9.1"\nextras = { vllm = ["x"] }', "cell[1].extras.vllm: unknown field"),
    ('verl = "0.9.1"\nextras = ["vllm"]', "cell[1].extras: must be a table"),
    ('verl = "0.9.1"\npython = "3"', "cell[1]: python is written X.Y"),
    ('verl = "0.9.1"\nas_of = 2026-09-21', "cell[1].as_of: must be a date and time"),
    ('verl = "0.9.1"\noverrides = ["numpy<2"]', "cell[1].deviation: is missing"),
    ('verl = "0.9.1"\noverrides = ["numpy<"]\ndeviation = "x"', "cell[1].overrides: "),
    ('verl = "0.9.1"\ndeviation = "x"', "cell[1].deviation: says why, but"),
    ('verl = "0.9.1"\ngroups = "ci"', "cell[1].groups: must be an array"),
    ('verl = "0.9.1"\nexpected = "works"', "cell[1].expected: is broken, conflict or degraded, not `works`"),
]


@pytest.mark.parametrize(("entry", "message"), WRONG)
def test_a_wrong_entry_is_named_with_its_field(cells_file: Path, entry: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        load_cells([written(cells_file, 'verl = "0.9.0"', entry)])
    assert str(caught.value).startswith(f"{cells_file}: {message}")


def test_a_cell_may_be_known_to_be_bad(cells_file: Path) -> None:
    (known, plain) = load_cells([written(cells_file, 'verl = "0.9.1"\nexpected = "conflict"', 'verl = "0.9.0"')])
    assert (known.expected, plain.expected) == (Status.CONFLICT, None)
    assert (known.data["expected"], plain.data["expected"]) == ("conflict", None)


def test_the_sets_of_the_guides_are_expected_to_come_out_as_they_are(shipped: Plan) -> None:
    told = {item.cell.name: item.expected for item in shipped.planned if "guide" in item.groups}
    assert len(told) == 3
    assert set(told.values()) == {Status.CONFLICT}


def test_a_table_that_is_no_cell_is_refused(cells_file: Path) -> None:
    cells_file.write_text("schema = 1\n[[cells]]\n")
    with pytest.raises(DataError, match="cells: unknown field; did you mean cell"):
        load_cells([cells_file])


def test_the_same_cell_is_planned_once_in_all_its_groups(cells_file: Path, tmp_path: Path) -> None:
    first = written(cells_file, 'verl = "0.9.1"\ngroups = ["ci"]', 'verl = ["0.8.0", "0.9.1"]\ngroups = ["b", "a"]')
    second = written(tmp_path / "mine.toml", 'verl = "0.8.0"\ngroups = ["mine"]')
    found = load_cells([first, second])
    assert [(item.cell.name, item.groups) for item in found] == [
        ("verl0.9.1", ("a", "b", "ci")),
        ("verl0.8.0", ("a", "b", "mine")),
    ]


@pytest.fixture
def three(cells_file: Path) -> Path:
    return written(
        cells_file,
        'verl = "0.9.1"\ngroups = ["ci"]',
        'verl = "0.8.0"',
        'verl = "0.7.1"\npython = "3.10"',
    )


EXTRA = Cell(pins=(Pin(axis=Axis.RAY, version=Version("2.60.0")),))

PLANS: list[tuple[list[str], Platform | None, datetime | None, tuple[Cell, ...], list[str]]] = [
    ([], None, None, (), ["verl0.9.1", "verl0.8.0", "verl0.7.1-py3.10"]),
    (["group:ci"], None, None, (), ["verl0.9.1"]),
    (["verl0.8*", "verl0.9*"], None, None, (), ["verl0.9.1", "verl0.8.0"]),
    ([], Platform(python="3.11"), None, (), ["verl0.9.1-py3.11", "verl0.8.0-py3.11", "verl0.7.1-py3.10"]),
    (["verl0.9.1"], Platform(python="3.11"), None, (), ["verl0.9.1-py3.11"]),
    (["verl0.9.1-py3.11"], Platform(python="3.11"), None, (), ["verl0.9.1-py3.11"]),
    (["!verl0.9.1"], Platform(python="3.11"), None, (), ["verl0.8.0-py3.11", "verl0.7.1-py3.10"]),
    (["group:ci"], None, datetime(2026, 1, 1, tzinfo=UTC), (), ["verl0.9.1-asof20260101T000000Z"]),
    (["group:ci"], None, None, (EXTRA, EXTRA), ["verl0.9.1", "ray2.60.0"]),
]


@pytest.mark.parametrize(("selectors", "platform", "as_of", "extra", "names"), PLANS)
def test_a_plan_is_what_was_chosen_on_the_platform_that_was_asked(
    three: Path,
    selectors: list[str],
    platform: Platform | None,
    as_of: datetime | None,
    extra: tuple[Cell, ...],
    names: list[str],
) -> None:
    made = plan(load_cells([three]), selectors=selectors, platform=platform, as_of=as_of, extra=extra)
    assert [cell.name for cell in made.cells] == names
    assert made.find(names[0]) is made.planned[0]
    assert made.find("nothing") is None


def test_a_selector_that_matches_nothing_is_refused_with_what_comes_close(three: Path) -> None:
    with pytest.raises(UsageError, match=r"`verl0\.9\.2` matches no cell\.\nClosest: verl0\.9\.1"):
        plan(load_cells([three]), selectors=["verl0.9.2"])


def test_an_empty_plan_is_a_failure(cells_file: Path) -> None:
    cells_file.write_text("schema = 1\n")
    with pytest.raises(NothingRanError):
        plan(load_cells([cells_file]))
    assert plan((), extra=[EXTRA]).cells == (EXTRA,)


def test_a_plan_renders_to_json(cells_file: Path) -> None:
    entry = 'verl = "0.9.1"\nextras = { verl = ["vllm"] }\noverrides = ["numpy<2"]\ndeviation = "x"\ngroups = ["ci"]'
    made = plan(load_cells([written(cells_file, entry)]), as_of=datetime(2026, 1, 1, tzinfo=UTC))
    assert json.loads(json.dumps(made.data)) == [
        {
            "name": "verl0.9.1+vllm-asof20260101T000000Z-ov.numpy.lt.2",
            "pins": {"verl": "0.9.1"},
            "open": {},
            "extras": {"verl": ["vllm"]},
            "variants": {},
            "added": [],
            "requirements": ["verl[vllm]==0.9.1"],
            "platform": {"python": "3.12", "machine": "x86_64", "glibc": "2.35"},
            "as_of": "2026-01-01T00:00:00+00:00",
            "deviation": {"overrides": ["numpy<2"], "no_deps": False, "reason": "x"},
            "groups": ["ci"],
            "reason": "why",
            "source": "here",
            "date": "2026-01-02",
            "expected": None,
        }
    ]
    asked = Plan(planned=plan((), extra=[parse_name("verl+vllm.ge.0.7")]).planned).data[0]
    assert (asked["open"], asked["extras"]) == ({"verl": ">=0.7"}, {"verl": ["vllm"]})
    assert (asked["deviation"], asked["as_of"], asked["date"]) == (None, None, None)


@pytest.fixture(scope="module")
def shipped() -> Plan:
    return plan(load_cells())


def test_every_verl_release_has_the_pair_it_was_released_for(shipped: Plan) -> None:
    pairs = {
        str(pin.version): item.cell
        for item in shipped.planned
        if "released-pair" in item.groups and (pin := item.cell.pin(Axis.VERL))
    }
    releases = load_axes()[Axis.VERL].since(Version("0.2"))
    assert list(pairs) == [str(version) for version in releases if version <= Version("0.9.1")]
    for cell in pairs.values():
        assert {pin.axis for pin in cell.pins} == {Axis.VERL, Axis.VLLM, Axis.TORCH, Axis.TRANSFORMERS}
        assert cell.deviation is None


def test_a_released_pair_is_no_newer_than_its_release(shipped: Plan) -> None:
    axes = load_axes()
    for item in shipped.planned:
        if "released-pair" in item.groups:
            verl = item.cell.pin(Axis.VERL)
            assert verl is not None
            born = axes[Axis.VERL].release(verl.version).uploaded
            assert item.date is not None
            assert item.date.date() == born.date(), item.cell.name
            for pin in item.cell.pins:
                assert axes[pin.axis].release(pin.version).uploaded.date() <= born.date(), (item.cell.name, pin)


NEIGHBOURS = {
    Axis.VLLM: ["0.20.2", "0.22.1", "0.23.0", "0.24.0", "0.25.1", "0.26.0", "0.27.1", "0.29.0", "0.31.0", "0.33.0"],
    Axis.TRANSFORMERS: ["5.5.4", "5.9.0", "5.10.4", "5.17.0", "5.24.0"],
}


@pytest.mark.parametrize("axis", NEIGHBOURS)
def test_the_newest_release_has_its_neighbours(shipped: Plan, axis: Axis) -> None:
    found = [
        str(pin.version)
        for item in shipped.planned
        if "neighbour" in item.groups and item.cell.pins[0].requirement == "verl==0.9.1"
        if (pin := item.cell.pin(axis)) and item.cell.pins[-1].axis is axis
    ]
    assert found == NEIGHBOURS[axis]


def test_the_sets_of_the_guides_are_there(shipped: Plan) -> None:
    assert [item.cell.name for item in shipped.planned if "guide" in item.groups] == [
        "vllm0.6.3.post1-torch2.6.0",
        "vllm0.5.4.post1-torch2.2.2-tf4.38.2",
        "vllm0.6.3.post1-torch2.6.0-fa2.6.3",
    ]


def test_the_shipped_cells_are_real_but_for_the_one_release_that_never_was(shipped: Plan) -> None:
    axes = load_axes()
    missing = {
        pin.requirement
        for cell in shipped.cells
        for pin in cell.pins
        if pin.version not in {release.version for release in axes[pin.axis].recorded}
    }
    assert missing == {"vllm==0.5.4.post1"}
    assert [str(pin.version) for cell in shipped.cells for pin in cell.pins] == [
        str(axes.respelled(pin.axis, pin.version)) for cell in shipped.cells for pin in cell.pins
    ]


def test_the_shipped_cells_say_why_and_can_be_named(shipped: Plan) -> None:
    assert len({cell.name for cell in shipped.cells}) == len(shipped.cells)
    for item in shipped.planned:
        assert item.cell.reason
        assert item.source
        assert item.groups
        assert parse_name(item.cell.name).name == item.cell.name
    assert sum("ci" in item.groups for item in shipped.planned) == 2


def test_the_image_of_0_8_0_is_a_deviation(shipped: Plan) -> None:
    (cell,) = plan(load_cells(), selectors=["verl0.8.0-vllm0.20.2-*tf5.3.0*"]).cells
    assert cell.deviation is not None
    assert cell.deviation.reason
    assert "image" in (shipped.find(cell.name) or shipped.planned[0]).groups


def test_a_cell_of_the_file_may_have_a_variant_and_more_packages(cells_file: Path) -> None:
    entry = 'vllm = "0.24.0"\nvariants = { vllm = "cpu" }\nwith = ["kernels==0.15.0"]'
    (planned,) = load_cells([written(cells_file, entry)])
    assert planned.cell.name == "vllmcpu0.24.0-with.kernels.eq.0.15.0"
    assert planned.data["variants"] == {"vllm": "cpu"}
    assert planned.data["added"] == ["kernels==0.15.0"]


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ('vllm = "0.24.0"\nvariants = { vllm = "tpu" }', "cell[0].variants.vllm: vllm has no variant `tpu`"),
        ('vllm = "0.24.0"\nvariants = { torch = "cpu" }', "cell[0].variants.torch: unknown field"),
        ('vllm = "0.24.0"\nwith = ["torch==2.11.0"]', "cell[0].with: what is added is no axis"),
    ],
)
def test_variants_and_packages_that_cannot_be_are_refused(cells_file: Path, entry: str, says: str) -> None:
    with pytest.raises(DataError) as caught:
        load_cells([written(cells_file, entry)])
    assert says in str(caught.value)
