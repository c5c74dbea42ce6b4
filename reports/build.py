"""Writing the reports: every file whole or not at all, so that a reader never meets half of one."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from matrix.atomic import replace_file
from matrix.errors import MatrixError, NoSpaceError, UsageError
from matrix.grid import Grid
from matrix.job import RunResult

if TYPE_CHECKING:
    from matrix.nightly.course import Held
    from matrix.nightly.record import Night


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFiles:
    """Where the reports of a run are."""

    html: Path
    markdown: Path
    json: Path
    junit: Path

    @property
    def all(self) -> tuple[Path, ...]:
        """Return all of them, the one for people first."""
        return (self.html, self.markdown, self.json, self.junit)


@dataclass(frozen=True, slots=True, kw_only=True)
class GridFiles:
    """Where the files of a grid are."""

    html: Path
    csv: Path


def build(
    result: RunResult, out_dir: Path, *, report_url: str = "", sections: Mapping[str, object] | None = None
) -> ReportFiles:
    """Write the page, the summary, the JSON and the JUnit report into `out_dir`, which is made if need be.

    `report_url` is where the page will be served, for the links of the summary; `sections` go into the document.

    Raises:
        NoSpaceError: the disk is full; the reports of the last run are still whole.
        UsageError: the folder cannot be written.
        CorruptFileError: a stored detail cannot be read.
    """
    from reports.document import document
    from reports.junit import junit
    from reports.markdown import summary
    from reports.page import page
    from reports.sections import shipped_sections

    files = ReportFiles(
        html=out_dir / "index.html",
        markdown=out_dir / "summary.md",
        json=out_dir / "report.json",
        junit=out_dir / "junit.xml",
    )
    shipped, notes = shipped_sections()
    result = replace(result, notes=(*result.notes, *notes))
    doc = document(result, sections={**shipped, **(sections or {})})
    _write(files.json, _by_line(doc))
    _write(files.html, page(result, doc=doc))
    _write(files.markdown, summary(result, report_url=report_url))
    _write(files.junit, junit(result))
    return files


def build_grid(grid: Grid, out_dir: Path) -> GridFiles:
    """Write the CSV and the heat map of a grid into `out_dir`, named by the two axes; raises as `build` does."""
    from reports.heatmap import heatmap

    stem = f"grid-{grid.x}-{grid.y}"
    files = GridFiles(html=out_dir / f"{stem}.html", csv=out_dir / f"{stem}.csv")
    _write(files.csv, grid.to_csv())
    _write(files.html, heatmap(grid))
    return files


def build_nightly(held: Held, history: Sequence[Night], out_dir: Path, *, report_url: str = "") -> tuple[Path, ...]:
    """Write the reports of a night's run, and what changed as Markdown, HTML, JSON, CTRF, feed and badge.

    `history` are the last nights, this one first; `report_url` is where `out_dir` will be served. Returns the files,
    those for people first; raises as `build` does.
    """
    from reports.badge import badge
    from reports.ctrf import ctrf
    from reports.feed import feed
    from reports.nightly import markdown, section
    from reports.nightly_page import page

    made = section(held, history)
    served = report_url.removesuffix("index.html").rstrip("/") + "/" if report_url else ""
    page_url = f"{served}index.html" if served else ""
    texts = {
        "nightly.md": markdown(held, report_url=page_url),
        "nightly.html": page(made),
        "nightly.json": _json(made),
        "ctrf.json": _json(ctrf(held)),
        "feed.json": _json(feed(history, url=served)),
        "badge.json": _json(badge(held.night, new_failures=held.new_failures)),
    }
    for name, text in texts.items():
        _write(out_dir / name, text)
    return (
        *(out_dir / name for name in texts),
        *build(held.result, out_dir, report_url=page_url, sections={"nightly": made}).all,
    )


def _by_line(doc: Mapping[str, object]) -> str:
    """Return the document as JSON in which each field, and each item of a list of objects, has a line.

    An indent would take Python's slow encoder; so it can still be read and compared line by line.
    """
    parts = []
    for name, value in doc.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            text = "[\n" + ",\n".join(_compact(item) for item in value) + "\n]"
        else:
            text = _compact(value)
        parts.append(f"{_compact(name)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _json(data: object) -> str:
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _write(path: Path, text: str) -> None:
    """Leave `text` at `path`, whole or not at all, readable as the umask says; raises NoSpaceError, UsageError."""
    try:
        # A lone surrogate, as a broken file name in a log leaves it, is no text that a file can hold.
        replace_file(path, text.encode("utf-8", "replace"))
    except OSError as error:
        raise _refused(path, error) from error


def _refused(path: Path, error: OSError) -> MatrixError:
    why = error.strerror or str(error)
    then = "Give another folder with --out. What was observed is kept; `verl-matrix report` writes the report again."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpaceError(f"No room is left for {path}.", why=why, then=f"Free some space. {then}")
    return UsageError(f"{path} cannot be written: {why}.", then=then)
