"""Check the shell of workflow files with shellcheck: `workflow_shell.py FILE…`; 1 where it finds anything.

GitHub runs every step with `bash -e`, and puts nothing into it but what the environment of the step says.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml


def steps(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the place and the script of each `run` of a workflow file."""
    whole: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    for name, job in whole["jobs"].items():
        for number, step in enumerate(job.get("steps", ())):
            if "run" in step:
                yield f"{path.name}: {name}.steps[{number}]", str(step["run"])


def main(words: list[str]) -> int:
    """Print what shellcheck says of every script; 0 where that is nothing."""
    bad = 0
    for path in map(Path, words):
        for place, script in steps(path):
            command = ["shellcheck", "--shell", "bash", "--severity", "style", "-"]
            done = subprocess.run(command, input=script, text=True, capture_output=True, timeout=60, check=False)
            if done.returncode:
                bad += 1
                sys.stdout.write(f"{place}\n{done.stdout}{done.stderr}")
    sys.stdout.write(f"{bad} of the scripts have findings\n" if bad else "no findings\n")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
