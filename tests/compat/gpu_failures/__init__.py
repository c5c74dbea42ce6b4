"""Failures forced on a GPU, one after the other, to prove that its memory comes back (`verl-matrix gpus forced`)."""
