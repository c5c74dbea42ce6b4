"""The warden: stands between the tool and a launch, and ends the launch for certain when the tool is gone, however.

`python -m bench.warden SPEC.json`, with a pipe as its standard input that only the tool holds open. A tool that is
killed lets go of the pipe, and the warden then asks the launch to end, kills what is left of it, and removes its files.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matrix.probing import processes

GRACE_S = 25.0
"""So long a launch that is asked to end may take to end what it started."""
_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What a warden watches: command, environment, folder, where it writes, by which tag its processes are found.

    `scratch` is a folder to be removed where nobody is left to do it.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    work: Path
    log: Path
    token: str
    scratch: Path
    grace_s: float = GRACE_S

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data; `from_json` gives the equal watch back."""
        return {"argv": list(self.argv), "env": dict(self.env), "work": str(self.work), "log": str(self.log),
                "token": self.token, "scratch": str(self.scratch), "grace_s": self.grace_s}  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Watch:
        """Return what `to_json` wrote; raises KeyError, TypeError for anything else."""
        argv, env = data["argv"], data["env"]
        if not isinstance(argv, list) or not isinstance(env, dict):
            raise TypeError("a watch has a command and an environment")
        return cls(
            argv=argv,
            env=env,
            work=Path(str(data["work"])),
            log=Path(str(data["log"])),
            token=str(data["token"]),
            scratch=Path(str(data["scratch"])),
            grace_s=float(str(data["grace_s"])),
        )


def keep(watch: Watch, lifeline: int = 0) -> int:
    """Return the launch's exit code as a shell tells it, once it and everything below it is gone.

    Where `lifeline` (a descriptor) reaches its end first, the launch is asked to end and then ended.
    """
    with watch.log.open("ab") as log:
        child = subprocess.Popen(
            list(watch.argv),
            cwd=watch.work,
            env=dict(watch.env),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    alone = False
    while child.poll() is None and not alone:
        alone = _let_go(lifeline)
    if alone and child.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(watch.grace_s)
    processes.end(watch.token)
    try:
        code = child.wait(watch.grace_s)
    except subprocess.TimeoutExpired:
        # Even SIGKILL does not end what waits in a driver; the tool says what is left.
        code = -signal.SIGKILL
    if alone and not _tool_lives():
        shutil.rmtree(watch.scratch, ignore_errors=True)
    return code if code >= 0 else 128 - code


def _tool_lives() -> bool:
    """Return whether the process that started this one is still there; it closes the pipe at a limit, too."""
    return os.getppid() == _PARENT


_PARENT = os.getppid()


def _let_go(lifeline: int) -> bool:
    """Return whether the other end of the pipe is closed, after waiting a moment for it."""
    ready, _, _ = select.select([lifeline], [], [], _POLL_S)
    if not ready:
        return False
    return not os.read(lifeline, 1)


def _adopt_orphans() -> None:
    """Make this process the parent of every orphan below it, where the kernel lets it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def main(argv: Sequence[str] | None = None) -> int:
    """Keep the launch of the file that is named; its exit code is the launch's."""
    (path,) = sys.argv[1:] if argv is None else argv
    # The tool's group may be interrupted from a terminal: the tool decides what that means for the launch.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _adopt_orphans()
    return keep(Watch.from_json(json.loads(Path(path).read_text(encoding="utf-8"))))


if __name__ == "__main__":
    sys.exit(main())
