"""The tiers that need an installation: probes run with pytest inside a cell's environment, outcomes kept one by one."""

from matrix.probing.prober import Prober

__all__ = ["Prober"]
