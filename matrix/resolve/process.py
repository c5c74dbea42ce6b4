"""Run a program to its end: time limit, output in files, its own process group, nothing inherited by accident."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_PASSED_ON = (
    "ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "all_proxy", "https_proxy", "http_proxy", "no_proxy",
    "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "NETRC", "PATH", "SSL_CERT_DIR", "SSL_CERT_FILE", "SSL_CLIENT_CERT",
    "TMPDIR", "UV_HTTP_TIMEOUT", "UV_INSECURE_HOST", "UV_KEYRING_PROVIDER", "UV_NATIVE_TLS", "UV_SYSTEM_CERTS",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a program ended; `code` is None when it was killed from here, the texts then hold what it had written."""

    code: int | None
    stdout: str
    stderr: str


def surroundings() -> dict[str, str]:
    """Return the variables that a tool needs to reach the network and its files, and no others."""
    return {name: os.environ[name] for name in _PASSED_ON if name in os.environ}


class Children:
    """Programs that run now, each in a process group of its own; `stop` kills them all."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._killed: dict[int, bool] = {}

    def run(
        self,
        command: Sequence[str],
        *,
        folder: Path,
        env: Mapping[str, str],
        timeout_s: float,
        stdin: str = "",
        pass_fds: Sequence[int] = (),
    ) -> Ended:
        """Return how `command` ended, its output having gone through files in `folder`; it inherits `pass_fds`.

        When `timeout_s` seconds pass, on `stop`, and when this call is interrupted, its whole group is killed. Raises
        OSError when it cannot start.
        """
        (folder / "stdin").write_text(stdin, encoding="utf-8")
        with (
            (folder / "stdin").open("rb") as given,
            (folder / "stdout").open("wb") as out,
            (folder / "stderr").open("wb") as err,
        ):
            child = subprocess.Popen(
                list(command),
                stdin=given,
                stdout=out,
                stderr=err,
                env=dict(env),
                cwd=folder,
                start_new_session=True,
                pass_fds=pass_fds,
            )
        with self._guard:
            self._killed[child.pid] = False
        # A timer and a blocking wait: Popen.wait(timeout) polls, which costs up to 50 ms a run.
        timer = threading.Timer(timeout_s, self._kill, (child.pid,))
        timer.daemon = True
        timer.start()
        try:
            child.wait()
        finally:
            timer.cancel()
            killed = self._forget(child)
        code = None if killed else child.returncode
        return Ended(code=code, stdout=_text(folder / "stdout"), stderr=_text(folder / "stderr"))

    def stop(self) -> None:
        """Kill every program that runs now."""
        with self._guard:
            leaders = list(self._killed)
        for leader in leaders:
            self._kill(leader)

    def _kill(self, leader: int) -> None:
        with self._guard:
            if leader in self._killed:
                self._killed[leader] = True
                _kill_group(leader)

    def _forget(self, child: subprocess.Popen[bytes]) -> bool:
        """Return whether the child was killed from here; one that still runs (this call was interrupted) is killed."""
        if child.returncode is None:
            self._kill(child.pid)
            child.wait()
        with self._guard:
            return self._killed.pop(child.pid)


def _kill_group(leader: int) -> None:
    """Kill a process and everything it started in its group; one that is gone already is no error."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
