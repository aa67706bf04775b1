"""The rows of one file: a reader per format, and the definition of a bad row.

``readers`` and ``parquet`` offer rows as SQL and in Python; ``values`` and ``bad_rows`` say which
rows cannot be used, and ``careful`` writes down the others.
"""
