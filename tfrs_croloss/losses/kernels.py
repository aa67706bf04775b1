r"""Comparison kernels: how far a negative overtakes the positive.

A kernel :math:`\phi` turns the gap between a negative's score and the positive's into a soft count.
The soft rank is one plus the sum of these counts, so a kernel that is close to the unit step ranks
accurately, and one that grows with the gap pushes hard negatives down faster.

======================  ==============================  ====================================
name                    value                           derivative
======================  ==============================  ====================================
``hinge``               max(gap + margin, 0)            1 where gap > -margin, else 0
``sigmoid``             1 / (1 + exp(-gap))             sigmoid(gap) sigmoid(-gap)
``exponential``         exp(gap)                        exp(gap)
``softplus``            log(1 + exp(gap))               sigmoid(gap)
``unit_step``           1 where gap >= 0, else 0        none: only to estimate ranks
``pairwise_softmax``    f(t gap) ** (1 / t)             f'(t gap) f(t gap) ** (1 / t - 1)
======================  ==============================  ====================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Union

import tensorflow as tf

from tfrs_croloss import _checks, _keras
from tfrs_croloss.losses import _numeric

KernelLike = Union[str, Mapping[str, Any], "ComparisonKernel", Callable[[tf.Tensor], tf.Tensor]]
"""What the losses take for a kernel: a name, a name with options, an object or a function."""


# Its exponential is exactly zero, also after a large weight was added.
_LOG_OF_NOTHING = -1e30
# Its square still fits float32.
_LARGE_SQUARE_ROOT = 1e18
# Past this gap log(1 + exp(gap)) is the gap itself, and exp(gap) still fits float32.
LARGE_GAP = 60.0


def _sigmoid_of(exponential: tf.Tensor) -> tf.Tensor:
    """``x / (1 + x)``, in one operation: from zero on, that is what the soft sign is."""
    return tf.math.softsign(exponential)


class ComparisonKernel:
    """A comparison kernel.

    Subclasses give ``__call__``; ``derivative`` falls back on automatic differentiation. Both work
    element by element.
    """

    has_gradient = True
    derivative_kernel: ComparisonKernel | None = None
    """The kernel that this one's derivative is, if it is one."""

    def __call__(self, gaps: tf.Tensor) -> tf.Tensor:
        """The soft count of each gap, same shape as ``gaps``."""
        raise NotImplementedError(f"{type(self).__name__} should define `__call__(gaps)`.")

    def derivative(self, gaps: tf.Tensor) -> tf.Tensor:
        """The derivative of the kernel at each gap, same shape as ``gaps``."""
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
        """Both, sharing what they have in common."""
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
        return tf.math.log1p(tf.reduce_sum(counts, axis=-1))

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


class Hinge(ComparisonKernel):
    """``max(gap + margin, 0)``: the kernel of the triplet loss.

    >>> print(Hinge(margin=1.0)(tf.constant([-2.0, 0.0, 3.0])).numpy())
    [0. 1. 4.]
    """

    def __init__(self, margin: float = 5.0) -> None:
        self.margin = _checks.non_negative_number(
            "margin", margin, remedy="The paper uses 5 with scores of 10 times the cosine."
        )

    def __call__(self, gaps: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(gaps + self.margin)

    def derivative(self, gaps: tf.Tensor) -> tf.Tensor:
        slopes = tf.cast(gaps + self.margin > 0.0, gaps.dtype)
        return _keep_nan(slopes, gaps)

    def get_config(self) -> dict[str, Any]:
        return {"margin": self.margin}


class Sigmoid(ComparisonKernel):
    """``1 / (1 + exp(-gap))``: the smooth unit step, and the most faithful rank."""

    def __call__(self, gaps: tf.Tensor) -> tf.Tensor:
        return tf.sigmoid(gaps)

    def derivative(self, gaps: tf.Tensor) -> tf.Tensor:
        return self.value_and_derivative(gaps)[1]

    def value_and_derivative(
        self, gaps: tf.Tensor, bound: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Both from one exponential, and both to the last digits wherever they are small.

        Args:
          gaps: of any shape.
          bound: a scalar that no gap is above, if one is known: it may spare two passes.
        """

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


class LogKernel(ComparisonKernel):
    """A kernel that may outgrow its type, given and summed in the log domain."""

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
        """``exp(log_scale) * weights * derivative(gaps)``, without overflow on the way.

        Args:
          gaps: ``[num_queries, num_candidates]``.
          weights: broadcastable to ``gaps``.
          log_scale: ``[num_queries, 1]``.
        """
        return _numeric.saturating_exp(
            self.log_derivative(gaps) + (log_scale + tf.math.log(weights))
        )


class Exponential(LogKernel):
    """``exp(gap)``: the kernel of softmax cross-entropy; summed in the log domain."""

    def log_value(self, gaps: tf.Tensor) -> tf.Tensor:
        return gaps

    def log_derivative(self, gaps: tf.Tensor) -> tf.Tensor:
        return gaps


class PairwiseSoftmax(LogKernel):
    r"""The kernel of PSL: :math:`f(t g)^{1/t}`, the exponential with a gentler ``f`` inside.

    ``f`` is ``1 + tanh(x)``, ``1 + atan(x)`` or ``1 + x``, each 0 where it would be below 0. All
    are 1 and rise by 1 at a tie, so that every one becomes ``exp(gap)`` as ``temperature`` goes to
    0, and ahead of a tie they stay below it: a negative far ahead of the positive, which may be no
    negative at all, counts less than in softmax. With ``alpha=1`` this is the loss PSL.

    Args:
      activation: ``"tanh"``, ``"atan"`` or ``"relu"``.
      temperature: what turns a gap back into a difference of similarities, which ``f`` expects to
        be from -1 to 1: half the temperature that divides cosines.

    With a temperature of 1 the three are ``f`` themselves:

    >>> print(PairwiseSoftmax("relu", temperature=1.0)(tf.constant([-2.0, 0.0, 2.0])).numpy())
    [0. 1. 3.]

    References:
      Yang et al., *PSL: Rethinking and Improving Softmax Loss from Pairwise Perspective for
      Recommendation*, NeurIPS 2024.
    """

    ACTIVATIONS = ("tanh", "atan", "relu")

    def __init__(self, activation: str = "tanh", temperature: float = 0.05) -> None:
        self.activation = _checks.one_of("activation", activation, self.ACTIVATIONS)
        self.temperature = _checks.positive_number(
            "temperature",
            temperature,
            remedy="Use half of what divides the cosines: 0.05 for the paper's tau of 10.",
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
        nothing = tf.constant(_LOG_OF_NOTHING, gaps.dtype)
        log_value = tf.where(above, log_activation / self.temperature, nothing)
        log_steepness = tf.where(above, log_slope - log_activation, tf.zeros_like(gaps))
        return _keep_nan(log_value, gaps), log_steepness


class Softplus(ComparisonKernel):
    """``log(1 + exp(gap))``: the kernel of BPR."""

    derivative_kernel = Sigmoid()

    def __call__(self, gaps: tf.Tensor) -> tf.Tensor:
        return tf.math.softplus(gaps)

    def derivative(self, gaps: tf.Tensor) -> tf.Tensor:
        return tf.sigmoid(gaps)

    def value_and_derivative(
        self, gaps: tf.Tensor, bound: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Both from one exponential.

        Args:
          gaps: of any shape.
          bound: a scalar that no gap is above, if one is known: it spares a pass over the gaps.
        """

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


class UnitStep(ComparisonKernel):
    """1 where a negative scores at least as high as the positive: the exact rank, no gradient."""

    has_gradient = False

    def __call__(self, gaps: tf.Tensor) -> tf.Tensor:
        return _keep_nan(tf.cast(gaps >= 0.0, gaps.dtype), gaps)

    def derivative(self, gaps: tf.Tensor) -> tf.Tensor:
        raise ValueError(
            "`kernel` should be differentiable. Received: UnitStep(), whose derivative is zero "
            "wherever it exists. Use it as `rank_kernel` of LambdaCROLoss, where no gradient is "
            "needed."
        )


class FunctionKernel(ComparisonKernel):
    """Any function of the gaps as a kernel, differentiated automatically."""

    def __init__(self, function: Callable[[tf.Tensor], tf.Tensor]) -> None:
        self.function = function

    def __call__(self, gaps: tf.Tensor) -> tf.Tensor:
        counts = tf.convert_to_tensor(self.function(gaps))
        if not counts.shape.is_compatible_with(gaps.shape):
            raise ValueError(
                "`kernel` should work element by element. Received: a function that maps shape "
                f"{gaps.shape} to {counts.shape}. Return one value for every gap."
            )
        return tf.ensure_shape(tf.cast(counts, gaps.dtype), gaps.shape)

    def get_config(self) -> dict[str, Any]:
        return {"function": self.function}


BUILT_IN: dict[str, type[ComparisonKernel]] = {
    "hinge": Hinge,
    "sigmoid": Sigmoid,
    "exponential": Exponential,
    "softplus": Softplus,
    "unit_step": UnitStep,
    "pairwise_softmax": PairwiseSoftmax,
}
"""The kernels that have a name."""


def get(kernel: KernelLike, *, argument: str = "kernel", gradient: bool = True) -> ComparisonKernel:
    """The kernel that ``kernel`` stands for.

    Args:
      kernel: a name of ``BUILT_IN``; a mapping with that ``name`` and its options; a
        ``ComparisonKernel``; or a function of the gaps.
      argument: the name that errors call it by.
      gradient: whether the kernel must have a gradient.

    >>> get({"name": "hinge", "margin": 2.0})
    Hinge(margin=2.0)
    """
    result = _resolve(kernel, argument)
    if gradient and not result.has_gradient:
        raise ValueError(
            f"`{argument}` should be differentiable. Received: {result!r}, which has no gradient. "
            "Use it as `rank_kernel` of LambdaCROLoss, or choose one of "
            f"{sorted(name for name, kind in BUILT_IN.items() if kind.has_gradient)}."
        )
    return result


def _resolve(kernel: KernelLike, argument: str) -> ComparisonKernel:
    if isinstance(kernel, ComparisonKernel):
        return kernel
    if isinstance(kernel, str):
        return _by_name(kernel, {}, argument)
    if isinstance(kernel, Mapping) and set(kernel) == {"keras"}:
        return _resolve(_keras.from_config(kernel), argument)
    if isinstance(kernel, Mapping):
        options = dict(kernel)
        name = options.pop("name", None)
        return _by_name(name, options, argument)
    if isinstance(kernel, type) and issubclass(kernel, ComparisonKernel):
        raise ValueError(
            f"`{argument}` should be a kernel, not a class. Received: {kernel.__name__}. Write "
            f"{kernel.__name__}()."
        )
    if callable(kernel):
        return FunctionKernel(kernel)
    raise ValueError(
        f"`{argument}` should be one of {sorted(BUILT_IN)}, a mapping with that name and options, "
        f"a ComparisonKernel or a function of the gaps. Received: {kernel!r}."
    )


def _by_name(name: Any, options: dict[str, Any], argument: str) -> ComparisonKernel:
    if not isinstance(name, str) or name not in BUILT_IN:
        raise ValueError(
            f"`{argument}` should name one of {sorted(BUILT_IN)}. Received: {name!r}. For a kernel "
            "of your own pass the function itself."
        )
    try:
        return BUILT_IN[name](**options)
    except TypeError as error:
        raise ValueError(
            f"`{argument}` should give {name!r} options that it has. Received: {options!r} "
            f"({error})."
        ) from error


def to_config(kernel: ComparisonKernel) -> dict[str, Any]:
    """A JSON-ready description of ``kernel`` that ``get`` takes.

    Built-in kernels become a mapping with their name and options; others go through Keras.
    """
    for name, kind in BUILT_IN.items():
        if type(kernel) is kind:
            return {"name": name, **kernel.get_config()}
    custom = kernel.function if isinstance(kernel, FunctionKernel) else kernel
    return _keras.to_config(custom)


def _keep_nan(values: tf.Tensor, source: tf.Tensor) -> tf.Tensor:
    """``values``, NaN where ``source`` is: comparisons alone would turn NaN into a number."""
    return tf.where(tf.math.is_nan(source), source, values)
