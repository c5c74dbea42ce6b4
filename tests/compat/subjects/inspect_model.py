"""Ask vLLM's own model registry about one architecture: `inspect_model.py inspect|resolve ARCHITECTURE`.

Ends well and prints the class where the registry answers; else the registry's error is raised, with what its child
process wrote logged above it. No model is loaded and no configuration fetched: from 0.11 the registry reads three
fields of the engine's model configuration, and those are given.
"""

import inspect
import sys
from types import SimpleNamespace

from vllm.model_executor.models.registry import ModelRegistry

how, *architectures = (word for word in sys.argv[1:] if word)
ask = getattr(ModelRegistry, f"{how}_model_cls")
asked: list[object] = [architectures]
if "model_config" in inspect.signature(ask).parameters:
    # `vllm`: the implementation of vLLM's own, so that a failure is not covered by the fallback to transformers.
    config = SimpleNamespace(architectures=architectures, auto_map=None)
    asked.append(SimpleNamespace(model_impl="vllm", runner_type="generate", convert_type="none", hf_config=config))
print("answered:", ask(*asked))
