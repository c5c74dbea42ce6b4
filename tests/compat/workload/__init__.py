"""The workload without downloads: Qwen2.5 shapes with random weights, the real tokenizer, a GSM8K-format set.

`shapes` holds the configurations, `model` writes a folder that transformers, vLLM and verl load, `tokenizer` builds
the tokenizer from its ranks, `gsm8k` writes the two parquet files, `build` is the command. Runs inside a cell and
beside the tool alike; imports nothing heavy.
"""
