"""Exported models: their folders, what lies beside the SavedModel, and how they are loaded."""
