"""Kernels by name, as functions, and in configurations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import tensorflow as tf

from tfrs_croloss import _keras
from tfrs_croloss.losses.kernels.base import FAR_BELOW, ComparisonKernel

KernelLike = str | Mapping[str, Any] | ComparisonKernel | Callable[[tf.Tensor], tf.Tensor]
"""What losses accept as a kernel: a name, a name with options, an object or a function."""

NAMED: dict[str, type[ComparisonKernel]] = {}
"""The kernels that can be given by name; ``named`` adds to them."""

_Kernel = TypeVar("_Kernel", bound="ComparisonKernel")


def named(name: str) -> Callable[[type[_Kernel]], type[_Kernel]]:
    """Class decorator that lets a kernel be given by name, and saved by name.

    Args:
      name: the name, as in ``kernel="softplus"``.
    """

    def register(kind: type[_Kernel]) -> type[_Kernel]:
        taken = NAMED.get(name)
        if taken is not None and (taken.__module__, taken.__qualname__) != (
            kind.__module__,
            kind.__qualname__,
        ):
            raise ValueError(
                f"`name` should be a name that no other kernel has. Received: {name!r}, which is "
                f"{taken.__module__}.{taken.__qualname__}. Choose another name."
            )
        NAMED[name] = kind
        return kind

    return register


class FunctionKernel(ComparisonKernel):
    """Any function of the gaps as a kernel, differentiated automatically.

    Args:
      function: maps gaps of any shape to soft counts of the same shape.
    """

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


def get(kernel: KernelLike, *, argument: str = "kernel", gradient: bool = True) -> ComparisonKernel:
    """The kernel that ``kernel`` stands for.

    Args:
      kernel: a name in ``NAMED``; a mapping with such a ``name`` and options; a
        ``ComparisonKernel``; or a function of the gaps.
      argument: name of the argument in error messages.
      gradient: whether the kernel must have a gradient.

    >>> get({"name": "hinge", "margin": 2.0})
    Hinge(margin=2.0)
    """
    result = _resolve(kernel, argument)
    if gradient and not result.has_gradient:
        raise ValueError(
            f"`{argument}` should be differentiable. Received: {result!r}, which has no gradient. "
            "Use it as `rank_kernel` of LambdaCROLoss, or choose one of "
            f"{sorted(name for name, kind in NAMED.items() if kind.has_gradient)}."
        )
    if result.vanishes_far_below and not type(result).__module__.startswith(f"{__package__}."):
        _check_that_it_vanishes(result, argument)
    return result


def _check_that_it_vanishes(kernel: ComparisonKernel, argument: str) -> None:
    """Raises if a class declares ``vanishes_far_below`` wrongly, which would give wrong losses."""
    values: tuple[tf.Tensor, ...]
    if tf.executing_eagerly() and kernel.has_gradient:
        values = kernel.block_values(tf.constant([[FAR_BELOW]]))
    else:
        # Nothing can be differentiated where the scope of a `tf.function` is left.
        with tf.init_scope():
            if not tf.executing_eagerly():
                return
            values = (kernel(tf.constant([[FAR_BELOW]])),)
    numbers = [value.numpy().item() for value in values]
    if any(number != 0.0 for number in numbers):
        raise ValueError(
            f"`{argument}` should be exactly 0, with a derivative of 0, at a gap of "
            f"{FAR_BELOW:g}, as its class declares by `vanishes_far_below`. Received: "
            f"{kernel!r}, which gives {numbers}. Remove the declaration, or clip the gaps."
        )


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
        f"`{argument}` should be one of {sorted(NAMED)}, a mapping with that name and options, "
        f"a ComparisonKernel or a function of the gaps. Received: {kernel!r}."
    )


def _by_name(name: Any, options: dict[str, Any], argument: str) -> ComparisonKernel:
    if not isinstance(name, str) or name not in NAMED:
        raise ValueError(
            f"`{argument}` should name one of {sorted(NAMED)}. Received: {name!r}. For a kernel "
            "of your own, pass the function or object itself, or import the module that names it."
        )
    try:
        return NAMED[name](**options)
    except TypeError as error:
        raise ValueError(
            f"`{argument}` should have options that {name!r} accepts. Received: {options!r} "
            f"({error})."
        ) from error


def to_config(kernel: ComparisonKernel) -> dict[str, Any]:
    """A JSON-ready description of ``kernel`` that ``get`` accepts.

    Named kernels become a mapping with their name and options; others are serialised by Keras.
    """
    for name, kind in NAMED.items():
        if type(kernel) is kind:
            return {"name": name, **kernel.get_config()}
    custom = kernel.function if isinstance(kernel, FunctionKernel) else kernel
    return _keras.to_config(custom)
