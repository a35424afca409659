"""Training a checkpoint from a recipe file."""
