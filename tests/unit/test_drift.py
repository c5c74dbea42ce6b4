"""Drift: which pairs of statements contradict each other, how sure that is, and what must not be called one."""

from __future__ import annotations

import argparse
import json
import tarfile
import textwrap
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

import matrix.cli.wiring
from matrix.cli import drift
from matrix.drift.comparing import compare, distinct
from matrix.drift.contradiction import Contradiction, Sureness
from matrix.drift.indexing import compare_with_index
from matrix.drift.ranges import disjoint
from matrix.drift.telling import data, text
from matrix.errors import CorruptFileError, UsageError
from matrix.index import File, Metadata
from matrix.statements import unpacking
from matrix.statements.repository import read_repository
from matrix.statements.unpacking import folder_of
from tests.unit.fakes import FakeIndex, FakeRelease

SETUP = 'setup(name="verl", install_requires=["transformers>=5.5.3,<5.11", "numpy>=2", "torch"])\n'
PROJECT = '[project]\nname = "verl"\ndynamic = ["dependencies"]\n'


def _repository(folder: Path, files: Mapping[str, str]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(textwrap.dedent(content))
    return folder


def _found(folder: Path, files: Mapping[str, str]) -> list[tuple[str, str, str, str]]:
    """Return sureness, package, and the two places of each contradiction."""
    return [_row(item) for item in compare(read_repository(_repository(folder, files)))]


def _row(item: Contradiction) -> tuple[str, str, str, str]:
    return item.sureness.value, item.package, str(item.first.place), str(item.second.place) if item.second else ""


class TestRanges:
    @pytest.mark.parametrize(
        ("one", "other", "expected"),
        [
            ("==5.3.0", ">=5.5.3", True),
            ("==5.9.0", ">=5.5.3,!=5.6.0,<5.11", False),
            ("<2", ">=2.0.0", True),
            ("<=2", ">=2", False),
            ("<2", ">=1.9", False),
            ("<2", "==2.*", True),
            (">2,<2.0.0.1", "", False),
            ("==0.8.5.*", ">=0.8.5.post1", False),
            ("==0.8.5.*", ">=0.8.6", True),
            ("~=2.6.0", ">=2.7", True),
            ("~=2.6", ">=2.7", False),
            (">=1.2.0rc6", "==1.2.0", False),
            ("!=1.0", "==1.0", True),
            ("===x", "==1.0", False),
            ("==1!2.0", "==2.0", True),
            ("==2.11.0", "==2.11.0+cu130", False),
            ("", "", False),
            ("==1.0.dev0", "<1.0", True),
            (">1", "<1.1", False),
        ],
    )
    def test_table(self, one: str, other: str, expected: bool) -> None:
        assert disjoint(SpecifierSet(one), SpecifierSet(other)) is expected
        assert disjoint(SpecifierSet(other), SpecifierSet(one)) is expected

    VERSION = st.builds(
        lambda numbers, tail: ".".join(map(str, numbers)) + tail,
        st.lists(st.integers(0, 3), min_size=1, max_size=3),
        st.sampled_from(["", "", "rc1", ".post1", ".dev2"]),
    )
    RANGE = st.lists(
        st.builds(
            lambda sign, version: f"{sign}{version}", st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), VERSION
        ),
        max_size=3,
    ).map(lambda parts: SpecifierSet(",".join(parts)))

    @given(RANGE, RANGE, VERSION)
    def test_a_version_in_both_is_never_overlooked(self, one: SpecifierSet, other: SpecifierSet, version: str) -> None:
        if one.contains(version, prereleases=True) and other.contains(version, prereleases=True):
            assert not disjoint(one, other)


class TestTheProjectItself:
    def test_two_declarations(self, tmp_path: Path) -> None:
        assert _found(
            tmp_path,
            {
                "setup.py": """\
                    setup(
                        name="verl",
                        extras_require={
                            "sglang": ["torch==2.9.1", "sglang[srt]==0.5.12"],
                            "trl": ["trl<=0.9.6"],
                            "vllm": ["vllm>=0.18"],
                        },
                    )
                    """,
                "pyproject.toml": PROJECT
                + """
[project.optional-dependencies]
sglang = ["torch==2.11.0", "sglang==0.5.12"]
fsdp = ["trl==0.27.0"]
megatron = ["trl==0.27.0"]
vllm = ["vllm==0.24.0"]
""",
            },
        ) == [
            ("certain", "torch", "setup.py:4", "pyproject.toml:6"),
            ("likely", "sglang", "setup.py:4", "pyproject.toml:6"),
            ("likely", "trl", "setup.py:5", "pyproject.toml:7"),
        ]

    def test_places_that_say_the_same_are_told_once(self, tmp_path: Path) -> None:
        files = {"setup.py": 'setup(name="verl", extras_require={"trl": ["trl<=0.9.6"]})'}
        files["pyproject.toml"] = PROJECT + '[project.optional-dependencies]\na = ["trl==1"]\nb = [\n"trl==1"]\n'
        (found,) = compare(read_repository(_repository(tmp_path, files)))
        assert [str(place) for place in found.also] == ["pyproject.toml:7"]

    def test_an_extra_against_the_dependencies(self, tmp_path: Path) -> None:
        files = {"setup.py": SETUP}
        files["pyproject.toml"] = PROJECT + '[project.optional-dependencies]\nsgl = ["transformers==5.3.0"]\n'
        assert _found(tmp_path, files) == [("certain", "transformers", "pyproject.toml:5", "setup.py:1")]

    def test_an_override_of_uv_makes_it_less_sure_and_is_told(self, tmp_path: Path) -> None:
        files = {"setup.py": SETUP}
        files["pyproject.toml"] = (
            PROJECT + '[project.optional-dependencies]\nsgl = ["transformers==5.3.0"]\n'
            '[tool.uv]\noverride-dependencies = ["transformers==5.3.0"]\n'
        )
        found = compare(read_repository(_repository(tmp_path, files)))
        assert [_row(item) for item in found] == [
            ("likely", "transformers", "pyproject.toml:5", "setup.py:1"),
            ("likely", "transformers", "pyproject.toml:7", "setup.py:1"),
        ]
        assert "uv overrides it at pyproject.toml:7" in found[0].together

    def test_an_extra_that_names_another(self, tmp_path: Path) -> None:
        files = {
            "pyproject.toml": '[project]\nname = "verl"\n[project.optional-dependencies]\ncore = ["numpy>=2"]\n'
            'gpu = ["verl[core]", "numpy<2"]\n'
        }
        assert [row[0] for row in _found(tmp_path, files)] == ["certain"]

    @pytest.mark.parametrize(
        ("conflicts", "expected"),
        [("", ["possible"]), ('[tool.uv]\nconflicts = [[{extra = "a"}, {extra = "b"}]]\n', [])],
    )
    def test_extras_that_may_differ(self, tmp_path: Path, conflicts: str, expected: list[str]) -> None:
        files = {
            "pyproject.toml": '[project]\nname = "v"\n[project.optional-dependencies]\n'
            f'a = ["torch==1"]\nb = ["torch==2"]\n{conflicts}'
        }
        assert [row[0] for row in _found(tmp_path, files)] == expected

    def test_a_lock(self, tmp_path: Path) -> None:
        lock = '[[package]]\nname = "numpy"\nversion = "1.26.4"\n[[package]]\nname = "torch"\nversion = "2.0"\n'
        files = {"setup.py": SETUP, "uv.lock": lock}
        assert _found(tmp_path, files) == [("certain", "numpy", "uv.lock:2", "setup.py:1")]

    def test_a_lock_with_a_fork_that_fits(self, tmp_path: Path) -> None:
        lock = '[[package]]\nname = "numpy"\nversion = "1.26.4"\n[[package]]\nname = "numpy"\nversion = "2.1"\n'
        assert _found(tmp_path, {"setup.py": SETUP, "uv.lock": lock}) == []

    def test_markers_that_exclude_each_other(self, tmp_path: Path) -> None:
        setup = """setup(install_requires=["a==1; sys_platform == 'linux'", "a==2; sys_platform == 'win32'"])"""
        assert _found(tmp_path, {"setup.py": setup}) == []
        both = setup.replace("win32", "linux")
        assert [row[0] for row in _found(tmp_path, {"setup.py": both})] == ["certain"]


class TestPlaces:
    @pytest.mark.parametrize(
        ("files", "expected"),
        [
            # An image that installs the project: pip would refuse, or replace the pin.
            (
                {"Dockerfile": "FROM x\nRUN pip install transformers==5.3.0\nRUN pip install .\n"},
                [("certain", "transformers", "Dockerfile:2", "setup.py:1")],
            ),
            (
                {"Dockerfile": "FROM x\nRUN pip install transformers==5.3.0\nRUN pip install --no-deps .\n"},
                [("likely", "transformers", "Dockerfile:2", "setup.py:1")],
            ),
            # An image for the project that does not install it, by two of its packages.
            (
                {"Dockerfile": "FROM x\nRUN pip install torch==2.11.0 transformers==5.3.0\n"},
                [("likely", "transformers", "Dockerfile:2", "setup.py:1")],
            ),
            (
                {"Dockerfile": "FROM x\nRUN pip install transformers==5.3.0\n"},
                [("possible", "transformers", "Dockerfile:2", "setup.py:1")],
            ),
            # Kept for another release of the project.
            ({"docker/verl0.4-cu124/Dockerfile": "FROM x\nRUN pip install torch==2.6.0 transformers==4.53\n"}, []),
            # A later command replaces an earlier one, in the stage above too.
            (
                {"Dockerfile": "FROM x AS a\nRUN pip install ray==1\nFROM a\nRUN pip install ray==2\n"},
                [("possible", "ray", "Dockerfile:4", "Dockerfile:2")],
            ),
            ({"Dockerfile": "FROM x AS a\nRUN pip install ray==1\nFROM x\nRUN pip install ray==2\n"}, []),
            (
                {"Dockerfile": "FROM x\nRUN pip install ray==1 ray==2\n"},
                [("certain", "ray", "Dockerfile:2", "Dockerfile:2")],
            ),
            (
                {"Dockerfile": "FROM x\nRUN if a; then pip install ray==1; fi; pip install ray==2 ray==2.1\n"},
                [
                    ("certain", "ray", "Dockerfile:2", "Dockerfile:2"),
                ],
            ),
            (
                {"Dockerfile": "FROM x\nRUN if a; then pip install numpy==1; fi\nRUN pip install .\n"},
                [("possible", "numpy", "Dockerfile:2", "setup.py:1")],
            ),
            # What a file that is included says.
            (
                {"Dockerfile": "FROM x\nRUN pip install ray==1 -r more.requirements.txt\n",
                 "more.requirements.txt": "ray==2\n"},
                [("likely", "ray", "Dockerfile:2", "more.requirements.txt:1")],
            ),
            # The tag of an image is vague.
            (
                {"Dockerfile": "FROM y/z:transformers4.56.1\nRUN pip install .\n"},
                [("likely", "transformers", "Dockerfile:1", "setup.py:1")],
            ),
            (
                {".github/workflows/x.yml": "jobs:\n  a:\n    steps:\n    - run: pip install -e . 'numpy<2'\n"},
                [("certain", "numpy", ".github/workflows/x.yml:4", "setup.py:1")],
            ),
            (
                {".github/workflows/x.yml": "jobs:\n  a:\n    strategy: {matrix: {t: [1, 2]}}\n    steps:\n"
                 "    - run: pip install ray==${{ matrix.t }}\n"},
                [],
            ),
            (
                {"Dockerfile": "FROM x\nRUN pip install ray==1\nRUN pip uninstall -y ray && pip install ray==2\n"},
                [],
            ),
            ({"requirements.txt": "numpy<2\n"}, [("likely", "numpy", "requirements.txt:1", "setup.py:1")]),
            ({"requirements-npu.txt": "numpy<2\n"}, [("possible", "numpy", "requirements-npu.txt:1", "setup.py:1")]),
            (
                {"README.md": "```bash\npip install -e .\npip install numpy==1.26\n```\n"},
                [("likely", "numpy", "README.md:3", "setup.py:1")],
            ),
            ({"README.md": "needs numpy<2.0\n"}, [("possible", "numpy", "README.md:1", "setup.py:1")]),
            ({"README.md": "needs numpy>=2.1\n", "requirements.txt": "numpy>=2.2\n"}, []),
        ],
    )  # fmt: skip
    def test_table(self, tmp_path: Path, files: Mapping[str, str], expected: list[tuple[str, str, str, str]]) -> None:
        assert _found(tmp_path, {"setup.py": SETUP, **files}) == expected


def _asked(folder: Path, files: Mapping[str, str], index: FakeIndex) -> list[tuple[str, str, str, str, str]]:
    answer = compare_with_index(read_repository(_repository(folder, files)), index)
    return [(item.kind.value, *_row(item)) for item in answer.contradictions]


INDEX = FakeIndex(
    {
        "vllm": {
            "0.24.0": FakeRelease(
                requires=["transformers>=5.5.3", "numpy; extra == 'audio'"], requires_python=">=3.10"
            ),
            "0.25.0": FakeRelease(yanked="broken"),
        },
        "transformers": {"5.3.0": FakeRelease(), "5.9.0": FakeRelease()},
        "numpy": {"1.26.4": FakeRelease(), "2.1.0": FakeRelease()},
        "torch": {"2.11.0": FakeRelease(tags="cp312-cp312-manylinux_2_28_x86_64")},
        "old": {"1.0": FakeRelease(sdist_only=True, requires=["numpy<2"])},
    }
)


class TestIndex:
    @pytest.mark.parametrize(
        ("dockerfile", "expected"),
        [
            (
                "RUN pip install vllm==0.24.0\nRUN pip install transformers==5.3.0\n",
                [("requires", "certain", "transformers", "Dockerfile:3", "Dockerfile:2")],
            ),
            (
                "RUN pip install --no-deps vllm==0.24.0\nRUN pip install transformers==5.3.0\n",
                [("requires", "likely", "transformers", "Dockerfile:3", "Dockerfile:2")],
            ),
            ("RUN pip install vllm==0.24.0 transformers==5.9.0\n", []),
            # Replaced later, so it is not what is there in the end.
            ("RUN pip install vllm==0.24.0 transformers==5.3.0\nRUN pip install transformers==5.9.0\n", []),
            ("RUN pip install vllm==0.99\n", [("absent", "certain", "vllm", "Dockerfile:2", "")]),
            ("RUN pip install 'vllm>=0.99'\n", [("absent", "certain", "vllm", "Dockerfile:2", "")]),
            ("RUN pip install vllm==0.25.0\n", [("yanked", "certain", "vllm", "Dockerfile:2", "")]),
            ("RUN pip install torch==2.11.0+cu130\n", []),
            ("RUN pip install vllm==0.99 --index-url https://wheels.vllm.ai/nightly\n", []),
            (
                "RUN pip install old==1.0 numpy==2.1.0\n",
                [("requires", "certain", "numpy", "Dockerfile:2", "Dockerfile:2")],
            ),
            ("RUN pip install nowhere==1\n", []),
            # Only where a test says so, or on another machine.
            (
                "RUN pip install vllm==0.24.0\nRUN if x; then pip install transformers==5.3.0; fi\n",
                [("requires", "possible", "transformers", "Dockerfile:3", "Dockerfile:2")],
            ),
            ("RUN pip install vllm==0.24.0 'transformers==5.3.0; platform_machine == \"s390x\"'\n", []),
            ("RUN pip install 'vllm==0.24.0; python_version < \"3.10\"' transformers==5.3.0\n", []),
            # Taken out again.
            ("RUN pip install vllm==0.24.0 transformers==5.3.0\nRUN pip uninstall -y transformers\n", []),
        ],
    )
    def test_an_image(self, tmp_path: Path, dockerfile: str, expected: list[tuple[str, ...]]) -> None:
        assert _asked(tmp_path, {"Dockerfile": f"FROM x\n{dockerfile}"}, INDEX) == expected

    def test_python(self, tmp_path: Path) -> None:
        files = {"Dockerfile": "FROM python:3.9-slim\nRUN pip install vllm==0.24.0\n"}
        assert _asked(tmp_path, files, INDEX) == [("python", "certain", "python", "Dockerfile:1", "Dockerfile:2")]

    def test_an_extra_of_the_project(self, tmp_path: Path) -> None:
        files = {
            "pyproject.toml": '[project]\nname = "v"\n[project.optional-dependencies]\n'
            'e = ["vllm[audio]==0.24.0",\n"transformers==5.3.0"]\n'
        }
        assert _asked(tmp_path, files, INDEX) == [
            ("requires", "certain", "transformers", "pyproject.toml:5", "pyproject.toml:4")
        ]

    def test_a_page_is_less_sure(self, tmp_path: Path) -> None:
        files = {"README.md": "```\npip install vllm==0.24.0 transformers==5.3.0 vllm==0.99\n```\n"}
        found = _asked(tmp_path, files, INDEX)
        assert ("absent", "possible", "vllm", "README.md:2", "") in found

    def test_what_cannot_be_asked_is_told(self, tmp_path: Path) -> None:
        class Broken(FakeIndex):
            def metadata(self, file: File) -> Metadata:
                raise CorruptFileError(f"{file.filename} is broken")

        index = Broken({"vllm": {"0.24.0": FakeRelease()}})
        files = {"requirements.txt": "vllm==0.24.0\nnowhere==1\n"}
        answer = compare_with_index(read_repository(_repository(tmp_path, files)), index)
        assert answer.unasked == (
            "nowhere is no project of the index",
            "vllm 0.24.0: vllm-0.24.0-py3-none-any.whl is broken",
        )
        assert answer.looked_at == 0


FILES = {
    "setup.py": SETUP,
    "requirements.txt": "numpy<2\nno requirement at all\n",
    "Dockerfile": "FROM x\nRUN pip install vllm==0.24.0 transformers==5.3.0\n",
    "README.md": "numpy<1.0\n",
}


class TestTelling:
    def test_text(self, tmp_path: Path) -> None:
        repository = read_repository(_repository(tmp_path, FILES))
        answer = compare_with_index(repository, INDEX)
        found = distinct((*compare(repository), *answer.contradictions))
        said, pinned = text(repository, found, answer, everything=False), "transformers==5.3.0"
        assert said.splitlines() == [
            "Dockerfile (stage 0)",
            f"  certain: transformers: vllm 0.24.0 requires transformers>=5.5.3; {pinned} is installed beside it",
            "    Dockerfile:2 [stage 0]  transformers==5.3.0",
            "    Dockerfile:2 [stage 0]  vllm==0.24.0",
            "    together: Dockerfile (stage 0) installs both",
            "requirements.txt (requirements.txt)",
            "  likely: numpy: no version is both in <2 and in >=2",
            "    requirements.txt:1  numpy<2",
            "    setup.py:1  numpy>=2",
            "    together: requirements.txt and the project's metadata name what it needs",
            "2 contradictions: 1 certain, 1 likely; 3 that may be on purpose, 1 line not read (--all shows them).",
            "7 statements in 4 files; 2 releases of the index looked at.",
        ]
        everything = text(repository, found, None, everything=True)
        assert "possible: numpy" in everything
        assert "not read: requirements.txt:2: `no requirement at all` is no requirement" in everything
        assert "the index was not asked" in everything

    def test_json(self, tmp_path: Path) -> None:
        repository = read_repository(_repository(tmp_path, FILES))
        said = json.loads(json.dumps(data(repository, compare(repository), None)))
        assert said["counts"] == {"certain": 0, "likely": 1, "possible": 2}
        assert said["index"] is None
        first = said["contradictions"][0]
        assert (first["first"]["place"], first["second"]["place"]) == ("requirements.txt:1", "setup.py:1")

    def test_sureness(self) -> None:
        assert [word.weaker for word in Sureness] == [Sureness.LIKELY, Sureness.POSSIBLE, Sureness.POSSIBLE]


class TestArchives:
    def _made(self, folder: Path, name: str) -> Path:
        inner = _repository(folder / "in" / "verl-0.9.1", FILES)
        path = folder / name
        if name.endswith(".zip"):
            with zipfile.ZipFile(path, "w") as archive:
                for file in FILES:
                    archive.write(inner / file, f"verl-0.9.1/{file}")
        else:
            with tarfile.open(path, "w:gz") as tar:
                tar.add(inner, "verl-0.9.1")
        return path

    @pytest.mark.parametrize("name", ["verl-0.9.1.tar.gz", "verl.zip"])
    def test_an_archive_is_like_its_folder(self, tmp_path: Path, name: str) -> None:
        with folder_of(self._made(tmp_path, name)) as folder:
            assert set(read_repository(folder).files) == set(FILES)
        assert not folder.exists()

    def test_several_at_the_top(self, tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            archive.writestr("setup.py", SETUP)
            archive.writestr("requirements.txt", "numpy<2")
        with folder_of(tmp_path / "a.zip") as folder:
            assert len(read_repository(folder).files) == 2

    def test_what_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "text").write_text("hello")
        good = self._made(tmp_path, "verl.tar.gz")
        (tmp_path / "cut.tar.gz").write_bytes(good.read_bytes()[:200])
        with tarfile.open(tmp_path / "out.tar", "w") as tar:
            item = tarfile.TarInfo("../outside")
            tar.addfile(item)
        for name, error in (
            ("none", UsageError),
            ("text", UsageError),
            ("cut.tar.gz", CorruptFileError),
            ("out.tar", CorruptFileError),
        ):
            with pytest.raises(error), folder_of(tmp_path / name):
                pass
        monkeypatch.setattr(unpacking, "LARGEST", 10)
        with pytest.raises(UsageError, match="would become"), folder_of(good):
            pass


class TestCommand:
    @pytest.mark.parametrize(
        ("files", "options", "code"),
        [
            ({"setup.py": SETUP}, [], 0),
            (FILES, [], 1),
            (FILES, ["--json"], 1),
            (FILES, ["--index-check", "--all"], 1),
            ({"setup.py": SETUP, "README.md": "numpy<1.0\n"}, [], 0),
        ],
    )
    def test_exit_codes(
        self,
        tmp_path: Path,
        files: Mapping[str, str],
        options: list[str],
        code: int,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setattr(matrix.cli.wiring, "open_index", lambda args, home: INDEX)
        parser = argparse.ArgumentParser()
        drift.words(parser)
        args = parser.parse_args([str(_repository(tmp_path, files)), *options])
        args.home = str(tmp_path / "home")
        assert drift.run(args, None) == code  # type: ignore[arg-type]
        said = capsys.readouterr().out
        assert said.startswith("{") if "--json" in options else " in " in said.splitlines()[-1]
