"""The agreement of what was foretold with what came: pairs, kinds, the two figures, and nothing to compare."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.store import Store
from matrix.tier import Outcome, Tier
from tests.accuracy.agreement import PROBE, main
from tests.unit.run_fakes import observation


@pytest.mark.parametrize(
    ("foretold", "real", "counts"),
    [
        ("breaks", Outcome.BROKEN, "| all | 1 | 0 | 0 | 0 | 0 |"),
        ("breaks", Outcome.OK, "| all | 0 | 1 | 0 | 0 | 0 |"),
        ("ok", Outcome.DEGRADED, "| all | 0 | 0 | 1 | 0 | 0 |"),
        ("ok", Outcome.OK, "| all | 0 | 0 | 0 | 1 | 0 |"),
        ("absent", Outcome.BROKEN, "| all | 0 | 0 | 0 | 0 | 1 |"),
        ("ok", Outcome.UNTESTED, "| all | 0 | 0 | 0 | 0 | 1 |"),
    ],
)
def test_what_a_pair_counts_as(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], foretold: str, real: Outcome, counts: str
) -> None:
    Store(tmp_path / "store").add(
        observation("a", Tier.SURFACE, detail={"entry_points": {"ppo": foretold}}),
        observation("a", Tier.IMPORT, real, probe=f"{PROBE}ppo]"),
        observation("b", Tier.IMPORT, real, probe=f"{PROBE}ppo]"),
    )
    assert main(["--home", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert counts in said
    assert "fewer than 60" in said
    assert ("miss: a ppo" in said) == (counts == "| all | 0 | 0 | 1 | 0 | 0 |")


@pytest.mark.parametrize(
    ("text", "aside"),
    [
        ("ModuleNotFoundError: No module named 'flash_attn'", True),
        ("ModuleNotFoundError: No module named 'vllm.lora.models'", False),
        ("ValueError: vllm version None not supported and SGLang also not Found", True),
        ("ValueError: vllm version 0.11.0 not supported and SGLang also not Found", False),
        ("ImportError: pyarrow requires NumPy 2.0 or newer, found 1.26.4", True),
        ("ImportError: libcuda.so.1: cannot open shared object file", True),
        ("ImportError: cannot import name 'X' from 'vllm'", False),
        ("ImportError: cannot import name 'X' from 'vllm.lora' (vllm/lora.py)", False),
        ("ImportError: cannot import name 'MISSING' from 'omegaconf' (omegaconf/__init__.py)", True),
    ],
)
def test_what_says_nothing_of_versions_is_aside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, aside: bool
) -> None:
    Store(tmp_path / "store").add(
        observation("a", Tier.SURFACE, detail={"entry_points": {"ppo": "breaks"}}),
        observation("a", Tier.IMPORT, Outcome.BROKEN, f"verl.x: {text}", probe=f"{PROBE}ppo]"),
    )
    main(["--home", str(tmp_path)])
    assert ("| all | 0 | 0 | 0 | 0 | 1 |" in capsys.readouterr().out) is aside


def test_that_nothing_was_installed_yet_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--home", str(tmp_path)]) == 0
    assert "no cell was installed" in capsys.readouterr().out


def test_an_evidence_store_is_read_in_the_place_of_a_home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Store(tmp_path / "kept").add(
        observation("a", Tier.SURFACE, detail={"entry_points": {"ppo": "ok"}}),
        observation("a", Tier.IMPORT, probe=f"{PROBE}ppo]"),
    )
    assert main(["--home", str(tmp_path / "none"), "--store", str(tmp_path / "kept")]) == 0
    assert "| all | 0 | 0 | 0 | 1 | 0 |" in capsys.readouterr().out
