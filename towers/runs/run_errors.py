"""Why a run cannot continue."""

import contextlib
import re
from collections.abc import Iterator

import tensorflow as tf

from towers import errors

_NOT_COMPILED = re.compile("Detected unsupported operations .*|Trying to access resource .*")


class TrainingError(errors.UserError):
    """The run cannot continue; the message is for the person at the keyboard."""


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Makes a TrainingError of one about lacking memory, or of what TensorFlow cannot compute."""
    try:
        yield
    except (tf.errors.ResourceExhaustedError, MemoryError) as error:
        raise TrainingError(
            "there is not enough memory for a batch; give a smaller one, or accumulate_gradients"
        ) from error
    except tf.errors.UnimplementedError as error:  # with --deterministic, by TensorFlow's words
        raise TrainingError(errors.reason(error)) from error
    except tf.errors.OpError as error:
        if (found := _NOT_COMPILED.search(error.message)) is None:
            raise
        raise TrainingError(
            "jit_compile=True: XLA cannot compile this model, its loss or its optimizer: "
            f"{found[0].strip()}"
        ) from error
