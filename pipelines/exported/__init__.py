"""Exported models: their folders, what is written beside the SavedModel, and how they are loaded."""
