"""Training from the cache: data, losses, objectives, the trainer, evaluation and reports."""
