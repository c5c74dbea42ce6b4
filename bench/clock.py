"""The clock of the suites: it stands still but for the seconds that launches took, which are what is recorded.

pytest-benchmark times a call with the timer it is given. A launch runs for minutes, of which most is its start; with
this timer the sample that is recorded is the launch's own figure, the middle of its steps after warm-up.
"""

from __future__ import annotations


class LaunchClock:
    """A timer that is moved by hand, in seconds."""

    def __init__(self) -> None:
        """Begin at zero."""
        self._now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move on; raises ValueError for a time that is not above zero."""
        if not seconds > 0:
            raise ValueError(f"a launch took {seconds} s")
        self._now += seconds


CLOCK = LaunchClock()
"""The one of the suites: the marker of a test and the test must mean the same."""
