"""Engines that run the SQL of ``prepare``: DuckDB on one machine, or Apache Spark on a cluster.

``base`` has the interface of both. The result is the same, byte for byte.
"""
