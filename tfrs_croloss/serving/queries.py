"""Queries: what requests look like, by examples, and how a model turns them into vectors.

The inputs of a signature are dense tensors with names. So a query that is a tensor gets a name, the
tensors of a mapping keep theirs, and ragged tensors are padded at the end: strings with ``""``,
integers with -1, and floats with their lowest finite number.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from tfrs_croloss import _keras
from tfrs_croloss.serving.features import Feature, History, KnownIds, WithDefault
from tfrs_croloss.serving.item_ids import IdTable

RESERVED = ("top_n", "excluded_ids", "allowed_ids")
ARRAY_BATCH = 1024

Named = dict[str, Any]
Spec: TypeAlias = tf.TensorSpec | tf.RaggedTensorSpec
Answer = dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class QueryInputs:
    """The inputs of a query model.

    Attributes:
      specs: spec of each tensor that the model takes, by name, with a batch of any size.
      form: how the model takes them: one ``"tensor"``, a ``"mapping"`` by name, or a ``"sequence"``
        in the order of ``specs``.
      features: those inputs whose values are ids of a list, or may be left out.
    """

    specs: Mapping[str, Spec]
    form: str = "mapping"
    features: Mapping[str, Feature] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if taken := sorted(set(RESERVED) & set(self.specs)):
            raise ValueError(
                f"The query features should not have the names of other inputs. Received: {taken}. "
                "Rename these features."
            )
        for name, spec in self.specs.items():
            if not name.isidentifier():
                raise ValueError(
                    "The query features should have names that are identifiers, as inputs of a "
                    f"signature do. Received: {name!r}. Rename it."
                )
            if not spec.shape.rank or spec.shape[0] is not None:
                raise ValueError(
                    "The query features should have specs whose first dimension, the batch, is "
                    f"None. Received: {name!r} of shape {spec.shape}."
                )
        if unknown := sorted(set(self.features) - set(self.specs)):
            raise ValueError(
                f"`features` should name inputs of the query model: {', '.join(self.specs)}. "
                f"Received: {unknown}."
            )
        self._check_defaults()

    def _check_defaults(self) -> None:
        optional = {
            name: feature.default
            for name, feature in self.features.items()
            if isinstance(feature, WithDefault)
        }
        if optional and (self.form != "mapping" or len(optional) == len(self.specs)):
            raise ValueError(
                "Queries with features that may be left out should be mappings, with at least one "
                f"other feature. Received: {self.describe()}."
            )
        for name, default in optional.items():
            spec = self.specs[name]
            if not isinstance(spec, tf.TensorSpec) or spec.shape.rank != 1:
                raise ValueError(
                    "A query feature that may be left out should have one value for each query, of "
                    f"shape [batch]. Received: {name!r} in {self.describe()}."
                )
            try:
                tf.constant(default, spec.dtype)
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"The default of {name!r} should be {spec.dtype.name}, as the examples are. "
                    f"Received: {default!r}."
                ) from error

    @property
    def defaults(self) -> dict[str, tf.Tensor]:
        """``[1]`` values of the inputs that a request may leave out."""
        return {
            name: tf.constant([feature.default], self.specs[name].dtype)
            for name, feature in self.features.items()
            if isinstance(feature, WithDefault)
        }

    def batch_size(self, tensors: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """The number of queries, by an input that no request leaves out."""
        name = next(
            name for name in self.specs if not isinstance(self.features.get(name), WithDefault)
        )
        return tf.shape(tensors[name])[0]

    @classmethod
    def of_examples(
        cls, examples: Any, name: str = "query", features: Mapping[str, Feature] | None = None
    ) -> QueryInputs:
        """The inputs that examples have.

        Args:
          examples: dataset of batches, or arrays: a tensor, a mapping or a sequence of tensors.
          name: name of the input if the examples are a tensor, or a prefix for a sequence.
          features: those inputs whose values are ids of a list, or may be left out, by name.
        """
        is_dataset = isinstance(examples, tf.data.Dataset)
        element = examples.element_spec if is_dataset else _as_tensors(examples)
        form, named = _named(element, name)
        specs = {key: _spec(key, value, is_dataset) for key, value in named.items()}
        return cls(specs, form, dict(features or {}))

    def signature(self, item_ids: IdTable) -> dict[str, tf.TensorSpec]:
        """The specs of a request's tensors by name, which are all dense."""
        return {name: self._dense_spec(name, item_ids.dtype) for name in self.specs}

    def ragged_signature(self, item_ids: IdTable) -> dict[str, Spec]:
        """The same, with ragged specs where values are lists; empty if none are."""
        lists = [
            name
            for name, spec in self.specs.items()
            if isinstance(spec, tf.RaggedTensorSpec) or isinstance(self.features.get(name), History)
        ]
        signature: dict[str, Spec] = self.signature(item_ids) if lists else {}
        for name in lists:
            dense = signature[name]
            signature[name] = tf.RaggedTensorSpec(dense.shape, dense.dtype, ragged_rank=1)
        return signature

    def _dense_spec(self, name: str, id_dtype: tf.DType) -> tf.TensorSpec:
        feature, spec = self.features.get(name), self.specs[name]
        if isinstance(feature, History):
            return tf.TensorSpec([None, None], id_dtype, name)
        if isinstance(feature, KnownIds):
            is_text = isinstance(feature.ids[0], str)
            return tf.TensorSpec([None], tf.string if is_text else tf.int64, name)
        return tf.TensorSpec(spec.shape, spec.dtype, name)

    def batches(self, examples: Any, item_ids: IdTable) -> Iterator[Named]:
        """Yields the examples as requests have them, batch by batch, by name."""
        elements: Any = examples
        if not isinstance(examples, tf.data.Dataset):
            tensors = _as_tensors(examples)
            sizes = {int(_num_rows(one)) for one in tf.nest.flatten(tensors)}
            if len(sizes) != 1:
                raise ValueError(
                    "`query_examples` should have equally many rows of each feature. Received: "
                    f"{sorted(sizes)}."
                )
            elements = tf.data.Dataset.from_tensor_slices(tensors).batch(ARRAY_BATCH)
        for element in elements:
            # The keys of mappings that datasets yield are sorted; those of the inputs need not be.
            _, named = _named(element, next(iter(self.specs)), tuple(self.specs))
            yield {
                name: self._dense(named[name], self._dense_spec(name, item_ids.dtype))
                for name in self.specs
            }

    def _dense(self, value: Any, spec: tf.TensorSpec) -> tf.Tensor:
        if isinstance(value, tf.RaggedTensor):
            value = value.to_tensor(padding_of(value.dtype))
        if value.dtype.is_integer and spec.dtype.is_integer:
            value = tf.cast(value, spec.dtype)
        if value.dtype != spec.dtype or not spec.shape.is_compatible_with(value.shape):
            raise ValueError(
                f"`query_examples` should have ids of {spec.name!r} in the form of requests: "
                f"{spec.dtype.name} of shape {_shape(spec.shape)}. Received: {value.dtype.name} of "
                f"shape {_shape(value.shape)}."
            )
        return value

    def arrange(self, named: Mapping[str, Any]) -> Any:
        """Inputs by name in the form that the model takes."""
        if self.form == "mapping":
            return dict(named)
        values = [named[name] for name in self.specs]
        return values[0] if self.form == "tensor" else values

    def by_name(self, queries: Any) -> Named:
        """The opposite of `arrange`."""
        return _named(queries, next(iter(self.specs)), tuple(self.specs))[1]

    def describe(self) -> str:
        """What the examples are, for errors and the card."""
        parts = [
            f"{name} ({spec.dtype.name} {_shape(spec.shape)}"
            + (", ragged" if isinstance(spec, tf.RaggedTensorSpec) else "")
            + ")"
            for name, spec in self.specs.items()
        ]
        return f"a {self.form}: {', '.join(parts)}"


class QueryEncoder(tf.Module):
    """A query model behind the inputs of a request.

    Args:
      query_model: function of the inputs that returns ``[batch, dim]`` query embeddings, or
        ``[batch, heads, dim]``, of which the best head scores an item.
      inputs: the inputs.
      item_ids: the ids of the catalogue.
      folder: folder for the files of other lists of ids; they are needed until it has been saved.
      tracked: Keras model or module that owns the variables and tables of ``query_model``; by
        default the model itself, or the object whose method it is.
      unit: whether the embeddings are scaled to length 1.
    """

    def __init__(
        self,
        query_model: Callable[[Any], tf.Tensor],
        inputs: QueryInputs,
        item_ids: IdTable,
        folder: str | os.PathLike[str],
        *,
        tracked: Any = None,
        unit: bool = False,
    ) -> None:
        super().__init__(name="query_encoder")
        self.inputs = inputs
        self.item_ids = item_ids
        if tracked is None:
            tracked = getattr(query_model, "__self__", query_model)
        # A function is not tracked: what is saved of the model is said in the next line.
        self._model = functools.partial(query_model)
        self._tracked = _keras.savable(tracked)
        self._unit = unit
        self._lists = {
            name: IdTable(feature.ids, folder, f"{name}.txt")
            for name, feature in inputs.features.items()
            if isinstance(feature, KnownIds)
        }

    def signature(self) -> dict[str, tf.TensorSpec]:
        """The specs of a request's tensors by name."""
        return self.inputs.signature(self.item_ids)

    def ragged_signature(self) -> dict[str, Spec]:
        """The same, with ragged specs where values are lists; empty if none are."""
        return self.inputs.ragged_signature(self.item_ids)

    def encode(self, tensors: Mapping[str, tf.Tensor]) -> tuple[tf.Tensor, Answer]:
        """Query embeddings, and what is known about the ids in the queries.

        Args:
          tensors: tensors of a request, as `signature` has them.

        Returns:
          ``[batch, dim]`` or ``[batch, heads, dim]`` float32, and ``known_items`` and
          ``is_default``, ``[batch]``, if there are features with ids.
        """
        given, counts, known = {}, [], []
        for name, spec in self.inputs.specs.items():
            feature = self.inputs.features.get(name)
            if isinstance(feature, WithDefault):
                given[name] = self._for_each(name, tensors)
                continue
            value = tensors[name]
            if isinstance(feature, History):
                given[name], count = self._latest(feature, spec, value)
                counts.append(count)
                known.append(count > 0)
            elif isinstance(feature, KnownIds):
                given[name] = self._lists[name].numbers(value)
                known.append(given[name] < self._lists[name].size)
            elif isinstance(spec, tf.RaggedTensorSpec):
                given[name] = _ragged(value, spec)
            else:
                given[name] = value
        about = {}
        if counts:
            about["known_items"] = tf.add_n(counts)
        if known:
            about["is_default"] = tf.logical_not(tf.reduce_any(tf.stack(known), axis=0))
        queries = tf.cast(tf.convert_to_tensor(self._model(self.inputs.arrange(given))), tf.float32)
        return tf.math.l2_normalize(queries, axis=-1) if self._unit else queries, about

    def _for_each(self, name: str, tensors: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """``[batch]`` values of an input that may be left out, or have one value for all."""
        values = tensors[name] if name in tensors else self.inputs.defaults[name]
        rows, size = tf.shape(values)[0], self.inputs.batch_size(tensors)
        fits = tf.logical_or(tf.equal(rows, size), tf.equal(rows, 1))
        message = (
            f"{name} should have one row for each query, or one for all. Received (rows, queries):"
        )
        with tf.control_dependencies([tf.debugging.Assert(fits, [message, rows, size])]):
            places = tf.range(size) * tf.cast(tf.equal(rows, size), tf.int32)
        return tf.gather(values, places)

    def _latest(
        self, feature: History, spec: Spec, ids: tf.Tensor
    ) -> tuple[tf.Tensor | tf.RaggedTensor, tf.Tensor]:
        """The history as the model takes it, and its number of known items ``[batch]``."""
        numbers = self.item_ids.numbers(ids)
        # Padding and unknown items are removed first, so that they do not count among the latest.
        is_known = numbers < self.item_ids.size
        kept = tf.ragged.boolean_mask(numbers if feature.as_numbers else ids, is_known)
        count = tf.cast(kept.row_lengths(), tf.int32)
        latest = kept[:, -feature.length :]
        if not feature.as_numbers and isinstance(spec, tf.RaggedTensorSpec):
            return latest, count
        padding = self.item_ids.size if feature.as_numbers else self.item_ids.padding
        return latest.to_tensor(padding, shape=[None, feature.length]), count


def padding_of(dtype: tf.DType) -> Any:
    """What pads ragged tensors of a type.

    >>> padding_of(tf.string), padding_of(tf.int32), padding_of(tf.float32) < -3e38
    ('', -1, True)
    """
    if dtype == tf.string:
        return ""
    return -1 if dtype.is_integer else float(dtype.min)


def padded(tensors: Mapping[str, Any]) -> Named:
    """Tensors by name, the ragged ones padded at the end."""
    return {
        name: value.to_tensor(padding_of(value.dtype))
        if isinstance(value, tf.RaggedTensor)
        else value
        for name, value in tensors.items()
    }


def _ragged(dense: tf.Tensor, spec: tf.RaggedTensorSpec) -> tf.RaggedTensor:
    padding = tf.fill(spec.shape[2:], tf.constant(padding_of(spec.dtype), spec.dtype))
    ragged = tf.RaggedTensor.from_tensor(dense, padding=padding)
    return ragged.with_row_splits_dtype(spec.row_splits_dtype)


def _as_tensors(examples: Any) -> Any:
    """Arrays as tensors, in the same form: a tensor, a mapping or a tuple."""
    if isinstance(examples, Mapping):
        return {name: _as_tensor(value) for name, value in examples.items()}
    if isinstance(examples, tuple):
        return tuple(_as_tensor(value) for value in examples)
    return _as_tensor(examples)


def _as_tensor(value: Any) -> Any:
    if isinstance(value, (tf.Tensor, tf.RaggedTensor)):
        return value
    try:
        array = np.asarray(value)
        # Strings of NumPy have a width, those of TensorFlow do not.
        return tf.constant(array.tolist() if array.dtype.kind in "US" else value)
    except (TypeError, ValueError) as error:
        raise ValueError(_wrong_kind(type(value).__name__)) from error


def _wrong_kind(received: str) -> str:
    return (
        "`query_examples` should be a tensor, or a mapping or tuple of tensors, dense or ragged. "
        f"Received: {received}. Flatten nested features, pass lists of different lengths as "
        "tf.ragged.constant, and convert sparse tensors with tf.sparse.to_dense."
    )


def _num_rows(value: tf.Tensor | tf.RaggedTensor) -> Any:
    return value.nrows() if isinstance(value, tf.RaggedTensor) else tf.shape(value)[0]


def _named(element: Any, name: str, order: tuple[str, ...] = ()) -> tuple[str, dict[str, Any]]:
    """The form of a batch, and its tensors by name."""
    if isinstance(element, Mapping):
        return "mapping", dict(element)
    if isinstance(element, (tuple, list)):
        names = order or tuple(f"{name}_{place}" for place in range(len(element)))
        return "sequence", dict(zip(names, element))
    return "tensor", {name: element}


def _spec(name: str, value: Any, is_dataset: bool) -> Spec:
    known = (tf.Tensor, tf.TensorSpec, tf.RaggedTensor, tf.RaggedTensorSpec)
    if not isinstance(value, known):
        raise ValueError(_wrong_kind(f"{type(value).__name__} as {name!r}"))
    if not value.shape.rank:
        remedy = "Batch the dataset: examples.batch(1024)." if is_dataset else "Pass a batch."
        raise ValueError(
            f"`query_examples` should have batches, of shape [batch, ...]. Received: {name!r} of "
            f"shape {_shape(value.shape)}. {remedy}"
        )
    shape = [None, *value.shape[1:]]
    if isinstance(value, (tf.Tensor, tf.TensorSpec)):
        return tf.TensorSpec(shape, value.dtype, name)
    if value.ragged_rank != 1:
        raise ValueError(
            "`query_examples` should have ragged tensors of one ragged dimension. Received: "
            f"{value.ragged_rank} of {name!r}."
        )
    splits = value.row_splits_dtype if hasattr(value, "row_splits_dtype") else tf.int64
    if isinstance(value, tf.RaggedTensor):
        splits = value.row_splits.dtype
    return tf.RaggedTensorSpec(shape, value.dtype, ragged_rank=1, row_splits_dtype=splits)


def _shape(shape: tf.TensorShape) -> str:
    return "[" + ", ".join("any" if size is None else str(size) for size in shape) + "]"
