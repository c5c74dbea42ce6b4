"""The command line: words in, one exit code out. `matrix.__main__` starts it and hands it the renderers."""
