"""Save a tied model as verl's merger does, with one tensor a key, and load it again; measures what is stored and tied.

usage: transformers_tied.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from transformers_tiny import qwen2, say, tokenizer


def main() -> None:
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM
    from verl.model_merger.base_model_merger import BaseModelMerger, ModelMergerConfig

    class Merger(BaseModelMerger):  # type: ignore[misc, unused-ignore]
        def merge_and_save(self) -> None: ...

        def cleanup(self) -> None: ...

    origin, target = Path(sys.argv[1], "origin"), Path(sys.argv[1], "merged")
    model = AutoModelForCausalLM.from_config(qwen2(tie_word_embeddings=True, architectures=["Qwen2ForCausalLM"]))
    model.save_pretrained(origin)
    tokenizer().save_pretrained(origin)
    config = ModelMergerConfig(
        operation="merge",
        backend="fsdp",
        target_dir=str(target),
        local_dir=str(origin),
        hf_model_config_path=str(origin),
    )
    gathered = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    Merger(config).save_hf_model_and_tokenizer(gathered)
    with safe_open(target / "model.safetensors", "pt") as stored:
        both = {"lm_head.weight", "model.embed_tokens.weight"} <= set(stored.keys())
    again = AutoModelForCausalLM.from_pretrained(target)
    tied = again.get_input_embeddings().weight.data_ptr() == again.get_output_embeddings().weight.data_ptr()
    say(both_stored=both, tied=tied)


main()
