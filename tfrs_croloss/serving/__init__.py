"""SavedModels that take ids and answer with ids, over any index.

``Recommender`` joins a query tower, an index and the catalogue's ids, and ``save`` writes it as a
SavedModel with named signatures, which TensorFlow Serving loads.
"""

from __future__ import annotations

from tfrs_croloss.serving.recommender import Recommender, check_catalogue, save

__all__ = ["Recommender", "check_catalogue", "save"]
