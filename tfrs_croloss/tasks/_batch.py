"""A batch of scored candidates: where the positives stand, and who competes with them."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

_SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)


@dataclasses.dataclass(frozen=True)
class CandidateBatch:
    """Scores of candidates, one row per query.

    Attributes:
      scores: ``[num_queries, num_candidates]``.
      positive_columns: ``[num_queries]`` where each row's positive stands.
      mask: ``[num_queries, num_candidates]`` which candidates are considered; None for all.
    """

    scores: tf.Tensor
    positive_columns: tf.Tensor
    mask: tf.Tensor | None

    @property
    def labels(self) -> tf.Tensor:
        """1 at the positives, 0 elsewhere."""
        return tf.one_hot(self.positive_columns, tf.shape(self.scores)[1], dtype=self.scores.dtype)

    @property
    def considered(self) -> tf.Tensor:
        """Which candidates count, booleans of the shape of the scores."""
        return tf.ones_like(self.scores, tf.bool) if self.mask is None else self.mask

    @property
    def negatives(self) -> tf.Tensor:
        """Which candidates compete with the positive, booleans of the shape of the scores."""
        columns = tf.range(tf.shape(self.scores)[1])
        others = tf.not_equal(columns[tf.newaxis, :], self.positive_columns[:, tf.newaxis])
        return others if self.mask is None else tf.logical_and(others, self.mask)

    @property
    def positive_considered(self) -> tf.Tensor | None:
        """``[num_queries]`` whether the mask leaves the positive; None where there is no mask."""
        if self.mask is None:
            return None
        return tf.gather(self.mask, self.positive_columns, batch_dims=1)

    @property
    def masked_scores(self) -> tf.Tensor:
        """Scores for losses and metrics that know no mask: lowest where not considered."""
        if self.mask is None:
            return self.scores
        # Far below any score, with room to subtract one from another without overflow.
        return tf.where(self.mask, self.scores, self.scores.dtype.min / 4)

    def shifted(self, sampling_probability: tf.Tensor | None) -> CandidateBatch:
        """Scores less the log of the sampling probability: right for softmax, and for it alone."""
        if sampling_probability is None:
            return self
        probability = tf.cast(sampling_probability, tf.float32)
        shift = tf.math.log(tf.maximum(probability, _SMALLEST_NORMAL))
        return dataclasses.replace(self, scores=self.scores - tf.cast(shift, self.scores.dtype))

    def hardest(self, count: int | None) -> tuple[CandidateBatch, tf.Tensor | None]:
        """The batch with each row's positive first, then its ``count`` highest negatives.

        Returns:
          The batch, and the columns that were kept; the whole batch and None where ``count`` is
          None or not above 0.
        """
        if count is None or count <= 0:
            return self, None
        negatives = self.negatives
        count = tf.minimum(count, tf.shape(self.scores)[1] - 1)
        competing = tf.where(negatives, self.scores, self.scores.dtype.min)
        _, columns = tf.math.top_k(competing, k=count, sorted=False)
        kept = tf.concat([self.positive_columns[:, tf.newaxis], columns], axis=1)
        considered = tf.concat(
            [
                tf.gather(self.considered, kept[:, :1], batch_dims=1),
                tf.gather(negatives, columns, batch_dims=1),
            ],
            axis=1,
        )
        batch = CandidateBatch(
            tf.gather(self.scores, kept, batch_dims=1),
            tf.zeros_like(self.positive_columns),
            considered,
        )
        return batch, kept
