"""Hydra keys of verl: which a release has, which of them its code reads, and what became of the others."""
