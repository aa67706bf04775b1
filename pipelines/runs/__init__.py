"""A training run: its settings, its loss and model, its folder, checkpoints and ranks."""
