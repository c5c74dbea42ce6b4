"""Training health: what is wrong in verl's own training log, and since which step."""
