"""Why a run cannot continue."""

import contextlib
import re
from collections.abc import Iterator

import tensorflow as tf

from towers import errors, updating

_NOT_COMPILED = re.compile("Detected unsupported operations .*|Trying to access resource .*")


class TrainingError(errors.UserError):
    """The run cannot continue; the message is for the person at the keyboard."""


@contextlib.contextmanager
def explained(what: str = "a step") -> Iterator[None]:
    """Makes a TrainingError of one about memory, NaN or Inf, or what TensorFlow cannot compute."""
    try:
        yield
    except (tf.errors.ResourceExhaustedError, MemoryError) as error:
        raise TrainingError(
            "there is not enough memory for a batch; give a smaller one, or accumulate_gradients"
        ) from error
    except tf.errors.UnimplementedError as error:  # with --deterministic, by TensorFlow's words
        raise TrainingError(errors.reason(error)) from error
    except tf.errors.OpError as error:
        if updating.is_from_check(error):
            raise TrainingError(
                f"{what}: a loss or a gradient is NaN or Inf; the step was not applied. A lower "
                "learning rate, clipped gradients or a wider type may help"
            ) from error
        if (match := _NOT_COMPILED.search(error.message)) is None:
            raise
        raise TrainingError(
            "jit_compile=True: XLA cannot compile this model, its loss or its optimizer: "
            f"{match[0].strip()}"
        ) from error
