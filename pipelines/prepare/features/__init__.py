"""Side features of items, of users and of interactions, from raw values to encoded columns.

``options`` has the features that the user asks for, ``side_tables`` reads the tables beside the
log, ``spool`` keeps the raw values of interactions,
``fitting`` finds out from the training part how a feature is encoded, ``encoding`` encodes it, and
``columns`` writes the result. All of this happens once, in Python, whatever the engine is.
"""
