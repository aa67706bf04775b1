"""What updates the weights, for tables of any size, and what averages them.

``LazyAdam`` updates only the rows of a table that occur in the batch. ``WeightAverage`` is a
callback that keeps a moving average of the weights, which often generalises better.
"""

from __future__ import annotations

from tfrs_croloss.optimizers.lazy_adam import LazyAdam
from tfrs_croloss.optimizers.weight_average import WeightAverage

__all__ = ["LazyAdam", "WeightAverage"]
