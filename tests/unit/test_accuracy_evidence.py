"""The evidence store: which observations are copied, that a repetition adds nothing, and nothing to copy."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from matrix.store import Store
from matrix.tier import Outcome, Tier
from tests.accuracy.evidence import main, portable
from tests.unit.run_fakes import AT, observation

SHIPPED = Path(__file__).parents[2] / "reports" / "evidence" / "cpu"
LATER = AT + timedelta(hours=1)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a home with two cells that were probed and one that was not."""
    Store(tmp_path / "store").add(
        observation("a", Tier.RESOLVE),
        observation("a", Tier.SURFACE, detail={"entry_points": {"ppo": "ok"}, "findings": ["x" * 9000]}),
        observation("a", Tier.IMPORT, Outcome.BROKEN, probe="compat/x.py::one", reads={"lock": "old"}),
        observation("a", Tier.IMPORT, probe="compat/x.py::one", reads={"lock": "new"}, at=LATER),
        observation("a", Tier.BEHAVE, Outcome.UNTESTED, probe="compat/x.py::two"),
        observation("a", Tier.GPU, probe="compat/x.py::three"),
        observation("b", Tier.SURFACE),
        observation("b", Tier.BEHAVE, Outcome.UNTESTED, probe="compat/x.py::two"),
        observation("c", Tier.BEHAVE, Outcome.DEGRADED, probe="compat/x.py::two", reads={"machine": "x86"}),
        observation("c", Tier.BEHAVE, Outcome.OK, probe="compat/x.py::two", reads={"machine": "arm"}),
    )
    return tmp_path


def _held(folder: Path) -> list[tuple[str, str, str]]:
    return [(item.question.cell, item.question.tier.value, item.outcome.value) for item in Store(folder)]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (
            [],
            [
                ("a", "resolve", "ok"),
                ("a", "surface", "ok"),
                ("a", "import", "ok"),
                ("c", "behave", "degraded"),
                ("c", "behave", "ok"),
            ],
        ),
        (["--cells", "a"], [("a", "resolve", "ok"), ("a", "surface", "ok"), ("a", "import", "ok")]),
    ],
)
def test_the_latest_of_what_was_tried_is_copied_once(
    home: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    cells: list[str],
    expected: list[tuple[str, str, str]],
) -> None:
    to = tmp_path / "evidence"
    words = [str(to), "--home", str(home), *cells]
    assert main(words) == 0
    assert _held(to) == expected
    assert "import 1" in capsys.readouterr().out
    assert main(words) == 0
    assert _held(to) == expected
    assert "nothing" in capsys.readouterr().out


def test_large_details_come_along(home: Path, tmp_path: Path) -> None:
    to = tmp_path / "evidence"
    main([str(to), "--home", str(home)])
    (surface,) = Store(to).find(tier=Tier.SURFACE)
    assert surface.detail["findings"] == ["x" * 9000]


def test_nothing_to_copy_is_told(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "evidence"), "--home", str(home), "--cells", "nothing*"]) == 1
    assert "installed and probed" in capsys.readouterr().out
    assert not (tmp_path / "evidence").exists()


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (
            'File "/home/me/.cache/cells/verl0.9.1-ov.numpy.eq.2/lib/python3.12/site-packages/torch/x.py", line 3',
            'File "lib/python3.12/site-packages/torch/x.py", line 3',
        ),
        ("from 'vllm' (/a/b/site-packages/vllm/__init__.py)", "from 'vllm' (site-packages/vllm/__init__.py)"),
        ("/src/tests/compat/subjects/x.py and /usr/bin/python", "tests/compat/subjects/x.py and /usr/bin/python"),
        ({"a": ["/a/lib/python3.11/os.py", 1, None]}, {"a": ["lib/python3.11/os.py", 1, None]}),
        ("site-packages/verl/x.py", "site-packages/verl/x.py"),
        ("/home/me/.pyenv/versions/3.12.1/lib/libpython3.12.so.1.0(+0x1e3a7e)", "lib/libpython3.12.so.1.0(+0x1e3a7e)"),
        ("/home/me/cells/ray2.41.0/bin/python(_start+0x21)", "bin/python(_start+0x21)"),
    ],
)
def test_where_an_environment_lay_is_cut_away(said: object, kept: object) -> None:
    assert portable(said) == kept


def test_the_shipped_evidence_is_whole_and_names_no_place_of_a_machine() -> None:
    store = Store(SHIPPED)
    assert not store.damage
    assert len(store) > 100
    for item in store:
        detail = dict(item.detail)
        assert item.outcome is not Outcome.UNTESTED or not item.question.tier.is_deep
        assert (item.reason, detail) == (portable(item.reason), portable(detail)), item.question
