"""A training run, for all steps that make or read one.

``settings`` has its settings, ``command_line`` makes options of them, and ``losses`` is the
registry of losses that they choose from; ``build`` makes the model from them. ``folder`` and
``checkpoints`` are what a run writes, ``distribution`` the devices that it trains on, and ``ranks``
the exact ranks of its targets.
"""
