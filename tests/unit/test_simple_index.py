from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from packaging.version import Version

from matrix.cell import Platform
from matrix.errors import IndexUnreachableError, UnknownReleaseError, UsageError
from matrix.index import PackageIndex
from matrix.index.fetch import Fetcher, Limits
from matrix.index.simple import PYPI, SimpleIndex
from tests.unit.http_server import PageKind, Site, sdist, serving, wheel

QUICK = Limits(connect=1.0, read=5.0, tries=2, backoff=0.001, longest_wait=0.01)
PAGE = "/simple/demo/"


class Clock:
    """A clock that goes on when told."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as running:
        fill(running)
        yield running


def fill(site: Site) -> None:
    for version, day in (("1.0", 1), ("1.1", 5), ("1.10", 9), ("2.0rc1", 12)):
        moment = {"upload-time": f"2026-02-{day:02}T00:00:00Z"}
        name = f"demo-{version}-py3-none-any.whl"
        site.add("demo", name, wheel("demo", version, {"demo/a.py": version.encode()}, requires=["torch"]), **moment)
    site.add("demo", "demo-0.9.tar.gz", sdist("demo", "0.9", {"demo/__init__.py": b"", "PKG-INFO": b"Name: demo\n"}))
    site.add("demo", "demo-0.9.egg", b"")


def index(site: Site, root: Path, *, clock: Clock | None = None, as_of: datetime | None = None) -> SimpleIndex:
    fetcher = Fetcher(limits=QUICK)
    return SimpleIndex(cache_dir=root, url=site.url + "/", fetcher=fetcher, clock=clock or Clock(), as_of=as_of)


def offline(site: Site, root: Path) -> SimpleIndex:
    return SimpleIndex(cache_dir=root, url=site.url, offline=True, clock=Clock())


@pytest.mark.parametrize("kind", ["json", "html"])
def test_a_project_has_its_releases_oldest_first(tmp_path: Path, kind: PageKind) -> None:
    with serving(kind) as site:
        fill(site)
        made: PackageIndex = index(site, tmp_path)
        project = made.project("Demo")
        assert project.name == "demo"
        assert [str(version) for version in project.releases] == ["0.9", "1.0", "1.1", "1.10", "2.0rc1"]
        release = made.require_release("demo", Version("1.1"))
        file = made.best_file(release, Platform())
        assert file is not None
        assert made.archive(file).read(["demo/a.py"]) == {"demo/a.py": b"1.1"}
        assert [str(r) for r in made.metadata(file).requires] == ["torch"]
        assert made.why_no_file(made.require_release("demo", Version("0.9")), Platform()).endswith("only an sdist")
        if kind == "json":
            assert release.uploaded == datetime(2026, 2, 5, tzinfo=UTC)


def test_an_sdist_is_read_like_a_wheel(site: Site, tmp_path: Path) -> None:
    made = index(site, tmp_path)
    release = made.require_release("demo", Version("0.9"))
    assert release.sdist is not None
    assert made.archive(release.sdist).names() == ("demo/__init__.py", "PKG-INFO")
    assert not made.metadata(release.sdist).static


@pytest.mark.parametrize("header", ["If-None-Match", "If-Modified-Since"])
def test_a_page_is_asked_for_once_in_a_process_and_once_in_its_age(site: Site, tmp_path: Path, header: str) -> None:
    site.etags = header == "If-None-Match"
    clock = Clock()
    one = index(site, tmp_path, clock=clock)
    one.project("demo")
    one.project("DEMO")
    clock.now += 599
    assert index(site, tmp_path, clock=clock).project("demo") == one.project("demo")
    assert site.count(PAGE) == 1
    clock.now += 2
    assert index(site, tmp_path, clock=clock).project("demo") == one.project("demo")
    assert site.count(PAGE) == 2
    assert header in site.asked[-1][1]
    clock.now += 599
    index(site, tmp_path, clock=clock).project("demo")
    assert site.count(PAGE) == 2, "an unchanged page is fresh again"


def test_a_page_that_changed_is_taken(site: Site, tmp_path: Path) -> None:
    clock = Clock()
    index(site, tmp_path, clock=clock).project("demo")
    site.add("demo", "demo-3.0-py3-none-any.whl", wheel("demo", "3.0", {}))
    clock.now += 601
    assert Version("3.0") in index(site, tmp_path, clock=clock).project("demo").releases


def test_a_clock_that_went_back_does_not_make_a_page_fresh_for_ever(site: Site, tmp_path: Path) -> None:
    clock = Clock()
    index(site, tmp_path, clock=clock).project("demo")
    clock.now -= 10_000
    index(site, tmp_path, clock=clock).project("demo")
    assert site.count(PAGE) == 2


def test_a_damaged_page_on_disk_is_asked_for_again(site: Site, tmp_path: Path) -> None:
    index(site, tmp_path).project("demo")
    for path in tmp_path.rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-3])
    assert len(index(site, tmp_path).project("demo").releases) == 5


def test_offline_answers_from_disk_whatever_its_age_and_nothing_else(site: Site, tmp_path: Path) -> None:
    with pytest.raises(IndexUnreachableError, match=r"(?s)not in the cache.*--offline"):
        offline(site, tmp_path).project("demo")
    clock = Clock()
    clock.now = 0
    made = index(site, tmp_path, clock=clock)
    file = made.best_file(made.require_release("demo", Version("1.0")), Platform())
    assert file is not None
    made.metadata(file)
    asked = len(site.asked)
    kept = offline(site, tmp_path)
    assert len(kept.project("demo").releases) == 5
    assert kept.metadata(file) == made.metadata(file)
    assert kept.archive(file).read(["demo/a.py"]) == {"demo/a.py": b"1.0"}
    assert len(site.asked) == asked


@pytest.mark.parametrize(
    ("as_of", "versions"),
    [
        (datetime(2026, 2, 5, tzinfo=UTC), ["0.9", "1.0", "1.1"]),
        (datetime(2026, 2, 4, 23, 59), ["0.9", "1.0"]),
        (datetime(2020, 1, 1, tzinfo=UTC), []),
    ],
)
def test_as_of_hides_what_came_later(site: Site, tmp_path: Path, as_of: datetime, versions: list[str]) -> None:
    made = index(site, tmp_path, as_of=as_of)
    assert [str(version) for version in made.project("demo").releases] == versions
    with pytest.raises(UnknownReleaseError, match=r"Only what was there on 20\d\d-\d\d-\d\d \d\d:\d\d UTC counts"):
        made.require_release("demo", Version("1.10"))


def test_as_of_hides_files_of_unknown_age(tmp_path: Path) -> None:
    with serving("html") as site:
        fill(site)
        assert not index(site, tmp_path, as_of=datetime(2026, 12, 1, tzinfo=UTC)).project("demo").releases


def test_an_unknown_project_has_near_names_and_is_asked_for_once(site: Site, tmp_path: Path) -> None:
    made = SimpleIndex(cache_dir=tmp_path, url=site.url, fetcher=Fetcher(limits=QUICK), known=["megatron-core"])
    for name, near in (("transformer", "transformers"), ("Megatron_Cor", "megatron-core")):
        for _ in range(2):
            with pytest.raises(UnknownReleaseError, match=f"{name} does not exist") as raised:
                made.project(name)
            assert raised.value.near[0] == near
    assert len(site.asked) == 2


def test_an_unknown_release_has_near_versions(site: Site, tmp_path: Path) -> None:
    with pytest.raises(UnknownReleaseError, match=r"demo 1\.1\.post1 does not exist.*\nClosest: 1\.1, ") as raised:
        index(site, tmp_path).require_release("demo", Version("1.1.post1"))
    assert raised.value.near[0] == "1.1"


def test_what_is_no_index_is_said_so_and_not_kept(site: Site, tmp_path: Path) -> None:
    site.faults[PAGE] = ["login"]
    with pytest.raises(IndexUnreachableError, match=r"(?s)is not a page of a package index.*UV_DEFAULT_INDEX"):
        index(site, tmp_path).project("demo")
    assert len(index(site, tmp_path).project("demo").releases) == 5


def test_a_server_in_trouble_is_unreachable_and_later_tried_again(site: Site, tmp_path: Path) -> None:
    made = index(site, tmp_path)
    site.faults[PAGE] = ["500", "500"]
    with pytest.raises(IndexUnreachableError, match="answered 500"):
        made.project("demo")
    assert len(made.project("demo").releases) == 5


def test_an_archive_is_shared_while_it_is_held(site: Site, tmp_path: Path) -> None:
    made = index(site, tmp_path)
    file = made.require_release("demo", Version("1.0")).files[0]
    archive = made.archive(file)
    assert made.archive(file) is archive
    del archive
    gc.collect()
    assert made.archive(file).names()


def test_threads_ask_for_a_page_and_metadata_once(site: Site, tmp_path: Path) -> None:
    made = index(site, tmp_path)
    found: list[object] = []

    def work() -> None:
        release = made.require_release("demo", Version("1.0"))
        found.append(made.metadata(release.files[0]))

    threads = [threading.Thread(target=work) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 12
    assert len(site.asked) == 2


def test_two_runs_at_once_share_a_cache(site: Site, tmp_path: Path) -> None:
    found: list[tuple[str, object, bytes]] = []

    def work() -> None:
        made = index(site, tmp_path)
        for version in ("1.0", "1.1", "1.10"):
            file = made.require_release("demo", Version(version)).files[0]
            archive = made.archive(file)
            found.append((version, made.metadata(file).requires, archive.read(["demo/a.py"])["demo/a.py"]))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 18
    assert {(version, body.decode()) for version, _, body in found} == {(v, v) for v in ("1.0", "1.1", "1.10")}
    asked = len(site.asked)
    work()
    assert len(site.asked) == asked


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({}, PYPI),
        ({"PIP_INDEX_URL": "https://pip.example/simple/"}, "https://pip.example/simple"),
        ({"UV_INDEX_URL": "https://uv.example", "PIP_INDEX_URL": "https://pip.example"}, "https://uv.example"),
        ({"UV_DEFAULT_INDEX": "https://new.example", "UV_INDEX_URL": "https://uv.example"}, "https://new.example"),
        ({"UV_DEFAULT_INDEX": "", "PIP_INDEX_URL": "https://pip.example"}, "https://pip.example"),
    ],
)
def test_the_environment_names_the_index(tmp_path: Path, environ: dict[str, str], url: str) -> None:
    assert SimpleIndex.from_environment(cache_dir=tmp_path, environ=environ).url == url


def test_the_processes_environment_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://own.example/simple")
    assert SimpleIndex.from_environment(cache_dir=tmp_path).url == "https://own.example/simple"


@pytest.mark.parametrize("url", ["/srv/wheels", "file:///srv/simple", "ftp://index.example"])
def test_an_index_that_is_no_http_address_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(UsageError, match="is not an http or https address"):
        SimpleIndex(cache_dir=tmp_path, url=url)


def test_credentials_of_the_index_go_to_its_files_too_and_are_kept_nowhere(site: Site, tmp_path: Path) -> None:
    url = site.url.replace("http://", "http://me:secret@")
    made = SimpleIndex(cache_dir=tmp_path, url=url, fetcher=Fetcher(limits=QUICK), clock=Clock())
    file = made.require_release("demo", Version("1.0")).files[0]
    made.metadata(file)
    assert {headers.get("Authorization") for _, headers in site.asked} == {"Basic bWU6c2VjcmV0"}
    assert "secret" not in file.url + made.url
    assert not any(b"secret" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_importing_it_loads_neither_urllib3_nor_ssl() -> None:
    code = "import sys, matrix.index.simple; print(sorted({'urllib3', 'ssl', 'tarfile', 'zipfile'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
