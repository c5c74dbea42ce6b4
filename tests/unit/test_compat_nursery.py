"""The nursery of the import probes: each module in a fork of its own, whatever it does to its process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NURSERY = Path(__file__).parents[1] / "compat" / "kit" / "nursery.py"
MODULES = {
    "fine": "import os\nos.environ['LEFT'] = '1'",
    "other": "import os\nassert 'LEFT' not in os.environ and 'fine' not in __import__('sys').modules",
    "raises": "from json import no_such_name",
    "lacks": "import no_such_package.inner",
    "exits": "raise SystemExit(3)",
    "dies": "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)",
    "shadow": "import cell",
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    folder = tmp_path_factory.mktemp("nursery")
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    out = folder / "out"
    command = [sys.executable, str(NURSERY), str(out), "2", *MODULES]
    subprocess.run(command, cwd=folder, timeout=60, check=True, env={"PATH": os.environ["PATH"]})
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    return {line["module"]: line for line in lines}


@pytest.mark.parametrize(
    ("module", "ok", "exception", "message"),
    [
        ("fine", True, None, None),
        ("other", True, None, None),
        ("raises", False, "ImportError", "cannot import name 'no_such_name'"),
        ("lacks", False, "ModuleNotFoundError", "No module named 'no_such_package'"),
        ("exits", False, "SystemExit", "3"),
        ("dies", False, "", "took its process down (SIGSEGV)"),
        ("shadow", False, "ModuleNotFoundError", "No module named 'cell'"),
    ],
)
def test_how_the_import_of_a_module_ended(
    ended: dict[str, dict[str, object]], module: str, ok: bool, exception: str | None, message: str | None
) -> None:
    seen = ended[module]
    assert (seen["ok"], seen.get("exception")) == (ok, exception)
    assert (message or "") in str(seen.get("message", ""))


def test_what_is_lacking_is_named(ended: dict[str, dict[str, object]]) -> None:
    assert ended["lacks"]["lacks"] == "no_such_package"
    assert ended["raises"]["lacks"] == ""
