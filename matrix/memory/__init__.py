"""The memory model: what one GPU holds in each phase of a PPO step, from the configuration alone; no GPU needed."""
