"""HTTP for the index: pages, byte ranges and whole files, with retries, deadlines and errors that say what to do."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING
from urllib.parse import urlsplit

from matrix import __version__
from matrix.errors import IndexUnreachableError, UsageError
from matrix.index.login import Logins, from_address, shown

if TYPE_CHECKING:
    import ssl

    import urllib3

_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
_CHUNK = 1 << 16
_CONNECTIONS = 16
_REDIRECTS = 5
_PROXY_ADVICE = "Behind a proxy set HTTPS_PROXY, with a private certificate REQUESTS_CA_BUNDLE; "
_ADVICE = _PROXY_ADVICE + "try again later, or answer from what is cached with --offline."


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How patient a fetch is, in seconds, and how often it tries; `slowest` is the least bytes a second of a body."""

    connect: float = 10.0
    read: float = 30.0
    grace: float = 60.0
    slowest: float = 50_000.0
    tries: int = 4
    backoff: float = 0.25
    longest_wait: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A server's answer: status, headers (names in lower case) and body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Bytes of a file from `start` on, and the size of the whole file.

    `data` is None when the server does not do ranges: nothing was read then, and the caller may ask for the whole.
    """

    start: int
    data: bytes | None
    total: int | None


class _TryError(Exception):
    """One try did not work out; `final` when another try cannot help."""

    def __init__(self, why: str, *, final: bool = False, wait: float | None = None) -> None:
        super().__init__(why)
        self.final = final
        self.wait = wait


@dataclass(slots=True, kw_only=True)
class Fetcher:
    """A connection pool; safe for threads. `requests` and `bytes_read` count what went over the network.

    Raises IndexUnreachableError from every method when the server cannot be reached, is too slow or refuses, and
    without a try when `offline`.
    """

    offline: bool = False
    limits: Limits = field(default_factory=Limits)
    requests: int = 0
    bytes_read: int = 0
    logins: Logins = field(default_factory=Logins)
    _pools: dict[tuple[str, bool], urllib3.PoolManager] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def page(self, url: str, headers: Mapping[str, str] | None = None) -> Reply:
        """Return the reply whose status is 200, 304, 404 or 410; every other status is an error."""
        reply, _ = self._tried(url, headers or {}, accepted=(200, 304, 404, 410), limit=None)
        return reply

    def span(self, url: str, start: int, stop: int) -> Span:
        """Return bytes `start` to `stop` (exclusive) of the file, fewer when it ends before."""
        asked = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        reply, cut = self._tried(url, asked, accepted=(200, 206), limit=stop - start)
        total = reply.headers.get("content-range", "").rpartition("/")[2]
        if reply.status == 200:
            length = reply.headers.get("content-length", "")
            size = int(length) if length.isdigit() else None
            whole = start == 0 and not cut
            return Span(start=0, data=reply.body if whole else None, total=len(reply.body) if whole else size)
        return Span(start=start, data=reply.body, total=int(total) if total.isdigit() else None)

    def whole(self, url: str, into: IO[bytes], limit: int) -> int:
        """Write the whole file into `into` and return its size; raises also the OSError that writing gives.

        A file larger than `limit` bytes is refused with IndexUnreachableError before it is read.
        """
        reply, cut = self._tried(url, {"Accept-Encoding": "identity"}, accepted=(200,), limit=limit, into=into)
        if cut:
            size = reply.headers.get("content-length", "an unknown number of")
            raise IndexUnreachableError(
                f"{shown(url)} has {size} bytes; no more than {limit} are read of a file of this kind.",
                then="Use an index that answers byte ranges, or a release with a smaller file.",
            )
        return into.tell()

    def _tried(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        accepted: tuple[int, ...],
        limit: int | None,
        into: IO[bytes] | None = None,
    ) -> tuple[Reply, bool]:
        """Return the reply and whether its body was cut at `limit`, after as many tries as it takes and is allowed."""
        if self.offline:
            raise IndexUnreachableError(
                f"{shown(url)} is needed and not in the cache.",
                why="--offline was asked for.",
                then="Run once without it.",
            )
        why = ""
        for attempt in range(self.limits.tries):
            try:
                return self._once(url, headers, accepted, limit, into)
            except _TryError as failed:
                why = str(failed)
                if failed.final:
                    break
                if attempt + 1 < self.limits.tries:
                    pause = self.limits.backoff * 2**attempt * (1 + random.random() / 4)  # noqa: S311 - jitter
                    time.sleep(min(max(pause, failed.wait or 0.0), self.limits.longest_wait))
        raise IndexUnreachableError(f"{shown(url)} could not be read.", why=f"{why}.", then=_ADVICE)

    def _once(
        self, url: str, headers: Mapping[str, str], accepted: tuple[int, ...], limit: int | None, into: IO[bytes] | None
    ) -> tuple[Reply, bool]:
        import urllib3

        began = time.monotonic()
        patience = urllib3.Timeout(connect=self.limits.connect, read=self.limits.read)
        sent = {"User-Agent": f"verl-matrix/{__version__}", **headers}
        if login := self.logins.header(url):
            sent["Authorization"] = login
        try:
            answer = self._pool(url).request(
                "GET",
                shown(url),
                headers=sent,
                timeout=patience,
                retries=urllib3.Retry(None, connect=0, read=0, status=0, other=0, redirect=_REDIRECTS),
                preload_content=False,
            )
        except urllib3.exceptions.HTTPError as error:
            circular = isinstance(error, urllib3.exceptions.MaxRetryError) and isinstance(
                error.reason, urllib3.exceptions.ResponseError
            )
            raise _TryError(_explained(error), final=circular) from error
        try:
            got = {name.lower(): value for name, value in answer.headers.items()}
            if answer.status not in accepted:
                wait = got.get("retry-after", "")
                raise _TryError(
                    f"The server answered {answer.status} {answer.reason or ''}".rstrip(),
                    final=answer.status not in _RETRIED,
                    wait=float(wait) if wait.isdigit() else None,
                )
            body, cut = self._body(answer, began, limit, into)
            return Reply(status=answer.status, headers=got, body=body), cut
        except urllib3.exceptions.HTTPError as error:
            raise _TryError(_explained(error)) from error
        finally:
            # A body that was not read to its end must not leave its rest to the next user of the connection.
            answer.close()
            with self._lock:
                self.requests += 1

    def _body(
        self, answer: urllib3.BaseHTTPResponse, began: float, limit: int | None, into: IO[bytes] | None
    ) -> tuple[bytes, bool]:
        """Return the body, or b"" when it goes `into` a file; stop at `limit` and say so."""
        length = answer.headers.get("content-length", "")
        if limit is not None and answer.status == 200 and length.isdigit() and int(length) > limit:
            return b"", True
        if into is not None:
            into.seek(0)
            into.truncate()
        parts: list[bytes] = []
        count = 0
        for part in answer.stream(_CHUNK):
            count += len(part)
            with self._lock:
                self.bytes_read += len(part)
            if limit is not None and count > limit:
                return b"", True
            if time.monotonic() - began > self.limits.grace + count / self.limits.slowest:
                raise _TryError(f"The server is too slow: {count} bytes in {time.monotonic() - began:.0f} s")
            into.write(part) if into is not None else parts.append(part)
        return b"".join(parts), False

    def _pool(self, url: str) -> urllib3.PoolManager:
        """Return the pool that leads to this url: direct, or by the proxy that the environment names for it."""
        proxy = _proxy(url)
        secure = url.startswith("https://") or proxy.startswith("https://")
        with self._lock:
            if (proxy, secure) not in self._pools:
                import urllib3

                # Reading the certificates takes longer than a request to a near server, so only when they are needed.
                context = _certificates() if secure else None
                self._pools[proxy, secure] = (
                    urllib3.ProxyManager(
                        proxy, maxsize=_CONNECTIONS, ssl_context=context, proxy_headers=_proxy_login(proxy)
                    )
                    if proxy
                    else urllib3.PoolManager(maxsize=_CONNECTIONS, ssl_context=context)
                )
            return self._pools[proxy, secure]


def _proxy_login(proxy: str) -> dict[str, str]:
    header = from_address(proxy)
    return {"Proxy-Authorization": header} if header else {}


def _proxy(url: str) -> str:
    """Return the proxy for this url from HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY, "" for none."""
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(url)
    proxies = getproxies()
    if proxy_bypass(parts.hostname or ""):
        return ""
    proxy = proxies.get(parts.scheme) or proxies.get("all") or ""
    if proxy and "://" not in proxy:
        proxy = f"http://{proxy}"
    if proxy and not proxy.startswith(("http://", "https://")):
        raise UsageError(f"The proxy {shown(proxy)} is of a kind that is not supported.", then="Use an http:// proxy.")
    return proxy


def _certificates() -> ssl.SSLContext:
    """Return the trusted certificates: REQUESTS_CA_BUNDLE, then SSL_CERT_FILE, then the system's."""
    import ssl

    for variable in ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"):
        if named := os.environ.get(variable):
            try:
                path = Path(named)
                return ssl.create_default_context(
                    cafile=None if path.is_dir() else named, capath=named if path.is_dir() else None
                )
            except (OSError, ssl.SSLError) as error:
                raise UsageError(
                    f"{variable} names {named}, which cannot be read as certificates: {error}.",
                    then="Point it at a PEM file, or unset it.",
                ) from error
    return ssl.create_default_context()


def _explained(error: Exception) -> str:
    """Return what went wrong in a few words of its own, since urllib3's name the pool object."""
    import urllib3

    reason = error.reason if isinstance(error, urllib3.exceptions.MaxRetryError) and error.reason else error
    match reason:
        case urllib3.exceptions.NameResolutionError():
            return "The host's name cannot be resolved"
        case urllib3.exceptions.NewConnectionError():
            return f"No connection could be made ({str(reason).rpartition(': ')[2]})"
        case urllib3.exceptions.ResponseError():
            return "It was redirected too often"
        case urllib3.exceptions.ConnectTimeoutError():
            return "No connection in time"
        case urllib3.exceptions.ReadTimeoutError():
            return "The server is too slow: it sent nothing in time"
        case urllib3.exceptions.ProxyError():
            return f"The proxy refused ({reason.args[-1] if reason.args else reason})"
        case urllib3.exceptions.SSLError():
            return f"The connection is not trusted ({reason})"
        case urllib3.exceptions.ProtocolError():
            cut = any(isinstance(part, urllib3.exceptions.IncompleteRead) for part in (reason, *reason.args))
            return "The answer was cut off" if cut else "The connection broke off"
        case _:
            return f"{type(reason).__name__}: {reason}"
