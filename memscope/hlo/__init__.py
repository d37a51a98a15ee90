"""XLA's optimised modules and buffer assignments, read into small dataclasses."""
