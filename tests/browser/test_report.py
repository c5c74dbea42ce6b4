"""The report in a real Chromium, from file://: it draws, filters, is walked by keyboard, is read by all, is safe.

Run with `nox -s browser`, or `pytest tests/browser` where playwright and a Chromium are.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from matrix.pins.advice import advice
from matrix.pins.policy import Policy
from matrix.records import load_failures
from matrix.tier import Status
from tests.browser.made import BROKEN, NEWER, PROVEN, known_answers
from tests.unit.report_samples import CLASH, MOVED, PAIR

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
FAILURE = "vllm-013-lora-models-path"
VIEWS = (
    *("#/", "#/cells", f"#/cell/{PAIR.name}", f"#/cell/{MOVED.name}", "#/install", "#/failures"),
    *(f"#/failure/{FAILURE}", "#/machines", "#/claims", "#/nightly", "#/benches", "#/cell/no-such"),
)


@contextmanager
def opened(browser: Browser, address: str, **how: Any) -> Iterator[Page]:
    """Yield the page at an address; whatever it complains of in the end is an error."""
    context = browser.new_context(**{"viewport": {"width": 1440, "height": 1000}, **how})
    tab = context.new_page()
    told: list[str] = []
    tab.on("console", lambda message: told.append(message.text) if message.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: told.append(str(error)))
    tab.on(
        "request", lambda request: told.append(request.url) if not request.url.startswith(("file:", "data:")) else None
    )
    try:
        tab.goto(address)
        until(tab, "performance.getEntriesByName('first-view').length > 0")
        yield tab
        assert told == []
    finally:
        context.close()


def until(tab: Page, expression: str, seconds: float = 10.0) -> None:
    """Wait until the expression is true in the page; the page's policy forbids the waiting that playwright has."""
    end = time.monotonic() + seconds
    while not tab.evaluate(expression):
        assert time.monotonic() < end, f"never true: {expression}"
        tab.wait_for_timeout(20)


def go(tab: Page, route: str) -> None:
    """Go to a view by its address, as a link does."""
    tab.evaluate("route => { location.hash = route.slice(1); }", route)
    tab.wait_for_timeout(30)


@pytest.mark.parametrize("route", VIEWS)
def test_every_view_opens_from_a_file_and_complains_of_nothing(
    browser: Browser, pages: dict[str, str], route: str
) -> None:
    with opened(browser, pages["full"] + route) as tab:
        assert tab.locator("#view").inner_text().strip()
        assert tab.locator("h1:visible").count() >= 1 or route in ("#/cells", "#/install")


def test_the_matrix_is_the_first_screen_with_a_square_for_every_pair(browser: Browser, pages: dict[str, str]) -> None:
    with opened(browser, pages["full"]) as tab:
        grid = tab.locator("table.matrix")
        assert grid.is_visible()
        box = grid.bounding_box()
        assert box is not None
        assert box["y"] < 500
        square = tab.locator('td[data-row="0.9.1"][data-column="0.24.0"]')
        # Two cells of one pair, one tried on the GPU of another machine, one in conflict: both are told.
        assert square.get_attribute("aria-label") == (
            "verl 0.9.1, vLLM 0.24.0: best degraded, worst conflict; 2 cells; deepest: gpu, not here"
        )
        assert square.locator("i").all_inner_texts() == ["◐", "≠"]
        square.click()
        assert tab.locator(".pair .entry").count() == 2
        assert "at=0.9.1%2C0.24.0" in tab.url


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("verl==0.9.1", r"^4 of 41 cells, 0 of 120"),
        ("nonsense-word", r"^0 of 41"),
        ("vllm==0.27.1", r"^1 of 41"),
        ("0.2", r"^0 of 41"),
        ("swizzle", r"^\d+ of 41"),
        ("qat", r"^\d+ of 41"),
    ],
)
def test_text_filters_cells_and_stays_in_the_address(
    browser: Browser, pages: dict[str, str], text: str, shown: str
) -> None:
    with opened(browser, pages["full"] + "#/cells") as tab:
        tab.fill("#filter", text)
        until(tab, f"new URLSearchParams(location.hash.split('?')[1]).get('q') === {json.dumps(text)}")
        assert re.search(shown, tab.inner_text("#shown"))
        count = tab.inner_text("#shown")
        tab.reload()
        until(tab, "performance.getEntriesByName('first-view').length > 0")
        assert tab.input_value("#filter") == text
        assert tab.inner_text("#shown") == count
        tab.click("#clear")
        assert tab.inner_text("#shown").startswith("41 of 41")


@pytest.mark.parametrize("status", ["works", "broken", "conflict", "degraded"])
def test_a_verdict_filters_and_its_button_says_so(browser: Browser, pages: dict[str, str], status: str) -> None:
    with opened(browser, pages["full"] + "#/cells") as tab:
        button = tab.locator(f'.tally[data-status="{status}"]')
        button.click()
        assert button.get_attribute("aria-pressed") == "true"
        badges = {text.strip().split("\n")[-1] for text in tab.locator(".entry .badge").all_inner_texts()}
        assert badges
        assert all(text.endswith(status) for text in badges)
        button.click()
        assert "status=" not in tab.url


def test_tier_machine_and_group_filter(browser: Browser, pages: dict[str, str]) -> None:
    with opened(browser, pages["full"]) as tab:
        tab.select_option("#tier", "gpu")
        assert tab.inner_text("#shown").startswith("1 of 41")
        tab.select_option("#tier", "")
        tab.select_option("#machine", "NVIDIA H200")
        assert tab.inner_text("#shown").startswith("1 of 41")
        tab.select_option("#machine", "")
        tab.select_option("#group", "guide")
        assert tab.inner_text("#shown").startswith("2 of 41")
        # Squares that do not pass stay as dots, so that the matrix does not jump.
        assert tab.locator("td.gone").count() > 20


def test_the_keyboard_reaches_all_and_is_trapped_nowhere(browser: Browser, pages: dict[str, str]) -> None:
    with opened(browser, pages["full"]) as tab:
        tab.keyboard.press("Tab")
        assert tab.evaluate("document.activeElement.id") == "skip"
        tab.keyboard.press("Enter")
        assert tab.evaluate("document.activeElement.id") == "main"
        assert tab.locator("td[tabindex='0']").count() == 1
        tab.locator("td[tabindex='0']").focus()
        where = "[document.activeElement.dataset.row, document.activeElement.dataset.column]"
        start = tab.evaluate(where)
        tab.keyboard.press("ArrowRight")
        tab.keyboard.press("ArrowDown")
        assert tab.evaluate(where)[0] != start[0]
        assert tab.evaluate(where)[1] != start[1]
        tab.keyboard.press("Control+End")
        tab.keyboard.press("Control+Home")
        assert tab.locator("td[tabindex='0']").count() == 1
        outline = tab.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"
        tab.keyboard.press("Tab")
        assert not tab.evaluate("document.activeElement.closest('table.matrix') !== null")
        seen = 0
        for _ in range(120):
            tab.keyboard.press("Tab")
            seen += 1
            if tab.evaluate("document.activeElement === document.body"):
                break
        assert seen < 120, "the tab key never leaves the page"


NAMELESS = """() => {
  const labels = (each) => [...(each.labels || [])].map((label) => label.textContent.trim()).join('');
  const named = (each) =>
    each.getAttribute('aria-label') || each.textContent.trim() || each.getAttribute('title') || labels(each);
  const used = 'a, button, input, select, summary, td[role=gridcell], [role=region], [tabindex]:not(main)';
  const all = [...document.querySelectorAll(used)].filter((each) => each.checkVisibility());
  return [all.length, all.filter((each) => !named(each)).map((each) => each.outerHTML.slice(0, 90))];
}"""


@pytest.mark.parametrize("route", VIEWS)
def test_all_that_can_be_used_has_a_name_and_headings_do_not_skip(
    browser: Browser, pages: dict[str, str], route: str
) -> None:
    with opened(browser, pages["full"] + route) as tab:
        count, nameless = tab.evaluate(NAMELESS)
        assert count > 8
        assert nameless == []
        ids = tab.evaluate("[...document.querySelectorAll('[id]')].map((each) => each.id)")
        assert len(ids) == len(set(ids))
        levels = tab.eval_on_selector_all("h1, h2, h3, h4", "all => all.map((each) => Number(each.tagName[1]))")
        assert levels[0] == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))


def test_enter_on_a_square_leads_to_its_cells(browser: Browser, pages: dict[str, str]) -> None:
    with opened(browser, pages["full"]) as tab:
        tab.locator('td[data-row="0.9.1"][data-column="0.24.0"]').focus()
        tab.keyboard.press("Enter")
        assert tab.evaluate("document.activeElement.tagName") == "A"
        tab.keyboard.press("Enter")
        until(tab, "location.hash.startsWith('#/cell/')")
        assert tab.evaluate("document.activeElement.tagName") == "H1"
        tab.go_back()
        until(tab, "location.hash.startsWith('#/?') || location.hash === '#/'")
        assert tab.locator("table.matrix").is_visible()


def test_slash_filters_and_escape_clears(browser: Browser, pages: dict[str, str]) -> None:
    with opened(browser, pages["full"]) as tab:
        tab.keyboard.press("/")
        tab.keyboard.type("0.26")
        until(tab, "location.hash.includes('q=0.26')")
        tab.keyboard.press("Escape")
        assert "q=" not in tab.url


@pytest.mark.parametrize(
    ("route", "words"),
    [
        (f"#/cell/{PAIR.name}", PAIR.name),
        (f"#cell-{PAIR.name}", PAIR.name),
        (f"#/failure/{FAILURE}", "Way out"),
        ("#/cell/verl0.1.0-vllm0.5.0", "By reading"),
        ("#/claims/A004", "1 of 2 statements"),
        ("#/nightly", "1 new failure"),
        ("#/machines", "NVIDIA H200"),
        ("#/benches", "checkpointing-critic"),
        ("#/cell/%E0%A4%A", "No such cell"),
        ("#/nothing", "What should I install?"),
        ("#/install?verl=0.9.1", "Copy"),
    ],
)
def test_deep_links(browser: Browser, pages: dict[str, str], route: str, words: str) -> None:
    with opened(browser, pages["full"] + route) as tab:
        assert words in tab.inner_text("main")


def test_a_cell_has_its_pins_command_findings_and_evidence(browser: Browser, pages: dict[str, str]) -> None:
    with opened(browser, pages["full"] + f"#/cell/{MOVED.name}") as tab:
        text = tab.inner_text("#view")
        for words in (
            "vllm==0.27.1",
            "uv pip install",
            "verl-matrix env build",
            "Breaks at import",
            "fused_moe.py:112",
            "Evidence",
        ):
            assert words in text
        tab.evaluate(CLIPBOARD)
        tab.locator(".copy").first.click()
        assert "uv venv --python 3.12" in tab.evaluate("window.copied")
        assert tab.inner_text("#copied") == "Copied"


CLIPBOARD = """() => Object.defineProperty(navigator, 'clipboard', {
  value: { writeText: (text) => { window.copied = text; return Promise.resolve(); } },
})"""
CONTRAST = (Path(__file__).with_name("contrast.js")).read_text(encoding="utf-8").rstrip().rstrip(";")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("route", VIEWS)
def test_all_text_stands_out_in_both_schemes_and_so_in_greyscale(
    browser: Browser, pages: dict[str, str], scheme: str, route: str
) -> None:
    # The contrast of WCAG is one of luminance, so what keeps it keeps it without colours too.
    with opened(browser, pages["full"] + route, color_scheme=scheme) as tab:
        tab.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
        found = tab.evaluate(CONTRAST)
        assert found["count"] > 10
        assert found["faint"] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_verdicts_differ_by_shape_and_by_lightness(browser: Browser, pages: dict[str, str], scheme: str) -> None:
    with opened(browser, pages["full"], color_scheme=scheme) as tab:
        marks = tab.locator(".tally .sq").all_inner_texts()
        assert len(set(marks)) == len(Status)
        squares = tab.eval_on_selector_all(
            ".tally .sq", "all => all.map((each) => getComputedStyle(each).backgroundColor)"
        )
        grey = {status: _grey(colour) for status, colour in zip(Status, squares, strict=True)}
        # What works, what half works, and what does not are three greys, apart from each other.
        assert abs(grey[Status.WORKS] - grey[Status.DEGRADED]) > 0.06
        assert abs(grey[Status.DEGRADED] - grey[Status.BROKEN]) > 0.06


def _grey(colour: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("width", [390, 768, 1024, 1920])
@pytest.mark.parametrize("route", VIEWS)
def test_no_view_is_wider_than_its_window(browser: Browser, pages: dict[str, str], width: int, route: str) -> None:
    with opened(browser, pages["full"] + route, viewport={"width": width, "height": 844}) as tab:
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        small = tab.eval_on_selector_all("main button:not([hidden]), main select, main input[type=search]", SMALL)
        assert small == []


INJECT = """async () => {
  const told = new Set();
  document.addEventListener('securitypolicyviolation', (event) => told.add(event.effectiveDirective));
  const script = document.createElement('script');
  script.textContent = 'window.hit = 1';
  const image = document.createElement('img');
  image.src = 'https://example.invalid/x.png';
  const styled = document.createElement('p');
  styled.setAttribute('style', 'color: red');
  document.body.append(script, image, styled);
  await new Promise((done) => setTimeout(done, 100));
  return [window.hit === undefined, [...told].sort()];
}"""
SMALL = """all => all.filter((each) => each.checkVisibility() && each.getBoundingClientRect().height < 24)
  .map((each) => each.outerHTML.slice(0, 80))"""


def _walk(tab: Page, base: str) -> Iterator[str]:
    """Yield the address of every view that the navigation and the first links lead to."""
    names = tab.eval_on_selector_all("#nav a", "all => all.map((each) => each.getAttribute('href'))")
    yield from names
    for start in ("#/cells", "#/failures"):
        go(tab, start)
        links = tab.eval_on_selector_all("#view a", "all => all.slice(0, 12).map((each) => each.getAttribute('href'))")
        yield from (link for link in links if link.startswith("#"))


def test_text_that_means_harm_is_shown_and_never_runs(browser: Browser, pages: dict[str, str]) -> None:
    with opened(browser, pages["evil"]) as tab:
        routes = list(_walk(tab, pages["evil"]))
        assert len(routes) > 20
        for route in routes:
            go(tab, route)
            tab.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
            assert tab.evaluate("window.hit") is None
            assert tab.locator("#view img, #view script, #view iframe, [onerror], [onmouseover]").count() == 0
            assert tab.locator("a[href^='javascript'], a[href*='onerror']:not([href^='#'])").count() == 0
            assert not re.search(r"\b49\b", tab.inner_text("h1 >> nth=0"))
        go(tab, "#/")
        assert "<img src=x onerror=" in tab.content() or "&lt;img src=x onerror=" in tab.content()
        assert tab.evaluate("({}).bold") is None


def test_the_policy_holds_in_the_browser(browser: Browser, pages: dict[str, str]) -> None:
    context = browser.new_context()
    tab = context.new_page()
    tab.goto(pages["known"])
    assert tab.evaluate(INJECT) == [True, ["img-src", "script-src-elem", "style-src-attr"]]
    context.close()


@pytest.mark.parametrize(
    ("query", "cell", "words"),
    [
        ("", PROVEN.name, ["Proven down to gpu (NVIDIA H200", "Untested: behave, bench."]),
        ("gpu=NVIDIA H200", PROVEN.name, ["Proven down to gpu"]),
        ("gpu=another GPU", PROVEN.name, ["Proven down to import", "not on another GPU"]),
        ("vllm=0.26.0", NEWER.name, ["By reading only", "not asked for:", "lora"]),
        ("vllm=0.26.0&uses=lora", "", ["None of 1 cell that fit qualifies", "Without lora", "With another vLLM"]),
        ("verl=0.8.0", "", ["None of 1 cell", "cannot be imported", "With another verl"]),
        ("verl=0.9.1&vllm=0.33.0", "", ["no such set", "With another vLLM"]),
        ("gpu=no GPU", "", ["Nothing of this was tried."]),
    ],
)
def test_what_to_install_is_answered_from_the_cells(
    browser: Browser, pages: dict[str, str], query: str, cell: str, words: list[str]
) -> None:
    with opened(browser, pages["known"] + f"#/install?{query}") as tab:
        text = " ".join(tab.inner_text(".answer").split())
        for part in words:
            assert part in text
        command = tab.locator(".answer .command pre").first
        if cell:
            assert f"#/cell/{cell}" in (tab.locator(".answer .set a").first.get_attribute("href") or "")
            assert "uv pip install" in command.inner_text()


@pytest.mark.parametrize("uses", [(), ("lora",), ("megatron",)])
def test_the_box_answers_as_pins_does(browser: Browser, pages: dict[str, str], uses: tuple[str, ...]) -> None:
    observations = [item for verdict in known_answers().verdicts for item in verdict.evidence]
    advised: Any = advice(observations, failures=load_failures(), policy=Policy(uses=uses))
    assert advised["releases"]
    for release in advised["releases"]:
        query = f"#/install?verl={release['verl']}&uses={','.join(uses)}"
        with opened(browser, pages["known"] + query) as tab:
            best = release["best"]
            if best is not None:
                assert best["cell"] in (tab.locator(".answer .set a").first.get_attribute("href") or "")
            else:
                # What pins does not advise may fit by reading, and then that is said first.
                assert re.match("None of|Nothing of this", tab.inner_text(".answer").strip())


def test_the_box_asks_and_answers_on_the_first_screen(browser: Browser, pages: dict[str, str]) -> None:
    with opened(browser, pages["known"]) as tab:
        assert PROVEN.name in (tab.locator("#box .set a").get_attribute("href") or "")
        tab.select_option("#box-vllm", "0.26.0")
        assert NEWER.name in (tab.locator("#box .set a").get_attribute("href") or "")
        tab.locator("#box summary").first.click()
        tab.locator("#box .chip", has_text="lora").click()
        assert "None of 1 cell" in tab.inner_text("#box")
        names = {verdict.cell.name for verdict in known_answers().verdicts}
        assert {PROVEN.name, NEWER.name, BROKEN.name, CLASH.name} == names


def test_a_report_of_nothing_says_so(browser: Browser, pages: dict[str, str]) -> None:
    with opened(browser, pages["empty"]) as tab:
        assert "0 of 0 cells" in tab.inner_text("#shown")
        go(tab, "#/cells")
        assert "No cell passes the filter." in tab.inner_text("#view")


def test_without_scripts_the_verdicts_are_a_list(browser: Browser, pages: dict[str, str]) -> None:
    context = browser.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(pages["full"])
    assert tab.get_by_text(MOVED.name, exact=True).count() == 1
    context.close()


def test_it_prints_the_matrix(browser: Browser, pages: dict[str, str]) -> None:
    with opened(browser, pages["full"]) as tab:
        tab.emulate_media(media="print")
        assert tab.locator("table.matrix").is_visible()
        assert not tab.locator(".tools").is_visible()
        assert len(tab.pdf()) > 10_000
