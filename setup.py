"""The package; its metadata and dependencies are in setup.cfg."""

from setuptools import setup

setup()
