r"""CROLoss and LambdaCROLoss: pure functions, and Keras losses over them.

.. math::

  L = W_\alpha(R_\phi), \qquad
  L_\lambda = \mathrm{SG}[w_\alpha(R_{\phi_1})] \, R_{\phi_2}

where R is the rank of the positive, w the weight of a rank, W its integral, and SG stops the
gradient. Keras reduces; the functions do not.

References:
  Tang et al., *CROLoss: Towards a Customizable Loss for Retrieval Models in Recommender Systems*,
  CIKM 2022.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfrs_croloss import _checks, _keras, _replicas
from tfrs_croloss.losses import kernels, weightings
from tfrs_croloss.losses._dense import per_query_losses
from tfrs_croloss.losses._objective import Objective, RankObjective
from tfrs_croloss.losses.ranks import RANK_ESTIMATES

DEFAULT_REDUCTION = "sum_over_batch_size"
_MEANS = ("auto", "sum_over_batch_size")


def cro_loss(
    scores: tf.Tensor,
    labels: tf.Tensor,
    *,
    alpha: float = 1.0,
    retrieval_size: int | None = None,
    kernel: kernels.KernelLike = "softplus",
    num_items: int | None = None,
    mask: tf.Tensor | None = None,
    sampling_probability: tf.Tensor | None = None,
    rank_estimate: str = "paper",
    weighting: weightings.RankWeighting | None = None,
    normalized: bool = False,
    mask_rows_without_positive: bool = False,
    check_scores: bool = False,
) -> tf.Tensor:
    r"""CROLoss, one value per query: :math:`W_\alpha(R_\phi)`.

    A row with several positives gives the sum of their losses; each is compared with the negatives
    only. NaN scores give a NaN loss, except those of masked candidates, which are not looked at.

    Args:
      scores: ``[num_queries, num_candidates]`` floats. Half precision is computed, and returned,
        in float32.
      labels: the same shape; 1 at the positives, 0 elsewhere.
      alpha: how fast the weight of a rank falls, at least 0.
      retrieval_size: in place of ``alpha``: how many items will be retrieved. See
        ``tfrs_croloss.RetrievalSizeWeighting``.
      kernel: how far a negative overtakes a positive: a name, ``{"name": "hinge", "margin": 2.0}``,
        a ``ComparisonKernel`` or a function of the gaps.
      num_items: size of the catalogue that the candidates were drawn from. Without it, they are
        the catalogue.
      mask: the same shape, booleans; candidates at False are not considered.
      sampling_probability: ``[num_candidates]`` or the shape of ``scores``: the probability with
        which each candidate is drawn. Weighs the negatives by importance, in place of
        ``rank_estimate``.
      rank_estimate: how sampled negatives stand for ``num_items``: ``"paper"`` or ``"unbiased"``.
      weighting: a rank weighting of your own, in place of ``alpha`` and ``normalized``.
      normalized: whether the rank weights integrate to one over the catalogue. By default they are
        ``log(num_items + 1)`` times that, so that one learning rate serves every alpha.
      mask_rows_without_positive: give rows without a positive a loss of 0 instead of an error.
      check_scores: raise an error that lists the rows when scores are not finite.

    Returns:
      ``[num_queries]`` losses.

    With alpha = 1 and the exponential kernel this is softmax cross-entropy, here
    ``log(1 + exp(1 - 2))``:

    >>> loss = cro_loss([[2.0, 1.0]], [[1.0, 0.0]], kernel="exponential")
    >>> print(f"{loss[0]:.4f}")
    0.3133
    """
    objective = RankObjective(
        weightings.get(weighting, alpha, normalized, retrieval_size), kernels.get(kernel)
    )
    return per_query_losses(
        scores,
        labels,
        objective,
        mask=mask,
        num_items=_checks.catalogue_size("num_items", num_items),
        rank_estimate=_checks.one_of("rank_estimate", rank_estimate, RANK_ESTIMATES),
        sampling_probability=sampling_probability,
        mask_rows_without_positive=mask_rows_without_positive,
        check_scores=check_scores,
    )


def lambda_cro_loss(
    scores: tf.Tensor,
    labels: tf.Tensor,
    *,
    alpha: float = 1.0,
    retrieval_size: int | None = None,
    rank_kernel: kernels.KernelLike = "sigmoid",
    kernel: kernels.KernelLike = "softplus",
    num_items: int | None = None,
    mask: tf.Tensor | None = None,
    sampling_probability: tf.Tensor | None = None,
    rank_estimate: str = "paper",
    weighting: weightings.RankWeighting | None = None,
    normalized: bool = False,
    mask_rows_without_positive: bool = False,
    check_scores: bool = False,
) -> tf.Tensor:
    r"""LambdaCROLoss, one value per query: :math:`\mathrm{SG}[w_\alpha(R_{\phi_1})] R_{\phi_2}`.

    The rank that weighs a pair comes from one kernel, the gradient that closes its gaps from
    another. The weights are the derivative of the weighting's own integral, the factor
    ``num_items / (n + 1)`` of sampled ranks included.

    Args:
      rank_kernel: estimates the rank; needs no gradient, so ``"unit_step"`` will do.
      kernel: closes the gaps.

    The other arguments, and what is returned, are as in ``cro_loss``.

    One of two negatives is ahead, so the rank is 2, its weight 1 / 2, and the hinges are 2 and 0:

    >>> loss = lambda_cro_loss([[2.0, 3.0, 0.0]], [[1.0, 0.0, 0.0]], rank_kernel="unit_step",
    ...                        kernel={"name": "hinge", "margin": 1.0})
    >>> print(f"{loss[0]:.4f}")
    1.5000
    """
    objective = RankObjective(
        weightings.get(weighting, alpha, normalized, retrieval_size),
        kernels.get(kernel),
        kernels.get(rank_kernel, argument="rank_kernel", gradient=False),
    )
    return per_query_losses(
        scores,
        labels,
        objective,
        mask=mask,
        num_items=_checks.catalogue_size("num_items", num_items),
        rank_estimate=_checks.one_of("rank_estimate", rank_estimate, RANK_ESTIMATES),
        sampling_probability=sampling_probability,
        mask_rows_without_positive=mask_rows_without_positive,
        check_scores=check_scores,
    )


class RetrievalLoss(tf.keras.losses.Loss):
    """What the two losses share: how ranks are weighed and estimated, and how rows are reduced.

    Takes what TFRS and Keras hand a loss: ``y_true`` one-hot (or several-hot) labels and ``y_pred``
    scores, both ``[num_queries, num_candidates]``, and ``sample_weight`` ``[num_queries]``.
    """

    def __init__(
        self,
        alpha: float,
        kernel: kernels.KernelLike,
        num_items: int | None,
        *,
        rank_estimate: str,
        weighting: weightings.RankWeighting | None,
        normalized: bool,
        retrieval_size: int | None = None,
        mask_rows_without_positive: bool,
        check_scores: bool,
        reduction: str,
        name: str | None,
    ) -> None:
        super().__init__(reduction=reduction, name=name)
        self.kernel = kernels.get(kernel)
        self.num_items = _checks.catalogue_size("num_items", num_items)
        self.rank_estimate = _checks.one_of("rank_estimate", rank_estimate, RANK_ESTIMATES)
        self.weighting = weightings.get(weighting, alpha, normalized, retrieval_size)
        self.alpha = float(alpha)
        self.normalized = bool(normalized)
        self.retrieval_size = retrieval_size
        self.mask_rows_without_positive = bool(mask_rows_without_positive)
        self.check_scores = bool(check_scores)
        self._own_weighting = weighting is not None

    @property
    def objective(self) -> Objective:
        """What the loss makes of the ranks, or of the scores of a row."""
        raise NotImplementedError(f"{type(self).__name__} should define `objective`.")

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """The loss of each row, ``[num_queries]``."""
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
        return per_query_losses(
            scores,
            labels,
            self.objective,
            mask=mask,
            num_items=self.num_items,
            rank_estimate=self.rank_estimate,
            sampling_probability=sampling_probability,
            mask_rows_without_positive=self.mask_rows_without_positive,
            check_scores=self.check_scores,
        )

    def reduce(self, losses: tf.Tensor, sample_weight: tf.Tensor | None = None) -> tf.Tensor:
        """Losses per query, weighed and reduced as Keras does for this loss.

        Under a strategy with several replicas a mean is over the queries of all of them: the sum of
        the replicas' losses is that of the whole batch.
        """
        if tf.distribute.has_strategy() and self.reduction in _MEANS:
            summed = _Reduction(reduction="sum")(losses, losses, sample_weight=sample_weight)
            num_queries = _replicas.total(tf.size(losses))
            return tf.math.divide_no_nan(summed, tf.cast(num_queries, summed.dtype))
        return _Reduction(reduction=self.reduction)(losses, losses, sample_weight=sample_weight)

    def reduction_weights(
        self, num_queries: tf.Tensor, dtype: tf.DType, sample_weight: tf.Tensor | None = None
    ) -> tf.Tensor:
        """``[num_queries]``: by how much each query's loss counts in what ``reduce`` gives."""
        losses = tf.ones([num_queries], dtype)
        with tf.GradientTape() as tape:
            tape.watch(losses)
            reduced = self.reduce(losses, sample_weight)
        return tape.gradient(reduced, losses)

    def get_config(self) -> dict[str, Any]:
        config = dict(super().get_config())
        config.update(
            alpha=self.alpha,
            kernel=kernels.to_config(self.kernel),
            num_items=self.num_items,
            rank_estimate=self.rank_estimate,
            weighting=_keras.to_config(self.weighting) if self._own_weighting else None,
            normalized=self.normalized,
            retrieval_size=self.retrieval_size,
            mask_rows_without_positive=self.mask_rows_without_positive,
            check_scores=self.check_scores,
        )
        return config

    def __repr__(self) -> str:
        objective = self.objective
        if not isinstance(objective, RankObjective):
            return f"{type(self).__name__}({objective!r}, num_items={self.num_items})"
        rank = "" if objective.rank_kernel is None else f"rank_kernel={objective.rank_kernel!r}, "
        return (
            f"{type(self).__name__}({objective.weighting!r}, {rank}kernel={objective.kernel!r}, "
            f"num_items={self.num_items})"
        )


@tf.keras.utils.register_keras_serializable(package="tfrs_croloss")
class CROLoss(RetrievalLoss):
    r"""Keras loss for :math:`W_\alpha(R_\phi)`: trains for the Recall@N that is served.

    >>> loss = CROLoss(alpha=1.0, kernel="exponential")
    >>> print(f"{loss(y_true=[[1.0, 0.0]], y_pred=[[2.0, 1.0]]):.4f}")
    0.3133

    Args:
      alpha: how fast the weight of a rank falls, at least 0; larger for smaller retrieval sizes.
      kernel: how far a negative overtakes a positive: a name, ``{"name": "hinge", "margin": 2.0}``,
        a ``ComparisonKernel`` or a function of the gaps.
      num_items: size of the catalogue; without it the candidates at hand are the catalogue.
      retrieval_size: how many items will be retrieved; gives alpha.
      reduction: Keras' ``"sum_over_batch_size"``, ``"sum"`` or ``"none"``.
      name: of the loss.

    The other arguments are as in ``tfrs_croloss.cro_loss``.
    """

    def __init__(
        self,
        alpha: float = 1.0,
        kernel: kernels.KernelLike = "softplus",
        num_items: int | None = None,
        *,
        rank_estimate: str = "paper",
        weighting: weightings.RankWeighting | None = None,
        normalized: bool = False,
        retrieval_size: int | None = None,
        mask_rows_without_positive: bool = False,
        check_scores: bool = False,
        reduction: str = DEFAULT_REDUCTION,
        name: str | None = "cro_loss",
    ) -> None:
        super().__init__(
            alpha,
            kernel,
            num_items,
            rank_estimate=rank_estimate,
            weighting=weighting,
            normalized=normalized,
            retrieval_size=retrieval_size,
            mask_rows_without_positive=mask_rows_without_positive,
            check_scores=check_scores,
            reduction=reduction,
            name=name,
        )

    @property
    def objective(self) -> RankObjective:
        return RankObjective(self.weighting, self.kernel)

    @classmethod
    def softmax_cross_entropy(
        cls, num_items: int | None = None, *, name: str = "softmax_cross_entropy", **options: Any
    ) -> CROLoss:
        """Softmax cross-entropy over the row: alpha = 1 and the exponential kernel."""
        return cls(1.0, "exponential", num_items, name=name, **options)

    @classmethod
    def triplet(
        cls,
        num_items: int | None = None,
        *,
        margin: float = 5.0,
        name: str = "triplet",
        **options: Any,
    ) -> CROLoss:
        """The triplet loss summed over negatives, times ``log(num_items + 1) / num_items``.

        With ``normalized=True`` the factor is ``1 / num_items``, as in the paper.
        """
        return cls(0.0, kernels.Hinge(margin), num_items, name=name, **options)

    @classmethod
    def bpr(cls, num_items: int | None = None, *, name: str = "bpr", **options: Any) -> CROLoss:
        """BPR summed over negatives, with the factor of ``triplet``."""
        return cls(0.0, "softplus", num_items, name=name, **options)


@tf.keras.utils.register_keras_serializable(package="tfrs_croloss")
class LambdaCROLoss(RetrievalLoss):
    r"""Keras loss for :math:`\mathrm{SG}[w_\alpha(R_{\phi_1})] R_{\phi_2}`: the Lambda method.

    The rank is estimated by a kernel that ranks well, the gaps are closed by one that descends
    well. The value is not a measure of quality: watch Recall@N instead.

    Args:
      alpha: how fast the weight of a rank falls, at least 0; larger for smaller retrieval sizes.
      rank_kernel: estimates the rank; ``"unit_step"`` is allowed.
      kernel: closes the gaps.
      num_items: size of the catalogue; without it the candidates at hand are the catalogue.
      retrieval_size: how many items will be retrieved; gives alpha.
      reduction: Keras' ``"sum_over_batch_size"``, ``"sum"`` or ``"none"``.
      name: of the loss.

    The other arguments are as in ``tfrs_croloss.cro_loss``.
    """

    def __init__(
        self,
        alpha: float = 1.0,
        rank_kernel: kernels.KernelLike = "sigmoid",
        kernel: kernels.KernelLike = "softplus",
        num_items: int | None = None,
        *,
        rank_estimate: str = "paper",
        weighting: weightings.RankWeighting | None = None,
        normalized: bool = False,
        retrieval_size: int | None = None,
        mask_rows_without_positive: bool = False,
        check_scores: bool = False,
        reduction: str = DEFAULT_REDUCTION,
        name: str | None = "lambda_cro_loss",
    ) -> None:
        super().__init__(
            alpha,
            kernel,
            num_items,
            rank_estimate=rank_estimate,
            weighting=weighting,
            normalized=normalized,
            retrieval_size=retrieval_size,
            mask_rows_without_positive=mask_rows_without_positive,
            check_scores=check_scores,
            reduction=reduction,
            name=name,
        )
        self.rank_kernel = kernels.get(rank_kernel, argument="rank_kernel", gradient=False)

    @property
    def objective(self) -> RankObjective:
        return RankObjective(self.weighting, self.kernel, self.rank_kernel)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config["rank_kernel"] = kernels.to_config(self.rank_kernel)
        return config


class _Reduction(tf.keras.losses.Loss):
    """Nothing but Keras' weighing and reducing, of losses that are there already."""

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        return y_pred
