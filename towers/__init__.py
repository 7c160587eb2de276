"""Synchronous data-parallel training on towers.

Importing this package also registers its layers with Keras, so that `keras.saving.load_model` reads
a `final_model.keras`, and silences TensorFlow's notices (noise.py says how to hear them). Loggers
keep the levels that they have. It is an ImportError where Keras's backend is not TensorFlow.
"""

from towers import backend, interrupts, noise

interrupts.end_commands_at_once()
backend.check()
noise.import_tensorflow()

from towers import (  # noqa: E402
    cluster,
    collectives,
    devices,
    gradients,
    layers,
    losses,
    models,
    optimizers,
    schedules,
)
from towers.evaluation import Evaluation  # noqa: E402
from towers.not_finite import NotFiniteError  # noqa: E402
from towers.trainer import Trainer  # noqa: E402

__all__ = [
    "Evaluation",
    "NotFiniteError",
    "Trainer",
    "cluster",
    "collectives",
    "devices",
    "gradients",
    "layers",
    "losses",
    "models",
    "optimizers",
    "schedules",
]
__version__ = "0.1.0"
