"""A small stack on a real server of 127.0.0.1, and the command line run over it, for the tests of the command line.

What the releases come to, by verl 0.9.1 (python 3.12, x86-64):

    vllm 0.24.0  works
    vllm 0.25.0  works
    vllm 0.25.1  recorded in the axes, not on the index
    vllm 0.26.0  degraded: what the feature qat imports is gone
    vllm 0.27.0  broken: what verl.trainer.main_ppo imports is gone
    vllm 0.28.0  conflict: it needs torch 2.12.0, verl needs less
    vllm 0.29.0  unavailable: it has a wheel for Windows only
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

import matrix.axes
from matrix.axes import Axes, load_axes
from matrix.cli.main import main
from reports.front import TerminalFront
from tests.unit.http_server import Site, sdist, serving, wheel

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).with_name("golden") / "cli"

MAIN = "from vllm.engine import LLM\n\n\ndef main(config=None):\n    return LLM(model='m', seed=1)\n"
PATCH = "from vllm.quant import swizzle\n"
GUARDED = "try:\n    from vllm.extra import Extra\nexcept ImportError:\n    Extra = None\n"
LLM = "class LLM:\n    def __init__(self, model, seed=0):\n        self.model = model\n"
WORKS = {"engine.py": LLM, "quant.py": "def swizzle(scale):\n    return scale\n"}
DEGRADED = {"engine.py": LLM, "quant.py": "", "quants/fp4.py": WORKS["quant.py"], "quants/__init__.py": ""}
BROKEN = {"engine.py": "", "llm.py": LLM, "quant.py": WORKS["quant.py"]}
VLLM: Mapping[str, tuple[Mapping[str, str], str, str]] = {
    "0.24.0": (WORKS, "torch==2.11.0", "cp38-abi3-manylinux_2_31_x86_64"),
    "0.25.0": (WORKS, "torch==2.11.0", "cp38-abi3-manylinux_2_31_x86_64"),
    "0.26.0": (DEGRADED, "torch==2.11.0", "cp38-abi3-manylinux_2_31_x86_64"),
    "0.27.0": (BROKEN, "torch==2.11.0", "cp38-abi3-manylinux_2_31_x86_64"),
    "0.28.0": (WORKS, "torch==2.12.0", "cp38-abi3-manylinux_2_31_x86_64"),
    "0.29.0": (WORKS, "torch==2.11.0", "cp38-abi3-win_amd64"),
}
OTHERS = {"torch": ("2.11.0", "2.12.0"), "transformers": ("5.9.0",), "ray": ("2.60.0",), "tensordict": ("0.10.0",)}
RELEASES = {
    "verl": ("0.8.0", "0.9.1"),
    "vllm": ("0.24.0", "0.25.0", "0.25.1", "0.26.0", "0.27.0", "0.28.0", "0.29.0"),
    **OTHERS,
    "flash-attn": ("2.8.3",),
}
SHORT = {"transformers": "tf", "flash-attn": "fa", "tensordict": "td"}
CELLS = """\
schema = 1

[[cell]]
verl = "0.9.1"
vllm = ["0.24.0", "0.26.0", "0.27.0", "0.28.0"]
groups = ["ci", "neighbour"]
reason = "What a user of 0.9.1 would ask about."
source = "a test"
date = 2026-01-01

[[cell]]
verl = "0.8.0"
vllm = "0.24.0"
groups = ["image"]
no_deps = true
deviation = "as an image is built"
reason = "An image."
source = "a test"
date = 2026-01-01
"""


def axes_text(releases: Mapping[str, Sequence[str]] = RELEASES) -> str:
    """Return an `axes.toml` that records these releases."""
    lines = ["schema = 1"]
    for name, versions in releases.items():
        module = name.replace("-", "_")
        lines += ["", f"[axis.{name}]", f'index = "{name}"', f'module = "{module}"']
        lines += [f'short = "{SHORT.get(name, name)}"', 'within = ">=0"', 'why = "A test."', "releases = ["]
        lines += [f'  {{ version = "{version}", uploaded = 2026-01-01T00:00:00Z }},' for version in versions]
        lines.append("]")
    return "\n".join(lines) + "\n"


def record_axes(monkeypatch: pytest.MonkeyPatch, path: Path, releases: Mapping[str, Sequence[str]] = RELEASES) -> None:
    """Put a small axes file at `path` into the place of the one that is shipped, which changes with every release."""
    path.write_text(axes_text(releases), encoding="utf-8")

    def load(at: Path = path) -> Axes:
        return load_axes(at)

    monkeypatch.setattr(matrix.axes, "load_axes", load)
    monkeypatch.setattr(matrix.axes, "AXES", path)


def stock(site: Site) -> None:
    """Put the stack on the site; none of its files has a `.metadata` beside it."""
    packages = ("verl", "verl/trainer", "verl/utils", "verl/utils/qat")
    sources = {f"{package}/__init__.py": b"" for package in packages}
    sources |= {"verl/trainer/main_ppo.py": (MAIN + GUARDED).encode(), "verl/utils/qat/vllm_patch.py": PATCH.encode()}
    for version in RELEASES["verl"]:
        requires = ["torch<2.12", "transformers", "ray", "tensordict"]
        site.add("verl", f"verl-{version}-py3-none-any.whl", wheel("verl", version, sources, requires=requires))
    for version, (modules, torch, tag) in VLLM.items():
        members = {f"vllm/{path}": text.encode() for path, text in modules.items()} | {"vllm/__init__.py": b""}
        site.add("vllm", f"vllm-{version}-{tag}.whl", wheel("vllm", version, members, requires=[torch]))
    for name, versions in OTHERS.items():
        for version in versions:
            body = wheel(name, version, {f"{name}/__init__.py": b""})
            site.add(name, f"{name}-{version}-py3-none-any.whl", body)
    info = b"Metadata-Version: 2.1\nName: flash-attn\nVersion: 2.8.3\n"
    site.add("flash-attn", "flash_attn-2.8.3.tar.gz", sdist("flash_attn", "2.8.3", {"PKG-INFO": info}))


@contextlib.contextmanager
def stocked() -> Iterator[Site]:
    """Serve the stack while the block runs."""
    with serving() as site:
        stock(site)
        yield site


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a command line came to: its exit code, standard output and standard error."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """Return all of it as one text for a golden file."""
        err = "".join(f"! {line}\n" for line in self.err.splitlines())
        return f"exit {self.code}\n{err}{self.out}"


def said(*argv: str) -> Said:
    """Return what the command line says, run in this process with the real renderers."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(argv, TerminalFront)
    return Said(code=code, out=out.getvalue(), err=err.getvalue())


def process(*argv: str) -> list[str]:
    """Return the command that runs this command line in a process of its own."""
    return [sys.executable, "-m", "matrix", *argv]


_VARIES = (
    (r"http://127\.0\.0\.1:\d+", "http://INDEX"),
    (r"\b(uv|python|verl-matrix) \d+\.\d+\.\d+[\w.+]*\b", r"\1 X"),
    (r'("(?:uv|python|verl-matrix)": ")\d+\.\d+\.\d+[\w.+]*"', r'\1X"'),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", "DATE"),
    (r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00", "DATE"),
    (r'("\w+: .*, )\d{4}-\d\d-\d\d"', r'\1DAY"'),
    (r"(--exclude-newer )20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", r"\1DATE"),
    (r'("seconds": )\d+(\.\d+)?', r"\1S"),
    (r'("bytes_read": )\d+', r"\1N"),
    (r'("wheel_bytes": )\d+', r"\1N"),
    (r"\b\d+\.\d s\b", "S s"),
    (r"\b[0-9a-f]{64}\b", "DIGEST"),
    (r"rules \d+ facts \d+", "rules N facts N"),
    (r"is not TOML: .*", "is not TOML: WHY"),
    (r"--override: .*", "--override: WHY"),
)


def steady(text: str, *folders: tuple[Path, str]) -> str:
    """Return the text with what differs from run to run (time, versions of tools, digests, folders) put by a word."""
    for folder, word in (*folders, (ROOT, "ROOT")):
        text = text.replace(str(folder), word)
    for pattern, word in _VARIES:
        text = re.sub(pattern, word, text)
    return text


def check_golden(name: str, text: str, *, loose: bool = False) -> None:
    """Compare with the golden file, where `loose` without regard to white space; `GOLDEN=write` writes it anew."""
    path = GOLDEN / name
    if os.environ.get("GOLDEN") == "write":
        today = f"{datetime.now(UTC):%Y-%m-%d}"
        assert today not in text, f"{name} would hold only today: {[it for it in text.splitlines() if today in it][:3]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    golden = path.read_text(encoding="utf-8")
    assert (text.split() == golden.split()) if loose else (text == golden), f"{name}: rewrite with GOLDEN=write pytest"
