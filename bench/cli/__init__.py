"""The command line of the benches: words in, one exit code out (`python -m bench`)."""
