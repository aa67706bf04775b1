"""The steps from a raw log to a served model, run by ``python -m pipelines STEP``.

Environment variables that TensorFlow reads when it is imported are set here, before any step can
import it; values that the user has set are kept. With TensorFlow Recommenders, steps
run on Keras 2, which it needs; without it, on Keras 3; see also `common.keras_version`. Some
virtual machines announce AMX and then fail on its instructions, which kills a process that computes
in bfloat16: the cap leaves out AMX, and nothing else.
"""

import importlib.util
import os

_has_keras_2 = all(
    importlib.util.find_spec(name) for name in ("tensorflow_recommenders", "tf_keras")
)
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1" if _has_keras_2 else "0")
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
