"""An index that refuses, breaks or lies: no verdict comes of it, each case has its exit code, and nothing is lost."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from matrix.errors import ToolError
from matrix.store import Store
from tests.unit import cli_home
from tests.unit.cli_home import ONE, WHEEL, told
from tests.unit.cli_stack import check_golden, steady
from tests.unit.http_server import Site

shared = pytest.fixture(scope="module")(cli_home.served)
site = pytest.fixture(cli_home.served)
bare = pytest.fixture(scope="module")(cli_home.bare)
home = pytest.fixture(cli_home.home)
_settled = pytest.fixture(autouse=True)(cli_home.settled)


def _closed_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def test_an_index_that_refuses_is_no_verdict(home: Path) -> None:
    heard = told(f"check {ONE}", home, f"http://127.0.0.1:{_closed_port()}/simple")
    assert (heard.code, heard.out) == (5, "")
    check_golden("error-index-refuses.txt", steady(heard.text))


def test_an_index_that_says_nothing_is_given_up_as_uv_does(
    site: Site, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_HTTP_TIMEOUT", "1")
    monkeypatch.setattr("tests.unit.http_server.SLOW", 1.2)
    site.faults["/simple/vllm/"] = ["slow*"]
    heard = told("check vllm==0.24.0", home, site.url)
    assert heard.code == 5
    assert "The server is too slow" in heard.err


@pytest.mark.parametrize("given", ["soon", "0", "-1"])
def test_a_patience_that_is_none_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("UV_HTTP_TIMEOUT", given)
    heard = told("check verl==0.9.1", home, "http://127.0.0.1:1/simple")
    assert heard.code == 2
    assert f"UV_HTTP_TIMEOUT is `{given}`" in heard.err


def test_a_project_that_the_index_does_not_have_is_unknown(site: Site, home: Path) -> None:
    del site.rows["ray"]
    heard = told("check ray==2.60.0", home, site.url)
    assert heard.code == 4
    check_golden("error-project-404.txt", steady(heard.text))


def test_an_index_that_breaks_half_way_ends_with_its_own_code_and_keeps_the_rest(site: Site, home: Path) -> None:
    site.faults[WHEEL] = ["404*"]
    site.faults[WHEEL.replace("0.24.0", "0.26.0")] = ["404*"]
    heard = told("run --cells-file HOME/cells.toml --out HOME/out", home, site.url)
    assert heard.code == 5
    assert "could not be read" in heard.err
    assert (home / "out" / "index.html").exists()
    kept = {item.question.cell for item in Store(home / "kept" / "store")}
    assert kept >= {"verl0.9.1-vllm0.27.0", "verl0.9.1-vllm0.28.0"}
    site.faults.clear()
    heard = told("run --cells-file HOME/cells.toml --out HOME/out", home, site.url)
    assert heard.code == 0
    assert "verl0.9.1-vllm0.27.0  (stored)" in heard.err


def test_a_check_that_could_not_be_finished_prints_what_it_has_and_is_no_pass(
    shared: Site, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ToolError("uv failed.", then="Upgrade it.")

    monkeypatch.setattr("matrix.resolve.resolver.Uv.solve", broken)
    heard = told(f"check {ONE}", home, shared.url)
    assert heard.code == 6
    check_golden("error-half-a-check.txt", steady(heard.text))


def test_a_bisection_does_not_take_a_broken_index_for_a_hole(site: Site, home: Path) -> None:
    site.faults[WHEEL.replace("0.24.0", "0.26.0")] = ["404*"]
    heard = told("bisect --axis vllm --with verl==0.9.1 --good 0.24.0 --bad 0.27.0", home, site.url)
    assert heard.code == 5


@pytest.mark.parametrize("fault", ["flipped*", "truncated*"])
def test_a_wheel_that_does_not_come_whole_is_no_verdict(site: Site, home: Path, fault: str) -> None:
    site.faults[WHEEL] = [fault]
    heard = told(f"surface {ONE}", home, site.url)
    assert heard.code in (5, 7)
    assert heard.out == ""
    site.faults.clear()
    assert told(f"surface {ONE}", home, site.url).code == 0
