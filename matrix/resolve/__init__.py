"""Tier `resolve`: whether the metadata allow a cell, with uv as the resolver and cheaper exact means before it."""

from matrix.resolve.agreement import Agreement, sample_agreement
from matrix.resolve.facts import Fact
from matrix.resolve.outcome import DecidedBy
from matrix.resolve.resolver import MAX_AGE, Resolver

__all__ = ["MAX_AGE", "Agreement", "DecidedBy", "Fact", "Resolver", "sample_agreement"]
