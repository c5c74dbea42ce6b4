"""Compares a sequence forwarded alone with the same sequence packed behind another; argv[1]: `verl` or `mask`."""

import json
import sys

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

print("READY", flush=True)
torch.manual_seed(0)
config = Qwen2Config(vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2)  # fmt: skip
config._attn_implementation = "sdpa"
model = Qwen2ForCausalLM(config).eval()
torch.nn.init.normal_(model.lm_head.weight, std=0.5)
first, second = torch.randint(0, 64, (1, 9)), torch.randint(0, 64, (1, 7))
packed = torch.cat([first, second], dim=1)
positions = torch.cat([torch.arange(9), torch.arange(7)]).unsqueeze(0)
with torch.no_grad():
    alone = model(input_ids=second, use_cache=False).logits
    given = {"attention_mask": torch.ones_like(packed)} if sys.argv[1] == "mask" else {"attention_mask": None}
    behind = model(input_ids=packed, position_ids=positions, use_cache=False, **given).logits[:, 9:]
print(json.dumps({"error": float((alone - behind).abs().max())}))
