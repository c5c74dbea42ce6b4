from __future__ import annotations

from datetime import UTC, datetime

import pytest
from packaging.version import Version

from matrix.cell import Platform
from matrix.errors import UnknownReleaseError
from matrix.index import File, PackageIndex, Release
from tests.unit.fakes import FakeIndex, FakeRelease


def file(name: str, *, yanked: str | None = None, day: int = 1, sha: str = "a" * 64) -> File:
    return File(
        filename=name,
        url=f"https://x/{name}",
        sha256=sha,
        version=Version("1"),
        uploaded=datetime(2026, 1, day, tzinfo=UTC),
        yanked=yanked,
    )


def release(*files: File) -> Release:
    return Release(project="demo", version=Version("1"), files=files)


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        ((None,), None),
        (("bad", None), None),
        (("", ""), ""),
        (("", "bad"), "bad"),
    ],
)
def test_release_is_yanked_when_every_file_is(reasons: tuple[str | None, ...], expected: str | None) -> None:
    assert release(*(file(f"{at}.whl", yanked=reason) for at, reason in enumerate(reasons))).yanked == expected


def test_release_was_uploaded_when_its_first_file_was() -> None:
    assert release(file("b.whl", day=3), file("a.whl", day=2)).uploaded.day == 2


def test_sdist_is_the_tar_before_the_zip_and_none_among_wheels() -> None:
    both = release(file("demo-1.zip"), file("demo-1.tar.gz"), file("demo-1-py3-none-any.whl"))
    assert both.sdist is not None
    assert both.sdist.filename == "demo-1.tar.gz"
    assert release(file("demo-1-py3-none-any.whl")).sdist is None


def test_digest_tells_added_replaced_and_yanked_files_and_not_their_order() -> None:
    one, two = file("a.whl"), file("b.whl")
    base = release(one, two).digest
    assert release(two, one).digest == base
    assert base.startswith("sha256:")
    others = [release(one), release(one, file("b.whl", sha="b" * 64)), release(one, file("b.whl", yanked=""))]
    assert len({base, *(other.digest for other in others)}) == 4


def test_a_file_without_a_hash_is_named_by_its_url() -> None:
    assert file("a.whl").digest == f"sha256:{'a' * 64}"
    assert file("a.whl").key == "a" * 64
    assert file("a.whl", sha="").digest.startswith("url:")
    assert file("a.whl", sha="").key != file("b.whl", sha="").key
    assert ":" not in file("a.whl", sha="").key


def test_fake_index_answers_like_the_real_one_and_counts() -> None:
    fake = FakeIndex(
        {
            "verl": {
                "0.9.1": FakeRelease(files={"verl/a.py": "x"}, requires=["vllm>=0.8; extra == 'vllm'"], extras=["vllm"])
            },
            "vllm": {
                "0.24.0": FakeRelease(tags="cp38-abi3-manylinux_2_31_x86_64"),
                "0.25.0": FakeRelease(uploaded=datetime(2026, 9, 1, tzinfo=UTC)),
                "0.5.0": FakeRelease(sdist_only=True),
            },
        },
        as_of=datetime(2026, 6, 1, tzinfo=UTC),
    )
    index: PackageIndex = fake
    verl = index.require_release("verl", Version("0.9.1"))
    wheel = index.best_file(verl, Platform())
    assert wheel is not None
    assert index.archive(wheel).read(["verl/a.py"]) == {"verl/a.py": b"x"}
    assert [str(r) for r in index.metadata(wheel).requires] == ['vllm>=0.8; extra == "vllm"']
    assert list(index.project("vLLM").releases) == [Version("0.5.0"), Version("0.24.0")]
    old = index.require_release("vllm", Version("0.5.0"))
    assert index.best_file(old, Platform()) is None
    assert index.why_no_file(old, Platform()) == "vllm 0.5.0 has no wheel, only an sdist"
    with pytest.raises(UnknownReleaseError) as unknown:
        index.require_release("vllm", Version("0.25.0"))
    assert unknown.value.near == ("0.24.0", "0.5.0")
    with pytest.raises(UnknownReleaseError, match=r"vlm does not exist.*\nClosest: vllm"):
        index.project("vlm")
    assert fake.asked["project:vllm"] == 3
    assert fake.asked[f"archive:{wheel.filename}"] == 1


def test_fake_files_have_digests_that_depend_on_what_is_in_them() -> None:
    def digest(**said: object) -> str:
        made = FakeIndex({"a": {"1": FakeRelease(**said)}})  # type: ignore[arg-type]
        return made.project("a").releases[Version("1")].digest

    assert digest(files={"a.py": "1"}) == digest(files={"a.py": "1"})
    assert len({digest(), digest(files={"a.py": "1"}), digest(requires=["b"]), digest(tags="py2-none-any")}) == 4
