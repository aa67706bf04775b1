"""The Spark engine: the session, the raw log inside Spark, and its rows."""
