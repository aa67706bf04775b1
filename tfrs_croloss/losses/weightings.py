r"""Rank weightings: which ranks matter, and by how much.

A weighting is a density :math:`w` over ranks in :math:`[1, |I| + 1)` and its integral
:math:`W(x) = \int_1^x w`. Weighting ``Recall@x`` by ``w(x)`` gives the loss ``W(rank)``: one minus
the expected recall, when ``w`` integrates to one.

To add your own, subclass ``RankWeighting`` and define ``density`` and ``integral``:

>>> class TopHeavy(RankWeighting):
...     def density(self, rank, num_items):
...         return tf.exp(1.0 - rank)
...     def integral(self, rank, num_items):
...         return 1.0 - tf.exp(1.0 - rank)
>>> print(TopHeavy().integral(tf.constant([1.0]), tf.constant([10.0])).numpy())
[0.]
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfrs_croloss import _checks, _keras
from tfrs_croloss.losses import _numeric

# These were best in validation, on catalogues of 1,200 and 29,320 items, for N from 20 to 500.
_ALPHA_OF_MANY, _ALPHA_OF_FEW = 1.0, 1.5


class RankWeighting:
    """A density over ranks and its integral from rank one.

    Ranks and catalogue sizes are floating-point tensors of one shape. The two methods in the log
    domain exist because the exponential kernel's ranks need not fit the type; they have defaults.
    """

    def density(self, rank: tf.Tensor, num_items: tf.Tensor) -> tf.Tensor:
        """The weight of each rank: the derivative of ``integral``."""
        raise NotImplementedError(
            f"{type(self).__name__} should define `density(rank, num_items)`."
        )

    def integral(self, rank: tf.Tensor, num_items: tf.Tensor) -> tf.Tensor:
        """The integral of the density from 1 to each rank."""
        raise NotImplementedError(
            f"{type(self).__name__} should define `integral(rank, num_items)`."
        )

    def log_density(self, log_rank: tf.Tensor, num_items: tf.Tensor) -> tf.Tensor:
        """The logarithm of the density at ``exp(log_rank)``."""
        return tf.math.log(self.density(_numeric.saturating_exp(log_rank), num_items))

    def integral_at_log(self, log_rank: tf.Tensor, num_items: tf.Tensor) -> tf.Tensor:
        """The integral at ``exp(log_rank)``."""
        return self.integral(_numeric.saturating_exp(log_rank), num_items)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> RankWeighting:
        """The inverse of ``get_config``."""
        return cls(**config)

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.get_config().items())
        return f"{type(self).__name__}({arguments})"


@tf.keras.utils.register_keras_serializable(package="tfrs_croloss")
class PowerWeighting(RankWeighting):
    r"""The paper's weighting: the weight of rank x falls as :math:`x^{-\alpha}`.

    .. math::

      W_\alpha(x) = s \frac{E_{1-\alpha}(\log x)}{E_{1-\alpha}(\log(|I| + 1))}, \qquad
      E_\beta(y) = \frac{e^{\beta y} - 1}{\beta}, \quad E_0(y) = y

    with the scale :math:`s = \log(|I| + 1)`, so that alpha = 1 is the plain logarithm of the rank
    and one learning rate serves every alpha; or :math:`s = 1` when ``normalized``, so that the
    density integrates to one.

    Args:
      alpha: at least 0. Larger values favour smaller ranks: 0 gives every rank the same weight, 1
        every octave of ranks.
      normalized: whether the density integrates to one over the catalogue.

    Half of the weight of 99 items on a log scale lies below rank 10:

    >>> weighting = PowerWeighting(alpha=1.0, normalized=True)
    >>> print(f"{weighting.integral(tf.constant(10.0), tf.constant(99.0)):.4f}")
    0.5000
    """

    def __init__(self, alpha: float = 1.0, normalized: bool = False) -> None:
        self.alpha = _checks.non_negative_number(
            "alpha",
            alpha,
            remedy="Larger values favour smaller retrieval sizes; the paper uses 0.6 to 1.6.",
        )
        self.normalized = bool(normalized)

    def density(self, rank: tf.Tensor, num_items: tf.Tensor) -> tf.Tensor:
        return tf.exp(self.log_density(tf.math.log(rank), num_items))

    def integral(self, rank: tf.Tensor, num_items: tf.Tensor) -> tf.Tensor:
        return self.integral_at_log(tf.math.log(rank), num_items)

    def log_density(self, log_rank: tf.Tensor, num_items: tf.Tensor) -> tf.Tensor:
        return tf.math.log(self._factor(num_items)) - self.alpha * log_rank

    def integral_at_log(self, log_rank: tf.Tensor, num_items: tf.Tensor) -> tf.Tensor:
        return self._factor(num_items) * self._power_integral(log_rank)

    def get_config(self) -> dict[str, Any]:
        return {"alpha": self.alpha, "normalized": self.normalized}

    def _factor(self, num_items: tf.Tensor) -> tf.Tensor:
        """The factor of the integral of ``x ** -alpha``."""
        log_end = tf.math.log1p(num_items)
        scale = tf.ones_like(log_end) if self.normalized else log_end
        return scale / self._power_integral(log_end)

    def _power_integral(self, log_rank: tf.Tensor) -> tf.Tensor:
        """The integral of ``x ** -alpha`` from 1 to ``exp(log_rank)``, continuous in alpha."""
        exponent = 1.0 - self.alpha
        if exponent == 0.0:
            return log_rank
        limit = _numeric.largest_exponent(log_rank.dtype)
        return tf.math.expm1(tf.minimum(exponent * log_rank, limit)) / exponent


@tf.keras.utils.register_keras_serializable(package="tfrs_croloss")
class RetrievalSizeWeighting(PowerWeighting):
    r"""The power weighting with an alpha that suits the number of items retrieved.

    .. math:: \alpha = 1 + 1.5 / \sqrt{N}

    so alpha falls as N grows, from 1.34 for N = 20 to 1.07 for N = 500: if few items are retrieved,
    the loss favours small ranks; if many are, it gives every octave of ranks the same weight. Every
    rank keeps some weight: a positive far behind N is still pulled up, which a weighting
    concentrated around N neglects. The numbers were best in validation on real data, where the size
    of the catalogue made little difference. This weighting needs no tuning; if there is time, tune
    alpha.

    Args:
      retrieval_size: N, the number of items retrieved.
      normalized: whether the density integrates to one over the catalogue.

    >>> print(f"{RetrievalSizeWeighting(100).alpha:.2f}")
    1.15
    """

    def __init__(self, retrieval_size: int, normalized: bool = False) -> None:
        self.retrieval_size = _checks.whole_number(
            "retrieval_size", retrieval_size, remedy="Pass the number of items to retrieve."
        )
        alpha = _ALPHA_OF_MANY + _ALPHA_OF_FEW / math.sqrt(self.retrieval_size)
        super().__init__(alpha, normalized)

    def get_config(self) -> dict[str, Any]:
        return {"retrieval_size": self.retrieval_size, "normalized": self.normalized}


def get(
    weighting: RankWeighting | Mapping[str, Any] | None,
    alpha: float,
    normalized: bool,
    retrieval_size: int | None = None,
) -> RankWeighting:
    """The weighting of a loss: the one given, or the one of ``retrieval_size`` or ``alpha``."""
    if retrieval_size is not None:
        if weighting is not None or alpha != 1.0:
            raise ValueError(
                "`retrieval_size` should be given without `alpha` and `weighting`, which it "
                f"replaces. Received: retrieval_size={retrieval_size!r}, alpha={alpha!r}, "
                f"weighting={weighting!r}. Leave out the others."
            )
        return RetrievalSizeWeighting(retrieval_size, normalized=normalized)
    if weighting is None:
        return PowerWeighting(alpha, normalized)
    if isinstance(weighting, Mapping) and set(weighting) == {"keras"}:
        weighting = _keras.from_config(weighting)
    if not isinstance(weighting, RankWeighting):
        raise ValueError(
            f"`weighting` should be a RankWeighting. Received: {weighting!r}. Subclass "
            "tfrs_croloss.RankWeighting, or leave it out and set `alpha`."
        )
    if alpha != 1.0 or normalized:
        raise ValueError(
            "`weighting` should be given without `alpha` and `normalized`, which configure the "
            f"default one. Received: {weighting!r}, alpha={alpha!r}, normalized={normalized!r}."
        )
    return weighting
