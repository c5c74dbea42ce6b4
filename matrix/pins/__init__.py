"""Pins: from what people have and want, under a policy, to sets of versions to install, with the evidence for each."""
