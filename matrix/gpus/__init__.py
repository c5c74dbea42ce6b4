"""The GPUs of this machine: what there is, who is granted which, what a probe leaves on them, what they are."""
