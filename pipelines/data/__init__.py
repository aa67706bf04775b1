"""Prepared data on disk, and the batches that training takes from it."""
