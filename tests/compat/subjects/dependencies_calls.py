"""Small calls of the packages under verl, one subject a word; each ends as the real thing does or measures.

usage: dependencies_calls.py SUBJECT [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

from transformers_tiny import say


def non_tensor() -> None:
    """Measure what data that is no tensor reads as when two batches that differ in it are joined."""
    import torch
    from tensordict import NonTensorData, TensorDict

    batches = [
        TensorDict({"a": torch.zeros(2, 1), "meta": NonTensorData(value, batch_size=[2])}, batch_size=[2])
        for value in ("x", "y")
    ]
    read = torch.cat(batches)["meta"]
    say(read=repr(read), scalar=isinstance(read, str))


def chunked() -> None:
    """Read a row group whose nested column of text is larger than 2 GiB (needs about 7 GB of memory)."""
    import pyarrow
    import pyarrow.parquet as parquet

    line = "x" * (1 << 20)
    kind = pyarrow.list_(pyarrow.struct([("content", pyarrow.string())]))
    path = Path(sys.argv[2], "large.parquet")
    with parquet.ParquetWriter(path, pyarrow.schema([("prompt", kind)]), compression="zstd") as writer:
        parts = [pyarrow.array([[{"content": line}]] * 1100, kind) for _ in range(2)]
        table = pyarrow.table({"prompt": pyarrow.chunked_array(parts)})
        writer.write_table(table, row_group_size=2200)
    read = parquet.ParquetFile(path)
    assert read.num_row_groups == 1, read.num_row_groups
    say(rows=read.read().num_rows)


def hydra() -> None:
    """Parse an override as verl's command line does."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    say(key=OverridesParser.create().parse_override("data.train_batch_size=8").key_or_group)


def interpolate() -> None:
    """Resolve an interpolation as verl's YAML has them."""
    from omegaconf import OmegaConf

    say(value=OmegaConf.create({"a": 1, "b": "${oc.select:a,2}"}).b)


def transfer_queue() -> None:
    """Import what verl's default trainer imports first."""
    from verl.trainer.ppo.v1 import trainer_base

    say(module=trainer_base.__name__)


SUBJECTS = {
    "non-tensor": non_tensor,
    "chunked": chunked,
    "hydra": hydra,
    "interpolate": interpolate,
    "transfer-queue": transfer_queue,
}

if __name__ == "__main__":
    SUBJECTS[sys.argv[1]]()
