"""Prepared data on disk, and the batches for training and evaluation that are read from it."""
