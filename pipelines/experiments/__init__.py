"""Steps that train and measure many runs: ``reproduce``, ``compare`` and ``tune``.

A cell is one training run, measured as ``evaluate`` does. Its result is one file, so an experiment
that was interrupted continues with the cells that are missing.
"""
