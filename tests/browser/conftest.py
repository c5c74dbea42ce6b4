"""A real Chromium for the tests of the page; where there is none they are skipped, and say what is missing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.made import PAGES

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")


def chromium_path() -> str | None:
    """Return where a Chromium is: the one that CHROMIUM names, else the first on the path."""
    return os.environ.get("CHROMIUM") or next((path for name in NAMES if (path := shutil.which(name))), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Yield a headless Chromium; skips where there is none, or nothing to drive it with."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed (its package is enough, no browser is downloaded)"
    )
    path = chromium_path()
    if path is None:
        pytest.skip("there is no Chromium on this machine: `apt-get install chromium`, or name one with CHROMIUM")
    # A browser's own sandbox needs user namespaces, which root in a container does not have.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=path, args=arguments)
        yield started
        started.close()


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the address of each page, by name; they are files, as people open them."""
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for name, make in PAGES.items():
        path = Path(folder) / f"{name}.html"
        path.write_text(make(), encoding="utf-8")
        found[name] = path.as_uri()
    return found
