"""Why a run cannot continue."""

import contextlib
import math
from collections.abc import Iterator

import tensorflow as tf

from towers.support import errors, tally


class TrainingError(errors.UserError):
    """The run cannot continue; the message is for the person at the keyboard."""


class NotFiniteEvaluationError(TrainingError):
    """The loss of an evaluation is NaN or Inf."""


@contextlib.contextmanager
def enough_memory() -> Iterator[None]:
    """Turns Python's and TensorFlow's errors about lacking memory into one line.

    Raises:
      TrainingError: there was such an error while this was entered.
    """
    try:
        yield
    except (tf.errors.ResourceExhaustedError, MemoryError) as error:
        raise TrainingError(
            "there is not enough memory for a batch; give a lower global_batch_size"
        ) from error


def check_evaluation(result: tally.Evaluation, expected_count: int) -> None:
    """Each example exactly once, not 10,112 for 10,000; and a loss that is a number.

    Raises:
      TrainingError: another number of examples was evaluated.
      NotFiniteEvaluationError: the loss is NaN or Inf.
    """
    if result.count != expected_count:
        raise TrainingError(f"evaluated {result.count} examples of a split of {expected_count}")
    if not math.isfinite(result.loss):
        raise NotFiniteEvaluationError(
            f"the loss of the evaluation is {result.loss}: the model's outputs are NaN or Inf"
        )
