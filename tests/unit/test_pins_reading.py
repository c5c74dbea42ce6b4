"""What people have, read from each kind of file: statements with their lines, notes, and what cannot be read."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.cell import Platform
from matrix.errors import DataError, UsageError
from matrix.pins.reading import kind_of, read_environment, read_file, read_stack, read_words
from matrix.pins.stack import Kind, Stack, name_of_file, version_of_file
from matrix.statements import invocation
from matrix.statements.invocation import invocation_of
from matrix.statements.shell import commands

HERE = Platform()


def stack(text: str, name: str = "requirements.txt", **more: object) -> Stack:
    return read_stack(Path(name), text, HERE, **more)  # type: ignore[arg-type]


def rows(found: Stack) -> list[tuple[str, str, str]]:
    """Return package, requirement and place of each statement."""
    return [(item.requirement, str(item.version or ""), item.where) for item in found.statements]


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("Dockerfile.stable.vllm", "", Kind.DOCKERFILE),
        ("app.dockerfile", "", Kind.DOCKERFILE),
        ("image", "FROM x\nRUN pip install y\n", Kind.DOCKERFILE),
        ("uv.lock", "", Kind.UV_LOCK),
        ("pylock.dev.toml", "", Kind.PYLOCK),
        ("some.toml", 'lock-version = "1.0"\n', Kind.PYLOCK),
        ("pyproject.toml", "", Kind.PYPROJECT),
        ("freeze.txt", "", Kind.FREEZE),
        ("list", "Package    Version\n", Kind.FREEZE),
        ("-", "verl==0.9.1", Kind.FREEZE),
        ("requirements-dev.txt", "verl==0.9.1", Kind.REQUIREMENTS),
    ],
)
def test_a_file_tells_its_kind_by_its_name_and_else_by_what_it_holds(name: str, text: str, kind: Kind) -> None:
    assert kind_of(Path(name), text) is kind


REQUIREMENTS: Sequence[tuple[str, str, list[tuple[str, str, str]], list[str]]] = [
    ("pins and ranges", "verl==0.9.1\nvllm>=0.24,<0.27  # a comment\n\n# another\nray[default]\n",
     [("verl==0.9.1", "0.9.1", ":1"), ("vllm<0.27,>=0.24", "", ":2"), ("ray[default]", "", ":5")], []),
    ("continued and hashed", "verl==0.9.1 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\ntorch==2.11.0\n",
     [("verl==0.9.1", "0.9.1", ":1"), ("torch==2.11.0", "2.11.0", ":4")], []),
    ("a comment between continued lines", "verl==0.9.1 \\\n# why\n --hash=sha256:aa\n",
     [("verl==0.9.1", "0.9.1", ":1")], []),
    ("a marker that does not hold", "a==1; python_version<'3.9'\nb==2; python_version>='3.9'\n", [("b==2", "2", ":2")],
     ["`a==1; python_version<'3.9'` does not hold on python 3.12"]),
    ("a variable", "vllm==${VLLM}\n", [], ["an environment variable, left as it is"]),
    ("an editable and an option", "-e git+https://x/verl#egg=verl\n--index-url https://x\n-i https://x\n", [],
     ["no index pins", "`--index-url` is an option", "`-i` is an option"]),
    ("an address", "flash-attn @ https://u:p@x/flash_attn-2.8.3+cu12-cp312-cp312-linux_x86_64.whl\n",
     [("flash-attn", "2.8.3+cu12", ":1")], ["it comes from https://…@x/flash_attn", "its name says 2.8.3+cu12"]),
    ("a wheel's path", "./wheels/torch-2.11.0-cp312-cp312-linux_x86_64.whl\n./verl\n", [("torch", "2.11.0", ":1")],
     ["its name says 2.11.0", "`./verl` is a path or address"]),
    ("a local version", "torch==2.8.0+cu128\n", [("torch==2.8.0+cu128", "2.8.0+cu128", ":1")], []),
    ("a byte order mark", "\ufeffverl==0.9.1\n".replace("\ufeff", ""), [("verl==0.9.1", "0.9.1", ":1")], []),
    ("a git tag", "verl @ git+https://github.com/x/verl.git@v0.7.1\n", [("verl", "0.7.1", ":1")], ["unpinned"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "wanted", "notes"), [case[1:] for case in REQUIREMENTS], ids=[c[0] for c in REQUIREMENTS]
)
def test_requirements_are_read_as_pip_reads_them(
    text: str, wanted: list[tuple[str, str, str]], notes: list[str]
) -> None:
    found = stack(text)
    assert [(one, two, f":{where.rpartition(':')[2]}") for one, two, where in rows(found)] == wanted
    for part in notes:
        assert any(part in note.line for note in found.notes), (part, found.notes)
    assert all(note.line.startswith("requirements.txt:") for note in found.notes)


def test_included_files_are_read_too_and_a_constraint_asks_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("-r base.txt\n-c limits.txt\n--requirement=more.txt\nverl==0.9.1\n")
    (tmp_path / "base.txt").write_text("vllm==0.24.0\n")
    (tmp_path / "limits.txt").write_text("numpy<2\n")
    (tmp_path / "more.txt").write_text("-r https://x/y.txt\n")
    found = read_file(tmp_path / "requirements.txt", HERE)
    told = [(item.package, item.where, item.asks) for item in found.statements]
    assert told == [
        ("vllm", "base.txt:1", True),
        ("numpy", "limits.txt:1", False),
        ("verl", "requirements.txt:4", True),
    ]
    assert "was not fetched" in found.notes[0].line


UNREADABLE = [
    ("requirements.txt", "verl==0.9.1\nvllm=0.24\n", "requirements.txt: line 2: `vllm=0.24` is not a requirement"),
    ("requirements.txt", "a\n-z what\n", "line 2: `-z what` is not a requirement: pip knows no option `-z`"),
    ("requirements.txt", "-r nowhere.txt\n", "line 1: there is no nowhere.txt"),
    ("freeze.txt", "verl==0.9.1\n???\n", "freeze.txt: line 2"),
    ("pyproject.toml", "[project\n", "is not TOML"),
    (
        "pyproject.toml",
        '[project]\ndependencies = [\n  "a",\n  "vllm=1",\n]\n',
        "line 4: `vllm=1` is not a requirement",
    ),
    ("pyproject.toml", "[project]\ndependencies = 3\n", "project.dependencies: is not a list of strings"),
    ("pyproject.toml", "project = 3\n", "project: is not a table"),
    ("pyproject.toml", "[tool]\nuv = 1\n", "tool.uv: is not a table"),
    ("uv.lock", "version = 1\n", "holds no packages"),
    ("uv.lock", "[[package\n", "is not TOML"),
    ("uv.lock", "[[package]]\nversion = '1'\n", "line 2: a package without a name"),
    ("uv.lock", "\n[[package]]\nname = 'a'\nversion = 'x y'\n", "line 3: `x y` is not a version of a"),
    ("Dockerfile", "FROM x\nRUN pip install vllm=0.24\n", "Dockerfile: line 2: `vllm=0.24` is not a requirement"),
    ("Dockerfile", "RUN x\n", "a Dockerfile begins with FROM"),
    ("Dockerfile", "FROM x\nRUN <<EOF\npip install y\n", "its heredoc `EOF` does not end"),
]


@pytest.mark.parametrize(("name", "text", "message"), UNREADABLE)
def test_what_cannot_be_read_is_named_with_its_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(DataError) as raised:
        read_file(path, HERE)
    assert message in str(raised.value)


def test_a_file_that_is_not_there_not_text_or_includes_itself_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "requirements.txt"
    with pytest.raises(DataError, match="No such file"):
        read_file(path, HERE)
    path.write_bytes(b"verl==0.9.1\nvllm\xff\n")
    with pytest.raises(DataError, match="line 2: is not text in UTF-8"):
        read_file(path, HERE)
    path.write_bytes("verl==0.9.1\n".encode("utf-16"))
    assert read_file(path, HERE).have["verl"].public == "0.9.1"
    path.write_text("-r requirements.txt\n")
    with pytest.raises(DataError, match="includes itself"):
        read_file(path, HERE)
    path.write_bytes(b"#" * (4 * 2**20 + 1))
    with pytest.raises(DataError, match="bytes long"):
        read_file(path, HERE)


def test_a_freeze_says_what_is_installed_and_binds_nothing() -> None:
    text = (
        "WARNING: pip is old\n# Editable install\n-e git+https://x@1#egg=verl\nvllm==0.24.0\n"
        "torch @ file:///w/torch-2.11.0-cp312-cp312-linux_x86_64.whl\nmine @ file:///build/mine\nnumpy==2.3.5\n"
    )
    found = stack(text, "freeze.txt")
    assert {name: str(version) for name, version in found.have.items()} == {
        "vllm": "0.24.0", "torch": "2.11.0", "numpy": "2.3.5",
    }  # fmt: skip
    assert not any(item.binds for item in found.statements)
    assert [note.where for note in found.notes] == ["freeze.txt:1", "freeze.txt:3", "freeze.txt:5", "freeze.txt:6"]
    listed = stack("Package    Version\n---------- -------\nverl       0.9.1\nvllm       0.24.0  /src\n", "list")
    assert [str(version) for version in listed.have.values()] == ["0.9.1", "0.24.0"]


PROJECT = """\
[project]
requires-python = ">=3.11,<3.13"
dependencies = [
  "verl[vllm]==0.9.1",
  'transformers>=5.5; python_version < "3.9"',
]
dynamic = ["version"]
[project.optional-dependencies]
gpu = ["flash-attn==2.8.3"]
dev = ["ruff"]
[dependency-groups]
base = ["torch==2.11.0"]
all = [{include-group = "base"}, "ray==2.60.0"]
[tool.uv]
override-dependencies = ["numpy>=2"]
constraint-dependencies = ["pyarrow<26"]
[tool.uv.sources]
torch = { index = "x" }
"""


def test_a_project_has_dependencies_extras_groups_and_uvs_own_tables() -> None:
    found = stack(PROJECT, "pyproject.toml")
    assert rows(found) == [("verl[vllm]==0.9.1", "0.9.1", "pyproject.toml:4"), ("pyarrow<26", "", "pyproject.toml:16")]
    assert [item.requirement for item in found.overrides] == ["numpy>=2"]
    assert (found.python, found.extras("verl")) == ("3.12", ("vllm",))
    told = " | ".join(note.line for note in found.notes)
    assert "extra gpu, dev left out" in told
    assert "group base, all left out" in told
    assert "torch comes from tool.uv.sources" in told
    more = stack(PROJECT, "pyproject.toml", extras=["gpu"], groups=["all"])
    assert list(more.have) == ["verl", "flash-attn", "torch", "ray"]
    assert "dev left out" in " ".join(note.line for note in more.notes)
    assert {"ruff", "ray"} <= {
        item.package for item in stack(PROJECT, "pyproject.toml", extras=["all"], groups=["all"]).statements
    }


def test_an_extra_or_group_that_is_not_there_and_one_that_includes_itself_are_errors() -> None:
    with pytest.raises(UsageError, match="no extra `gpus`"):
        stack(PROJECT, "pyproject.toml", extras=["gpus"])
    with pytest.raises(UsageError, match="no group `x`"):
        stack("[project]\nname='x'\n", "pyproject.toml", groups=["x"])
    for text, message in (
        ("a = [{include-group = 'b'}]\nb = [{include-group = 'a'}]", "includes itself: a → b → a"),
        ("a = [{include-group = 'c'}]", "does not exist"),
        ("a = [3]", "which is no requirement"),
        ("a = 3", "is not a list"),
    ):
        with pytest.raises(DataError, match=message):
            stack(f"[dependency-groups]\n{text}\n", "pyproject.toml", groups=["a"])


def test_what_a_project_leaves_to_others_is_told() -> None:
    text = "[project]\ndynamic = ['dependencies']\n[tool.poetry.dependencies]\nverl = '^0.9'\n"
    told = " ".join(note.line for note in stack(text, "pyproject.toml").notes)
    assert "dependencies are dynamic" in told
    assert "Poetry" in told
    text = "[project]\ndependencies = ['a @ https://x/a.zip', 'b; python_version<\"3\"']\nrequires-python = '>=3.13'\n"
    found = stack(text, "pyproject.toml")
    assert (found.python, [item.package for item in found.statements]) == ("3.13", ["a"])
    assert stack("[project]\nrequires-python = 'x'\n", "pyproject.toml").python == ""


LOCK = """\
version = 1
requires-python = ">=3.12"

[[package]]
name = "verl"
version = "0.9.1"
source = { registry = "https://pypi.org/simple" }

[[package]]
name = "torch"
version = "2.11.0"
source = { registry = "x" }
resolution-markers = ["platform_machine == 'aarch64'"]

[[package]]
name = "torch"
version = "2.10.0"
source = { registry = "x" }
resolution-markers = ["platform_machine == 'x86_64'"]

[[package]]
name = "mine"
version = "0.1"
source = { editable = "." }

[[package]]
name = "verl-fork"
version = "1"
source = { git = "https://x" }

[[package]]
name = "verl"
version = "0.9.0"
source = { registry = "x" }
"""


def test_a_lock_says_what_is_installed_on_this_platform_line_by_line() -> None:
    found = stack(LOCK, "uv.lock")
    assert rows(found) == [
        ("verl==0.9.1", "0.9.1", "uv.lock:5"), ("torch==2.10.0", "2.10.0", "uv.lock:16"),
        ("verl-fork==1", "1", "uv.lock:27"),
    ]  # fmt: skip
    assert [note.where for note in found.notes] == ["uv.lock:10", "uv.lock:22", "uv.lock:27", "uv.lock:32"]
    text = 'lock-version = "1.0"\n[[packages]]\nname = "vllm"\nversion = "0.24.0"\nmarker = "x ="\n'
    text += '[[packages]]\nname = "a"\n'
    pylock = stack(text, "pylock.toml")
    assert (pylock.kind, rows(pylock)) == (Kind.PYLOCK, [("vllm==0.24.0", "0.24.0", "pylock.toml:3")])
    assert "a has no version" in pylock.notes[0].line


DOCKERFILE = """\
# syntax=docker/dockerfile:1
ARG VLLM=0.24.0
FROM nvidia/cuda:12.9 AS base
ARG VLLM
ENV TORCH=2.11.0 NAME="a b"
ENV OLD one two
RUN apt-get update && \\
    # a comment inside
    pip install --no-cache-dir "torch==${TORCH}" \\
        transformers==5.9.0 vllm==$VLLM \\
        --index-url https://x
FROM scratch AS other
RUN pip install nothing==1
FROM base
COPY requirements.txt limits.txt /tmp/
RUN pip3 install -r /tmp/requirements.txt -c limits.txt && python -m pip uninstall -y transformers
RUN ["uv", "pip", "install", "--system", "transformers==5.10.4"]
RUN ["/bin/sh", "-c", "pip install xgrammar==1.0"]
RUN <<EOF
export RAY=2.60.0
pip install ray==$RAY
uv pip install -r nowhere.txt
EOF
RUN <<PY python
import pip
PY
RUN --mount=type=cache,target=/c pip install --no-deps verl==0.9.1 numpy>=2 "a==$UNKNOWN" git+https://x/y.git
RUN if [ -n "$X" ]; then pip install b==1; fi
RUN pip install 'broken
RUN MAX_JOBS=4 pip install --resume-retries 99 flash_attn-2.8.3+cu12-cp312-cp312-linux_x86_64.whl c==1;python_version
RUN uv add d==1 && uv sync && uv run x && uv --quiet pip sync locked.txt && echo pip
"""


def test_a_dockerfile_is_followed_through_stages_variables_and_shells(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    (tmp_path / "requirements.txt").write_text("accelerate==1.0\n")
    (tmp_path / "limits.txt").write_text("pyarrow<26\n")
    found = read_file(tmp_path / "Dockerfile", HERE)
    told = {item.package: (item.requirement, item.where.rpartition("/")[2]) for item in found.statements}
    assert told["torch"] == ("torch==2.11.0", "Dockerfile:9")
    assert told["vllm"] == ("vllm==0.24.0", "Dockerfile:10")
    assert told["transformers"] == ("transformers==5.10.4", "Dockerfile:17")
    assert told["xgrammar"] == ("xgrammar==1.0", "Dockerfile:18")
    assert told["ray"] == ("ray==2.60.0", "Dockerfile:21")
    assert told["verl"] == ("verl==0.9.1", "Dockerfile:27")
    assert told["numpy"] == ("numpy", "Dockerfile:27")
    assert told["accelerate"] == ("accelerate==1.0", "requirements.txt:1")
    assert "nothing" not in told
    assert str(found.have["flash-attn"]) == "2.8.3+cu12"
    assert next(item for item in found.statements if item.package == "verl").no_deps
    lines = " | ".join(note.line for note in found.notes)
    for part in (
        "what the base image nvidia/cuda:12.9 holds is not known",
        "nowhere.txt is not beside the Dockerfile",
        "`numpy>=2` without quotes sends output to a file",
        "`a==$UNKNOWN` depends on UNKNOWN",
        "installed from its source or an address",
        "a condition (`if …`) decides",
        "not understood (No closing quotation)",
        "installed with --no-deps",
        "flash-attn is unpinned",
        "locked.txt is not beside",
    ):
        assert part in lines, part


def test_a_base_image_tells_what_its_tag_says_and_a_variable_in_it_without_a_default_is_told() -> None:
    found = stack(
        "FROM vllm/vllm-openai:v0.12.0\nRUN pip install verl==0.7.1; pip install 'a; python_version<\"3\"'\n",
        "Dockerfile",
    )
    assert {name: str(version) for name, version in found.have.items()} == {"vllm": "0.12.0", "verl": "0.7.1"}
    assert "depends on BASE" in stack("ARG BASE\nFROM $BASE\nRUN true\n", "Dockerfile").notes[0].line
    windows = "# escape=`\nFROM x\nRUN pip install `\n  verl==0.9.1\n"
    assert [item.where for item in stack(windows, "Dockerfile").statements] == ["Dockerfile:4"]
    assert stack("FROM vllm/vllm-openai:vNext\n\nRUN pip install -U --override o.txt verl\n", "Dockerfile").have == {}


@pytest.mark.parametrize(
    ("text", "wanted", "unknown"),
    [
        ("$A-${B}", "1-", {"B"}), ("${A:-x}${B:-x}${B-y}", "1xy", set()), ("${A:+x}${B:+x}", "x", set()),
        (r"\$A", "$A", set()), ("${C-y}${C:-y}", "y", set()), ("${C+z}", "z", set()),
    ],
)  # fmt: skip
def test_variables_are_put_in_as_the_shell_does(text: str, wanted: str, unknown: set[str]) -> None:
    ((word,),) = commands(text, {"A": "1", "C": ""})
    assert (str(word).replace("${B}", ""), set(word.unset)) == (wanted, unknown)


@pytest.mark.parametrize(
    ("line", "requirements", "files"),
    [
        ("pip install a==1 -r x.txt -cy.txt --constraint=z", ("a==1",), (("r", "x.txt"), ("c", "y.txt"), ("c", "z"))),
        ("sudo -H pip install a", None, None),
        ("/opt/v/bin/python3.12 -m pip --proxy p install -i u a[b]==2 > log", ("a[b]==2",), ()),
        ("pip install -e .", (), ()),
        ("pip download a", None, None),
        ("echo pip install a", None, None),
        ("python -m uv pip install -p 3.12 a", ("a",), ()),
        ("A=1", None, None),
        ("pip install a 2>&1", ("a",), ()),
    ],
)  # fmt: skip
def test_install_commands_are_told_from_others(
    line: str, requirements: tuple[str, ...] | None, files: tuple[tuple[str, str], ...] | None
) -> None:
    (command,) = list(commands(line, {}))[:1]
    found = invocation_of(command)
    kinds = {invocation.Kind.REQUIREMENTS: "r", invocation.Kind.CONSTRAINTS: "c"}
    packages = found and tuple(word.text for word in found.words(invocation.Kind.PACKAGE))
    named = found and tuple((kinds[kind], word.text) for kind, word in found.named if kind in kinds)
    assert (packages, named) == (requirements, files)


@given(st.text(max_size=200))
def test_no_text_is_too_odd_for_a_requirements_file_or_a_dockerfile(text: str) -> None:
    for name in ("requirements.txt", "Dockerfile", "freeze.txt"):
        with contextlib.suppress(DataError):
            assert all(item.where for item in stack(text, name).statements)


def test_words_name_axes_by_their_short_names_and_python() -> None:
    found = read_words(["verl==0.9.1", "tf==5.9.0", "python==3.11.*", "numpy<2"])
    assert [item.package for item in found.statements] == ["verl", "transformers", "numpy"]
    assert found.python == "3.11"
    with pytest.raises(UsageError, match="neither a file that is there nor a requirement"):
        read_words(["no/such.txt"])


def test_an_environment_says_what_is_installed_there() -> None:
    found = read_environment(sys.executable)
    assert {"packaging", "pytest"} <= set(found.have)
    assert found.kind.is_state
    assert found.python == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert not found.bound("packaging")


@pytest.mark.parametrize(
    ("url", "version", "name"),
    [
        ("https://x/flash_attn-2.8.3-cp312-cp312-linux_x86_64.whl#sha256=a", "2.8.3", "flash-attn"),
        ("git+https://x/verl.git@v0.7.1", "0.7.1", "verl"), ("git+https://x/verl.git@main", "None", "verl.git@main"),
        ("https://x/broken.whl", "None", "broken.whl"),
    ],
)  # fmt: skip
def test_the_name_of_a_file_or_tag_tells_a_version(url: str, version: str, name: str) -> None:
    assert str(version_of_file(url)) == version
    if version != "None":
        assert name_of_file(url) == name


def test_a_stack_is_plain_data_and_can_be_looked_at_without_a_package() -> None:
    found = stack("verl==0.9.1\nverl<1\nnumpy<2\n")
    assert str(found.bound("verl")) in ("<1,==0.9.1", "==0.9.1,<1")
    assert found.without("verl").have == {}
    data = found.to_json()
    assert data["kind"] == "requirements"
    assert len(found.about("verl")) == 2
