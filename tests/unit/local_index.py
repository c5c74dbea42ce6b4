"""A package index in a folder, of real wheels and sdists, for the tests that run the real uv without a network."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path


class LocalIndex:
    """Writes packages under `folder`; `url` is what uv is given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = folder.absolute().as_uri()
        folder.mkdir(parents=True)

    def wheel(self, name: str, version: str, requires: Sequence[str] = (), tag: str = "py3-none-any") -> None:
        """Add a wheel."""
        info = f"{name}-{version}.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        metadata += "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
        members = {
            f"{info}/METADATA": metadata,
            f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
            f"{info}/RECORD": "",
        }
        body = io.BytesIO()
        with zipfile.ZipFile(body, "w") as archive:
            for member, text in members.items():
                archive.writestr(member, text)
        self._add(name, f"{name}-{version}-{tag}.whl", body.getvalue())

    def sdist(self, name: str, version: str, members: Mapping[str, str]) -> None:
        """Add an sdist."""
        body = io.BytesIO()
        with tarfile.open(fileobj=body, mode="w:gz") as archive:
            for member, text in members.items():
                entry = tarfile.TarInfo(f"{name}-{version}/{member}")
                entry.size = len(text.encode())
                archive.addfile(entry, io.BytesIO(text.encode()))
        self._add(name, f"{name}-{version}.tar.gz", body.getvalue())

    def _add(self, name: str, filename: str, body: bytes) -> None:
        home = self.folder / name
        home.mkdir(exist_ok=True)
        (home / filename).write_bytes(body)
        links = [
            f'<a href="{path.name}#sha256={hashlib.sha256(path.read_bytes()).hexdigest()}">{path.name}</a><br/>'
            for path in sorted(home.iterdir())
            if path.name != "index.html"
        ]
        page = "<!DOCTYPE html><html><body>\n" + "\n".join(links) + "\n</body></html>\n"
        (home / "index.html").write_text(page, encoding="utf-8")
