"""Ask a tiny Qwen3-MoE for the names of its weights, as verl hands them to the rollout engine; measures packed ones."""

from __future__ import annotations

from transformers_tiny import say


def main() -> None:
    from transformers import AutoModelForCausalLM, Qwen3MoeConfig

    small = {"hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 32, "head_dim": 16}
    model = AutoModelForCausalLM.from_config(Qwen3MoeConfig(**small, **heads, num_experts=4, num_experts_per_tok=2))
    try:
        from verl.utils.model import convert_weight_keys
    except ImportError:
        names = list(model.state_dict())
    else:
        names = list(convert_weight_keys(model.state_dict(), model))
    experts = [name for name in names if ".experts." in name]
    say(packed=[name for name in experts if "gate_up_proj" in name], experts=len(experts), first=experts[0])


main()
