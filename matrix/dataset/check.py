"""Checking of data files: what each is, whether verl can use it, and whether two of them share rows."""

from __future__ import annotations

import os
import shutil
import tempfile
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matrix.dataset.opening import misfit, pyarrow
from matrix.dataset.remark import FileReport, Kind, Remark
from matrix.dataset.rows import RowChecks
from matrix.dataset.scorer import Scorer
from matrix.gravity import Gravity
from matrix.nearness import near_names

BATCH = 1024
ROOM = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """How files are looked at: the columns' names, the releases that must know the sources, and the tokenizer.

    `count_tokens` takes a prompt and returns its tokens; `longest_tokens` is max_prompt_length, 0 for no limit.
    """

    prompt_key: str = "prompt"
    source_key: str = "data_source"
    scorers: tuple[Scorer, ...] = ()
    count_tokens: Callable[[Any], int] | None = None
    longest_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The files' reports, and what is between them."""

    files: tuple[FileReport, ...]
    between: tuple[Remark, ...] = ()
    question: Question = field(default_factory=Question)

    @property
    def fit(self) -> bool:
        """Return whether nothing but notes was found."""
        return all(file.fit for file in self.files) and not any(remark.fails for remark in self.between)

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data."""
        return {
            "schema": 1,
            "fit": self.fit,
            "releases": [scorer.version for scorer in self.question.scorers],
            "files": [file.to_json() for file in self.files],
            "between": [remark.to_json() for remark in self.between],
        }


def check(paths: Sequence[Path], question: Question) -> Checked:
    """Return the reports of these files and folders; what is wrong with a file is a remark, never raised.

    Raises ToolError where pyarrow is not installed.
    """
    reports, digests = [], []
    for path in paths:
        if path.is_dir():
            reports.append(check_target(path))
            continue
        report, found = check_file(path, question)
        reports.append(report)
        digests.append((path, found))
    return Checked(files=tuple(reports), between=tuple(_overlaps(digests)), question=question)


def check_file(path: Path, question: Question) -> tuple[FileReport, array[int]]:
    """Return the report of one file, and a digest of each row's prompt."""
    wrong = misfit(path)
    if wrong is not None:
        size = path.stat().st_size if path.is_file() else 0
        return FileReport(path=str(path), size=size, remarks=(wrong,)), array("Q")
    arrow = pyarrow()
    checks = RowChecks(
        prompt_key=question.prompt_key,
        source_key=question.source_key,
        scorers=question.scorers,
        count_tokens=question.count_tokens,
        longest_tokens=question.longest_tokens,
    )
    size = path.stat().st_size
    remarks = _suffix(path, question)
    try:
        with arrow.parquet.ParquetFile(path, pre_buffer=False) as file:
            schema, rows, groups = file.schema_arrow, file.metadata.num_rows, file.metadata.num_row_groups
            columns = {name: str(schema.field(name).type) for name in schema.names}
            remarks += _columns(columns, question) if rows else []
            if not rows:
                remarks.append(_no_rows())
            wanted = [question.prompt_key, question.source_key, "reward_model", "extra_info"]
            read = [name for name in wanted if name in columns]
            for batch in file.iter_batches(batch_size=BATCH, columns=read) if rows and read else ():
                checks.feed(batch.to_pylist())
    except (arrow.ArrowException, OSError, ValueError) as error:
        remarks.append(_unreadable(error))
        return FileReport(path=str(path), size=size, remarks=tuple(remarks)), array("Q")
    remarks += _by_column(checks, columns, question)
    remarks += _duplicates(checks.digests) if question.prompt_key in columns else []
    return (
        FileReport(
            path=str(path),
            size=size,
            rows=rows,
            row_groups=groups,
            columns=columns,
            figures=checks.figures() if question.prompt_key in columns else {},
            sources=dict(checks.sources),
            remarks=tuple(sorted(remarks, key=lambda remark: remark.gravity.rank)),
        ),
        checks.digests if question.prompt_key in columns else array("Q"),
    )


def _by_column(checks: RowChecks, columns: Mapping[str, str], question: Question) -> list[Remark]:
    """Return the rows' remarks, without those on a column that is not there: that is said once."""
    found = checks.remarks()
    if question.prompt_key not in columns:
        found = [remark for remark in found if remark.kind not in (Kind.PROMPT, Kind.LENGTH)]
    if checks.row and "extra_info" in columns and checks.indices < checks.row:
        lacking = checks.row - checks.indices
        message = "extra_info.index is missing; verl then takes 0 for it"
        found.append(Remark(kind=Kind.EXTRA, gravity=Gravity.NOTE, message=message, rows=lacking))
    return found


def _suffix(path: Path, question: Question) -> list[Remark]:
    strict = [item for item in question.scorers if item.suffixes and not path.name.endswith(item.suffixes)]
    if not strict:
        return []
    versions = ", ".join(item.version for item in strict)
    message = f"its name does not end in .parquet, and verl {versions} goes by the name: ValueError"
    return [Remark(kind=Kind.SUFFIX, gravity=Gravity.ERROR, message=message, then="Rename it.")]


def _columns(columns: Mapping[str, str], question: Question) -> list[Remark]:
    found = []
    for name, why in (
        (question.prompt_key, "verl stops with KeyError, or its filter of long prompts drops every row"),
        (question.source_key, "verl cannot choose a reward"),
        ("reward_model", "verl's own rewards read its ground_truth"),
    ):
        if name not in columns:
            near = near_names(name, columns)
            then = f"Did you mean `{near[0]}`?" if near else f"Columns: {', '.join(columns)}."
            then += " Name it with --prompt-key (data.prompt_key)." if name == question.prompt_key else ""
            message = f"the column `{name}` is missing: {why}"
            found.append(Remark(kind=Kind.COLUMN, gravity=Gravity.ERROR, message=message, then=then))
    kind = columns.get("reward_model", "struct<ground_truth")
    if not kind.startswith("struct") or "ground_truth" not in kind:
        message = f"reward_model is {kind}, without a ground_truth"
        found.append(Remark(kind=Kind.REWARD, gravity=Gravity.ERROR, message=message))
    elif "style" not in kind and "reward_model" in columns:
        message = "reward_model has no style; verl's preprocessing writes `rule` or `model`"
        found.append(Remark(kind=Kind.REWARD, gravity=Gravity.NOTE, message=message))
    if "extra_info" not in columns:
        message = "there is no extra_info; verl then takes 0 for every row's index"
        found.append(Remark(kind=Kind.EXTRA, gravity=Gravity.NOTE, message=message))
    return found


def _no_rows() -> Remark:
    return Remark(
        kind=Kind.NO_ROWS,
        gravity=Gravity.ERROR,
        message="has no rows: verl stops, in reading it or with `Train dataloader is empty!`",
        then="Look at the step that wrote it: a filter that let nothing through, or a wrong split.",
    )


def _unreadable(error: Exception) -> Remark:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    nested = "Nested data conversions not implemented" in text
    then = "Write smaller row groups, e.g. df.to_parquet(f, row_group_size=10000)." if nested else "Write it again."
    return Remark(
        kind=Kind.UNREADABLE,
        gravity=Gravity.ERROR,
        message=f"cannot be read through: {type(error).__name__}: {text[:200]}",
        then=then,
    )


def _counts(digests: array[int]) -> Any:
    """Return pyarrow's table of digests and how often each occurs."""
    arrow = pyarrow()
    values = arrow.Array.from_buffers(arrow.uint64(), len(digests), [None, arrow.py_buffer(digests)])
    return arrow.compute.value_counts(values)


def _duplicates(digests: array[int]) -> list[Remark]:
    if not digests:
        return []
    arrow = pyarrow()
    counts = _counts(digests)
    more = arrow.compute.sum(arrow.compute.subtract(counts.field("counts"), 1)).as_py()
    if not more:
        return []
    message = f"{more} of {len(digests)} rows repeat the prompt of another"
    gravity = Gravity.WARNING if more > 0.05 * len(digests) else Gravity.NOTE
    return [Remark(kind=Kind.DUPLICATE, gravity=gravity, message=message, rows=more)]


def _overlaps(found: Sequence[tuple[Path, array[int]]]) -> list[Remark]:
    """Return which files share prompts: a test set that the training has seen measures nothing."""
    remarks = []
    for at, (path, digests) in enumerate(found):
        for other, others in found[at + 1 :]:
            if not digests or not others:
                continue
            arrow = pyarrow()
            shared = arrow.compute.is_in(
                _counts(others).field("values"), value_set=_counts(digests).field("values")
            ).true_count
            if shared:
                message = f"{path} and {other} share {shared} prompts"
                then = "A test set that the training has seen measures nothing; leave them out of one."
                gravity = Gravity.WARNING
                remarks.append(Remark(kind=Kind.OVERLAP, gravity=gravity, message=message, rows=shared, then=then))
    return remarks


def check_target(folder: Path) -> FileReport:
    """Return whether data can be written into the folder: tried with a real file, which is removed again."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".verl-matrix-") as file:
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
        free = shutil.disk_usage(folder).free
    except OSError as error:
        remark = Remark(
            kind=Kind.TARGET,
            gravity=Gravity.ERROR,
            message=f"nothing can be written here: {error.strerror or error}",
            then="Mend permissions or mount, free space, or write elsewhere.",
        )
        return FileReport(path=str(folder), remarks=(remark,))
    message = f"is a folder that can be written to, with {free / 1e9:.1f} GB free"
    gravity = Gravity.NOTE if free > ROOM else Gravity.WARNING
    return FileReport(
        path=str(folder),
        figures={"free_bytes": float(free)},
        remarks=(Remark(kind=Kind.TARGET, gravity=gravity, message=message),),
    )
