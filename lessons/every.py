"""All lessons, in the recommended order."""

import importlib

NAMES = (
    "averaging",
    "learning_rate",
    "losses",
    "graph",
    "batch_size",
    "scaling",
    "batch_norm",
    "final_model",
    "train_and_test_loss",
    "memory",
    "where_time_goes",
    "synchronous_or_not",
    "elastic_averaging",
    "museum",
)
LESSONS = tuple(importlib.import_module(f"lessons.{name}").LESSON for name in NAMES)
