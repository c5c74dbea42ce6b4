"""Filter a data set of one short and one long prompt as verl does; measures how many rows are left of two.

usage: transformers_prompts.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from transformers_tiny import say, tokenizer


def main() -> None:
    import pandas
    from omegaconf import OmegaConf
    from verl.utils.dataset.rl_dataset import RLHFDataset

    folder = Path(sys.argv[1])
    prompts = [[{"role": "user", "content": "w1"}], [{"role": "user", "content": " ".join(["w2"] * 40)}]]
    file = folder / "prompts.parquet"
    pandas.DataFrame({"prompt": prompts, "data_source": ["x", "x"]}).to_parquet(file)
    wanted = {"max_prompt_length": 10, "filter_overlong_prompts": True, "filter_overlong_prompts_workers": 1}
    config = OmegaConf.create({**wanted, "cache_dir": str(folder), "prompt_key": "prompt"})
    rows = len(RLHFDataset(data_files=str(file), tokenizer=tokenizer(), config=config, processor=None))
    say(rows=rows, of=2, limit=10)


main()
