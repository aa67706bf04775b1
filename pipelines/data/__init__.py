"""Prepared data on disk, and the batches for training and evaluation that are read from it.

``prepared`` opens the folder that ``prepare`` writes, once ``verification`` has checked it, and
``features`` and ``columns`` read its side features. ``batches`` cuts training examples and
evaluation users out of the arrays; ``sequences`` makes batches of whole sequences.
"""
