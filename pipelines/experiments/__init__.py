"""Steps that train and measure many runs: ``reproduce``, ``compare`` and ``tune``.

A cell is one training run, measured as ``evaluate`` does. Its result is one file, so an experiment
that was interrupted continues with the cells that are missing.

``runner`` trains the ``cells`` that are missing, ``measure`` averages and compares their ranks, and
``report`` and ``pictures`` show them. ``paper_tables`` has the tables of the paper, and
``leaderboard`` those on published splits, whose data, models and numbers are in ``protocols`` and
``published_splits``, and whose page is made by ``leaderboard_page``. ``study`` keeps the searches
of Optuna.
"""
