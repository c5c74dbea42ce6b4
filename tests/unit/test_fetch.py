from __future__ import annotations

import errno
import io
import os
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3

from matrix.errors import IndexUnreachableError, UsageError
from matrix.index.fetch import Fetcher, Limits, Span, _certificates, _explained, _proxy
from tests.unit.http_server import SLOW, Site, serving

QUICK = Limits(connect=1.0, read=5.0, tries=3, backoff=0.001, longest_wait=0.01)


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as running:
        running.add("demo", "demo-1.0.tar.gz", bytes(range(256)) * 100)
        yield running


@pytest.fixture(autouse=True)
def _direct(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def unresolved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer every name look-up as a resolver without the name does."""

    def getaddrinfo(*asked: object, **more: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def address(site: Site, path: str = "/files/demo-1.0.tar.gz") -> str:
    return site.url.removesuffix("/simple") + path


def test_page_gives_status_headers_and_body(site: Site) -> None:
    fetcher = Fetcher(limits=QUICK)
    reply = fetcher.page(f"{site.url}/demo/")
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/vnd.pypi.simple.v1+json"
    assert b"demo-1.0.tar.gz" in reply.body
    assert fetcher.page(f"{site.url}/demo/", {"If-None-Match": reply.headers["etag"]}).status == 304
    assert fetcher.page(f"{site.url}/other/").status == 404
    assert fetcher.requests == 3
    assert fetcher.bytes_read == len(reply.body) + len(b"not here")
    assert site.asked[0][1]["User-Agent"].startswith("verl-matrix/")


@pytest.mark.parametrize("fault", ["500", "502", "503", "429", "truncated", "hang-up"])
def test_a_passing_fault_is_tried_again(site: Site, fault: str) -> None:
    site.faults["/simple/demo/"] = [fault, fault]
    assert Fetcher(limits=QUICK).page(f"{site.url}/demo/").status == 200
    assert site.count("/simple/demo/") == 3


@pytest.mark.parametrize(
    ("fault", "why", "tries"),
    [
        ("500", "The server answered 500", 3),
        ("403", "The server answered 403 Forbidden", 1),
        ("truncated", "The answer was cut off", 3),
        ("hang-up", "The connection broke off", 3),
    ],
)
def test_a_lasting_fault_is_an_error_that_says_why_and_what_to_do(site: Site, fault: str, why: str, tries: int) -> None:
    site.faults["/simple/demo/"] = [f"{fault}*"]
    with pytest.raises(IndexUnreachableError) as raised:
        Fetcher(limits=QUICK).page(f"{site.url}/demo/")
    message = str(raised.value)
    assert f"{site.url}/demo/ could not be read." in message
    assert why in message
    assert "HTTPS_PROXY" in message
    assert "--offline" in message
    assert site.count("/simple/demo/") == tries


def test_a_server_that_sends_nothing_in_time_is_too_slow(site: Site) -> None:
    site.faults["/simple/demo/"] = ["slow*"]
    limits = Limits(read=SLOW / 6, tries=2, backoff=0.001)
    began = time.monotonic()
    with pytest.raises(IndexUnreachableError, match="too slow"):
        Fetcher(limits=limits).page(f"{site.url}/demo/")
    assert time.monotonic() - began < SLOW


def test_a_server_that_drips_is_too_slow(site: Site) -> None:
    limits = Limits(tries=1, grace=0.0, slowest=1e12)
    with pytest.raises(IndexUnreachableError, match=r"too slow: \d+ bytes in"):
        Fetcher(limits=limits).page(f"{site.url}/demo/")


def test_no_server() -> None:
    with pytest.raises(IndexUnreachableError, match=r"No connection could be made \(.*refused\)"):
        Fetcher(limits=QUICK).page("http://127.0.0.1:9/simple/demo/")


def test_no_such_host(unresolved: None) -> None:
    with pytest.raises(IndexUnreachableError, match="The host's name cannot be resolved"):
        Fetcher(limits=QUICK).page("http://no-such-host.invalid/simple/demo/")


def test_offline_asks_nobody(site: Site) -> None:
    with pytest.raises(IndexUnreachableError, match=r"(?s)not in the cache.*--offline"):
        Fetcher(offline=True).page(f"{site.url}/demo/")
    assert site.asked == []


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (100, 300), (25_000, 25_600)])
def test_span_gives_the_range_and_the_size(site: Site, start: int, stop: int) -> None:
    whole = site.files["/files/demo-1.0.tar.gz"]
    span = Fetcher(limits=QUICK).span(address(site), start, stop)
    assert (span.start, span.data, span.total) == (start, whole[start:stop], len(whole))


def test_a_file_that_moved_is_followed_with_its_range(site: Site) -> None:
    site.moved["/old"] = "/older"
    site.moved["/older"] = "/files/demo-1.0.tar.gz"
    span = Fetcher(limits=QUICK).span(address(site, "/old"), 100, 300)
    assert span.data == site.files["/files/demo-1.0.tar.gz"][100:300]


def test_a_file_that_moves_in_circles_is_an_error(site: Site) -> None:
    site.moved["/old"] = "/old"
    with pytest.raises(IndexUnreachableError, match="It was redirected too often"):
        Fetcher(limits=QUICK).page(address(site, "/old"))
    assert site.count("/old") == 6


def test_span_that_ends_past_the_file_is_shorter(site: Site) -> None:
    span = Fetcher(limits=QUICK).span(address(site), 25_590, 30_000)
    assert span.data == site.files["/files/demo-1.0.tar.gz"][25_590:]


def test_span_from_a_server_without_ranges_reads_nothing_of_a_large_file(site: Site) -> None:
    site.faults["/files/demo-1.0.tar.gz"] = ["no-range*"]
    fetcher = Fetcher(limits=QUICK)
    span = fetcher.span(address(site), 100, 200)
    assert (span.data, span.total) == (None, 25_600)
    assert fetcher.bytes_read == 0
    whole = fetcher.span(address(site), 0, 100_000)
    assert (whole.start, whole.data, whole.total) == (0, site.files["/files/demo-1.0.tar.gz"], 25_600)


def test_whole_writes_the_file_also_after_a_try_that_was_cut_off(site: Site) -> None:
    site.faults["/files/demo-1.0.tar.gz"] = ["truncated"]
    into = io.BytesIO()
    assert Fetcher(limits=QUICK).whole(address(site), into, 1 << 20) == 25_600
    assert into.getvalue() == site.files["/files/demo-1.0.tar.gz"]


def test_whole_refuses_a_file_above_the_limit(site: Site) -> None:
    fetcher = Fetcher(limits=QUICK)
    with pytest.raises(IndexUnreachableError, match="has 25600 bytes; no more than 1000"):
        fetcher.whole(address(site), io.BytesIO(), 1000)
    assert fetcher.bytes_read == 0


def test_a_body_of_unknown_length_is_cut_at_the_limit(site: Site) -> None:
    site.faults["/files/demo-1.0.tar.gz"] = ["no-length*"]
    fetcher = Fetcher(limits=QUICK)
    assert fetcher.whole(address(site), io.BytesIO(), 1 << 20) == 25_600
    with pytest.raises(IndexUnreachableError, match="has an unknown number of bytes; no more than 1000"):
        fetcher.whole(address(site), io.BytesIO(), 1000)
    assert fetcher.span(address(site), 0, 1 << 20).data == site.files["/files/demo-1.0.tar.gz"]
    assert fetcher.span(address(site), 0, 100) == Span(start=0, data=None, total=None)


def test_without_a_variable_the_systems_certificates_are_trusted(
    monkeypatch: pytest.MonkeyPatch, unresolved: None
) -> None:
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    assert _certificates().verify_mode is ssl.CERT_REQUIRED


def test_whole_on_a_full_disk(site: Site) -> None:
    class Full(io.BytesIO):
        def write(self, part: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left"):
        Fetcher(limits=QUICK).whole(address(site), Full(), 1 << 20)
    assert len(site.asked) == 1


def test_credentials_of_the_address_are_sent_and_never_shown(site: Site) -> None:
    url = f"{site.url}/demo/".replace("http://", "http://me:p%40ss@")
    assert Fetcher(limits=QUICK).page(url).status == 200
    assert site.asked[0][1]["Authorization"] == "Basic bWU6cEBzcw=="
    site.faults["/simple/demo/"] = ["403"]
    with pytest.raises(IndexUnreachableError) as raised:
        Fetcher(limits=QUICK).page(url)
    assert "p%40ss" not in str(raised.value)


@pytest.mark.parametrize(
    ("environment", "url", "expected"),
    [
        ({}, "https://pypi.org/simple", ""),
        ({"HTTPS_PROXY": "http://proxy:3128"}, "https://pypi.org/simple", "http://proxy:3128"),
        ({"https_proxy": "proxy:3128"}, "https://pypi.org/simple", "http://proxy:3128"),
        ({"HTTPS_PROXY": "http://proxy:3128"}, "http://pypi.org/simple", ""),
        ({"ALL_PROXY": "http://proxy:3128"}, "https://pypi.org/simple", "http://proxy:3128"),
        ({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "pypi.org"}, "https://pypi.org/simple", ""),
        ({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": ".org"}, "https://pypi.org/simple", ""),
    ],
)
def test_proxy_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], url: str, expected: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert _proxy(url) == expected


def test_a_socks_proxy_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "socks5://me:secret@proxy:1080")
    with pytest.raises(UsageError, match=r"socks5://proxy:1080 is of a kind") as raised:
        Fetcher().page("https://pypi.org/simple/demo/")
    assert "secret" not in str(raised.value)


def test_requests_go_through_the_proxy(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", address(site, "").replace("http://", "http://me:pw@"))
    site.files["http://index.invalid/simple/demo/"] = b"through the proxy"
    assert Fetcher(limits=QUICK).page("http://index.invalid/simple/demo/").body == b"through the proxy"
    assert site.asked[0][1]["Proxy-Authorization"] == "Basic bWU6cHc="


@pytest.mark.parametrize("variable", ["REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"])
def test_certificates_that_cannot_be_read_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    (tmp_path / "ca.pem").write_text("not a certificate")
    for path in (tmp_path / "missing.pem", tmp_path / "ca.pem"):
        monkeypatch.setenv(variable, str(path))
        with pytest.raises(UsageError, match=f"{variable} names {path}"):
            Fetcher().page("https://index.invalid/simple/demo/")


def test_a_directory_of_certificates_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, unresolved: None
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path))
    with pytest.raises(IndexUnreachableError, match="cannot be resolved"):
        Fetcher(limits=QUICK).page("https://no-such-host.invalid/simple/demo/")


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (urllib3.exceptions.ConnectTimeoutError(), "No connection in time"),
        (urllib3.exceptions.ProxyError("x", OSError("no")), "The proxy refused (no)"),
        (urllib3.exceptions.SSLError(ssl.SSLError("self-signed")), "The connection is not trusted"),
        (urllib3.exceptions.DecodeError("bad gzip"), "DecodeError: bad gzip"),
    ],
)
def test_errors_are_explained(error: Exception, why: str) -> None:
    assert _explained(error).startswith(why)
