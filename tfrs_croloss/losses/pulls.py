r"""How strongly a positive is pulled, relative to how strongly its negatives are pushed away.

In every loss of the family, a negative is pushed away by :math:`\lambda \, \phi'(g_j)`, and the
positive is pulled by the sum of all these. With a pull :math:`\rho`, it is pulled by that share of
the sum. The value of the loss stays: it is the loss with the score of the positive s replaced by
:math:`\rho s + (1 - \rho) \, \mathrm{SG}[s]`, where SG stops the gradient.

Models of cosines have no place for popularity. If they pull a little less than they push, items
that are rarely a positive drift away from all queries, which makes one. A pull that is far too
small drives all queries to one point and all items to the opposite one; ``Pull`` therefore has a
least value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfrs_croloss import _checks, _keras

_LARGEST_SHARE = 2.0
_REMEDY = "1 is the loss of the paper; 0.85 to 1 is the useful range."


@tf.keras.utils.register_keras_serializable(package="tfrs_croloss")
class Pull:
    r"""The share of the push that pulls the positive, constant or less for worse ranks.

    .. math:: \rho(R) = \text{share} \cdot \max\Bigl(\frac{1}{1 + c \log R}, \text{least}\Bigr)

    where R is the rank of the positive by the kernel that closes the gaps, and c is the easing.

    Args:
      share: the pull of a positive that is ranked first; above 0 and at most 2.
      easing: c, at least 0; 0 is the same pull for every rank. 0.02 to 0.05 was best for matrix
        factorisation.
      least: lower bound of the part that depends on the rank, above 0 and at most 1. It keeps the
        model from collapsing, however large the easing is.

    At rank 100, the positive is pulled by ``1 / (1 + 0.05 * log(100))`` of the push:

    >>> print(f"{Pull(easing=0.05)(tf.math.log(100.0)):.4f}")
    0.8128
    """

    def __init__(self, share: float = 1.0, easing: float = 0.0, least: float = 0.8) -> None:
        self.share = _checks.positive_number("share", share, remedy=_REMEDY)
        self.easing = _checks.non_negative_number(
            "easing", easing, remedy="Start with 0.03; 0 is the same pull for every rank."
        )
        self.least = _checks.positive_number("least", least, remedy="Start with 0.8.")
        if self.share > _LARGEST_SHARE:
            raise ValueError(
                f"`share` should be at most {_LARGEST_SHARE:g}. Received: {share!r}. {_REMEDY}"
            )
        if self.least > 1.0:
            raise ValueError(
                f"`least` should be at most 1. Received: {least!r}. It bounds the part of the pull "
                "that depends on the rank."
            )

    @property
    def is_whole(self) -> bool:
        """Whether every positive is pulled as strongly as its negatives are pushed."""
        return self.share == 1.0 and self.easing == 0.0

    def __call__(self, log_rank: tf.Tensor) -> tf.Tensor:
        """The pull at ``exp(log_rank)``, in the same shape."""
        if self.easing == 0.0:
            return tf.fill(tf.shape(log_rank), tf.constant(self.share, log_rank.dtype))
        eased = 1.0 / (1.0 + self.easing * tf.maximum(log_rank, 0.0))
        return self.share * tf.maximum(eased, self.least)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {"share": self.share, "easing": self.easing, "least": self.least}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Pull:
        """The inverse of ``get_config``."""
        return cls(**config)

    def __repr__(self) -> str:
        return f"Pull(share={self.share:g}, easing={self.easing:g}, least={self.least:g})"


PullLike = float | Pull | Mapping[str, Any]
"""A number, which is the same pull for every rank, a ``Pull``, or its serialised form."""


def get(pull: PullLike) -> Pull:
    """The pull of a loss from its argument ``pull``."""
    if isinstance(pull, Pull):
        return pull
    if isinstance(pull, Mapping) and set(pull) == {"keras"}:
        restored = _keras.from_config(pull)
        if isinstance(restored, Pull):
            return restored
    if isinstance(pull, bool) or not isinstance(pull, (int, float)):
        raise ValueError(
            f"`pull` should be a number or a tfrs_croloss.losses.Pull. Received: {pull!r}. "
            "Write pull=0.9, or pull=Pull(easing=0.03) for a pull that depends on the rank."
        )
    if not 0.0 < pull <= _LARGEST_SHARE:
        raise ValueError(
            f"`pull` should be above 0 and at most {_LARGEST_SHARE:g}. Received: {pull!r}. "
            f"{_REMEDY}"
        )
    return Pull(pull)


def to_config(pull: Pull) -> float | dict[str, Any]:
    """A JSON-ready description: the number, or the serialised form."""
    if pull.get_config() == Pull(pull.share).get_config():
        return pull.share
    return _keras.to_config(pull)
