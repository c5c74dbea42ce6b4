"""Tracebacks in the forms in which they reach a log: what was raised, in which order, and what the others came of."""

from __future__ import annotations

import pytest

from matrix.doctor.scan import lines_of
from matrix.doctor.tracebacks import BLOCK_LINES, Chain, Link, read_chains

FRAME = '  File "/srv/a.py", line 3, in go\n    step()\n'
HEAD = "Traceback (most recent call last):\n"
CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"


def chains(text: str) -> list[Chain]:
    return read_chains(lines_of(text))


def roots(text: str) -> list[str]:
    return [chain.root.line for chain in chains(text)]


PYTHON = [
    pytest.param(f"{HEAD}{FRAME}ValueError: no\n", ["ValueError: no"], id="plain"),
    pytest.param(f"{HEAD}{FRAME}KeyboardInterrupt\n", ["KeyboardInterrupt"], id="no-message"),
    pytest.param(f"{HEAD}{FRAME}a.b.OddName: no\n", ["a.b.OddName: no"], id="any-name"),
    pytest.param(f"{HEAD}{FRAME}    ^^^^^^\nValueError: no\n", ["ValueError: no"], id="3.11-carets"),
    pytest.param(f"{HEAD}{FRAME}    ~~~~^^\nValueError: no\n", ["ValueError: no"], id="3.13-tildes"),
    pytest.param(
        f"{HEAD}{FRAME}  [Previous line repeated 990 more times]\nRecursionError: deep\n",
        ["RecursionError: deep"],
        id="repeated-frames",
    ),
    pytest.param(
        f'{HEAD}  File "/srv/a.py", line 3\n    x =\n       ^\nSyntaxError: invalid syntax\n',
        ["SyntaxError: invalid syntax"],
        id="syntax-error",
    ),
    pytest.param(
        f"{HEAD}{FRAME}KeyError: 'a'\n{CAUSE}{HEAD}{FRAME}ValueError: b\n", ["KeyError: 'a'"], id="direct-cause"
    ),
    pytest.param(
        f"{HEAD}{FRAME}KeyError: 'a'\n{CONTEXT}{HEAD}{FRAME}ValueError: b\n", ["ValueError: b"], id="handled-look-up"
    ),
    pytest.param(
        f"{HEAD}{FRAME}ImportError: a\n{CONTEXT}{HEAD}{FRAME}ValueError: b\n", ["ImportError: a"], id="during-handling"
    ),
    pytest.param(
        f"{HEAD}{FRAME}AttributeError: a\n{CONTEXT}{HEAD}{FRAME}AttributeError: b\n",
        ["AttributeError: b"],
        id="getattr-falls-back",
    ),
    pytest.param(
        f"{HEAD}{FRAME}ValueError: a\n{HEAD}{FRAME}TypeError: b\n", ["ValueError: a", "TypeError: b"], id="two-in-a-row"
    ),
    pytest.param(f"{HEAD}{FRAME}", [], id="one-frame-and-no-end"),
    pytest.param(
        f"{HEAD}{FRAME}{FRAME}",
        ["(cut short): the traceback ends before its exception is named"],
        id="cut-short",
    ),
    pytest.param(
        f"{HEAD}{FRAME}INFO: of another thread\nstep:3 - loss:1\n{FRAME}ValueError: a\n",
        ["ValueError: a"],
        id="lines-of-another-thread",
    ),
    pytest.param(f"100%|####| 5/5 {HEAD}{FRAME}ValueError: a\n", ["ValueError: a"], id="after-a-bar"),
    pytest.param(
        f'm.RemoteTraceback: \n"""\n{HEAD}{FRAME}ValueError: a\n"""\n{CAUSE}{HEAD}{FRAME}ValueError: a\n',
        ["ValueError: a"],
        id="remote-traceback",
    ),
    pytest.param(
        f"{HEAD}{FRAME}p.ProcessRaisedException: \n\n-- Process 0 terminated with the following error:\n"
        f"{HEAD}{FRAME}ValueError: a\n",
        ["p.ProcessRaisedException", "ValueError: a"],
        id="torch-spawn",
    ),
]


@pytest.mark.parametrize(("text", "expected"), PYTHON)
def test_root_of_python_s_own_forms(text: str, expected: list[str]) -> None:
    assert roots(text) == expected


RAY = [
    pytest.param(
        f"{HEAD}{FRAME}ray.exceptions.RayTaskError(ImportError): ray::Task.run() (pid=1, ip=1.2.3.4, actor_id=aa)\n"
        f"{FRAME}ImportError: a\n",
        "ImportError: a",
        id="wrapped-once",
    ),
    pytest.param(
        f"{HEAD}{FRAME}ray.exceptions.RayTaskError(ImportError): ray::Task.run() (pid=1, ip=1.2.3.4)\n{FRAME}"
        f"ray.exceptions.RayTaskError(ImportError): ray::Worker.go() (pid=2, ip=1.2.3.4)\n{FRAME}ImportError: a\n",
        "ImportError: a",
        id="wrapped-twice",
    ),
    pytest.param(
        f"ray::Worker.go() (pid=2, ip=1.2.3.4)\n{FRAME}KeyError: 'a'\n{CAUSE}"
        f"ray::Worker.go() (pid=2, ip=1.2.3.4)\n{FRAME}ImportError: b\n",
        "KeyError: 'a'",
        id="chain-inside",
    ),
    pytest.param(
        f"{HEAD}{FRAME}ray.exceptions.ActorDiedError: The actor died because of an error raised in its creation task, "
        f"ray::Engine.__init__() (pid=3, ip=1.2.3.4)\n{FRAME}RuntimeError: a\n",
        "RuntimeError: a",
        id="died-in-its-creation",
    ),
]


@pytest.mark.parametrize(("text", "expected"), RAY)
def test_ray_s_wrapping_is_taken_off(text: str, expected: str) -> None:
    assert roots(text) == [expected]


def test_groups_are_taken_apart() -> None:
    text = (
        "  + Exception Group Traceback (most recent call last):\n"
        '  |   File "/srv/a.py", line 3, in <module>\n'
        '  |     raise ExceptionGroup("eg", [])\n'
        "  | ExceptionGroup: eg (2 sub-exceptions)\n"
        "  +-+---------------- 1 ----------------\n"
        "    | Traceback (most recent call last):\n"
        '    |   File "/srv/a.py", line 9, in one\n'
        "    | ValueError: 1\n"
        "    +---------------- 2 ----------------\n"
        "    | TypeError: 2\n"
        "    +------------------------------------\n"
        "done\n"
    )
    assert roots(text) == ["ExceptionGroup: eg (2 sub-exceptions)", "ValueError: 1", "TypeError: 2"]


def test_faulthandler_lists_the_innermost_frame_first() -> None:
    text = (
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n"
        '  File "/srv/inner.py", line 1 in deep\n  File "/srv/outer.py", line 2 in go\n\n'
        'Thread 0x00008f (most recent call first):\n  File "/usr/threading.py", line 3 in wait\n\nnext\n'
    )
    (chain,) = chains(text)
    assert chain.root.line == "Fatal Python error: Segmentation fault"
    assert [frame.function for frame in chain.root.frames] == ["go", "deep"]
    assert [str(frame) for frame in chain.root.frames] == ["/srv/outer.py:2 in go", "/srv/inner.py:1 in deep"]


def test_a_fault_ends_where_something_else_begins() -> None:
    text = 'Fatal Python error: Aborted\n\nCurrent thread 0x1 (most recent):\n  File "/srv/a.py", line 1 in f\nbye\n'
    assert roots(text) == ["Fatal Python error: Aborted"]


def test_pytest_marks_what_was_raised() -> None:
    text = ">       import vllm\nE       ModuleNotFoundError: No module named 'vllm'\n\na.py:3: ModuleNotFoundError\n"
    assert roots(text) == ["ModuleNotFoundError: No module named 'vllm'"]
    more = "E   ValueError: first\nE   second line\n\n"
    assert chains(more)[0].root.message == "first\nsecond line"
    assert chains("E   just some words\n") == []


def test_a_message_has_several_lines_and_ends_at_a_logger() -> None:
    (chain,) = chains(f"{HEAD}{FRAME}RuntimeError: CUDA error: x\nFor debugging do y\nINFO: z\n")
    assert chain.root.message == "CUDA error: x\nFor debugging do y"
    assert chain.root.name == "RuntimeError"


def test_the_name_of_a_wrapper_is_that_of_what_it_wraps() -> None:
    text = f"{HEAD}{FRAME}ray.exceptions.RayTaskError(OutOfMemoryError): of another kind\n"
    (chain,) = chains(text)
    assert chain.root.name == "OutOfMemoryError"


def test_links_and_text_are_kept() -> None:
    (chain,) = chains(f"before\n{HEAD}{FRAME}ImportError: a\n{CONTEXT}{HEAD}{FRAME}ValueError: b\n")
    assert [raised.link for raised in chain.raised] == [Link.FIRST, Link.CONTEXT]
    assert "ImportError: a" in chain.text
    assert "ValueError: b" in chain.text
    assert chain.before == ("before",)
    assert chain.number == 2


def test_a_traceback_without_end_is_bounded() -> None:
    (chain,) = chains(HEAD + FRAME * 5000 + "ValueError: a\n")
    assert len(chain.text.splitlines()) <= BLOCK_LINES
    assert len(chain.root.frames) <= BLOCK_LINES


def test_frames_that_ray_says_again_need_no_header() -> None:
    text = (
        '(W pid=1)   File "/srv/a.py", line 3, in go [repeated 7x across cluster]\n'
        "(W pid=1) ValueError: a [repeated 7x across cluster]\n"
    )
    (chain,) = chains(text)
    assert chain.root.line == "ValueError: a"
    assert chain.repeats == 7
