"""An approximate index with ScaNN: the fastest one, for servers that have ScaNN's operations.

To load a SavedModel with this index, ScaNN's operations are needed; in Python, ``import scann``.
"""

from __future__ import annotations

import importlib.metadata
import math
import types
import uuid
from typing import Any

import tensorflow as tf

from tfrs_croloss.indexes.base import (
    NO_SCORE,
    Found,
    LeafIndex,
    as_rows,
    gather_rows,
    search_table,
    table_of,
    whole_setting,
)

# With fewer items ScaNN scores every one, since training a tree gains nothing.
_ITEMS_FOR_A_TREE = 5_000
# ScaNN's own default is 100,000, which costs recall on large catalogues.
_TRAINING_SAMPLE = 250_000
# Batches of at least this size are shared among threads.
_PARALLEL_FROM = 16
_INSTALL = 'Install the version for TensorFlow 2.20: pip install "scann>=1.4.2,<1.5".'


class ScannUnavailable(ImportError):
    """ScaNN is not installed, or was built for another version of TensorFlow."""


def scann_ops() -> Any:
    """ScaNN's TensorFlow operations.

    Raises:
      ScannUnavailable: ScaNN cannot be used; the error says what to install.
    """
    try:
        from scann.scann_ops.py import scann_ops as ops
    except ModuleNotFoundError as error:
        raise ScannUnavailable(
            f"The index kind 'scann' needs the package scann, but the module {error.name!r} is not "
            f"installed. {_INSTALL} ScaNN exists for Linux only; use 'partitioned' elsewhere."
        ) from error
    except (ImportError, tf.errors.OpError, AttributeError) as error:
        try:
            version = importlib.metadata.version("scann")
        except importlib.metadata.PackageNotFoundError:
            version = "of unknown version"
        raise ScannUnavailable(
            f"scann {version} does not load with TensorFlow {tf.__version__}, since each version "
            f"is built for one minor version of TensorFlow. {_INSTALL} Cause: {str(error)[:300]}"
        ) from error
    return ops


class ScannIndex(LeafIndex):
    """ScaNN: a tree of leaves, quantised scores within leaves, and exact scores of the best items.

    ScaNN scores catalogues of fewer than 5,000 items exactly.

    ScaNN needs all embeddings at once. While it builds, memory holds the copy that it reads, its
    own copy and briefly a third one; the finished index holds the embeddings and their codes once.
    The first search creates ScaNN's own copy again, which later searches use.

    Args:
      item_embeddings: ``[num_items, dim]`` finite floats, an array or `VectorFiles`.
      num_leaves: number of leaves; by default the square root of the number of items.
      leaves_to_search: number of leaves that a query visits, by default one in 50; it can be
        changed later.
      reorder: number of items with the best quantised scores that are scored exactly, at least the
        number of items to find; it can be changed later.
      dimensions_per_block: number of dimensions that share one 4-bit code; 1 is finer and slower.
      anisotropic_threshold: how much more errors parallel to an embedding weigh; see ScaNN's paper.
      training_sample_size: number of items that leaves and codes are trained on.
      seed: seed of the training.
      name: name of the module.

    Raises:
      ScannUnavailable: ScaNN is not installed, or was built for another version of TensorFlow.
    """

    kind = "scann"

    def __init__(
        self,
        item_embeddings: Any,
        *,
        num_leaves: int | None = None,
        leaves_to_search: int | None = None,
        reorder: int = 500,
        dimensions_per_block: int = 2,
        anisotropic_threshold: float = 0.2,
        training_sample_size: int = _TRAINING_SAMPLE,
        seed: int = 0,
        name: str | None = None,
    ) -> None:
        ops = scann_ops()
        rows = as_rows(item_embeddings)
        super().__init__(rows, name)
        block = min(whole_setting("dimensions_per_block", dimensions_per_block, 2), self.dim)
        sample = whole_setting("training_sample_size", training_sample_size, _TRAINING_SAMPLE)
        self.num_leaves = whole_setting("num_leaves", num_leaves, round(math.sqrt(self.num_items)))
        self.num_leaves = min(self.num_leaves, self.num_items)
        options: dict[str, Any] = {"seed": seed}
        self.exact = self.num_items < _ITEMS_FOR_A_TREE
        table = table_of(rows)
        builder = ops.builder(table, 1, "dot_product")
        if self.exact:
            self.num_leaves = 1
            config = builder.score_brute_force().create_config()
        else:
            options |= {
                "dimensions_per_block": block,
                "anisotropic_threshold": anisotropic_threshold,
                "training_sample_size": sample,
            }
            # Random initial centres would not follow the seed; these do.
            builder = builder.tree(
                self.num_leaves, 1, training_sample_size=sample, random_init=False
            ).score_ah(
                block,
                anisotropic_quantization_threshold=anisotropic_threshold,
                training_sample_size=sample,
            )
            config = _with_seed(builder.reorder(1).create_config(), seed)
        searcher = ops.create_searcher(table, config).searcher_handle
        # ScaNN has its own copy now.
        del table, builder
        state = ops.scann_to_tensors(searcher)
        # Nothing else would free the searcher.
        tf.raw_ops.DestroyResourceOp(resource=searcher)
        self._keep(state)
        self._options = types.MappingProxyType(options)
        # All signatures of this model, and no other model, share the searcher of this name.
        self._shared_name = f"scann_index_{uuid.uuid4().hex}"
        self._leaves_to_search = tf.Variable(1, trainable=False, name="leaves_to_search")
        self._reorder = tf.Variable(1, trainable=False, name="reorder")
        self.leaves_to_search = whole_setting(
            "leaves_to_search", leaves_to_search, math.ceil(self.num_leaves / 50)
        )
        self.reorder = reorder

    @property
    def reorder(self) -> int:
        """Number of items that are scored exactly; already traced functions see a change too."""
        return int(self._reorder.numpy())

    @reorder.setter
    def reorder(self, value: int) -> None:
        self._reorder.assign(min(whole_setting("reorder", value, 1), self.num_items))

    def settings(self) -> dict[str, Any]:
        """Implements `Index.settings`."""
        if self.exact:
            return {"kind": self.kind, **self._options}
        return {
            "kind": self.kind,
            "num_leaves": self.num_leaves,
            "leaves_to_search": self.leaves_to_search,
            "reorder": self.reorder,
            **self._options,
        }

    def build_options(self) -> dict[str, Any]:
        """Implements `LeafIndex.build_options`."""
        return dict(self._options)

    @tf.function(
        input_signature=[tf.TensorSpec([None, None], tf.float32), tf.TensorSpec([], tf.int32)]
    )
    def _search(self, queries: tf.Tensor, num: tf.Tensor) -> Found:
        """Implements `Index.search`."""
        queries = tf.ensure_shape(queries, [None, self.dim])
        num_queries = tf.shape(queries)[0]
        # ScaNN refuses an empty batch.
        queries = tf.pad(queries, [[0, tf.cast(num_queries < 1, tf.int32)], [0, 0]])
        numbers, scores = scann_ops().scann_search_batched(
            self._searcher(),
            queries,
            num,
            tf.maximum(num, self._reorder),
            self._leaves_to_search,
            num_queries >= _PARALLEL_FROM,
        )
        numbers = tf.ensure_shape(numbers, [None, None])[:num_queries]
        scores = tf.ensure_shape(scores, [None, None])[:num_queries]
        # It returns as many columns as the longest answer has, and NaN in the shorter ones.
        found = tf.math.is_finite(scores)
        numbers = tf.where(found, numbers, self.num_items)
        scores = tf.where(found, scores, NO_SCORE)
        missing = [[0, 0], [0, num - tf.shape(scores)[1]]]
        return (
            tf.pad(numbers, missing, constant_values=self.num_items),
            tf.pad(scores, missing, constant_values=NO_SCORE),
        )

    def vectors(self, numbers: tf.Tensor) -> tf.Tensor:
        """Implements `Index.vectors`."""
        return gather_rows(self._state["dataset"], numbers)

    def exact_search(self, queries: tf.Tensor, num: tf.Tensor, excluded: tf.Tensor) -> Found:
        """Implements `Index.exact_search`."""
        table = tf.convert_to_tensor(self._state["dataset"])
        return search_table(table, queries, num, excluded)

    def _keep(self, state: Any) -> None:
        """Copies the state of a searcher, including the embeddings, into variables."""
        self._state = {
            # ScaNN leaves scalars with arbitrary values in place of tensors that it does not use.
            name: tf.Variable(
                value if value.shape.rank else tf.zeros_like(value), trainable=False, name=name
            )
            for name, value in state._asdict().items()
        }

    def _searcher(self) -> tf.Tensor:
        """The handle of the searcher, which is created from the variables if needed."""
        state = dict(self._state)
        return scann_ops().tensors_to_scann(
            x=state.pop("dataset"), **state, shared_name=self._shared_name
        )


def _with_seed(config: str, seed: int) -> str:
    """The configuration of a searcher, with a seed for its training."""
    from google.protobuf import text_format
    from scann.proto import scann_pb2

    message = text_format.Parse(config, scann_pb2.ScannConfig())
    message.partitioning.clustering_seed = seed
    message.hash.asymmetric_hash.clustering_seed = seed
    message.hash.asymmetric_hash.sampling_seed = seed
    return text_format.MessageToString(message)
