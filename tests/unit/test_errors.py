from __future__ import annotations

import inspect

import pytest

from matrix import errors
from matrix.cli.parser import EPILOG


def _classes() -> list[type[errors.MatrixError]]:
    found = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, errors.MatrixError)]
    return [cls for cls in found if cls is not errors.MatrixError]


def test_every_error_has_its_own_exit_code() -> None:
    codes = [cls.exit_code for cls in _classes()]
    assert len(codes) >= 10
    assert len(set(codes)) == len(codes)
    assert not {0, 1} & set(codes)


@pytest.mark.parametrize("cls", _classes(), ids=lambda cls: cls.__name__)
def test_every_exit_code_is_in_the_help(cls: type[errors.MatrixError]) -> None:
    assert f" {cls.exit_code} " in EPILOG


def test_message_is_what_why_then() -> None:
    error = errors.ToolError("uv failed.", why="It is older than 0.9.", then="Upgrade it.")
    assert str(error) == "uv failed.\nIt is older than 0.9.\nUpgrade it."
    assert str(errors.ToolError("uv failed.")) == "uv failed."


def test_data_error_names_file_and_field() -> None:
    error = errors.DataError("cells.toml", "cell[3].vllm", "expected a string, found 3")
    assert str(error).startswith("cells.toml: cell[3].vllm: expected a string, found 3\n")
    assert error.field == "cell[3].vllm"


def test_unknown_release_names_the_nearest() -> None:
    error = errors.UnknownReleaseError("vllm 0.5.4.post1", near=("0.5.4", "0.5.5"))
    assert "vllm 0.5.4.post1 does not exist" in str(error)
    assert "0.5.4, 0.5.5" in str(error)
