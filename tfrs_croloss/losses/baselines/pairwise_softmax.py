"""PSL."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfrs_croloss.losses import kernels, weightings
from tfrs_croloss.losses._objective import RankObjective
from tfrs_croloss.losses.base import DEFAULT_REDUCTION, RankLoss


@tf.keras.utils.register_keras_serializable(package="tfrs_croloss")
class PairwiseSoftmaxLoss(RankLoss):
    r"""PSL: softmax cross-entropy with another function instead of the exponential.

    .. math:: L = \log\Bigl(1 + \sum_j v_j f\bigl(t \, (s_j - s)\bigr)^{1/t}\Bigr)

    It is ``CROLoss`` with ``alpha=1`` and the kernel
    ``tfrs_croloss.losses.kernels.PairwiseSoftmax``, which also works with any other alpha and in
    ``LambdaCROLoss``.

    Args:
      activation: ``"tanh"``, ``"atan"`` or ``"relu"``.
      temperature: half the temperature that divides the cosines.
      num_items: size of the catalogue; without it the candidates at hand are the catalogue.
      name: name of the loss.

    The other arguments are as in ``CROLoss``.

    References:
      Yang et al., *PSL: Rethinking and Improving Softmax Loss from Pairwise Perspective for
      Recommendation*, NeurIPS 2024.
    """

    def __init__(
        self,
        activation: str = "tanh",
        temperature: float = 0.05,
        num_items: int | None = None,
        *,
        rank_estimate: str = "paper",
        mask_rows_without_positive: bool = False,
        check_scores: bool = False,
        reduction: str = DEFAULT_REDUCTION,
        name: str | None = "pairwise_softmax",
    ) -> None:
        super().__init__(
            num_items,
            rank_estimate=rank_estimate,
            mask_rows_without_positive=mask_rows_without_positive,
            check_scores=check_scores,
            reduction=reduction,
            name=name,
        )
        self.kernel = kernels.PairwiseSoftmax(activation, temperature)

    @property
    def objective(self) -> RankObjective:
        return RankObjective(weightings.PowerWeighting(1.0), self.kernel)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **self.kernel.get_config()}
