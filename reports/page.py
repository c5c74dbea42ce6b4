"""The HTML page: self-contained, made from the JSON report; everything that packages or logs say is escaped.

The data lie in the page once, packed; plain scripts draw them. A policy in the page lets no other script or style run
and nothing be loaded, so text that slipped through could still do nothing.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matrix.job import RunResult
from reports.document import document
from reports.legend import OUTCOMES, STATUSES, TIERS
from reports.packing import pack, printable, script_json
from reports.view import overview, when, whole_cell

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).with_name("templates")
STYLES = ("base.css", "page.css", "matrix.css", "benches.css")
SCRIPTS = (
    "unpack.js", "dom.js", "state.js", "parts.js", "matrix.js", "cells.js", "cell.js",
    "failures.js", "install.js", "machines.js", "claims.js", "nightly.js", "main.js",
)  # fmt: skip
"""The scripts in the order in which they need each other; together they are one function of the page."""


def page(result: RunResult, *, doc: dict[str, Any] | None = None) -> str:
    """Return the page; `doc` is the result's `document` where it was made already.

    Raises:
        CorruptFileError: a stored detail cannot be read.
    """
    data: dict[str, Any] = document(result) if doc is None else doc
    shown = overview(data)
    style, script = styles(), scripts()
    return (
        environment()
        .get_template("page.html.j2")
        .render(
            doc=data,
            shown=shown,
            groups=sorted({group for cell in data["cells"] for group in cell["groups"]}),
            statuses=STATUSES,
            outcomes=OUTCOMES,
            tiers=TIERS,
            when=when(data["at"]),
            style=_trusted(style),
            script=_trusted(script),
            policy=policy(style, script),
            markups={name: _trusted(text) for name, text in _markups(data["sections"]).items()},
            data=_trusted(script_json(pack(shown, [whole_cell(cell) for cell in data["cells"]]))),
        )
    )


def _markups(sections: Mapping[str, Any]) -> dict[str, str]:
    """Return the sections that come as markup of their own, escaped where it is made, by name."""
    if "benches" not in sections:
        return {}
    from reports.benches_page import markup

    return {"benches": markup(sections["benches"])}


def styles() -> str:
    """Return the style sheet of the page."""
    return "".join(_template(name) for name in STYLES)


def scripts() -> str:
    """Return the script of the page: its files as one function, so that they leave nothing behind in the window."""
    body = "".join(_template(name) for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{body}}})();\n'


def policy(style: str, script: str) -> str:
    """Return the content security policy under which only this style and this script count, and nothing is loaded."""
    return (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _template(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def _trusted(text: str) -> object:
    """Return text that goes into the page as it is: our own files, and JSON made safe for a script element."""
    from markupsafe import Markup

    return Markup(text)  # noqa: S704 - no text of a package or a log is in it unescaped


def environment() -> Environment:
    """Return the template environment: escapes everything, refuses names that are not there."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        finalize=shown,
    )


def shown(value: object) -> object:
    """Return text without control characters, which a log may hold and HTML does not allow; anything else as it is."""
    return type(value)(printable(value)) if isinstance(value, str) else value
