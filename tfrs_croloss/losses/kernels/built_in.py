"""The built-in kernels: those of the paper, and the kernel of PSL."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from tfrs_croloss import _checks
from tfrs_croloss.losses.kernels.base import (
    LARGE_GAP,
    BlockCounts,
    BlockSums,
    ComparisonKernel,
    LogKernel,
    weighted,
)
from tfrs_croloss.losses.kernels.naming import named

# The exponential of this is exactly zero, even after a large weight is added.
_LOG_OF_ZERO = -1e30
# The square of this still fits float32.
_LARGE_SQUARE_ROOT = 1e18


@named("hinge")
class Hinge(ComparisonKernel):
    """``max(gap + margin, 0)``: the kernel of the triplet loss.

    Args:
      margin: how far the positive has to be ahead to have no loss, at least 0.

    >>> print(Hinge(margin=1.0)(tf.constant([-2.0, 0.0, 3.0])).numpy())
    [0. 1. 4.]
    """

    vanishes_far_below = True

    def __init__(self, margin: float = 5.0) -> None:
        self.margin = _checks.non_negative_number(
            "margin", margin, remedy="The paper uses 5 with scores of 10 times the cosine."
        )

    def __call__(self, gaps: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(gaps + self.margin)

    def derivative(self, gaps: tf.Tensor) -> tf.Tensor:
        slopes = tf.cast(gaps + self.margin > 0.0, gaps.dtype)
        return _keep_nan(slopes, gaps)

    def block_values(
        self, gaps: tf.Tensor, bound: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        counts = self(gaps)
        return counts, tf.sign(counts)

    def get_config(self) -> dict[str, Any]:
        return {"margin": self.margin}


@named("sigmoid")
class Sigmoid(ComparisonKernel):
    """``1 / (1 + exp(-gap))``: the smooth unit step, and the most faithful rank."""

    vanishes_far_below = True

    def __call__(self, gaps: tf.Tensor) -> tf.Tensor:
        return tf.sigmoid(gaps)

    def derivative(self, gaps: tf.Tensor) -> tf.Tensor:
        return self.value_and_derivative(gaps)[1]

    def value_and_derivative(self, gaps: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return self.block_values(gaps)

    def block_values(
        self, gaps: tf.Tensor, bound: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Both come from one exponential, and are precise wherever they are small."""

        def with_large_gaps() -> tuple[tf.Tensor, tf.Tensor]:
            exponential = tf.exp(tf.minimum(gaps, math.log(gaps.dtype.max) - 1.0))
            counts = _sigmoid_of(exponential)
            return counts, counts / (1.0 + exponential)

        def with_small_gaps() -> tuple[tf.Tensor, tf.Tensor]:
            exponential = tf.exp(gaps)
            # x / (1 + x)^2 in one operation.
            slopes = tf.raw_ops.SoftsignGrad(gradients=exponential, features=exponential)
            return _sigmoid_of(exponential), slopes

        if bound is None:
            return with_large_gaps()
        squares_fit = bound <= math.log(gaps.dtype.max) / 2.0 - 2.0
        return tf.cond(squares_fit, with_small_gaps, with_large_gaps)


@named("exponential")
class Exponential(LogKernel):
    """``exp(gap)``: the kernel of softmax cross-entropy; summed in the log domain."""

    vanishes_far_below = True
    block_form_is_exact = True

    def log_value(self, gaps: tf.Tensor) -> tf.Tensor:
        return gaps

    def log_derivative(self, gaps: tf.Tensor) -> tf.Tensor:
        return gaps

    def block_sums(
        self, gaps: tf.Tensor, weights: tf.Tensor | None, bound: tf.Tensor | None = None
    ) -> BlockSums:
        """Counts and slopes are the same, divided by each row's largest exponential."""
        exponents = gaps if weights is None else gaps + tf.math.log(weights)
        largest = tf.maximum(tf.reduce_max(exponents, axis=-1), 0.0)
        summands = tf.exp(exponents - largest[:, tf.newaxis])
        total = tf.reduce_sum(summands, axis=-1)
        return BlockSums(BlockCounts(total, largest), summands, total)

    def block_counts(self, gaps: tf.Tensor, weights: tf.Tensor | None) -> BlockCounts:
        return self.block_sums(gaps, weights).counts


@named("pairwise_softmax")
class PairwiseSoftmax(LogKernel):
    r"""The kernel of PSL: :math:`f(t g)^{1/t}`, the exponential with a gentler ``f`` inside.

    ``f`` is ``1 + tanh(x)``, ``1 + atan(x)`` or ``1 + x``, clipped at 0. Each has a value and a
    slope of 1 at a tie, so that the kernel becomes ``exp(gap)`` as ``temperature`` goes to 0. Above
    a tie it stays below ``exp(gap)``: a negative far ahead of the positive, which may be a false
    negative, counts less than in softmax. With ``alpha=1`` this is the loss PSL.

    Args:
      activation: ``"tanh"``, ``"atan"`` or ``"relu"``.
      temperature: factor that turns a gap back into a difference of similarities, which ``f``
        expects to lie between -1 and 1: half the temperature that divides the cosines.

    With a temperature of 1 the kernel is ``f`` itself:

    >>> print(PairwiseSoftmax("relu", temperature=1.0)(tf.constant([-2.0, 0.0, 2.0])).numpy())
    [0. 1. 3.]

    References:
      Yang et al., *PSL: Rethinking and Improving Softmax Loss from Pairwise Perspective for
      Recommendation*, NeurIPS 2024.
    """

    vanishes_far_below = True

    ACTIVATIONS = ("tanh", "atan", "relu")

    def __init__(self, activation: str = "tanh", temperature: float = 0.05) -> None:
        self.activation = _checks.one_of("activation", activation, self.ACTIVATIONS)
        self.temperature = _checks.positive_number(
            "temperature",
            temperature,
            remedy="Use half the temperature that divides the cosines: 0.05 for the paper's tau "
            "of 10.",
        )

    def log_value(self, gaps: tf.Tensor) -> tf.Tensor:
        return self._logs(gaps)[0]

    def log_derivative(self, gaps: tf.Tensor) -> tf.Tensor:
        log_value, log_steepness = self._logs(gaps)
        return log_value + log_steepness

    def get_config(self) -> dict[str, Any]:
        return {"activation": self.activation, "temperature": self.temperature}

    def _logs(self, gaps: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The logarithms of the value, and of the derivative over the value."""
        inside = self.temperature * gaps
        if self.activation == "tanh":
            # 1 + tanh(x) is twice the sigmoid of 2 x.
            log_activation = math.log(2.0) - tf.math.softplus(-2.0 * inside)
            log_steepness = math.log(2.0) - tf.math.softplus(2.0 * inside)
            return log_activation / self.temperature, log_steepness
        if self.activation == "atan":
            activation = 1.0 + tf.math.atan(inside)
            log_slope = -tf.math.log1p(tf.square(tf.minimum(tf.abs(inside), _LARGE_SQUARE_ROOT)))
        else:
            activation = 1.0 + inside
            log_slope = tf.zeros_like(inside)
        above = activation > 0.0
        log_activation = tf.math.log(tf.where(above, activation, tf.ones_like(activation)))
        log_of_zero = tf.constant(_LOG_OF_ZERO, gaps.dtype)
        log_value = tf.where(above, log_activation / self.temperature, log_of_zero)
        log_steepness = tf.where(above, log_slope - log_activation, tf.zeros_like(gaps))
        return _keep_nan(log_value, gaps), log_steepness


@named("softplus")
class Softplus(ComparisonKernel):
    """``log(1 + exp(gap))``: the kernel of BPR."""

    derivative_kernel = Sigmoid()
    vanishes_far_below = True

    def __call__(self, gaps: tf.Tensor) -> tf.Tensor:
        return tf.math.softplus(gaps)

    def derivative(self, gaps: tf.Tensor) -> tf.Tensor:
        return tf.sigmoid(gaps)

    def value_and_derivative(self, gaps: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return self.block_values(gaps)

    def block_values(
        self, gaps: tf.Tensor, bound: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Both come from one exponential; the bound saves a pass over the gaps."""

        def of(exponential: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return tf.math.log1p(exponential), _sigmoid_of(exponential)

        def all_small() -> tf.Tensor:
            return tf.reduce_max(gaps) <= LARGE_GAP

        def with_large_gaps() -> tuple[tf.Tensor, tf.Tensor]:
            counts, slopes = of(tf.exp(tf.minimum(gaps, LARGE_GAP)))
            return tf.maximum(counts, gaps), slopes

        are_small = (
            all_small()
            if bound is None
            else tf.cond(bound <= LARGE_GAP, lambda: tf.constant(True), all_small)
        )
        return tf.cond(are_small, lambda: of(tf.exp(gaps)), with_large_gaps)


@named("unit_step")
class UnitStep(ComparisonKernel):
    """1 where a negative scores at least as high as the positive: the exact rank, no gradient."""

    has_gradient = False
    vanishes_far_below = True
    counts_first = True

    def __call__(self, gaps: tf.Tensor) -> tf.Tensor:
        return _keep_nan(tf.cast(gaps >= 0.0, gaps.dtype), gaps)

    def derivative(self, gaps: tf.Tensor) -> tf.Tensor:
        raise ValueError(
            "`kernel` should be differentiable. Received: UnitStep(), whose derivative is zero "
            "wherever it exists. Use it as `rank_kernel` of LambdaCROLoss, where no gradient is "
            "needed."
        )

    def block_counts(self, gaps: tf.Tensor, weights: tf.Tensor | None) -> BlockCounts:
        # The kernel that closes the gaps, which every loss has, propagates NaN.
        return BlockCounts(
            tf.reduce_sum(weighted(tf.cast(gaps >= 0.0, gaps.dtype), weights), axis=-1)
        )


def _keep_nan(values: tf.Tensor, source: tf.Tensor) -> tf.Tensor:
    """``values``, NaN where ``source`` is: comparisons alone would turn NaN into a number."""
    return tf.where(tf.math.is_nan(source), source, values)


def _sigmoid_of(exponential: tf.Tensor) -> tf.Tensor:
    """``x / (1 + x)`` in one operation: the soft sign, as x is not negative."""
    return tf.math.softsign(exponential)
