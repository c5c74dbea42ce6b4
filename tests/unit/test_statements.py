"""What files say about versions: every reader as a table of (text, statements), with the lines they stand on."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.errors import UsageError
from matrix.statements.dockerfile import is_dockerfile, read_dockerfile
from matrix.statements.locks import is_conda, is_lock, read_conda, read_lock
from matrix.statements.prose import blocks, is_prose, read_prose
from matrix.statements.pyproject import poetry_range, read_pyproject
from matrix.statements.repository import read_repository
from matrix.statements.requirements import read_requirements
from matrix.statements.setup_py import read_setup
from matrix.statements.shell import commands
from matrix.statements.statement import Reading
from matrix.statements.workflow import is_workflow, read_workflow


def _said(reading: Reading) -> list[tuple[int, str, str, str]]:
    """Return line, scope, package and range of each statement."""
    return [(item.place.line, item.scope, item.package, str(item.specifier)) for item in reading.statements]


def _taken(reading: Reading) -> list[tuple[int, str, str, tuple[str, ...], bool]]:
    return [(item.place.line, item.scope, item.target, item.extras, item.constraint) for item in reading.inclusions]


def _text(text: str) -> str:
    return textwrap.dedent(text).lstrip("\n")


class TestShell:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("pip install a b", [["pip", "install", "a", "b"]]),
            ("a && b || c; d | e", [["a"], ["b"], ["c"], ["d"], ["e"]]),
            ("a 'x y' \"p $V\" \\\n  z", [["a", "x y", "p 1", "z"]]),
            ("a # comment\nb", [["a"], ["b"]]),
            ("a#b", [["a#b"]]),
            ("V=2 && a $V", [["V=2"], ["a", "2"]]),
            ("export V=2\na ${V}", [["export", "V=2"], ["a", "2"]]),
            ("a ${W:-3} ${V:+4} ${W-5} $", [["a", "3", "4", "5", "$"]]),
            ("a > log 2>&1 b", [["a", "b"]]),
            ("a<3 'b>=2'", [["a<3", "b>=2"]]),
            ("a b>=2", [["a", "b>=2"]]),
            ("a $(uname -m) `x`", [["a", "", ""]]),
            ('a "unclosed', [["a", "unclosed"]]),
            ("(a)", [["a"]]),
            ('a \\"b', [["a", '"b']]),
            ('a "x\\"y\\\nz"', [["a", 'x"yz']]),
        ],
    )
    def test_words(self, text: str, expected: list[list[str]]) -> None:
        assert [[word.text for word in command] for command in commands(text, {"V": "1"})] == expected

    def test_lines_and_what_is_not_known(self) -> None:
        (first, second) = commands("a \\\n  $X \\\n  'b\nc' d\ne", {}, first=7)
        assert [(word.text, word.line) for word in first] == [("a", 7), ("", 8), ("b\nc", 9), ("d", 10)]
        assert first[1].unset == ("X",)
        assert second[0].line == 11

    def test_what_a_test_decides(self) -> None:
        text = "a; if [ $X = 1 ]; then b; else c; fi; d || e; f\ncase $X in\n 1) g;;\nesac\nh && i"
        said = {command[-1].text: command[-1].conditional for command in commands(text, {})}
        assert {name for name, conditional in said.items() if conditional} == {"]", "b", "c", "e", "in", "1", "g"}

    def test_a_bound_without_quotes_is_marked(self) -> None:
        ((_, plain, quoted),) = commands("pip vllm>=0.8 'vllm>=0.8'", {})
        assert (plain.redirected, quoted.redirected) == (True, False)

    @given(st.text(alphabet="ab '\"\\\n$`(){}|&;<>=#", max_size=60))
    def test_any_text_ends(self, text: str) -> None:
        for command in commands(text, {}):
            assert command
            assert all(1 <= word.line <= text.count("\n") + 1 for word in command)


class TestRequirements:
    TEXT = _text(
        """
        # a comment
        torch==2.11.0  # why
        vllm[audio]>=0.18,<0.25 ; python_version < "3.13"
        numpy \\
            >=2
        flash-attn==2.8.3 --hash=sha256:aa --hash=sha256:bb
        -r other.txt
        -cbounds.txt
        --requirement=third.txt
        -e .[test]
        ./local
        --index-url https://pypi.org/simple
        git+https://example.org/x.git#egg=mbridge
        https://example.org/nameless.zip
        not a requirement
        -z
        """
    )

    def test_lines(self) -> None:
        reading = read_requirements(self.TEXT, "requirements.txt")
        assert _said(reading) == [
            (2, "requirements.txt", "torch", "==2.11.0"),
            (3, "requirements.txt", "vllm", "<0.25,>=0.18"),
            (4, "requirements.txt", "numpy", ">=2"),
            (6, "requirements.txt", "flash-attn", "==2.8.3"),
            (13, "requirements.txt", "mbridge", ""),
        ]
        assert [(i.place.line, i.target, i.extras, i.constraint) for i in reading.inclusions] == [
            (7, "other.txt", (), False),
            (8, "bounds.txt", (), True),
            (9, "third.txt", (), False),
            (10, ".", ("test",), False),
            (11, "./local", (), False),
        ]
        assert [remark.place.line for remark in reading.remarks] == [14, 15, 16]
        assert reading.statements[3].hashes == ("sha256:aa", "sha256:bb")
        assert reading.statements[1].extras == ("audio",)
        assert reading.statements[4].url
        assert str(reading.remarks[1]) == "requirements.txt:15: `not a requirement` is no requirement"

    @pytest.mark.parametrize(
        ("line", "taken", "remarks"),
        [
            ("-r", [], ["the option `-r` is not known"]),
            ("-e git+https://x.org/y.git#egg=z", [], []),
            ("--find-links 'x", [], ["`--find-links 'x` cannot be read: No closing quotation"]),
            ("--pre", [], []),
            ("./a[b", [], ["`./a[b` is no path"]),
            ("/abs/path", ["/abs/path"], []),
        ],
    )
    def test_options_and_paths(self, line: str, taken: list[str], remarks: list[str]) -> None:
        reading = read_requirements(line, "r.txt")
        assert [item.target for item in reading.inclusions] == taken
        assert [remark.what for remark in reading.remarks] == remarks

    def test_another_index(self) -> None:
        text = "--extra-index-url https://download.pytorch.org/whl/cu130\ntorch==2.11.0\n"
        assert [item.elsewhere for item in read_requirements(text, "r.txt").statements] == [True]
        text = text.replace("download.pytorch.org/whl/cu130", "pypi.tuna.tsinghua.edu.cn/simple")
        assert [item.elsewhere for item in read_requirements(text, "r.txt").statements] == [False]

    def test_a_line_that_never_ends(self) -> None:
        assert _said(read_requirements("torch \\\n  ==2.0 \\", "r.txt")) == [(1, "r.txt", "torch", "==2.0")]


class TestSetup:
    def test_names_sums_and_dictionaries_are_followed(self) -> None:
        reading = read_setup(
            _text(
                """
                from setuptools import setup
                base = ["numpy>=2"]
                base.append("torch")
                base += ["ray[default]>=2.41"]
                base.extend(("a", "b"))
                TEST = ["pytest"]
                if something:
                    base.append("colorama")
                extras: dict = {"test": TEST, "gpu": ["flash-attn"] + TEST}
                extras["all"] = [*TEST, "vllm==0.24.0"]
                extras.update({"docs": ["sphinx"], **{"more": sorted(set(["x"]))}})
                setup(
                    name="Verl_X",
                    install_requires=base,
                    extras_require=extras,
                    python_requires=">=3.10",
                    tests_require=extras["test"],
                )
                """
            ),
            "setup.py",
        )
        assert reading.name == "verl-x"
        assert _said(reading) == [
            (2, "", "numpy", ">=2"),
            (3, "", "torch", ""),
            (4, "", "ray", ">=2.41"),
            (5, "", "a", ""),
            (5, "", "b", ""),
            (8, "", "colorama", ""),
            (6, "extra test", "pytest", ""),
            (9, "extra gpu", "flash-attn", ""),
            (6, "extra gpu", "pytest", ""),
            (6, "extra all", "pytest", ""),
            (10, "extra all", "vllm", "==0.24.0"),
            (11, "extra docs", "sphinx", ""),
            (11, "extra more", "x", ""),
            (16, "", "python", ">=3.10"),
            (6, "extra test", "pytest", ""),
        ]

    @pytest.mark.parametrize(
        ("text", "remark"),
        [
            ("def (", "setup.py:1: this is no Python"),
            ("setup(install_requires=make())", "setup.py:1: what is required is made"),
            ("setup(install_requires=[make()])", "setup.py:1: a requirement is made"),
            ("setup(extras_require=make())", "setup.py:1: extras_require is made"),
            ("setup(extras_require={x: []})", "setup.py:1: extras_require is made"),
            ("setup(python_requires='none')", "setup.py:1: python_requires `none` is no range"),
            ("e = {}\ne.update(f())\nsetup(extras_require=e)", "setup.py:2: `e` is added to"),
            ("setup(install_requires=['a b c'])", "setup.py:1: `a b c` is no requirement"),
        ],
    )
    def test_what_is_not_followed_is_told(self, text: str, remark: str) -> None:
        (found,) = read_setup(text, "setup.py").remarks
        assert str(found).startswith(remark)

    def test_a_file_that_is_read_is_an_inclusion(self) -> None:
        reading = read_setup('r = open("requirements.txt").read().splitlines()\nsetup(install_requires=r)', "setup.py")
        assert _taken(reading) == [(1, "", "requirements.txt", (), False)]

    def test_functions_of_the_module(self) -> None:
        text = """
            _deps = [
                "torch>=2.4",
                "torchvision",
            ]
            def deps_list(*names):
                return [deps[name] for name in names]
            def base():
                if cuda:
                    return ["triton>=3"]
                return ["triton<3"]
            extras = {}
            extras["torch"] = deps_list("torch", "torchvision")
            extras["bad"] = deps_list("nothing")
            extras["one"] = [deps["torch"], deps["nothing"]]
            setup(install_requires=base(), extras_require=extras)
            """
        reading = read_setup(_text(text), "setup.py")
        assert [(*row, item.vague) for row, item in zip(_said(reading), reading.statements, strict=True)] == [
            (9, "", "triton", ">=3", True),
            (10, "", "triton", "<3", True),
            (2, "extra torch", "torch", ">=2.4", False),
            (3, "extra torch", "torchvision", "", False),
            (2, "extra one", "torch", ">=2.4", False),
        ]
        assert [remark.place.line for remark in reading.remarks] == [13, 14]

    def test_a_file_that_is_read_line_by_line(self) -> None:
        text = """
            with open("requirements.txt") as f:
                required = f.read().splitlines()
                install_requires = [item.strip() for item in required if item.strip()[0] != "#"]
            setup(install_requires=install_requires)
            """
        reading = read_setup(_text(text), "setup.py")
        assert [item.target for item in reading.inclusions] == ["requirements.txt"]
        assert reading.remarks == ()

    @pytest.mark.parametrize("change", ["x.remove('a')", "x.extend(f())", "y.append('b')", "y['k'] = []", "import os"])
    def test_other_statements_change_nothing(self, change: str) -> None:
        reading = read_setup(f"x = ['a']\n{change}\nsetup(install_requires=['a'])", "setup.py")
        assert [item.package for item in reading.statements] == ["a"]


PYPROJECT = _text(
    """
    [build-system]
    requires = ["setuptools>=61"]

    [project]
    name = "Verl"
    requires-python = ">=3.10,<3.13"
    dynamic = ["version", "dependencies"]
    dependencies = [
        "numpy>=2",
    ]

    [project.optional-dependencies]
    vllm = ["torch==2.11.0", "vllm==0.24.0"]
    # sglang = ["torch==1"]
    sglang = [
        "torch==2.11.0",
        "sglang==0.5.12",
    ]

    [dependency-groups]
    test = ["pytest>=8", {include-group = "lint"}]
    lint = ["ruff"]

    [tool.uv]
    override-dependencies = ["numpy>=2.1"]
    constraint-dependencies = ["ray<3"]
    dev-dependencies = ["mypy"]
    conflicts = [[{extra = "vllm"}, {extra = "sglang"}, {group = "lint"}]]

    [tool.uv.sources]
    sglang = {index = "wheelhouse"}
    """
)


class TestPyproject:
    def test_tables(self) -> None:
        reading = read_pyproject(PYPROJECT, "pyproject.toml")
        assert _said(reading) == [
            (6, "", "python", "<3.13,>=3.10"),
            (9, "", "numpy", ">=2"),
            (13, "extra vllm", "torch", "==2.11.0"),
            (13, "extra vllm", "vllm", "==0.24.0"),
            (16, "extra sglang", "torch", "==2.11.0"),
            (17, "extra sglang", "sglang", "==0.5.12"),
            (21, "group test", "pytest", ">=8"),
            (22, "group lint", "ruff", ""),
            (2, "build", "setuptools", ">=61"),
            (25, "override", "numpy", ">=2.1"),
            (26, "constraint", "ray", "<3"),
            (27, "group dev", "mypy", ""),
        ]
        assert reading.name == "verl"
        assert reading.dynamic == {"version", "dependencies"}
        assert frozenset({"extra vllm", "extra sglang"}) in reading.apart
        assert len(reading.apart) == 3
        assert [item.package for item in reading.statements if item.elsewhere] == ["sglang"]
        assert _taken(reading) == [(21, "group test", "group lint", (), False)]

    def test_poetry(self) -> None:
        reading = read_pyproject(
            _text(
                """
                [tool.poetry]
                name = "x"
                [tool.poetry.dependencies]
                python = "^3.10"
                torch = {version = "~2.6", optional = true}
                numpy = ">=2"
                odd = ">=1 || <0.5"
                local = {path = "../x"}
                [tool.poetry.group.dev.dependencies]
                pytest = "8.3.*"
                """
            ),
            "pyproject.toml",
        )
        assert _said(reading) == [
            (4, "", "python", "<4,>=3.10"),
            (5, "", "torch", "<2.7,>=2.6"),
            (6, "", "numpy", ">=2"),
            (10, "group dev", "pytest", "==8.3.*"),
        ]
        assert [str(remark) for remark in reading.remarks] == [
            "pyproject.toml:7: `odd = >=1 || <0.5` is no range of Poetry"
        ]

    @pytest.mark.parametrize(
        ("text", "expected"),
        [("^1.2", "<2,>=1.2"), ("^0.3.1", "<0.4,>=0.3.1"), ("~1", "<2,>=1"), ("*", ""), ("1.0", "==1.0"), ("x", None)],
    )
    def test_poetry_ranges(self, text: str, expected: str | None) -> None:
        found = poetry_range(text)
        assert (None if found is None else str(found)) == expected

    @pytest.mark.parametrize(("text", "line"), [("[project]\nname = ", 2), ('[project]\nrequires-python = "x"', 2)])
    def test_what_cannot_be_read_is_told_with_its_line(self, text: str, line: int) -> None:
        (remark,) = read_pyproject(text, "pyproject.toml").remarks
        assert remark.place.line == line


class TestLocks:
    def test_uv_lock(self) -> None:
        reading = read_lock(
            _text(
                """
                version = 1
                requires-python = ">=3.12"

                [[package]]
                name = "Torch"
                version = "2.11.0"
                source = { registry = "https://pypi.org/simple" }
                wheels = [{ url = "x", hash = "sha256:aa" }]

                [[package]]
                name = "verl"
                version = "0.9.1"
                source = { editable = "." }

                [[package]]
                name = "mbridge"
                version = "0.15.1"
                source = { git = "https://example.org/x?rev=1" }

                [[package]]
                name = "bad"
                version = "not one"
                """
            ),
            "uv.lock",
        )
        assert _said(reading) == [
            (2, "uv.lock", "python", ">=3.12"),
            (5, "uv.lock", "torch", "==2.11.0"),
            (16, "uv.lock", "mbridge", "==0.15.1"),
        ]
        assert [item.elsewhere for item in reading.statements] == [False, False, True]
        assert reading.statements[1].hashes == ("sha256:aa",)
        assert [str(remark) for remark in reading.remarks] == ["uv.lock:21: `bad not one` is no version"]

    def test_pylock(self) -> None:
        reading = read_lock(
            _text(
                """
                lock-version = "1.0"
                [[packages]]
                name = "torch"
                version = "2.11.0"
                marker = "sys_platform == 'linux'"
                index = "https://download.pytorch.org/whl/cu130"
                sdist = { name = "x", hashes = { sha256 = "cc" } }
                [[packages]]
                name = "odd"
                version = "1"
                marker = "no marker"
                """
            ),
            "sub/pylock.gpu.toml",
        )
        assert _said(reading)[0] == (3, "sub/pylock.gpu.toml", "torch", "==2.11.0")
        assert reading.statements[0].hashes == ("sha256:cc",)
        assert reading.statements[0].elsewhere
        assert reading.statements[0].marker is not None
        assert reading.statements[1].marker is None

    def test_poetry_lock(self) -> None:
        text = '[[package]]\nname = "a"\nversion = "1.0"\nfiles = [{file = "x", hash = "sha256:dd"}]\n'
        text += '[metadata]\npython-versions = ">=3.9"\n'
        assert _said(read_lock(text, "poetry.lock")) == [
            (6, "poetry.lock", "python", ">=3.9"),
            (2, "poetry.lock", "a", "==1.0"),
        ]

    def test_a_lock_that_is_no_toml(self) -> None:
        (remark,) = read_lock("[[package]]\nname = ", "uv.lock").remarks
        assert remark.place.line == 2

    def test_conda(self) -> None:
        reading = read_conda(
            _text(
                """
                name: x
                dependencies:
                  - python=3.10
                  - nvidia::cuda-toolkit
                  - numpy>=2
                  - odd=1=py_0
                  - pip:
                    - vllm==0.8.5
                    - -r more.txt
                    - --quiet
                """
            ),
            "environment.yml",
        )
        assert _said(reading) == [
            (3, "environment.yml", "python", "==3.10.*"),
            (5, "environment.yml", "numpy", ">=2"),
            (6, "environment.yml", "odd", "==1.*"),
            (8, "environment.yml", "vllm", "==0.8.5"),
        ]
        assert [item.target for item in reading.inclusions] == ["more.txt"]

    def test_conda_that_is_no_yaml(self) -> None:
        (remark,) = read_conda("a: [", "environment.yml").remarks
        assert "no YAML" in remark.what
        assert read_conda("- a", "environment.yml").statements == ()


DOCKERFILE = _text(
    """
    # syntax=docker/dockerfile:1
    ARG VLLM=0.17.0
    FROM vllm/vllm-openai:v0.8.4 AS base
    ARG VLLM
    ENV TORCH=2.10.0 OTHER="x y"
    ENV OLD 1.5
    RUN --mount=type=cache,target=/root pip install torch==${TORCH} \\
        # within
        --index-url https://download.pytorch.org/whl/cu129 \\
        torchvision
    RUN pip install "vllm==${VLLM}" && pip3 install --no-deps trl==0.27.0 old==$OLD
    FROM base
    RUN <<EOF
    pip install transformers==5.3.0
    python3 -m pip install -r requirements.txt -c bounds.txt
    EOF
    RUN ["pip", "install", "numpy==1.26.4"]
    RUN ["/bin/sh", "-c", "uv pip install .[test]"]
    RUN pip install https://x.org/flash_attn-2.8.1%2Bcu12-cp312-cp312-linux_x86_64.whl git+https://x.org/y.git
    RUN pip install ray>=2.41 a=1 sglang==$UNSET
    COPY . .
    FROM ${BASE}
    RUN echo pip install no && pip uninstall -y verl && pip list
    """
)


class TestDockerfile:
    def test_stages_variables_and_commands(self) -> None:
        reading = read_dockerfile(DOCKERFILE, "docker/Dockerfile")
        assert _said(reading) == [
            (3, "stage base", "vllm", "==0.8.4.*"),
            (7, "stage base", "torch", "==2.10.0"),
            (10, "stage base", "torchvision", ""),
            (11, "stage base", "vllm", "==0.17.0"),
            (11, "stage base", "trl", "==0.27.0"),
            (11, "stage base", "old", "==1.5"),
            (14, "stage 1", "transformers", "==5.3.0"),
            (17, "stage 1", "numpy", "==1.26.4"),
            (19, "stage 1", "flash-attn", "==2.8.1+cu12"),
            (20, "stage 1", "ray", ">=2.41"),
            (23, "stage 2", "verl", ""),
        ]
        assert _taken(reading) == [
            (15, "stage 1", "requirements.txt", (), False),
            (15, "stage 1", "bounds.txt", (), True),
            (18, "stage 1", ".", ("test",), False),
        ]
        assert [(remark.place.line, remark.what.split(" ")[0]) for remark in reading.remarks] == [
            (20, "`ray>=2.41`"),
            (20, "`a=1`"),
            (20, "what"),
            (22, "the"),
        ]
        assert reading.parents == {"stage 1": "stage base"}
        by_name = {item.package: item for item in reading.statements}
        assert by_name["torch"].elsewhere
        assert by_name["trl"].no_deps
        assert not by_name["transformers"].elsewhere
        assert reading.statements[0].vague

    def test_another_index_by_a_variable(self) -> None:
        text = "FROM x\nARG URL\nENV UV_EXTRA_INDEX_URL=${URL}\nRUN uv pip install a==1\nFROM x\nRUN pip install a==1\n"
        assert [item.elsewhere for item in read_dockerfile(text, "Dockerfile").statements] == [True, False]

    def test_another_escape(self) -> None:
        text = "# escape=`\nFROM python:3.12-slim\nRUN pip install `\n  torch==2.11.0\n"
        assert _said(read_dockerfile(text, "Dockerfile")) == [
            (2, "stage 0", "python", "==3.12.*"),
            (4, "stage 0", "torch", "==2.11.0"),
        ]

    def test_no_dockerfile(self) -> None:
        assert [remark.what for remark in read_dockerfile("hello\n", "Dockerfile").remarks] == [
            "no FROM: this is no Dockerfile"
        ]

    @pytest.mark.parametrize(
        ("image", "expected"),
        [
            ("verlai/verl:app-verl0.6-transformers4.56.1-sglang0.5.2-mcore0.13.0-te2.2", 5),
            ("verlai/verl:vllm017.dev3", 1),
            ("registry:5000/x/y", 0),
            ("nvidia/cuda:12.9.1-devel-ubuntu22.04", 0),
            ("pytorch/pytorch:2.6.0-cuda12.4-cudnn9-devel", 1),
            ("pytorch/pytorch@sha256:00", 0),
            ("verlai/verl:sgl059.dev3", 1),
        ],
    )
    def test_what_names_of_images_tell(self, image: str, expected: int) -> None:
        found = read_dockerfile(f"FROM {image}\n", "Dockerfile").statements
        assert len(found) == expected
        assert all(item.vague for item in found)

    def test_a_compact_version(self) -> None:
        (item,) = read_dockerfile("FROM verlai/verl:vllm017.dev3\n", "Dockerfile").statements
        assert (item.package, str(item.specifier)) == ("vllm", "==0.17.*")


@pytest.mark.parametrize(
    ("command", "expected", "taken", "remarks"),
    [
        ("python3.12 -m pip --quiet install a", ["a"], [], 0),
        ("python3 setup.py install", [], [], 0),
        ("python -m uv pip install a", ["a"], [], 0),
        ("uv pip sync r.txt", [], ["r.txt"], 0),
        ("uv add 'a>=1' --optional x", ["a>=1"], [], 0),
        ("pip download a", [], [], 0),
        ("pip uninstall -y a b && uv pip uninstall c ./x || pip uninstall d", ["a", "b", "c"], [], 0),
        ("pip", [], [], 0),
        ("A=1 sudo pip3 install a", ["a"], [], 0),
        (
            "pip install -rreq.txt --constraint=c.txt --editable=.[x] -e ./sub",
            [],
            ["req.txt", "c.txt", ".", "./sub"],
            0,
        ),
        ("pip install --python-version 3.10 --platform x a", ["a"], [], 0),
        ("pip install 'a @ https://x.org/a-1.0-py3-none-any.whl'", ["a==1.0"], [], 0),
        ("pip install https://x.org/not-a-wheel.whl", [], [], 0),
        ("pip install x.zip@https://y", ["x-zip"], [], 0),
        ("pip install dist/local -c $UNKNOWN", [], ["dist/local"], 1),
        ("pip install ./a]b", [], ["./a]b"], 0),
        ("conda install -c nvidia -n env 'numpy>=1.2' pip=24 bad==x other", ["numpy>=1.2", "pip==24.*"], [], 0),
        ("conda list", [], [], 0),
        ("mamba create -n x python=3.11 $V", ["python==3.11.*"], [], 0),
        ("", [], [], 0),
        ("# nothing", [], [], 0),
    ],
)
def test_commands_that_install(command: str, expected: list[str], taken: list[str], remarks: int) -> None:
    reading = read_dockerfile(f"FROM x\nRUN {command}\n", "Dockerfile")
    assert [f"{item.package}{item.specifier}" for item in reading.statements] == expected
    assert [item.target for item in reading.inclusions] == taken
    assert len(reading.remarks) == remarks


WORKFLOW = _text(
    """
    name: x
    env:
      TF: 4.54.1
      IMAGE: "verlai/verl:vllm017.dev3"
    jobs:
      unit:
        runs-on: ubuntu-latest
        container: {image: "vllm/vllm-openai:v${{ matrix.vllm }}"}
        strategy:
          matrix:
            vllm: ["0.8.4", "0.8.5"]
            include: [{vllm: "0.9.0"}]
        env: {NUMPY: "1.26.4"}
        steps:
          - uses: actions/setup-python@v5
            with: {python-version: "3.10"}
          - name: install
            run: |
              pip install transformers==${{ env.TF }}
              pip install --no-deps -e .[test] numpy==$NUMPY
      gpu:
        needs: setup
        runs-on: ["${{ needs.setup.outputs.label || 'L20x8' }}"]
        steps:
          - run: pip install "vllm==${{ github.ref }}" 'ray==${{ 'x' }}'
          - uses: actions/setup-python@v5
            with: {python-version: "${{ github.x }}"}
    """
)


class TestWorkflow:
    def test_jobs(self) -> None:
        reading = read_workflow(WORKFLOW, ".github/workflows/x.yml")
        said = _said(reading)
        assert said[:4] == [
            (8, "job unit (0.8.4)", "vllm", "==0.8.4.*"),
            (16, "job unit (0.8.4)", "python", "==3.10.*"),
            (19, "job unit (0.8.4)", "transformers", "==4.54.1"),
            (20, "job unit (0.8.4)", "numpy", "==1.26.4"),
        ]
        assert {scope for _, scope, *_ in said if scope.startswith("job unit")} == {
            "job unit (0.8.4)",
            "job unit (0.8.5)",
            "job unit (0.9.0)",
        }
        assert said[-1] == (23, "job gpu", "vllm", "==0.17.*")
        assert _taken(reading)[0] == (20, "job unit (0.8.4)", ".", ("test",), False)
        assert reading.inclusions[0].no_deps
        assert [remark.place.line for remark in reading.remarks] == [25, 25, 27]

    def test_an_action(self) -> None:
        text = "runs:\n  using: composite\n  steps:\n    - run: pip install a==1\n"
        assert _said(read_workflow(text, ".github/actions/x/action.yml")) == [(4, "action", "a", "==1")]

    @pytest.mark.parametrize(("text", "what"), [("a: [", "no YAML"), ("a: 1", "no jobs"), ("", "no jobs")])
    def test_what_is_no_workflow(self, text: str, what: str) -> None:
        (remark,) = read_workflow(text, "x.yml").remarks
        assert what in remark.what


class TestProse:
    PAGE = _text(
        """
        # Install

        We need vLLM >= 0.8.2 and `python: Version >= 3.10`, other>=9.9.

        ```bash
        $ pip install vllm==0.8.5 "torch>=2.6"
        conda create -n x python=3.10
        ```

        ```python
        assert vllm == 1.0
        ```

        .. code-block:: bash

           pip install -e .[vllm]

        transformers>=4.51.0,<5 and transformers==x
        """
    )

    def test_blocks_and_bounds(self) -> None:
        reading = read_prose(self.PAGE, "README.md", {"vllm", "transformers"})
        assert _said(reading) == [
            (3, "text", "vllm", ">=0.8.2"),
            (3, "text", "python", ">=3.10"),
            (6, "block 6", "vllm", "==0.8.5"),
            (6, "block 6", "torch", ">=2.6"),
            (7, "block 6", "python", "==3.10.*"),
            (18, "text", "transformers", "<5,>=4.51.0"),
        ]
        assert _taken(reading) == [(16, "block 15", ".", ("vllm",), False)]
        assert reading.remarks == ()

    def test_a_fence_that_is_never_closed(self) -> None:
        (_, code, _) = blocks("a\n~~~\nb\nc")
        assert (code.text, code.line, code.language) == ("b\nc", 3, "")


@pytest.mark.parametrize(
    ("check", "name", "expected"),
    [
        (is_dockerfile, "Dockerfile.stable.vllm", True),
        (is_dockerfile, "app.dockerfile", True),
        (is_dockerfile, "Dockerfile_uv", True),
        (is_dockerfile, "README.md", False),
        (is_dockerfile, "Dockerfile.cpu.dockerignore", False),
        (is_dockerfile, "dockerfile.md", False),
        (is_workflow, ".github/workflows/.deprecate/x.yaml", True),
        (is_workflow, ".github/dependabot.yml", False),
        (is_lock, "a/uv.lock", True),
        (is_lock, "pylock.toml", True),
        (is_lock, "pyproject.toml", False),
        (is_conda, "envs/environment-gpu.yml", True),
        (is_conda, "x.yml", False),
        (is_prose, "docs/a/b.rst", True),
        (is_prose, "docs/a.txt", True),
        (is_prose, "README.md", True),
        (is_prose, "docker/README.md", True),
        (is_prose, "docs/requirements-docs.txt", False),
        (is_prose, "notes.txt", False),
        (is_prose, "src/a.md", False),
        (is_prose, "CHANGELOG.md", False),
    ],
)
def test_which_files_are_read(check: Callable[[str], bool], name: str, expected: bool) -> None:
    assert check(name) is expected


class TestRepository:
    def test_all_kinds_of_files(self, tmp_path: Path) -> None:
        files = {
            "setup.py": 'setup(name="verl", install_requires=["transformers>=5.5.3"])',
            "pyproject.toml": PYPROJECT,
            "requirements.txt": "numpy<2",
            "constraints.txt": "ray<3",
            "docker/Dockerfile": DOCKERFILE,
            ".github/workflows/x.yml": WORKFLOW,
            "uv.lock": '[[package]]\nname = "a"\nversion = "1"\n',
            "environment.yml": "dependencies:\n  - python=3.10\n",
            "docs/install.md": "transformers>=4",
            "sub/setup.py": "setup(install_requires=['never'])",
            ".venv/requirements.txt": "never",
            "verl.egg-info/requires.txt": "never",
            "requirements-bad.txt": "",
        }
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        (tmp_path / "requirements-bad.txt").write_bytes(b"\xff\xfe")
        (tmp_path / "requirements-link.txt").symlink_to("requirements.txt")
        found = read_repository(tmp_path)
        assert set(found.files) == set(files) - {"sub/setup.py", ".venv/requirements.txt", "verl.egg-info/requires.txt"}
        assert "never" not in {item.package for item in found.reading.statements}
        assert "requirements-bad.txt:1: cannot be read as UTF-8 text" in {str(one) for one in found.reading.remarks}
        assert [item.force.value for item in found.reading.statements if item.package == "ray"][:1] == ["bounds"]

    def test_no_folder(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="is no folder"):
            read_repository(tmp_path / "none")
