"""Experiments: many training runs, what they measured, and a page about it.

A cell is one ordinary training run, evaluated as ``evaluate`` does. Its result is one file, so that
an experiment that was stopped at any moment goes on with the cells that are missing.
"""
