"""Bundles: a cell's environment, the probes and this tool as files that are carried to a host without a network."""

from matrix.bundle.maker import Maker, Order
from matrix.bundle.manifest import Bundle, BundledCell

__all__ = ["Bundle", "BundledCell", "Maker", "Order"]
