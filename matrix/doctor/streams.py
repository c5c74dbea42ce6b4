"""Which process wrote a line: the prefixes of Ray, vLLM, torchrun, SLURM and containers, turned into a name."""

from __future__ import annotations

import re
from dataclasses import dataclass

ANSI = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_]|.\x08")
_PREFIX = re.compile(
    r"""
    (?P<ray>\((?:(?P<actor>[\w.<>:\-+/=, \[\]]*?)[ ,]*)?(?:\brank=\d+\s)?pid=(?P<pid>\d+)
        (?:,\s*ip=(?P<ip>[\w.:-]+))?\)\s?)
    | (?P<raylet>\((?:raylet|autoscaler|gcs_server|dashboard)(?:,\s*ip=(?P<rip>[\w.:-]+))?[^)]{0,40}\)\s?)
    | (?P<rank>\[(?:rank|default)(?P<nr>\d+)\]:\s?)
    | (?P<cri>\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d)\s(?:stdout|stderr)\s[FP]\s)
    | (?P<syslog>[A-Z][a-z]{2}\s[ \d]\d\s[\d:]{8}\s\S+\s[\w./@-]+(?:\[\d+\])?:\s)
    | (?P<compose>(?P<service>[a-z][\w.-]{0,60})\s{0,40}\|\s(?=\S|\s))
    | (?P<task>(?P<tasknr>\d{1,4}):\s(?=\S|\s))
    """,
    re.VERBOSE,
)
_LOGGED = re.compile(
    r"(?:(?:ERROR|WARNING|INFO|CRITICAL|DEBUG)\s\d\d-\d\d\s[\d:.]+(?:\s\[[^\]]{1,120}\]|\s[\w./-]+:\d+\])?\s?)"
    r"|(?:\[(?P<at>\d{4}-\d\d-\d\d[ T][\d:,.]+)\]?\[(?P<name>[\w.]+)\]\[(?P<level>[A-Z]+)\] - )"
)
_REPEATED = re.compile(r"\s*\[repeated (\d+)x across cluster\].*$")
_MAX_PREFIXES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line as its process wrote it: `process` names the process ("" where nothing does), `text` is the rest.

    `logged` is the level of a logger's prefix that was taken off ("" without one), `repeats` how often Ray says that
    it came again from others.
    """

    number: int
    process: str
    text: str
    logged: str = ""
    repeats: int = 0


def clean(raw: bytes) -> str:
    """Return a raw line as text: colours and what was struck out are gone, bytes that are no text are marked."""
    if b"\x1b" in raw or b"\x08" in raw:
        raw = ANSI.sub(b"", raw)
    return raw.decode("utf-8", "replace").rstrip()


def split(number: int, text: str) -> Line:
    """Return the line with its process told apart from its text; text alone where nothing says who wrote it."""
    parts: list[str] = []
    logged = ""
    repeats = 0
    # What is indented, or begins with a sign of its own, has no prefix.
    if text and (text[0] in "([" or text[0].isalnum()):
        for _ in range(_MAX_PREFIXES):
            found = _PREFIX.match(text)
            if found is not None:
                name = _named(found)
                if name:
                    parts.append(name)
                text = text[found.end() :]
                continue
            found = _LOGGED.match(text)
            if found is None:
                break
            logged = found["level"] or found[0].split(" ", 1)[0]
            text = text[found.end() :]
        if "across cluster]" in text:
            again = _REPEATED.search(text)
            if again is not None:
                repeats = int(again[1])
                text = text[: again.start()]
    return Line(number=number, process="/".join(parts), text=text, logged=logged, repeats=repeats)


def _named(found: re.Match[str]) -> str:
    """Return a name for the process that a prefix is of; "" for prefixes that tell no processes apart."""
    if found["ray"] is not None:
        actor = (found["actor"] or "").strip(", ")
        return " ".join(part for part in (actor, f"pid={found['pid']}", found["ip"] or "") if part)
    if found["raylet"] is not None:
        return f"raylet {found['rip'] or ''}".strip()
    if found["rank"] is not None:
        return f"rank {found['nr']}"
    if found["compose"] is not None:
        return found["service"]
    if found["task"] is not None:
        return f"task {found['tasknr']}"
    return ""
