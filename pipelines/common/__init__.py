"""Helpers that know nothing of models or data, and are shared by all steps.

``files`` writes files and folders so that they appear complete or not at all, and ``ownership``
says what ``--overwrite`` may replace. ``options`` turns settings into options and checks them;
``json_shapes`` checks what is read from JSON. ``console``, ``progress``, ``program`` and
``failures`` have what a step prints, ``page`` writes reports, and ``keras_version`` chooses the
Keras that a step runs on.
"""
