"""Small fakes for the whole team: `FakeIndex`, a package index that is a dictionary.

index = FakeIndex({
    "verl": {"0.9.1": FakeRelease(files={"verl/__init__.py": "import vllm"}, requires=["vllm>=0.8"])},
    "vllm": {"0.24.0": FakeRelease(tags="cp38-abi3-manylinux_2_31_x86_64")},
})
index.asked["project:verl"]   # how often the page of verl was asked for

The fake HTTP server of the index tests is `tests/unit/http_server.py`.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from matrix.cell import Platform
from matrix.errors import UnknownReleaseError
from matrix.index import File, Metadata, Project, Release
from matrix.index.tags import best_wheel, why_no_wheel
from matrix.nearness import near_names, near_versions

UPLOADED = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeRelease:
    """One release: its members (path relative to site-packages → source) and what its metadata and page say.

    Several wheels: give `tags` as a sequence; all have the same members.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    requires: Sequence[str] = ()
    extras: Sequence[str] = ()
    tags: str | Sequence[str] = "py3-none-any"
    uploaded: datetime = UPLOADED
    yanked: str | None = None
    requires_python: str = ""
    sdist_only: bool = False


class FakeArchive:
    """The members of a fake file; `reads` lists the names that were asked for."""

    def __init__(self, file: File, members: Mapping[str, str]) -> None:
        self.file = file
        self.members = {name: source.encode() for name, source in members.items()}
        self.reads: list[str] = []

    @property
    def filename(self) -> str:
        return self.file.filename

    @property
    def digest(self) -> str:
        return f"sha256:{self.file.sha256}"

    @property
    def bytes_read(self) -> int:
        return sum(len(self.members[name]) for name in set(self.reads))

    def names(self) -> Sequence[str]:
        return tuple(self.members)

    def read(self, names: Iterable[str]) -> dict[str, bytes]:
        wanted = list(names)
        contents = {name: self.members[name] for name in wanted}
        self.reads += wanted
        return contents


class FakeIndex:
    """A `PackageIndex` made from `{project: {version: FakeRelease}}`; `asked` counts `kind:what` of every question."""

    def __init__(self, packages: Mapping[str, Mapping[str, FakeRelease]], *, as_of: datetime | None = None) -> None:
        self.asked: Counter[str] = Counter()
        self.releases: dict[str, FakeRelease] = {}
        self.projects: dict[str, Project] = {}
        for name, versions in packages.items():
            project = str(canonicalize_name(name))
            releases = {}
            for version in sorted(versions, key=Version):
                fake = versions[version]
                if as_of is not None and fake.uploaded > as_of:
                    continue
                files = tuple(_files(project, version, fake))
                self.releases |= {file.filename: fake for file in files}
                releases[Version(version)] = Release(project=project, version=Version(version), files=files)
            self.projects[project] = Project(name=project, releases=releases)

    def project(self, name: str) -> Project:
        project = str(canonicalize_name(name))
        self.asked[f"project:{project}"] += 1
        if project not in self.projects:
            raise UnknownReleaseError(name, near=near_names(project, self.projects))
        return self.projects[project]

    def require_release(self, project: str, version: Version) -> Release:
        releases = self.project(project).releases
        if version not in releases:
            raise UnknownReleaseError(f"{project} {version}", near=near_versions(version, releases))
        return releases[version]

    def metadata(self, file: File) -> Metadata:
        self.asked[f"metadata:{file.filename}"] += 1
        fake = self.releases[file.filename]
        return Metadata(
            name=file.filename.split("-")[0].replace("_", "-"),
            version=file.version,
            requires=tuple(Requirement(text) for text in fake.requires),
            requires_python=SpecifierSet(fake.requires_python),
            extras=tuple(fake.extras),
        )

    def archive(self, file: File) -> FakeArchive:
        self.asked[f"archive:{file.filename}"] += 1
        return FakeArchive(file, self.releases[file.filename].files)

    def best_file(self, release: Release, platform: Platform) -> File | None:
        return best_wheel(release, platform)

    def why_no_file(self, release: Release, platform: Platform) -> str:
        return why_no_wheel(release, platform)


def _files(project: str, version: str, fake: FakeRelease) -> Iterable[File]:
    """Yield the files of a release; the digest depends on everything in it and on nothing else."""
    stem = f"{project.replace('-', '_')}-{version}"
    tags = [fake.tags] if isinstance(fake.tags, str) else list(fake.tags)
    names = [(f"{stem}.tar.gz", "")] if fake.sdist_only else [(f"{stem}-{tag}.whl", tag) for tag in tags]
    for filename, tag in names:
        body = [filename, dict(fake.files), list(fake.requires), list(fake.extras), fake.requires_python]
        yield File(
            filename=filename,
            url=f"https://index.invalid/{filename}",
            sha256=hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest(),
            version=Version(version),
            uploaded=fake.uploaded,
            size=sum(len(source) for source in fake.files.values()),
            requires_python=fake.requires_python,
            yanked=fake.yanked,
            tags=tag,
        )
