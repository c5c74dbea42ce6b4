"""What is known of the versions of the verl stack, and what follows from it."""

__version__ = "0.1.0"
