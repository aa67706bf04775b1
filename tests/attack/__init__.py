"""Attacks on the whole: fuzzed requests, crash points and broken files. ``make attack`` runs them.

The files are named ``attack_*.py``, so that ``make test`` leaves them out. An attack is a test: it
takes the fixture ``dice``, a random generator of its own, and the fixture ``seconds``, the time
that it may take. The seed is printed; ``make attack SEED=7`` repeats a run.
"""
