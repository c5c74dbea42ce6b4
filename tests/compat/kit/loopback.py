"""Whether this machine can talk to itself: Ray, and processes that train together, do so over the loopback device."""

from __future__ import annotations

import functools
import socket

PATIENCE_S = 5.0


@functools.cache
def no_loopback(address: str = "127.0.0.1") -> str:
    """Return why nothing on this machine can be reached from it, "" where it can; asked once a process.

    By doing it: in a network namespace whose `lo` is down an address can be bound all the same, and is reached by
    nobody. What waits for it then runs into its own limit, minutes later.
    """
    try:
        with socket.socket() as server:
            server.bind((address, 0))
            server.listen(1)
            with socket.create_connection(server.getsockname(), timeout=PATIENCE_S):
                return ""
    except OSError as error:
        return f"the loopback device is not up: {address} cannot be reached ({error.strerror or error})"
