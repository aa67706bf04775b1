"""A small server of SavedModels that speaks the protocols of TensorFlow Serving.

``savedmodel`` runs one version, ``batching`` puts concurrent requests together, ``models`` knows
which versions there are, ``rest`` and ``grpc_service`` translate, ``lifecycle`` starts and stops.
"""
