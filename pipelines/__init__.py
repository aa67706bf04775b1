"""The steps from a raw log to a served model, run by ``python -m pipelines STEP``.

TensorFlow Recommenders needs Keras 2, and the choice is made by an environment variable that
TensorFlow reads when it is imported. So it is set here, before any step can import TensorFlow;
a value that the user has set is kept.
"""

import os

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
