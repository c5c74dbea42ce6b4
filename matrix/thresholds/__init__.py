"""Thresholds: the largest value of one knob that survives under a cap on memory, found by trials in a cell."""
