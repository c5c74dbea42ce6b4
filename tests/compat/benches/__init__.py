"""The cheap benches: verl's updates alone, vLLM's rollout alone, and the products that a card reaches at most."""
