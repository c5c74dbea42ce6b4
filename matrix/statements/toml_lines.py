"""On which line of a TOML file a value stands: `tomllib` does not tell, so the text is searched from its table on."""

from __future__ import annotations

import re
import tomllib


class Lines:
    """The lines of one TOML text; every search begins where the table or key before it was found."""

    def __init__(self, text: str) -> None:
        """Split the text."""
        self._lines = text.splitlines()

    def table(self, name: str, after: int = 0) -> int:
        """Return the line of the header `[name]` or `[[name]]` below line `after`; 1 where there is none."""
        parts = [rf"[\"']?{re.escape(part)}[\"']?" for part in name.split(".")]
        dotted = r"\s*\.\s*".join(parts)
        header = re.compile(rf"^\s*\[\[?\s*{dotted}\s*\]\]?")
        return self._first(header, after) or 1

    def key(self, name: str, after: int) -> int:
        """Return the line below or on `after` on which the key is set, else `after`."""
        return self._first(re.compile(rf"^\s*[\"']?{re.escape(name)}[\"']?\s*="), after - 1) or after

    def value(self, text: str, after: int) -> int:
        """Return the line from `after` on that holds the string, in quotes or as part of one; else `after`."""
        lead = re.escape(text.partition("\\")[0].partition('"')[0][:120])
        found = self._first(re.compile(rf"[\"']{lead}"), after - 1)
        return found or self._first(re.compile(lead), after - 1) or after

    def _first(self, pattern: re.Pattern[str], after: int) -> int | None:
        """Return the number of the first line below line `after` in which the pattern is found outside of comments."""
        for number in range(max(after, 0), len(self._lines)):
            line = self._lines[number]
            if not line.lstrip().startswith("#") and pattern.search(line):
                return number + 1
        return None


def error_line(error: tomllib.TOMLDecodeError, text: str) -> int:
    """Return the line at which the text stops being TOML, the last one where that is its end."""
    match = re.search(r"line (\d+)", str(error))
    return int(match[1]) if match else max(1, len(text.splitlines()))
