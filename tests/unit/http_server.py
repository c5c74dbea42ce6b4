"""A real HTTP server on 127.0.0.1 that serves a simple index with wheels and sdists, and can be made to misbehave.

with serving() as site:
    site.add("demo", "1.0", wheel("demo", "1.0", {"demo/__init__.py": b""}))
    site.faults["/simple/demo/"] = ["500", "slow"]     # used up one by one; a last "…*" stays
    index = SimpleIndex(url=site.url, …)
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

PageKind = Literal["json", "html"]
SLOW = 0.6
UPLOADED = "2026-01-01T00:00:00.000000Z"
MODIFIED = "Thu, 01 Jan 2026 00:00:00 GMT"


def metadata(name: str, version: str, requires: Sequence[str] = (), more: str = "") -> bytes:
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {r}" for r in requires),
    ]
    return ("\n".join(lines) + "\n" + more + "\nThe description.\n").encode()


def wheel(
    name: str,
    version: str,
    members: Mapping[str, bytes],
    *,
    requires: Sequence[str] = (),
    comment: bytes = b"",
    method: int = zipfile.ZIP_DEFLATED,
    zip64: bool = False,
) -> bytes:
    """Return a wheel; its dist-info comes last, as the build tools write it."""
    content = io.BytesIO()
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(content, "w", method) as archive:
        for path, body in {**members, f"{info}/METADATA": metadata(name, version, requires)}.items():
            entry = zipfile.ZipInfo(path)
            entry.compress_type = method
            with archive.open(entry, "w", force_zip64=zip64) as member:
                member.write(body)
        archive.comment = comment
    return content.getvalue()


def sdist(name: str, version: str, members: Mapping[str, bytes], *, kind: str = "tar.gz") -> bytes:
    """Return an sdist; each member's path is below the top folder unless it starts with `/` or `..`."""
    content = io.BytesIO()
    top = f"{name}-{version}"
    if kind == "zip":
        with zipfile.ZipFile(content, "w") as archive:
            for path, body in members.items():
                archive.writestr(f"{top}/{path}", body)
        return content.getvalue()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for path, body in members.items():
            member = tarfile.TarInfo(path if path.startswith(("/", "..")) else f"{top}/{path}")
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
    return content.getvalue()


@dataclass
class Site:
    """What is served, how it misbehaves, and what was asked for."""

    kind: PageKind = "json"
    etags: bool = True
    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    rows: dict[str, list[dict[str, object]]] = field(default_factory=dict)
    faults: dict[str, list[str]] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def add(self, project: str, filename: str, content: bytes, **row: object) -> str:
        """Put a file on the project's page and return its path."""
        path = f"/files/{filename}"
        self.files[path] = content
        self.rows.setdefault(project, []).append(
            {
                "filename": filename,
                "url": path,
                "hashes": {"sha256": hashlib.sha256(content).hexdigest()},
                "size": len(content),
                "upload-time": UPLOADED,
                "yanked": False,
                **row,
            }
        )
        return path

    def count(self, path: str) -> int:
        return sum(asked == path for asked, _ in self.asked)

    def fault(self, path: str) -> str:
        queue = self.faults.get(path, [])
        if not queue:
            return ""
        return queue[0].rstrip("*") if queue[0].endswith("*") else queue.pop(0)

    def page(self, project: str) -> tuple[str, bytes]:
        rows = self.rows[project]
        if self.kind == "json":
            body = {"meta": {"api-version": "1.1"}, "name": project, "files": rows}
            return "application/vnd.pypi.simple.v1+json", json.dumps(body).encode()
        links = "".join(_link(row) for row in rows)
        return "text/html; charset=utf-8", f"<!DOCTYPE html><html><body>{links}</body></html>".encode()


def _link(row: Mapping[str, object]) -> str:
    hashes = row["hashes"]
    assert isinstance(hashes, dict)
    python = str(row.get("requires-python", "")).replace(">", "&gt;").replace("<", "&lt;")
    more = f' data-requires-python="{python}"' if python else ""
    if row["yanked"] is not False:
        more += f' data-yanked="{row["yanked"] if row["yanked"] is not True else ""}"'
    if row.get("core-metadata"):
        more += ' data-core-metadata="true"'
    digest = f"#sha256={hashes['sha256']}" if hashes else ""
    return f'<a href="{row["url"]}{digest}"{more}>{row["filename"]}</a><br/>\n'


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: Site

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
        """Keep quiet."""

    def do_HEAD(self) -> None:
        """Answer as GET does but for the body; uv asks so whether ranges are served."""
        body = self.site.files.get(self.path)
        self.send_response(404 if body is None else 200)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()

    def do_GET(self) -> None:
        self.site.asked.append((self.path, dict(self.headers)))
        fault = self.site.fault(self.path)
        if fault == "hang-up":
            self.close_connection = True
            return
        if fault == "slow":
            time.sleep(SLOW)
        if fault.isdigit():
            self.answer(int(fault), b"trouble", {"Retry-After": "0"} if fault == "503" else {})
            return
        if self.path in self.site.moved:
            self.answer(302, b"", {"Location": self.site.moved[self.path]})
            return
        project = self.path.removeprefix("/simple/").strip("/")
        if self.path.startswith("/simple/") and project in self.site.rows:
            self.page(project, fault)
        elif self.path in self.site.files:
            self.file(self.site.files[self.path], fault)
        else:
            self.answer(404, b"not here", {})

    def page(self, project: str, fault: str) -> None:
        kind, body = self.site.page(project)
        tag = f'"{hashlib.sha256(body).hexdigest()[:12]}"'
        headers = {"Content-Type": kind} | ({"ETag": tag} if self.site.etags else {"Last-Modified": MODIFIED})
        if fault == "login":
            self.answer(200, b"Please sign in", {"Content-Type": "text/plain"})
        elif self.headers.get("If-None-Match") == tag or self.headers.get("If-Modified-Since") == MODIFIED:
            self.answer(304, b"", headers)
        else:
            self.answer(200, body, headers, cut=fault == "truncated")

    def file(self, body: bytes, fault: str) -> None:
        if fault == "flipped":
            body = bytes(byte ^ 0x55 for byte in body)
        asked = self.headers.get("Range", "")
        if fault == "no-length":
            self.stream(body)
            return
        if not asked or fault == "no-range":
            self.answer(200, body, {}, cut=fault == "truncated")
            return
        first, _, last = asked.removeprefix("bytes=").partition("-")
        start, stop = int(first), min(int(last) + 1, len(body))
        if fault == "short":
            stop = max(start + 1, stop - 5)
        headers = {"Content-Range": f"bytes {start}-{stop - 1}/{len(body)}"}
        self.answer(206, body[start:stop], headers, cut=fault == "truncated")

    def stream(self, body: bytes) -> None:
        """Send the body without saying how long it is; the end of the connection is its end."""
        self.close_connection = True
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.send_response(200)
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)

    def answer(self, status: int, body: bytes, headers: Mapping[str, str], *, cut: bool = False) -> None:
        try:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if cut else body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        if cut:
            self.close_connection = True


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that hang up, which is what the fetcher does with bodies it will not read."""


@contextmanager
def serving(kind: PageKind = "json") -> Iterator[Site]:
    """Serve a site on a free port of 127.0.0.1 while the block runs."""
    site = Site(kind=kind)
    handler = type("Handler", (_Handler,), {"site": site})
    server = _Server(("127.0.0.1", 0), handler)
    site.url = f"http://127.0.0.1:{server.server_address[1]}/simple"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
