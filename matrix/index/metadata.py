"""The core metadata of a release, from the cheapest place that has it, kept for ever by the file's digest.

Places, in order: the `.metadata` file beside the wheel (PEP 658), the wheel's own METADATA by byte ranges, the sdist's
PKG-INFO. Only the headers are kept: the description is most of the file and nobody here reads it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from email.message import Message
from email.parser import HeaderParser
from functools import lru_cache

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from matrix.cache import Cache
from matrix.cell import Platform
from matrix.index import Archive, File, Metadata
from matrix.index.download import corrupt
from matrix.index.fetch import Fetcher

# From this version of the format on, an sdist's fields hold for every build unless listed as Dynamic (PEP 643).
_STATIC = (2, 2)


def read_metadata(file: File, fetcher: Fetcher, cache: Cache, archive: Callable[[File], Archive]) -> Metadata:
    """Return the file's core metadata; raises IndexUnreachableError, CorruptFileError, NoSpaceError."""
    kept = cache.get("metadata", file.key)
    if kept is None:
        kept = _headers(_fetched(file, fetcher, archive))
        cache.put("metadata", file.key, kept)
    return parse_metadata(kept, file)


def _fetched(file: File, fetcher: Fetcher, archive: Callable[[File], Archive]) -> bytes:
    if file.has_metadata and file.is_wheel:
        for _ in range(2):
            reply = fetcher.page(f"{file.url}.metadata", {"Accept-Encoding": "gzip"})
            if reply.status != 200:
                break
            if file.metadata_sha256 in ("", hashlib.sha256(reply.body).hexdigest()):
                return reply.body
        else:
            raise corrupt(f"{file.filename}.metadata", "its SHA-256 is not the one that the index states")
    members = archive(file)
    name = _metadata_name(file, members)
    if name is None:
        if not file.is_wheel:
            return b""
        raise corrupt(file.filename, "it has no METADATA")
    return members.read([name])[name]


def _metadata_name(file: File, members: Archive) -> str | None:
    """Return the member that holds the metadata: the wheel's own dist-info, the sdist's topmost PKG-INFO."""
    names = members.names()
    if not file.is_wheel:
        return min((name for name in names if name.endswith("PKG-INFO")), key=lambda n: (n.count("/"), n), default=None)
    project = canonicalize_name(file.filename.partition("-")[0])
    infos = [name for name in names if name.endswith(".dist-info/METADATA") and name.count("/") == 1]
    own = [name for name in infos if canonicalize_name(name.rpartition("/")[0].partition("-")[0]) == project]
    return next(iter([*own, *infos]), None)


def _headers(content: bytes) -> bytes:
    """Return the part before the first empty line, without the description when it is a header."""
    head = content.replace(b"\r\n", b"\n").partition(b"\n\n")[0]
    lines: list[bytes] = []
    skipped = False
    for line in head.split(b"\n"):
        skipped = line.lower().startswith(b"description:") or (skipped and line[:1] in (b" ", b"\t"))
        if not skipped:
            lines.append(line)
    return b"\n".join(lines).rstrip(b"\n") + b"\n"


def parse_metadata(content: bytes, file: File) -> Metadata:
    """Return what METADATA or PKG-INFO says; what cannot be read is left out, with a note."""
    message = HeaderParser().parsestr(content.decode("utf-8", "replace"))
    notes: list[str] = []
    requires = []
    for text in message.get_all("Requires-Dist", []):
        line = " ".join(str(text).split())
        requirement = _requirement(line)
        if requirement is None:
            notes.append(f"Requires-Dist: {line}: not a valid requirement, left out")
        else:
            requires.append(requirement)
    static = file.is_wheel or _is_static(message)
    if not static:
        notes.append("The sdist does not promise that a build has these requirements")
    return Metadata(
        name=str(canonicalize_name(str(message.get("Name") or file.filename.partition("-")[0]))),
        version=_version(str(message.get("Version", "")), file, notes),
        requires=tuple(requires),
        requires_python=_requires_python(str(message.get("Requires-Python") or file.requires_python), notes),
        extras=tuple(dict.fromkeys(canonicalize_name(str(extra)) for extra in message.get_all("Provides-Extra", []))),
        notes=tuple(notes),
        static=static,
    )


def _is_static(message: Message) -> bool:
    """Return whether an sdist's requirements hold for every build."""
    try:
        written = tuple(int(part) for part in str(message.get("Metadata-Version", "")).split("."))
    except ValueError:
        return False
    dynamic = {str(field).strip().lower() for field in message.get_all("Dynamic", [])}
    return written >= _STATIC and not dynamic & {"requires-dist", "provides-extra", "requires-python"}


@lru_cache(maxsize=8192)
def _requirement(line: str) -> Requirement | None:
    """Return the parsed requirement, shared by all releases that state it; nobody may change it."""
    try:
        return Requirement(line)
    except InvalidRequirement:
        return None


def _version(text: str, file: File, notes: list[str]) -> Version:
    try:
        version = Version(text.strip())
    except InvalidVersion:
        notes.append(f"Version: {text.strip() or 'none'}: not a version, the file's name is believed")
        return file.version
    if version != file.version:
        notes.append(f"Version: {version}, but the file's name says {file.version}")
    return version


def _requires_python(text: str, notes: list[str]) -> SpecifierSet:
    try:
        return SpecifierSet(text)
    except InvalidSpecifier:
        notes.append(f"Requires-Python: {text}: not a specifier, left out")
        return SpecifierSet()


def requirements_on(metadata: Metadata, platform: Platform, extras: Iterable[str] = ()) -> tuple[Requirement, ...]:
    """Return the requirements that hold on the platform with these extras, in file order, markers still on them."""
    environment = platform.environment()
    wanted = {"", *(canonicalize_name(extra) for extra in extras)}
    return tuple(
        requirement
        for requirement in metadata.requires
        if requirement.marker is None
        or any(requirement.marker.evaluate({**environment, "extra": extra}) for extra in wanted)
    )
