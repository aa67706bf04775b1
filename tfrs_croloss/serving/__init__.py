"""SavedModels that take item ids and return item ids, for any query tower and any index.

``Recommender`` combines a query tower, an index and the ids of the catalogue. ``save`` writes it as
a SavedModel with named signatures, which TensorFlow Serving can load.
"""

from __future__ import annotations

from tfrs_croloss.serving.recommender import Recommender, check_catalogue, save

__all__ = ["Recommender", "check_catalogue", "save"]
