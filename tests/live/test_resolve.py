"""Known answers of tier `resolve`, on the live index: `python -m pytest tests/live/test_resolve.py`.

Not among the unit tests: it needs the network and says what the index says today. A new release may change what is not
pinned; then the expectation here is looked at, not bent.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from matrix.cell import Axis, Cell, Deviation, OpenAxis, Pin, Platform
from matrix.home import Home
from matrix.index.simple import SimpleIndex
from matrix.observe import Observation
from matrix.resolve import Resolver, sample_agreement
from matrix.tier import Outcome


@pytest.fixture(scope="module")
def resolver() -> Resolver:
    cache = Home.find(None).cache
    return Resolver(index=SimpleIndex.from_environment(cache_dir=cache), cache_dir=cache)


def cell(*pins: str, open_axis: Axis | None = None, glibc: str = "2.35", deviation: Deviation | None = None) -> Cell:
    parts = [pin.partition("==") for pin in pins]
    return Cell(
        pins=tuple(
            Pin(
                axis=Axis(name.partition("[")[0]),
                version=Version(version),
                extras=tuple(name.partition("[")[2].rstrip("]").split(",")) if "[" in name else (),
            )
            for name, _, version in parts
        ),
        open_axes=(OpenAxis(axis=open_axis, specifier=SpecifierSet()),) if open_axis else (),
        platform=Platform(glibc=glibc),
        deviation=deviation,
    )


KNOWN: Mapping[str, tuple[Cell, Outcome, tuple[str, ...], Mapping[str, str]]] = {
    "the vllm extra": (
        cell("verl[vllm]==0.9.1"), Outcome.OK, (), {"vllm": "0.24.0", "torch": "2.11.0", "transformers": "5.9.0"}
    ),
    "bare, its own vllm": (cell("verl==0.9.1", "vllm==0.24.0"), Outcome.OK, (), {"torch": "2.11.0"}),
    "bare, a later vllm": (cell("verl==0.9.1", "vllm==0.31.0"), Outcome.OK, (), {}),
    "bare, too late a vllm": (
        cell("verl==0.9.1", "vllm==0.33.0"), Outcome.CONFLICT,
        ("verl 0.9.1 requires transformers", "vllm 0.33.0 requires transformers"), {},
    ),
    "guide: torch 2.6": (
        cell("torch==2.6.0", "vllm==0.6.3.post1"), Outcome.CONFLICT,
        ("vllm 0.6.3.post1 requires torch==2.4.0", "the cell pins torch 2.6.0"), {},
    ),
    "guide: a vllm that is not there": (
        cell("torch==2.2.2", "vllm==0.5.4.post1", "transformers==4.38.2"), Outcome.UNAVAILABLE,
        ("vllm 0.5.4.post1 does not exist; closest: 0.5.4",), {},
    ),
    "guide: flash-attn": (
        cell("torch==2.6.0", "vllm==0.6.3.post1", "flash-attn==2.6.3"), Outcome.CONFLICT,
        ("vllm 0.6.3.post1 requires torch==2.4.0",), {},
    ),
    "flash-attn is pinned and not built": (
        cell("torch==2.4.0", "vllm==0.6.3.post1", "flash-attn==2.6.3"), Outcome.OK, (), {"flash-attn": "2.6.3"}
    ),
    "an open verl falls back": (
        cell("vllm==0.17.0", open_axis=Axis.VERL), Outcome.BACKTRACKED,
        ("verl fell back to 0.4.1", "opencv-python-headless"), {"verl": "0.4.1"},
    ),
    "wheels for a newer glibc only": (
        cell("vllm==0.20.2", glibc="2.28"), Outcome.UNAVAILABLE, ("manylinux_2_35_x86_64", "glibc 2.28"), {}
    ),
    "a transitive conflict": (
        cell("verl==0.7.0", "vllm==0.17.0"), Outcome.CONFLICT,
        ("verl 0.7.0 requires numpy<2.0.0", "vllm 0.17.0 requires opencv-python-headless>=4.13.0", "numpy>=2"), {},
    ),
    "without dependencies": (
        cell("verl==0.9.1", "vllm==0.33.0", deviation=Deviation(no_deps=True)), Outcome.OK, (),
        {"verl": "0.9.1", "vllm": "0.33.0"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_known(resolver: Resolver, name: str) -> None:
    asked, outcome, words, versions = KNOWN[name]
    found: Observation = resolver.resolve(asked)
    assert found.outcome is outcome, found.reason
    assert [word for word in words if word not in found.reason] == []
    had = found.detail["versions"]
    assert isinstance(had, dict)
    assert {axis: had.get(axis) for axis in versions} == dict(versions)
    if outcome in (Outcome.OK, Outcome.BACKTRACKED):
        assert 'lock-version = "1.0"' in resolver.lock(found)


def test_the_shortcuts_say_what_uv_says(resolver: Resolver) -> None:
    verls = ["0.2", "0.4.1", "0.7.0", "0.8.0", "0.9.1"]
    vllms = ["0.6.3.post1", "0.8.0", "0.8.5", "0.12.0", "0.17.0", "0.24.0", "0.33.0"]
    cells = [cell(f"verl=={verl}", f"vllm=={vllm}") for verl in verls for vllm in vllms]
    agreement = sample_agreement(resolver, cells, len(cells), seed=0)
    assert agreement.asked > 10
    assert agreement.disagreements == ()
