"""The jobs: each step reads one folder and writes the next (``python -m pipelines STEP``).

TensorFlow Recommenders needs Keras 2, and the choice is made by an environment variable that
TensorFlow reads when it is imported. So it is set here, before any step can import TensorFlow;
a value that the user has set stays.
"""

import os

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
