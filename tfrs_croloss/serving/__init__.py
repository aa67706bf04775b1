"""SavedModels that return the best items for a query, for any retrieval model and any index.

``export`` writes a model as the next version of a SavedModel: it measures the index, keeps the
recall target or refuses, and checks the result in a fresh process. ``History`` and ``KnownIds`` are
query features with rules for unknown ids, and ``WithDefault`` may be left out of a request.
``export_vectors`` writes vectors for other engines.

``Recommender`` and ``save`` are the pieces: a query model, an index and the ids of the catalogue as
a module with named signatures, and the SavedModel of it. ``write_manifest`` lists its files, and
``check_manifest`` tells whether a copy is whole.
"""

from __future__ import annotations

from tfrs_croloss.serving.engines import ExportedVectors, export_vectors
from tfrs_croloss.serving.errors import ExportError
from tfrs_croloss.serving.features import History, KnownIds, WithDefault
from tfrs_croloss.serving.manifest import ManifestError, check_manifest, write_manifest
from tfrs_croloss.serving.publish import Exported, export
from tfrs_croloss.serving.recommender import Recommender, check_catalogue, save
from tfrs_croloss.serving.vector_files import EngineUnavailable

__all__ = [
    "EngineUnavailable",
    "ExportError",
    "Exported",
    "ExportedVectors",
    "History",
    "KnownIds",
    "ManifestError",
    "Recommender",
    "WithDefault",
    "check_catalogue",
    "check_manifest",
    "export",
    "export_vectors",
    "save",
    "write_manifest",
]
