"""Claims: statements that guides publish about this stack, each with a check that is run, or the reason for none."""
