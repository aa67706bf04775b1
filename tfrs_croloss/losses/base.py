"""The bases of all losses: how rows are reduced, and the two kinds of losses there are.

A ``RankLoss`` is a function of the ranks of the positives, a ``RowLoss`` any function of the scores
of a row. A loss of your own is one subclass of either.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfrs_croloss import _checks, _keras, _replicas
from tfrs_croloss.losses import _score_range
from tfrs_croloss.losses._copies import weights_by_score
from tfrs_croloss.losses._dense import per_query_losses
from tfrs_croloss.losses._objective import Objective, RankObjective, RowObjective
from tfrs_croloss.losses.ranks import RANK_ESTIMATES, RankEstimator, rank_estimator

DEFAULT_REDUCTION = "sum"
"""Losses are summed over the batch, as TFRS and keras-rs do: the learning rates of their tutorials
(Adagrad with 0.1) are for a sum, and a mean would hardly move there."""
_MEANS = ("auto", "mean", "sum_over_batch_size")


class _CheckedLoss(tf.keras.losses.Loss):
    """A Keras loss that says what to write where a class or weights of a wrong shape arrive."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        _keras.require_tensorflow(cls.__name__)
        if "y_true" in kwargs or "y_pred" in kwargs:
            raise TypeError(
                f"{cls.__name__} was called with labels and scores, but it is a class. Give the "
                f"task or compile() an object: loss={cls.__name__}()."
            )
        return super().__new__(cls)

    # No loss branches on a tensor. AutoGraph would take seconds of a first step to find that out.
    @tf.autograph.experimental.do_not_convert
    def __call__(
        self, y_true: tf.Tensor, y_pred: tf.Tensor, sample_weight: tf.Tensor | None = None
    ) -> tf.Tensor:
        """The loss of labelled scores, weighted and reduced by Keras.

        Args:
          y_true: ``[num_queries, num_candidates]`` labels.
          y_pred: ``[num_queries, num_candidates]`` scores.
          sample_weight: ``[num_queries]`` weights of the rows.
        """
        y_pred = _checks.floating("y_pred", y_pred)
        sample_weight = _checks.sample_weight(sample_weight, y_pred)
        if _keras.IS_KERAS_3:
            # Keras 3 would cast the scores to float32 first, and reduce an empty batch to nothing.
            losses = self.call(tf.convert_to_tensor(y_true), y_pred)
            losses._keras_mask = getattr(y_pred, "_keras_mask", None)
            return _reduced(losses, self.reduction, sample_weight)
        return super().__call__(y_true, y_pred, sample_weight)


class RetrievalLoss(_CheckedLoss):
    """A Keras loss of labelled scores, with one row per query.

    Keras and TFRS call it with ``y_true``, one-hot (or several-hot) labels, and ``y_pred``, scores,
    both ``[num_queries, num_candidates]``, and with ``sample_weight`` ``[num_queries]``. Subclass
    ``RankLoss`` or ``RowLoss`` to write a loss of your own.

    Args:
      num_items: size of the catalogue; without it the candidates at hand are the catalogue.
      mask_rows_without_positive: whether rows without a positive have a loss of 0 instead of
        raising an error.
      check_scores: whether scores that are not finite raise an error that lists the rows.
      reduction: ``"sum"``, ``"sum_over_batch_size"`` (the mean) or ``"none"``, as in Keras. The
        default is the sum over the batch, which is what the learning rates of TFRS' tutorials are
        for.
      name: name of the loss.
    """

    def __init__(
        self,
        num_items: int | None = None,
        *,
        mask_rows_without_positive: bool = False,
        check_scores: bool = False,
        reduction: str = DEFAULT_REDUCTION,
        name: str | None = None,
    ) -> None:
        super().__init__(reduction=reduction, name=name)
        self.num_items = _checks.catalogue_size("num_items", num_items)
        self.mask_rows_without_positive = bool(mask_rows_without_positive)
        self.check_scores = bool(check_scores)

    @property
    def objective(self) -> Objective:
        """How the loss follows from ranks, or from the scores of a row."""
        raise NotImplementedError(f"{type(self).__name__} should define `objective`.")

    def estimator(
        self,
        count: tf.Tensor,
        candidate_weights: tf.Tensor | None = None,
        *,
        num_items: int | None = None,
    ) -> RankEstimator:
        """How the candidates of each row represent the catalogue.

        Args:
          count: ``[num_queries]`` number of negatives in each row, in the computing type.
          candidate_weights: importance weights of the candidates, or None.
          num_items: size of the catalogue, if the loss was not given it.
        """
        return rank_estimator(
            count,
            num_items=self.num_items if num_items is None else num_items,
            candidate_weights=candidate_weights,
        )

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """The loss of each row, ``[num_queries]``."""
        y_true, y_pred = tf.convert_to_tensor(y_true), _checks.floating("y_pred", y_pred)
        _score_range.watch_scores(y_pred, y_true, self.objective)
        return self.per_query(y_pred, y_true)

    def per_query(
        self,
        scores: tf.Tensor,
        labels: tf.Tensor,
        *,
        mask: tf.Tensor | None = None,
        sampling_probability: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """The loss of each row before reduction; arguments as in ``tfrs_croloss.cro_loss``."""
        return self._per_query(scores, labels, self.estimator, mask, sampling_probability)

    def _per_query(
        self,
        scores: tf.Tensor,
        labels: tf.Tensor,
        estimator: Callable[..., RankEstimator],
        mask: tf.Tensor | None = None,
        sampling_probability: tf.Tensor | None = None,
    ) -> tf.Tensor:
        return per_query_losses(
            scores,
            labels,
            self.objective,
            estimator=estimator,
            mask=mask,
            sampling_probability=sampling_probability,
            mask_rows_without_positive=self.mask_rows_without_positive,
            check_scores=self.check_scores,
        )

    def reduce(self, losses: tf.Tensor, sample_weight: tf.Tensor | None = None) -> tf.Tensor:
        """Losses per query, weighted and reduced as Keras does for this loss.

        Under a strategy with several replicas, a mean is over the queries of all replicas: the sum
        of the replicas' losses is the loss of the whole batch.
        """
        if tf.distribute.has_strategy() and self.reduction in _MEANS:
            summed = _reduced(losses, "sum", sample_weight)
            num_queries = _replicas.total(tf.size(losses))
            return tf.math.divide_no_nan(summed, tf.cast(num_queries, summed.dtype))
        return _reduced(losses, self.reduction, sample_weight)

    def reduction_weights(
        self, num_queries: tf.Tensor, dtype: tf.DType, sample_weight: tf.Tensor | None = None
    ) -> tf.Tensor:
        """``[num_queries]`` weights of the queries' losses in the result of ``reduce``."""
        losses = tf.ones([num_queries], dtype)
        with tf.GradientTape() as tape:
            tape.watch(losses)
            reduced = self.reduce(losses, sample_weight)
        return tape.gradient(reduced, losses)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_items": self.num_items,
            "mask_rows_without_positive": self.mask_rows_without_positive,
            "check_scores": self.check_scores,
        }


class RankLoss(RetrievalLoss):
    """A loss of the ranks of the positives: subclasses return a ``RankObjective``.

    Args:
      num_items: size of the catalogue; without it the candidates at hand are the catalogue.
      rank_estimate: how sampled negatives represent the catalogue: ``"paper"`` or ``"unbiased"``.
      **options: the other arguments of ``RetrievalLoss``.

    Attributes:
      count_copies: whether an item that is in a batch several times counts as often in the rank, or
        once.
    """

    count_copies = True

    def __init__(
        self, num_items: int | None = None, *, rank_estimate: str = "paper", **options: Any
    ) -> None:
        super().__init__(num_items, **options)
        self.rank_estimate = _checks.one_of("rank_estimate", rank_estimate, RANK_ESTIMATES)

    @property
    def objective(self) -> RankObjective:
        """How the loss follows from the ranks."""
        raise NotImplementedError(f"{type(self).__name__} should define `objective`.")

    @property
    def weighs_copies(self) -> bool:
        """Whether candidates of a batch are weighted by how often they are there."""
        return not self.count_copies and self.rank_estimate == "paper"

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        if not self.weighs_copies:
            return super().call(y_true, y_pred)
        scores, labels, _ = _checks.candidates(y_pred, y_true, None)
        _score_range.watch_scores(scores, labels, self.objective)
        weights = weights_by_score(scores, labels)
        return self._per_query(
            scores,
            labels,
            lambda count, _: dataclasses.replace(self.estimator(count), candidate_weights=weights),
        )

    def estimator(
        self,
        count: tf.Tensor,
        candidate_weights: tf.Tensor | None = None,
        *,
        num_items: int | None = None,
    ) -> RankEstimator:
        return rank_estimator(
            count,
            num_items=self.num_items if num_items is None else num_items,
            rank_estimate=self.rank_estimate,
            candidate_weights=candidate_weights,
        )

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "rank_estimate": self.rank_estimate}

    def __repr__(self) -> str:
        objective = self.objective
        rank = "" if objective.rank_kernel is None else f"rank_kernel={objective.rank_kernel!r}, "
        pull = "" if objective.pull.is_whole else f"pull={objective.pull!r}, "
        descent = "" if objective.descent == "rank" else f"descent={objective.descent!r}, "
        return (
            f"{type(self).__name__}({objective.weighting!r}, {rank}kernel={objective.kernel!r}, "
            f"{pull}{descent}num_items={self.num_items})"
        )


class RowLoss(RetrievalLoss, RowObjective):
    """A loss of the scores of a row: subclasses define ``losses_and_gradient``.

    The arguments are those of ``RetrievalLoss``.
    """

    @property
    def objective(self) -> RowObjective:
        """The loss itself."""
        return self

    def __repr__(self) -> str:
        shared = RetrievalLoss.get_config(self)
        own = {name: value for name, value in self.get_config().items() if name not in shared}
        arguments = {**own, "num_items": self.num_items}
        listed = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        return f"{type(self).__name__}({listed})"


class _Reduction(tf.keras.losses.Loss):
    """Keras' weighting and reduction of losses that are computed already."""

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        return y_pred


def _reduced(losses: tf.Tensor, reduction: str, sample_weight: tf.Tensor | None) -> tf.Tensor:
    options = _keras.loss_options(losses.dtype)
    # The name is a scope in Keras 3, which may not start with an underscore as that of the class.
    loss = _Reduction(reduction=reduction, name="reduction", **options)
    sample_weight = _checks.sample_weight(sample_weight, losses)
    reduced = loss(losses, losses, sample_weight=sample_weight)
    return reduced if reduction == "none" else tf.reduce_sum(reduced)
