"""The doctor: what is wrong in a log or in an environment, against the records of known failures."""
