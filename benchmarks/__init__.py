"""Benchmarks: each claim about speed or memory, as a ratio to a baseline of the same run."""
