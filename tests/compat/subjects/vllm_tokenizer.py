"""Put a tokenizer made on the spot through the installed vLLM's cache of tokenizers, as its engine does at start."""

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

try:
    from vllm.transformers_utils.tokenizer import get_cached_tokenizer
except ImportError:
    # From 0.13 on tokenizers have a package of their own.
    from vllm.tokenizers.hf import get_cached_tokenizer

plain = Tokenizer(models.WordLevel({"<unk>": 0, "<eos>": 1, "a": 2}, unk_token="<unk>"))
plain.pre_tokenizer = pre_tokenizers.Whitespace()
made = get_cached_tokenizer(PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="<unk>", eos_token="<eos>"))
assert made.encode("a", add_special_tokens=False) == [2]
print("cached:", type(made).__name__)
