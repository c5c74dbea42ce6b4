"""Short PPO benchmarks (see the project plan in README.md)."""
