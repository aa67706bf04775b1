"""What runs the SQL of ``prepare``: DuckDB on one machine, or Apache Spark on many."""
