"""Asks verl's own code about data; the last line is its answer as JSON. Runs on Python 3.10 with verl installed.

`python data_verl.py answers FILE`: FILE holds a list of [response, ground truth]; for each what `strict` and `flexible`
take from the response and the score. Only verl's gsm8k module is loaded, from its file.
`python data_verl.py sources FILE`: FILE holds a list of data_source; for each the score of "#### 72" against "72", or
the error. `python data_verl.py read FOLDER`: writes good and bad files there and reads each as RLHFDataset does, with
and without the filter of long prompts: [rows, keys of the first] or the errors from the outermost to the innermost.
`python data_verl.py good FOLDER`: the same of the good file alone, without the filter.
Where that part of verl does not import, which is another probe's matter, the answer of both is {"untested": why}.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any


def answers(path: str) -> list[Any]:
    """Return what GSM8K's rule makes of responses."""
    found = importlib.util.find_spec("verl")
    assert found is not None
    assert found.submodule_search_locations
    file = Path(next(iter(found.submodule_search_locations)), "utils", "reward_score", "gsm8k.py")
    spec = importlib.util.spec_from_file_location("gsm8k_of_verl", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rows = json.loads(Path(path).read_text(encoding="utf-8"))
    return [
        [
            module.extract_solution(text, method="strict"),
            module.extract_solution(text, method="flexible"),
            module.compute_score(text, truth),
        ]
        for text, truth in rows
    ]


def sources(path: str) -> dict[str, Any]:
    """Return what the release's own choice of scorer says to each source."""
    module = importlib.import_module("verl.utils.reward_score")
    choose = getattr(module, "default_compute_score", None) or module._default_compute_score
    found: dict[str, Any] = {}
    for source in json.loads(Path(path).read_text(encoding="utf-8")):
        try:
            found[source] = choose(source, "#### 72", "72")
        except Exception as error:
            found[source] = f"{type(error).__name__}: {error}"
    return found


def read(folder: str) -> dict[str, Any]:
    """Return how RLHFDataset reads each file."""
    tokenizer = _tokenizer()
    return {
        f"{file.stem} {'filtered' if filtered else 'whole'}": _read(file, tokenizer, filtered)
        for file in _files(Path(folder))
        for filtered in (True, False)
    }


def good(folder: str) -> list[Any]:
    """Return how RLHFDataset reads the good file."""
    return _read(_files(Path(folder))[0], _tokenizer(), filtered=False)


def _read(file: Path, tokenizer: Any, filtered: bool) -> list[Any]:
    """Return [rows, keys of the first], or the errors from the outermost to the innermost."""
    from omegaconf import OmegaConf
    from verl.utils.dataset.rl_dataset import RLHFDataset

    config = OmegaConf.create(
        {
            "cache_dir": str(file.parent / "cache"),
            "prompt_key": "prompt",
            "max_prompt_length": 64,
            "filter_overlong_prompts": filtered,
            "filter_overlong_prompts_workers": 1,
            "truncation": "error",
        }
    )
    try:
        made = RLHFDataset(data_files=str(file), tokenizer=tokenizer, config=config)
        return [len(made), sorted(made[0]) if len(made) else []]
    except Exception as error:
        chain: list[str] = []
        current: BaseException | None = error
        while current is not None:
            chain.append(f"{type(current).__name__}: {str(current)[:200]}")
            current = current.__cause__ or current.__context__
        return chain


def _files(folder: Path) -> list[Path]:
    import pyarrow
    import pyarrow.parquet

    def row(number: int, **other: Any) -> dict[str, Any]:
        prompt = [{"role": "user", "content": f"What is {number} plus 2?"}]
        reward = {"style": "rule", "ground_truth": str(number + 2)}
        info = {"split": "train", "index": number}
        made = {"data_source": "openai/gsm8k", "prompt": prompt, "ability": "math", "reward_model": reward}
        return {**made, "extra_info": info, **other}

    def write(name: str, rows: list[dict[str, Any]]) -> Path:
        path = folder / f"{name}.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        return path

    whole = write("good", [row(number) for number in range(5)])
    content = whole.read_bytes()
    (folder / "truncated.parquet").write_bytes(content[: len(content) // 2])
    (folder / "csv.parquet").write_text("prompt,answer\nhello,72\n", encoding="utf-8")
    (folder / "empty.parquet").write_bytes(b"")
    nameless = [{name: value for name, value in row(number).items() if name != "prompt"} for number in range(5)]
    return [
        whole,
        write("no_prompt", nameless),
        write("text_prompt", [row(number, prompt="hello") for number in range(5)]),
        folder / "truncated.parquet",
        folder / "csv.parquet",
        folder / "empty.parquet",
        folder / "missing.parquet",
    ]


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<unk>": 0, "<pad>": 1, "<eos>": 2}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    made = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", pad_token="<pad>", eos_token="<eos>")
    made.chat_template = (
        "{% for m in messages %}{{ m['role'] + ' : ' + m['content'] + ' ' }}{% endfor %}"
        "{% if add_generation_prompt %}assistant :{% endif %}"
    )
    return made


if __name__ == "__main__":
    needed = {"sources": "verl.utils.reward_score", "read": "verl.utils.dataset.rl_dataset",
              "good": "verl.utils.dataset.rl_dataset"}.get(sys.argv[1])  # fmt: skip
    try:
        if needed:
            importlib.import_module(needed)
        answer = {"answers": answers, "sources": sources, "read": read, "good": good}[sys.argv[1]](sys.argv[2])
    except ImportError as error:
        answer = {"untested": f"{needed or 'verl'} does not import here: {error}"}
    print("\n" + json.dumps(answer))
