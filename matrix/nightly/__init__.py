"""The nightly: the axes brought up to date, what is new or stale run, and what changed since the night before."""
