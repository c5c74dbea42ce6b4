"""Prints the names of the cells that ``verl-matrix run --list --json`` lists on standard input, a line each."""

import json
import sys

for cell in json.load(sys.stdin):
    sys.stdout.write(f"{cell['name']}\n")
