"""Rows of a log: how each file format is read, and which rows cannot be used."""
