"""The Spark engine, for logs that one machine cannot sort.

``engine`` has the engine itself, ``session`` starts Spark, ``tables`` stores tables as files, and
``log`` and ``rows`` read a log.
"""
