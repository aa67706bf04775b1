"""What a comparison kernel is: its value, its derivative, and its sums over rows and blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tfrs_croloss.losses import _numeric

FAR_BELOW = -1e30
"""The gap of candidates that do not compete, in block forms: see ``vanishes_far_below``."""

LARGE_GAP = 60.0
"""Past this gap log(1 + exp(gap)) is the gap itself, and exp(gap) still fits float32."""


class BlockCounts(NamedTuple):
    """The soft counts of a block of candidates, summed over each row.

    Attributes:
      total: ``[num_rows]`` sums of ``weights * kernel(gaps)``, divided by ``exp(log_scale)``.
      log_scale: ``[num_rows]``, at least 0; None where the sums are not divided by anything.
    """

    total: tf.Tensor
    log_scale: tf.Tensor | None = None


class BlockSums(NamedTuple):
    """The contribution of a block of candidates to the ranks and to their slopes.

    Attributes:
      counts: the sums of the kernel.
      slopes: ``[num_rows, block_size]``: ``weights * derivative(gaps)``, divided by the
        exponential of ``counts.log_scale``.
      slope_sums: ``[num_rows]``: the slopes, summed over each row.
    """

    counts: BlockCounts
    slopes: tf.Tensor
    slope_sums: tf.Tensor


class ComparisonKernel:
    """The base class of comparison kernels.

    Subclasses define ``__call__``; ``derivative`` falls back on automatic differentiation. Both
    work element by element. To make a subclass fast, declare ``vanishes_far_below``.
    """

    has_gradient = True
    """Whether the kernel can close gaps; without a gradient it can only estimate ranks."""

    derivative_kernel: ComparisonKernel | None = None
    """The kernel that is the derivative of this one, if there is one."""

    vanishes_far_below = False
    """Whether the kernel and its derivative are exactly 0 at a gap of ``FAR_BELOW``.

    Candidates that do not compete then get this gap instead of a mask, so that losses can be
    computed block by block from ``block_sums``, without a matrix of all scores. Every class
    declares this for itself: it is not inherited. Without it, losses use masks and whole rows.
    """

    block_form_is_exact = True
    """Whether ``block_sums`` is as precise as the other methods even for very large gaps."""

    counts_first = False
    """Whether, as a rank kernel, it is summed before the kernel that closes the gaps.

    This suits kernels that are cheap: the memory of the gaps can then be reused.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "vanishes_far_below" not in vars(cls):
            cls.vanishes_far_below = False

    def __call__(self, gaps: tf.Tensor) -> tf.Tensor:
        """The soft count of each gap, in the shape of ``gaps``."""
        raise NotImplementedError(f"{type(self).__name__} should define `__call__(gaps)`.")

    def derivative(self, gaps: tf.Tensor) -> tf.Tensor:
        """The derivative of the kernel at each gap, in the shape of ``gaps``."""
        with tf.GradientTape() as tape:
            tape.watch(gaps)
            counts = self(gaps)
        slopes = tape.gradient(counts, gaps)
        if slopes is None:
            raise ValueError(
                f"`kernel` should be differentiable. Received: {self!r}, which has no gradient. "
                "Use it as `rank_kernel` of LambdaCROLoss, where none is needed."
            )
        return tf.ensure_shape(tf.convert_to_tensor(slopes), gaps.shape)

    def value_and_derivative(self, gaps: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The value and the derivative at each gap, which may share their work."""
        return self(gaps), self.derivative(gaps)

    def log1p_sum(self, gaps: tf.Tensor, valid: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """``log(1 + sum of weights * kernel(gaps))`` over the valid candidates of each row.

        Args:
          gaps: ``[num_queries, num_candidates]``; finite where not valid.
          valid: the same shape, booleans.
          weights: broadcastable to ``gaps``, above zero.

        Returns:
          ``[num_queries]``.
        """
        counts = tf.where(valid, weights * self(gaps), tf.zeros_like(gaps))
        return tf.math.log1p(_numeric.saturated(tf.reduce_sum(counts, axis=-1)))

    def block_values(
        self, gaps: tf.Tensor, bound: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """As ``value_and_derivative``, for gaps that may be ``FAR_BELOW``.

        Args:
          gaps: ``[num_rows, block_size]``.
          bound: a scalar that no gap is above, if one is known. It may save passes over the gaps.
        """
        return self.value_and_derivative(gaps)

    def block_sums(
        self, gaps: tf.Tensor, weights: tf.Tensor | None, bound: tf.Tensor | None = None
    ) -> BlockSums:
        """The sums over a block of candidates, for the kernel that closes the gaps.

        Args:
          gaps: ``[num_rows, block_size]``, ``FAR_BELOW`` where a candidate does not compete.
          weights: broadcastable to ``gaps``, or None where every candidate counts once.
          bound: a scalar that no gap is above, if one is known.
        """
        counts, slopes = (weighted(values, weights) for values in self.block_values(gaps, bound))
        slope_sums = tf.reduce_sum(slopes, axis=-1)
        return BlockSums(BlockCounts(tf.reduce_sum(counts, axis=-1)), slopes, slope_sums)

    def block_counts(self, gaps: tf.Tensor, weights: tf.Tensor | None) -> BlockCounts:
        """The counts of ``block_sums`` alone, for a kernel that only estimates ranks."""
        return BlockCounts(tf.reduce_sum(weighted(self(gaps), weights), axis=-1))

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ComparisonKernel:
        """The inverse of ``get_config``."""
        return cls(**config)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.get_config().items())
        return f"{type(self).__name__}({arguments})"


class LogKernel(ComparisonKernel):
    """A kernel whose values may not fit the type, so rows are summed in the log domain."""

    # Unless a subclass says otherwise, block forms sum the values themselves.
    block_form_is_exact = False

    def log_value(self, gaps: tf.Tensor) -> tf.Tensor:
        """The logarithm of the soft count of each gap."""
        raise NotImplementedError(f"{type(self).__name__} should define `log_value(gaps)`.")

    def log_derivative(self, gaps: tf.Tensor) -> tf.Tensor:
        """The logarithm of the derivative at each gap."""
        raise NotImplementedError(f"{type(self).__name__} should define `log_derivative(gaps)`.")

    def __call__(self, gaps: tf.Tensor) -> tf.Tensor:
        return _numeric.saturating_exp(self.log_value(gaps))

    def derivative(self, gaps: tf.Tensor) -> tf.Tensor:
        return _numeric.saturating_exp(self.log_derivative(gaps))

    def log1p_sum(self, gaps: tf.Tensor, valid: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        exponents = tf.where(valid, self.log_value(gaps) + tf.math.log(weights), gaps.dtype.min)
        largest = tf.maximum(tf.reduce_max(exponents, axis=-1, keepdims=True), 0.0)
        total = tf.reduce_sum(tf.exp(exponents - largest), axis=-1)
        largest = tf.squeeze(largest, axis=-1)
        # Where `largest` is 0 this is log1p(total), precise for small totals; elsewhere total >= 1.
        return largest + tf.math.log1p(total + tf.math.expm1(-largest))

    def scaled_derivative(
        self, gaps: tf.Tensor, weights: tf.Tensor, log_scale: tf.Tensor
    ) -> tf.Tensor:
        """``exp(log_scale) * weights * derivative(gaps)``, without intermediate overflow.

        Args:
          gaps: ``[num_queries, num_candidates]``.
          weights: broadcastable to ``gaps``.
          log_scale: ``[num_queries, 1]``.
        """
        return _numeric.saturating_exp(
            self.log_derivative(gaps) + (log_scale + tf.math.log(weights))
        )


def weighted(values: tf.Tensor, weights: tf.Tensor | None) -> tf.Tensor:
    """``values * weights``, where there are weights."""
    return values if weights is None else values * weights
