r"""CROLoss and LambdaCROLoss, as functions and as Keras losses.

.. math::

  L = W_\alpha(R_\phi), \qquad
  L_\lambda = \mathrm{SG}[w_\alpha(R_{\phi_1})] \, R_{\phi_2}

where R is the rank of the positive, w the weight of a rank, W its integral, and SG stops the
gradient. The Keras losses reduce; the functions return one value per query.

References:
  Tang et al., *CROLoss: Towards a Customizable Loss for Retrieval Models in Recommender Systems*,
  CIKM 2022.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import tensorflow as tf

from tfrs_croloss import _checks, _keras
from tfrs_croloss.losses import kernels, pulls, weightings
from tfrs_croloss.losses._objective import DESCENTS, RankObjective
from tfrs_croloss.losses.base import DEFAULT_REDUCTION, RankLoss

Function = TypeVar("Function", bound=Callable[..., Any])
DEFAULT_DESCENT = "rank"
# The special cases are the losses that they are known as, which count what is in the batch.
_COPIES = {"count_copies": True}


def _not_for_keras(name: str) -> Callable[[Function], Function]:
    """A decorator for pure functions: calls in the manner of Keras say which object to use."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            if "y_true" in kwargs or "y_pred" in kwargs:
                raise TypeError(
                    f"{function.__name__} takes scores and labels, in this order, and returns one "
                    "value per query. Give the task or compile() a loss object instead: "
                    f"loss=tfrs_croloss.{name}()."
                )
            return function(*args, **kwargs)

        return cast(Function, checked)

    return decorate


@_not_for_keras("CROLoss")
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
    pull: pulls.PullLike = 1.0,
    mask_rows_without_positive: bool = False,
    check_scores: bool = False,
) -> tf.Tensor:
    r"""CROLoss, one value per query: :math:`W_\alpha(R_\phi)`.

    The loss of a row with several positives is the sum of their losses; each is compared with the
    negatives only. NaN scores give a NaN loss, except those of masked candidates, which are
    ignored.

    Args:
      scores: ``[num_queries, num_candidates]`` floats. Losses of half-precision scores are
        computed and returned in float32.
      labels: the same shape; 1 at the positives, 0 elsewhere.
      alpha: how fast the weight of a rank falls, at least 0.
      retrieval_size: number of items that will be retrieved, from which alpha follows. See
        ``tfrs_croloss.RetrievalSizeWeighting``.
      kernel: how far a negative overtakes a positive: a name, ``{"name": "hinge", "margin": 2.0}``,
        a ``ComparisonKernel`` or a function of the gaps.
      num_items: size of the catalogue that the candidates were drawn from. Without it, they are
        the catalogue.
      mask: the same shape, booleans; candidates at False are ignored.
      sampling_probability: ``[num_candidates]`` or the shape of ``scores``: the probability with
        which each candidate is drawn. The negatives are then weighted by importance, and
        ``rank_estimate`` is ignored.
      rank_estimate: how sampled negatives represent the catalogue: ``"paper"`` or ``"unbiased"``.
      weighting: a rank weighting of your own; replaces ``alpha`` and ``normalized``.
      normalized: whether the rank weights integrate to one over the catalogue. By default they are
        ``log(num_items + 1)`` times that, so that one learning rate serves every alpha.
      pull: how strongly the positive is pulled, relative to how strongly its negatives are pushed
        away: a number, or a ``tfrs_croloss.losses.Pull`` that depends on the rank. It changes the
        gradient, not the value.
      mask_rows_without_positive: whether rows without a positive have a loss of 0 instead of
        raising an error.
      check_scores: whether scores that are not finite raise an error that lists the rows.

    Returns:
      ``[num_queries]`` losses.

    With alpha = 1 and the exponential kernel this is softmax cross-entropy, here
    ``log(1 + exp(1 - 2))``:

    >>> loss = cro_loss([[2.0, 1.0]], [[1.0, 0.0]], kernel="exponential")
    >>> print(f"{loss[0]:.4f}")
    0.3133
    """
    loss = CROLoss(
        alpha,
        kernel,
        num_items,
        rank_estimate=rank_estimate,
        weighting=weighting,
        normalized=normalized,
        retrieval_size=retrieval_size,
        pull=pull,
        mask_rows_without_positive=mask_rows_without_positive,
        check_scores=check_scores,
    )
    return loss.per_query(scores, labels, mask=mask, sampling_probability=sampling_probability)


@_not_for_keras("LambdaCROLoss")
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
    pull: pulls.PullLike = 1.0,
    descent: str = DEFAULT_DESCENT,
    mask_rows_without_positive: bool = False,
    check_scores: bool = False,
) -> tf.Tensor:
    r"""LambdaCROLoss, one value per query: :math:`\mathrm{SG}[w_\alpha(R_{\phi_1})] R_{\phi_2}`.

    One kernel estimates the rank that decides the weight of a query; another one closes the gaps.
    The weights are the derivative of the weighting's own integral, including the factor
    ``num_items / (n + 1)`` of sampled ranks.

    Args:
      rank_kernel: the kernel that estimates the rank; it needs no gradient, so ``"unit_step"``
        works.
      kernel: the kernel that closes the gaps.
      descent: what is lowered: ``"rank"``, :math:`R_{\phi_2}` as in the paper, or ``"log_rank"``,
        its logarithm with the weight :math:`w_\alpha(R_{\phi_1}) R_{\phi_1}`, which has bounded
        gradients for every kernel, and is softmax cross-entropy for the exponential one at
        alpha = 1.

    The other arguments, and the result, are as in ``cro_loss``.

    One of two negatives is ahead, so the rank is 2, its weight 1 / 2, and the hinges are 2 and 0:

    >>> loss = lambda_cro_loss([[2.0, 3.0, 0.0]], [[1.0, 0.0, 0.0]], rank_kernel="unit_step",
    ...                        kernel={"name": "hinge", "margin": 1.0})
    >>> print(f"{loss[0]:.4f}")
    1.5000
    """
    loss = LambdaCROLoss(
        alpha,
        rank_kernel,
        kernel,
        num_items,
        rank_estimate=rank_estimate,
        weighting=weighting,
        normalized=normalized,
        retrieval_size=retrieval_size,
        pull=pull,
        descent=descent,
        mask_rows_without_positive=mask_rows_without_positive,
        check_scores=check_scores,
    )
    return loss.per_query(scores, labels, mask=mask, sampling_probability=sampling_probability)


class _WeightedRankLoss(RankLoss):
    """What the two losses share: a kernel that closes the gaps, and a weighting of the ranks."""

    def __init__(
        self,
        alpha: float,
        kernel: kernels.KernelLike,
        num_items: int | None,
        *,
        weighting: weightings.RankWeighting | None,
        normalized: bool,
        retrieval_size: int | None,
        pull: pulls.PullLike,
        count_copies: bool,
        **options: Any,
    ) -> None:
        super().__init__(num_items, **options)
        self.pull = pulls.get(pull)
        self.count_copies = bool(count_copies)
        self.kernel = kernels.get(kernel)
        self.weighting = weightings.get(weighting, alpha, normalized, retrieval_size)
        self._given_alpha = float(alpha)
        self.normalized = bool(normalized)
        self.retrieval_size = retrieval_size
        self._own_weighting = weighting is not None

    @property
    def alpha(self) -> float | None:
        """The alpha in use, be it given or that of the weighting; None if it has none."""
        return getattr(self.weighting, "alpha", None)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "alpha": self._given_alpha,
            "kernel": kernels.to_config(self.kernel),
            "weighting": _keras.to_config(self.weighting) if self._own_weighting else None,
            "normalized": self.normalized,
            "retrieval_size": self.retrieval_size,
            "pull": pulls.to_config(self.pull),
            "count_copies": self.count_copies,
        }


@tf.keras.utils.register_keras_serializable(package="tfrs_croloss")
class CROLoss(_WeightedRankLoss):
    r"""Keras loss for :math:`W_\alpha(R_\phi)`, which trains for the Recall@N that is served.

    >>> loss = CROLoss(alpha=1.0, kernel="exponential")
    >>> print(f"{loss(y_true=[[1.0, 0.0]], y_pred=[[2.0, 1.0]]):.4f}")
    0.3133

    Args:
      alpha: how fast the weight of a rank falls, at least 0; larger for smaller retrieval sizes.
      kernel: how far a negative overtakes a positive: a name, ``{"name": "hinge", "margin": 2.0}``,
        a ``ComparisonKernel`` or a function of the gaps.
      num_items: size of the catalogue; without it the candidates at hand are the catalogue.
      retrieval_size: number of items that will be retrieved, from which alpha follows.
      pull: how strongly the positive is pulled, relative to how strongly its negatives are pushed
        away: a number, or a ``tfrs_croloss.losses.Pull`` that depends on the rank.
      count_copies: whether an item that is in a batch several times, as popular ones are, counts as
        often in the rank, or once. Copies have the same vectors, and so the same scores. It has no
        effect with sampling probabilities and where ``rank_estimate`` is ``"unbiased"``.
      reduction: ``"sum"``, as in TFRS and keras-rs, ``"sum_over_batch_size"`` (the mean) or
        ``"none"``, as in Keras.
      name: name of the loss.

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
        pull: pulls.PullLike = 1.0,
        mask_rows_without_positive: bool = False,
        check_scores: bool = False,
        count_copies: bool = False,
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
            pull=pull,
            mask_rows_without_positive=mask_rows_without_positive,
            check_scores=check_scores,
            count_copies=count_copies,
            reduction=reduction,
            name=name,
        )

    @property
    def objective(self) -> RankObjective:
        return RankObjective(self.weighting, self.kernel, pull=self.pull)

    @classmethod
    def softmax_cross_entropy(
        cls, num_items: int | None = None, *, name: str = "softmax_cross_entropy", **options: Any
    ) -> CROLoss:
        """Softmax cross-entropy over the row: alpha = 1 and the exponential kernel."""
        return cls(1.0, "exponential", num_items, name=name, **{**_COPIES, **options})

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
        return cls(0.0, kernels.Hinge(margin), num_items, name=name, **{**_COPIES, **options})

    @classmethod
    def bpr(cls, num_items: int | None = None, *, name: str = "bpr", **options: Any) -> CROLoss:
        """BPR summed over negatives, with the same factor as ``triplet``."""
        return cls(0.0, "softplus", num_items, name=name, **{**_COPIES, **options})


@tf.keras.utils.register_keras_serializable(package="tfrs_croloss")
class LambdaCROLoss(_WeightedRankLoss):
    r"""Keras loss for :math:`\mathrm{SG}[w_\alpha(R_{\phi_1})] R_{\phi_2}`: the Lambda method.

    The rank is estimated by a kernel that ranks accurately, and the gaps are closed by one that
    descends well. The value is not a measure of quality: watch Recall@N instead.

    Args:
      alpha: how fast the weight of a rank falls, at least 0; larger for smaller retrieval sizes.
      rank_kernel: the kernel that estimates the rank; ``"unit_step"`` is allowed.
      kernel: the kernel that closes the gaps.
      num_items: size of the catalogue; without it the candidates at hand are the catalogue.
      retrieval_size: number of items that will be retrieved, from which alpha follows.
      pull: how strongly the positive is pulled, relative to how strongly its negatives are pushed
        away: a number, or a ``tfrs_croloss.losses.Pull`` that depends on the rank.
      descent: ``"rank"``, as in the paper, or ``"log_rank"``, whose gradients are bounded for every
        kernel: :math:`\mathrm{SG}[w_\alpha(R_{\phi_1}) R_{\phi_1}] \log R_{\phi_2}`.
      count_copies: whether an item that is in a batch several times, as popular ones are, counts as
        often in the rank, or once. Copies have the same vectors, and so the same scores. It has no
        effect with sampling probabilities and where ``rank_estimate`` is ``"unbiased"``.
      reduction: ``"sum"``, as in TFRS and keras-rs, ``"sum_over_batch_size"`` (the mean) or
        ``"none"``, as in Keras.
      name: name of the loss.

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
        pull: pulls.PullLike = 1.0,
        descent: str = DEFAULT_DESCENT,
        mask_rows_without_positive: bool = False,
        check_scores: bool = False,
        count_copies: bool = False,
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
            pull=pull,
            mask_rows_without_positive=mask_rows_without_positive,
            check_scores=check_scores,
            count_copies=count_copies,
            reduction=reduction,
            name=name,
        )
        self.descent = _checks.one_of("descent", descent, DESCENTS)
        self.rank_kernel = kernels.get(rank_kernel, argument="rank_kernel", gradient=False)

    @property
    def objective(self) -> RankObjective:
        return RankObjective(self.weighting, self.kernel, self.rank_kernel, self.pull, self.descent)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config["rank_kernel"] = kernels.to_config(self.rank_kernel)
        config["descent"] = self.descent
        return config
