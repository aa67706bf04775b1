"""What differs between Keras 2 with TensorFlow Recommenders, and Keras 3 without it.

Everything else in the library is written once, on what the two have in common. ``tf.keras`` is
whichever Keras the program runs. Bases of classes (``TaskLayer``, ``FactorizedMetric``, ``Model``)
are made when they are first asked for, so that losses need no TensorFlow Recommenders; in a
program with Keras 3 nothing imports it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

# Keras 2 from the package tf-keras has no version in tf.keras; Keras 3 has one.
VERSION = str(getattr(tf.keras, "__version__", "2"))
IS_KERAS_3 = not VERSION.startswith("2")

# How a variable that counts steps is kept alike on all replicas.
FIRST_REPLICA: Any = (
    "only_first_replica" if IS_KERAS_3 else tf.VariableAggregation.ONLY_FIRST_REPLICA
)


def to_config(custom: Any) -> dict[str, Any]:
    """A JSON-ready description of a function or object.

    Loading it back needs the function or class to be registered with
    ``tf.keras.utils.register_keras_serializable``, or handed to the loader as ``custom_objects``.
    """
    if getattr(custom, "__name__", "") == "<lambda>":
        raise ValueError(
            "A kernel should be a named function to be saved. Received: a lambda. Write it with "
            "`def` and register it with tf.keras.utils.register_keras_serializable()."
        )
    return {"keras": tf.keras.utils.serialize_keras_object(custom)}


def from_config(config: Mapping[str, Any]) -> Any:
    """The inverse of ``to_config``."""
    return tf.keras.utils.deserialize_keras_object(config["keras"])


def loss_options(dtype: tf.DType) -> dict[str, Any]:
    """Arguments of a Keras loss that computes in ``dtype``; Keras 2 never changes the type."""
    return {"dtype": dtype.name} if IS_KERAS_3 else {}


def optimizer_options(jit_compile: bool) -> dict[str, Any]:
    """Arguments of an optimizer; in Keras 3 it is the model that is compiled."""
    if not IS_KERAS_3:
        return {"jit_compile": jit_compile}
    if jit_compile:
        raise ValueError(
            "`jit_compile` should be False with Keras 3, whose optimizers do not take it. "
            "Received: True. Write model.compile(jit_compile=True)."
        )
    return {}


def slots(optimizer: Any, variable: tf.Variable, *names: str) -> list[tf.Variable]:
    """The variables that an optimizer keeps for a variable of the model."""
    if IS_KERAS_3:
        index = optimizer._get_variable_index(variable)
        return [getattr(optimizer, name)[index].value for name in names]
    index = optimizer._index_dict[optimizer._var_key(variable)]
    return [getattr(optimizer, name)[index] for name in names]


def trainable_variables(model: tf.keras.Model) -> list[tf.Variable]:
    """TensorFlow's variables that training changes."""
    return [variable.value if IS_KERAS_3 else variable for variable in model.trainable_variables]


def strategy_scope(model: tf.keras.Model) -> contextlib.AbstractContextManager[Any]:
    """The scope in which variables beside those of a model are created."""
    strategy = model.distribute_strategy
    return contextlib.nullcontext() if strategy is None else strategy.scope()


def mark_averaged(model: tf.keras.Model, averaged: bool) -> None:
    """Remembers whether a model has the average of its weights in their place."""
    model._has_averaged_weights = averaged


def is_averaged(model: tf.keras.Model) -> bool:
    """Whether a model has the average of its weights in their place."""
    return getattr(model, "_has_averaged_weights", False)


def distinct_rows(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """A sparse gradient whose indices are distinct; Keras 2 has summed those of equal rows."""
    if not IS_KERAS_3:
        return gradient
    rows, places = tf.unique(gradient.indices)
    sums = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.IndexedSlices(sums, rows, gradient.dense_shape)


def scaled_loss(optimizer: Any, loss: tf.Tensor) -> tf.Tensor:
    """The loss times the loss scale of the optimizer, if it has one."""
    if IS_KERAS_3:
        return optimizer.scale_loss(loss)
    return optimizer.get_scaled_loss(loss) if _scales(optimizer) else loss


def apply_gradients(
    optimizer: Any, gradients: Sequence[Any], variables: Sequence[tf.Variable]
) -> None:
    """One step of the optimizer with gradients of ``scaled_loss``."""
    if not IS_KERAS_3 and _scales(optimizer):
        gradients = optimizer.get_unscaled_gradients(gradients)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    clips = any(getattr(inner, name, None) for name in ("clipnorm", "clipvalue", "global_clipnorm"))
    if not clips and not getattr(inner, "sums_equal_rows", False):
        # The optimizers of Keras 3 would take equal rows for several gradients. Rows that are
        # distinct already are left alone: XLA gives wrong sums when it looks for them twice.
        gradients = [
            distinct_rows(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient
            for gradient in gradients
        ]
    optimizer.apply_gradients(zip(gradients, variables))


def _scales(optimizer: Any) -> bool:
    return isinstance(optimizer, tf.keras.mixed_precision.LossScaleOptimizer)


def create_variables(layer: tf.keras.layers.Layer, example: Any) -> None:
    """Creates the variables of a layer by a call with an example, where Keras 3 wants them early.

    It loads files of weights into variables that are there, and under a strategy it would call the
    layer with floats whatever it takes. In Keras 2 nothing happens.
    """
    if IS_KERAS_3:
        layer(example)


def savable(model: Any) -> Any:
    """What a SavedModel has to keep of a model: the model, or in Keras 3 its variables and tables.

    TensorFlow would trace a call of every model of Keras 3 that it saves, with floats.
    """
    if not IS_KERAS_3 or not isinstance(model, tf.__internal__.tracking.Trackable):
        return model
    kinds = (tf.Variable, tf.saved_model.experimental.TrackableResource)
    kept = {id(node): node for node in _descendants(model) if isinstance(node, kinds)}
    module = tf.Module(name="saved")
    module.resources = list(kept.values())
    return module


def _descendants(model: Any) -> Iterator[Any]:
    """All that a model of Keras 3 owns; TensorFlow does not see what lists and mappings hold."""
    for node in tf.train.TrackableView(model).descendants():
        yield node
        if isinstance(node, tf.keras.layers.Layer):
            yield from (variable.value for variable in node.variables)
            for layer in node._flatten_layers():
                yield from tf.train.TrackableView(layer).descendants()
                for held in vars(layer).values():
                    yield from held.values() if isinstance(held, dict) else ()


def is_variable(value: Any) -> bool:
    """Whether this is a variable: TensorFlow's, which is callable, or one of Keras 3."""
    return isinstance(value, tf.Variable) or IS_KERAS_3 and isinstance(value, tf.keras.Variable)


def update_group(updates: Iterable[Any]) -> tf.Operation:
    """One operation for the updates of metrics; those of Keras 3 return None, and run anyway."""
    return tf.group([update for update in updates if update is not None])


def backend() -> str:
    """What Keras computes with."""
    return tf.keras.backend.backend() if IS_KERAS_3 else "tensorflow"


def require_tensorflow(what: str) -> None:
    """Raises a RuntimeError with the remedy if Keras 3 computes with JAX or PyTorch."""
    if backend() != "tensorflow":
        raise RuntimeError(
            f"{what} should run in a program whose Keras computes with TensorFlow. Received: Keras "
            f"{VERSION} with the backend {backend()!r}. Set the environment variable "
            "KERAS_BACKEND=tensorflow before Keras is imported."
        )


class _TaskLayer(tf.keras.layers.Layer):
    """A task in Keras 3: a layer that takes whatever TFRS' tasks take, in the same positions."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # There is nothing to build, and metrics may be added after a first call.
        self.built = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Keras 3 allows nothing but tensors in positions.
        named = inspect.signature(self.call).bind(*args, **kwargs).arguments
        first = next(iter(named))
        if isinstance(named[first], (list, tuple)):
            named[first] = tf.convert_to_tensor(named[first])
        return super().__call__(named.pop(first), **named)


class _FactorizedMetric(tf.keras.layers.Layer):
    """What `tfrs.metrics.Factorized` is: a layer that holds metrics over the whole catalogue."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.built = True

    def reset_states(self) -> None:
        """Resets the metrics."""
        for metric in self.metrics:
            metric.reset_state()

    def result(self) -> list[tf.Tensor]:
        """The values of the metrics."""
        return [metric.result() for metric in self.metrics]


class _Model(tf.keras.Model):
    """What `tfrs.Model` is: a model with training steps of its own and no variables of its own."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.built = True

    def compile(self, *args: Any, jit_compile: bool = False, **kwargs: Any) -> None:
        """As in Keras, but compiled with XLA only on request, as in Keras 2."""
        super().compile(*args, jit_compile=jit_compile, **kwargs)

    def compute_loss(self, features: Any, training: bool = False) -> tf.Tensor:
        """The loss of a batch of features, which subclasses define."""
        raise NotImplementedError(f"{type(self).__name__} should define `compute_loss`.")

    def train_step(self, features: Any) -> dict[str, tf.Tensor]:
        """One training step, with the losses of regularizers."""
        with tf.GradientTape() as tape:
            loss = self.compute_loss(features, training=True)
            penalties = tf.add_n([tf.zeros([], loss.dtype), *self.losses])
            objective = scaled_loss(self.optimizer, loss + penalties)
        variables = self.trainable_variables
        apply_gradients(self.optimizer, tape.gradient(objective, variables), variables)
        return self._results(loss, penalties)

    def test_step(self, features: Any) -> dict[str, tf.Tensor]:
        """The loss and the metrics of a batch."""
        loss = self.compute_loss(features, training=False)
        return self._results(loss, tf.add_n([tf.zeros([], loss.dtype), *self.losses]))

    def _results(self, loss: tf.Tensor, penalties: tf.Tensor) -> dict[str, tf.Tensor]:
        """Metrics and losses of the batch, by the names that `tfrs.Model` gives them."""
        found = {metric.name: metric.result() for metric in self.metrics}
        losses = {"regularization_loss": penalties, "total_loss": loss + penalties}
        return {**found, "loss": loss, **losses}


@functools.cache
def _bases() -> dict[str, Any]:
    if IS_KERAS_3:
        require_tensorflow("tfrs_croloss")
        return {
            "TaskLayer": _TaskLayer,
            "FactorizedMetric": _FactorizedMetric,
            "Model": _Model,
            "TASKS": _TaskLayer,
            "INDEXES": (),
        }
    import tensorflow_recommenders as tfrs

    return {
        "TaskLayer": type("TaskLayer", (tf.keras.layers.Layer, tfrs.tasks.Task), {}),
        "FactorizedMetric": tfrs.metrics.Factorized,
        "Model": tfrs.Model,
        "TASKS": tfrs.tasks.Task,
        "INDEXES": tfrs.layers.factorized_top_k.TopK,
    }


def __getattr__(name: str) -> Any:
    if name in ("TaskLayer", "FactorizedMetric", "Model", "TASKS", "INDEXES"):
        return _bases()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
