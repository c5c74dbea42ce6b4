"""Data files for verl: whether a release can read, prompt with and score what is in them."""
