"""Reading of verl's logs, in the formats of every release and with what stands around the numbers."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.errors import DataError, UsageError
from matrix.health import history, lines
from matrix.health.history import collect, read_log
from matrix.health.lines import LoggedStep, Notes, logged_steps, number
from matrix.health.names import Metric

NAN = math.nan

READ = {
    "0.1 to 0.4.1": ("step:3 - actor/pg_loss:-0.010 - critic/kl:0.000", 3, {"actor/pg_loss": -0.01, "critic/kl": 0.0}),
    "0.5.0 on": ("step:3 - actor/lr:1e-06 - n:12", 3, {"actor/lr": 1e-6, "n": 12.0}),
    "numpy 2": ("step:3 - a:np.float64(0.5) - b:np.int64(7) - c:np.float32(nan)", 3, {"a": 0.5, "b": 7.0, "c": NAN}),
    "booleans": ("step:3 - a:True - b:np.False_", 3, {"a": 1.0, "b": 0.0}),
    "infinite": ("step:3 - a:inf - b:-inf - c:nan", 3, {"a": math.inf, "b": -math.inf, "c": NAN}),
    "ray and colour": ("\x1b[36m(TaskRunner pid=12, ip=10.0.0.3)\x1b[0m step:3 - a:1.5", 3, {"a": 1.5}),
    "repeated": ("(main_task pid=1) step:3 - a:1 - b:2 [repeated 2x across cluster]", 3, {"a": 1.0, "b": 2.0}),
    "progress bar": ("Training Progress:   3%|▎| 1/29 [01:00<28:00, 60s/it]step:3 - a:1", 3, {"a": 1.0}),
    "carriage return": ("Training Progress: 0it\rstep:3 - a:1\r", 3, {"a": 1.0}),
    "names like steps": ("step:3 - training/global_step:34 - timing_s/step:9", 3,
                         {"training/global_step": 34.0, "timing_s/step": 9.0}),
    "name with a dash": ("step:3 - val-core/my - data/acc/mean@1:0.5 - a:1", 3,
                         {"val-core/my - data/acc/mean@1": 0.5, "a": 1.0}),
    "name with a colon": ("step:3 - val/a:b/c:0.5", 3, {"val/a:b/c": 0.5}),
    "cut off": ("step:3 - a:1 - actor/pg_lo", 3, {"a": 1.0}),
    "json": ('{"step": 3, "data": {"a": 0.5, "b": 2, "c": NaN, "d": "text"}}', 3, {"a": 0.5, "b": 2.0, "c": NAN}),
    "orjson": ('{"step":3,"data":{"a":null,"b":true}}', 3, {"a": NAN, "b": 1.0}),
    "after a truncation": ('\0\0\0{"step":3,"data":{"a":1}}', 3, {"a": 1.0}),
}  # fmt: skip


def _steps(text: str | bytes) -> tuple[list[LoggedStep], Notes]:
    notes = Notes()
    content = text if isinstance(text, bytes) else text.encode()
    return list(logged_steps(io.BytesIO(content), notes)), notes


@pytest.mark.parametrize(("text", "step", "values"), READ.values(), ids=READ.keys())
def test_a_line_is_read(text: str, step: int, values: dict[str, float]) -> None:
    (found,), _ = _steps(text)
    assert found.step == step
    assert found.values == pytest.approx(values, nan_ok=True)


@pytest.mark.parametrize(
    "text",
    [
        "no metrics at all", "global_step:3 - x", "step: 3, a: 1", "step:3", "step:3 - nothing here", "{bad json",
        '{"step": "3", "data": {}}', '{"step": 3, "data": {}}', '{"step": 3}', "[1]step",
    ],
)  # fmt: skip
def test_a_line_without_metrics_is_none(text: str) -> None:
    assert _steps(f"{text} step\n")[0] == []


@pytest.mark.parametrize(
    ("word", "value"),
    [("1_0", None), ("x", None), ("np.float64(x)", None), ("np.float64('1')", 1.0), (" 2 ", 2.0), ("", None)],
)
def test_numbers(word: str, value: float | None) -> None:
    assert number(word) == value


@given(st.floats(allow_nan=False))
def test_every_number_that_numpy_prints_comes_back(value: float) -> None:
    assert number(repr(value)) == number(f"np.float64({value!r})") == value


def test_lines_over_chunks_and_lines_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "CHUNK", 16)
    monkeypatch.setattr(lines, "LONGEST", 64)
    text = "step:1 - a:1\n" + "x" * 300 + " step:9 - a:9\nstep:2 - a:2\n" + "y" * 300
    found, notes = _steps(text)
    assert [item.step for item in found] == [1, 2]
    assert notes.damaged == 2


def test_three_decimals_and_process_and_vocabulary() -> None:
    text = "(A pid=5) step:1 - a:0.100 - b:nan\n(A pid=5, ip=1.2.3.4) step:2 - a:1\n 'vocab_size': 151936,\n"
    (first, second), notes = _steps(text)
    assert (first.rounded, second.rounded) == (True, False)
    assert (first.source, second.source) == (":5", "1.2.3.4:5")
    assert notes.vocabulary == 151936
    assert (notes.console, notes.lines) == (2, 3)


def _log(*steps: tuple[str, int, dict[str, float]]) -> tuple[history.Run, ...]:
    return collect(
        LoggedStep(step=step, values=values, source=source, line=at)
        for at, (source, step, values) in enumerate(steps, 1)
    )


def _pg(run: history.Run) -> list[tuple[int, float]]:
    series = run.series(Metric.PG_LOSS)
    return list(zip(series.steps, series.values, strict=True))


def _at(source: str, step: int, value: float = 0.0) -> tuple[str, int, dict[str, float]]:
    return source, step, {"actor/pg_loss": value}


def test_a_restart_goes_on_with_the_run_and_what_is_redone_counts_once() -> None:
    (run,) = _log(_at("a", 1, 1), _at("a", 2, 2), _at("a", 3, 3), _at("b", 2, 20), _at("b", 3, 30), _at("b", 4, 40))
    assert _pg(run) == [(1, 1), (2, 20), (3, 30), (4, 40)]
    assert run.restarts == [(3, 2)]


@pytest.mark.parametrize("second", ["a", "b"])
def test_a_count_that_starts_over_is_another_run(second: str) -> None:
    first, other = _log(_at("a", 1, 1), _at("a", 2, 2), _at(second, 1, 10), _at(second, 2, 20))
    assert (_pg(first), _pg(other)) == ([(1, 1), (2, 2)], [(1, 10), (2, 20)])
    assert (first.number, other.number) == (1, 2)


def test_a_run_that_failed_in_its_first_step_is_a_run() -> None:
    assert [_pg(run) for run in _log(_at("a", 1, 1), _at("a", 1, 2))] == [[(1, 1)], [(1, 2)]]


def test_two_runs_side_by_side_are_kept_apart() -> None:
    first, other = _log(_at("a", 1, 1), _at("b", 1, 10), _at("a", 2, 2), _at("b", 2, 20))
    assert (_pg(first), _pg(other)) == ([(1, 1), (2, 2)], [(1, 10), (2, 20)])


def test_a_step_in_two_lines_is_one() -> None:
    (run,) = _log(("a", 1, {"val/x": 1.0}), _at("a", 1, 5), _at("a", 2, 6), ("a", 2, {"critic/vf_loss": 1.0}))
    assert _pg(run) == [(1, 5), (2, 6)]
    assert run.series(Metric.VALUE_LOSS).steps == (2,)
    assert not run.restarts


def test_what_is_not_finite_is_counted_apart() -> None:
    (run,) = _log(_at("a", 1, NAN), _at("a", 2, 1.0), _at("a", 3, math.inf))
    assert _pg(run) == [(2, 1.0)]
    seen = run.not_finite["actor/pg_loss"]
    assert (seen.first, seen.last, seen.count) == (1, 3, 2)
    assert len(run.series(Metric.PG_LOSS)) == 1
    assert not run.series(Metric.GAP)


def test_memory_is_bounded_by_letting_steps_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST_STEPS", 16)
    (run,) = _log(*(_at("a", step, step) for step in range(100)))
    assert len(run.steps) <= 17
    assert run.stride == 8
    assert all(step == value for step, value in _pg(run))
    assert run.steps[-1] >= 88


def test_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST_NAMES", 3)
    (run,) = _log(("a", 1, {f"m{at}": NAN for at in range(9)}))
    assert len(run.seen) == len(run.not_finite) == 3


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"step:1 - actor/pg_loss:1\n"
    plain, packed = tmp_path / "a.log", tmp_path / "a.log.gz"
    plain.write_bytes(text)
    packed.write_bytes(gzip.compress(text))
    others = {
        "a.bz2": bz2.compress(text),
        "a.xz": lzma.compress(text),
        "little.log": text.decode().encode("utf-16"),
        "big.log": b"\xfe\xff" + text.decode().encode("utf-16-be"),
        "odd.log": text.decode().encode("utf-16") + b"\x01",
    }
    for name, content in others.items():
        (tmp_path / name).write_bytes(content)
    for path in (plain, packed, *(tmp_path / name for name in others)):
        assert len(read_log(path).runs) == 1
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert read_log("-").path == "standard input"


WITHOUT = {
    "empty": (b"", "is empty"),
    "binary": (bytes(range(256)) * 40, "is no text"),
    "undecodable": (b"\xfe\xfd\xfc" * 400, "is no text"),
    "no metrics": (b"hello\nworld\n", "holds no metrics in 2 lines"),
    "only progress": (b"Training Progress: 10% at step: x\n", "holds no metrics in 1 lines"),
    "damaged gzip": (gzip.compress(b"step:1 - a:1\n" * 99)[:30], "compressed file that is cut off"),
    "damaged bzip2": (bz2.compress(b"step:1 - a:1\n" * 99)[:30], "compressed file that is cut off"),
    "no bzip2": (b"BZh9" + b"x" * 40, "compressed file that is cut off"),
    "no xz": (b"\xfd7zXZ\x00" + b"x" * 40, "compressed file that is cut off"),
}


@pytest.mark.parametrize(("content", "what"), WITHOUT.values(), ids=WITHOUT.keys())
def test_a_file_without_metrics_says_why(tmp_path: Path, content: bytes, what: str) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(content)
    with pytest.raises(DataError, match=what) as caught:
        read_log(path)
    assert caught.value.then
    if b"Progress" in content:
        assert "trainer.logger" in caught.value.then


@pytest.mark.parametrize(
    ("name", "what"),
    [("nothing.log", "There is no file"), (".", "is a folder"), ("loop", "Too many levels"), ("file/x", "Not a dir")],
)
def test_a_file_that_is_none_says_why(tmp_path: Path, name: str, what: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match=what):
        read_log(tmp_path / name)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/urandom"])
def test_a_device_without_an_end_is_left_at_once(device: str) -> None:
    with pytest.raises(DataError, match="is no text"):
        read_log(device)


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.log").write_text("step:1 - a:1")

    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(DataError, match="cannot be read: Permission denied"):
        read_log(tmp_path / "x.log")


def test_standard_input_that_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UsageError, match="no standard input"):
        read_log("-")
