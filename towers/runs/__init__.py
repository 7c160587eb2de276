"""A run in its folder: the loop, checkpoints, the lock, logs and summaries, the final model."""
