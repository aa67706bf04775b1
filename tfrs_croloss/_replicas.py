"""Several replicas that train as one: global negatives, and means over the global batch.

Under a synchronous ``tf.distribute`` strategy each replica has a part of the batch. For k replicas
with B/k queries each to give the loss and the gradients of one replica with B, a replica's queries
have to meet the candidates of all of them, and a mean has to divide by B. The sum of the replicas'
losses is then the loss of the whole batch, and the optimizer sums their gradients.

Outside of a replica, and with one replica alone, nothing here has an effect.
"""

from __future__ import annotations

import tensorflow as tf

from tfrs_croloss import _keras

BLOCK_SIZE = 65_536
"""Number of items of a catalogue that are embedded, read or written at a time."""


def count() -> int:
    """Number of replicas that compute this step together; 1 outside of a strategy."""
    context = tf.distribute.get_replica_context()
    return 1 if context is None else int(context.num_replicas_in_sync)


def total(value: tf.Tensor) -> tf.Tensor:
    """The sum of a tensor over all replicas."""
    if count() == 1:
        return value
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, value)


def pass_counter(layer: tf.keras.layers.Layer) -> tf.Variable:
    """A weight that counts the training passes of a layer, for ``next_keys``."""
    return layer.add_weight(
        name="training_passes",
        shape=[],
        dtype="int64",
        initializer="zeros",
        trainable=False,
        aggregation=_keras.FIRST_REPLICA,
    )


def next_keys(seed: int, passes: tf.Variable) -> tf.Tensor:
    """``[2]`` int64 for stateless random numbers of this pass and this replica; counts the pass."""
    # Not the value of the assignment, which strategies do not return in every case.
    number = tf.convert_to_tensor(passes)
    context = tf.distribute.get_replica_context()
    replica = 0 if context is None else context.replica_id_in_sync_group
    keys = tf.stack([tf.constant(seed, tf.int64), number * count() + tf.cast(replica, tf.int64)])
    with tf.control_dependencies([keys]):
        passes.assign_add(1)
    return keys


def all_candidates(columns: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """The candidates of all replicas, this replica's first and in their order.

    Gradients flow back to the replicas that the rows came from. Replicas may have different
    numbers of rows, none included.

    Args:
      columns: tensors whose rows are this replica's candidates, ``[num_candidates, ...]`` each:
        embeddings, ids, probabilities, booleans. Strings come back as int64 hashes, since devices
        cannot exchange strings; equal strings have equal hashes.

    Returns:
      The same columns, ``[num_candidates of all replicas, ...]``.
    """
    if count() == 1:
        return columns
    context = tf.distribute.get_replica_context()
    num_own = tf.shape(next(iter(columns.values())))[0]
    sizes = context.all_gather(num_own[tf.newaxis], axis=0)
    replica = tf.cast(context.replica_id_in_sync_group, tf.int32)
    start = tf.reduce_sum(sizes[:replica])
    gathered = {}
    for name, column in columns.items():
        rows = context.all_gather(exchangeable(column), axis=0)
        if column.dtype == tf.bool:
            rows = tf.cast(rows, tf.bool)
        own, before, after = (
            rows[start : start + num_own],
            rows[:start],
            rows[start + num_own :],
        )
        joined = tf.concat([own, before, after], axis=0)
        gathered[name] = tf.ensure_shape(joined, [None, *column.shape[1:]])
    return gathered


def exchangeable(values: tf.Tensor) -> tf.Tensor:
    """``values`` in a form that replicas can exchange: strings as hashes, booleans as integers.

    With one replica, the values do not change.
    """
    if count() > 1 and values.dtype == tf.bool:
        return tf.cast(values, tf.int32)
    if count() == 1 or values.dtype != tf.string:
        return values
    return tf.strings.to_hash_bucket_fast(values, tf.int64.max)


def shard_rows(shard: int, num_shards: int, num_items: int) -> tuple[int, int]:
    """The first row of a shard, and the row after its last. Sizes differ by at most one.

    ``shard`` may be an int64 tensor, and both results are then int64 tensors.

    >>> [shard_rows(shard, 3, 10) for shard in range(3)]
    [(0, 3), (3, 6), (6, 10)]
    """
    return num_items * shard // num_shards, num_items * (shard + 1) // num_shards
