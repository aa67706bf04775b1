"""The one place the version lives; ``setup.cfg`` reads it from here."""

__version__ = "0.1.0"
