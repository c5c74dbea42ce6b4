"""Questions and the tree of their answers: a check that is recalled is the check that would be made."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from matrix.finding import Kind
from matrix.surface import entrypoints
from matrix.surface.answer import Signature
from matrix.surface.execution.questions import Questions, Shape, call_misfits
from matrix.surface.execution.tree import AnswerTree
from matrix.surface.report import SurfaceReport, check_surface
from matrix.surface.subject import Subject
from matrix.surface.world import World
from tests.unit.source_trees import archives
from tests.unit.surface_case import MAIN, body, subject_of


def shape(positional: int = 0, *keywords: str, more: bool = False) -> Shape:
    return Shape(positional=positional, keywords=keywords, more_positional=more, more_keywords=more)


TWO = Signature(positional=("a", "b"), keyword_only=frozenset("k"), required=frozenset("a"))
SHAPES = [
    (TWO, shape(1), []),
    (TWO, shape(2, "k"), []),
    (TWO, shape(3), [Kind.POSITIONAL_EXCESS]),
    (TWO, shape(0), [Kind.ARGUMENT_REQUIRED]),
    (TWO, shape(0, "a", "z"), [Kind.KEYWORD_REMOVED]),
    (TWO, shape(0, more=True), []),
    (Signature(positional=("a",), positional_only=1), shape(0, "a"), [Kind.KEYWORD_REMOVED]),
    (Signature(positional=("a",), var_positional=True, var_keyword=True), shape(5, "z"), []),
]


@pytest.mark.parametrize(("signature", "call", "kinds"), SHAPES)
def test_how_a_call_fits(signature: Signature, call: Shape, kinds: list[Kind]) -> None:
    assert [item.kind for item in call_misfits("f", signature, call)] == kinds


def questions(version: str = "0.24.0") -> Questions:
    found = archives({"vllm/__init__.py": "x = 1\n"})
    pins = {"vllm": Version(version)}
    return Questions(World(found, pins), pins, entrypoints.load(Version("0.9.1")))


def test_a_question_is_asked_once_and_stands_in_the_log() -> None:
    asked = questions()
    assert asked.covers("vllm.a")
    assert asked.covers("vllm.b")
    assert asked.compare("vllm", "GtE", "0.18")
    assert asked.compare_text("vllm", "LtE", "0.6.3") == (True, True)
    assert asked.compare_text("vllm", "Eq", "0.24.0") == (True, False)
    assert asked.compare_text("vllm", "Lt", "nightly") == (True, False)
    assert asked.tests("vllm", "startswith", ("0.24",))
    assert asked.version_text("vllm") == "0.24.0"
    assert [question[0] for question, _ in asked.log] == [
        "covers",
        "compare",
        "compare_text",
        "compare_text",
        "compare_text",
        "tests",
        "version_text",
    ]
    assert asked.ask(asked.log[1][0]) is True


def test_a_tree_gives_back_what_came_of_the_same_answers() -> None:
    tree: AnswerTree[str] = AnswerTree()
    assert tree.recall(questions()) is None
    for version, result in (("0.24.0", "new"), ("0.12.0", "old")):
        asked = questions(version)
        if asked.compare("vllm", "GtE", "0.18"):
            asked.lookup("vllm", "x")
        tree.keep(asked.log, result)
    assert tree.recall(questions("0.30.0")) == "new"
    assert tree.recall(questions("0.10.0")) == "old"
    # Another question at the same place: nothing is remembered rather than something wrong.
    tree.keep([(("covers", "vllm"), True)], "other")
    assert tree.recall(questions("0.30.0")) == "new"


def test_an_execution_that_asks_nothing_has_one_result() -> None:
    tree: AnswerTree[str] = AnswerTree()
    tree.keep([], "always")
    assert tree.recall(questions()) == "always"


SOURCE = """
    import vllm
    from packaging import version
    from vllm import LLM
    if version.parse(vllm.__version__) >= version.parse("0.18"):
        from vllm.new import here
    elif vllm.__version__ <= "0.6.3":
        from vllm.old import there
    if vllm.__version__.startswith("0.9") and version.parse(vllm.__version__).major < 1:
        x = LLM.gone
""" + "".join(f"    {line}\n" for line in body("LLM(top_k=1)\nif hasattr(LLM, 'old'):\n    LLM.old.gone").splitlines())
PIECES: Mapping[str, str] = {
    "new": "def here(): ...\n",
    "old": "def there(): ...\n",
    "LLM": "class LLM:\n    def __init__(self, top_k=1): ...\n",
    "narrow": "class LLM:\n    old = 1\n    def __init__(self, top_p=1): ...\n",
}


def check(subject: Subject, version: str, pieces: frozenset[str]) -> SurfaceReport:
    members = {f"vllm/{name}.py": PIECES[name] for name in pieces & {"new", "old"}}
    members["vllm/__init__.py"] = PIECES["narrow" if "narrow" in pieces else "LLM"]
    pins = {"vllm": Version(version)}
    return check_surface(subject, World(archives(members), pins), pins)


SHARED = subject_of({MAIN: SOURCE})


@given(
    st.sampled_from(["0.6.3", "0.9.2", "0.10.0", "0.18.0", "0.24.0", "0.24.1", "1.0"]),
    st.frozensets(st.sampled_from(sorted(PIECES))),
)
def test_a_subject_with_a_memory_says_what_a_fresh_one_says(version: str, pieces: frozenset[str]) -> None:
    assert check(SHARED, version, pieces) == check(subject_of({MAIN: SOURCE}), version, pieces)


def test_releases_that_differ_in_nothing_that_is_used_are_not_executed_again() -> None:
    subject = subject_of({MAIN: SOURCE})
    first = check(subject, "0.24.0", frozenset({"new"}))
    (tree,) = subject.memory.values()
    before = repr(tree.__dict__)
    again = check(subject, "0.26.0", frozenset({"new", "old"}))
    assert again == first
    assert repr(tree.__dict__) == before
