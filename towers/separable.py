"""Whose loss is it, and when may it be cut?

Keras defines a loss over a batch. Where it is a plain mean over examples, the mean of the
microbatches' losses, weighted by their numbers of examples, is the same loss: each tower can
compute its own, as in the tutorial. Anything else is computed once, of the joined outputs.
"""

import keras
from keras import losses, tree

from keras.src import backend  # isort: skip
from keras.src.trainers import trainer as keras_trainer  # isort: skip
from keras.src.losses import losses as keras_losses  # isort: skip

# Functions of Keras's that give one number for each example, or place within one, from it alone.
# Not among them: dice and tversky (of the whole batch), circle (compares examples).
_OF_EXAMPLES = frozenset(
    {
        losses.binary_crossentropy, losses.binary_focal_crossentropy,
        losses.categorical_crossentropy, losses.categorical_focal_crossentropy,
        losses.categorical_generalized_cross_entropy, losses.categorical_hinge,
        losses.cosine_similarity, losses.ctc, losses.hinge, losses.huber, losses.kl_divergence,
        losses.log_cosh, losses.mean_absolute_error, losses.mean_absolute_percentage_error,
        losses.mean_squared_error, losses.mean_squared_logarithmic_error, losses.poisson,
        losses.sparse_categorical_crossentropy, losses.squared_hinge,
    }
)  # fmt: skip


def why_joined(model: keras.Model) -> str | None:
    """Why the loss of a batch is not known to be the mean of its microbatches' losses.

    Args:
      model: compiled, and its loss built.

    Returns:
      The reason in a few words; None where each tower may compute its own loss. A mask on an
      output is another reason, which shows when the model is called (`NotSeparable`).
    """
    if getattr(model.compute_loss, "__func__", None) is not keras_trainer.Trainer.compute_loss:
        return f"{type(model).__name__} has its own compute_loss"
    if model._compile_loss is None:
        return None
    for part in model._compile_loss._flat_losses:
        loss = part.loss
        name = getattr(loss, "name", None) or type(loss).__name__
        function = getattr(loss, "fn", None)
        is_kerass = isinstance(loss, keras_losses.LossFunctionWrapper) and function in _OF_EXAMPLES
        methods = type(loss).call, type(loss).__call__
        if not is_kerass or methods != (
            keras_losses.LossFunctionWrapper.call,
            losses.Loss.__call__,
        ):
            return f"{name} may compare examples"
        if loss.reduction not in ("sum_over_batch_size", "mean"):
            return f"{name} has reduction={loss.reduction!r}"
        if loss._fn_kwargs.get("ignore_class") is not None:
            return f"{name} ignores a class"
        if loss._fn_kwargs.get("axis", -1) != -1:
            return f"{name} is along axis {loss._fn_kwargs['axis']}"
    return None


class NotSeparable(Exception):
    """Raised while a microbatch is traced: a loss of its own would not be Keras's; says why."""


def check_outputs(outputs: object) -> None:
    """Checks that Keras's losses of the outputs are means over examples.

    Raises:
      NotSeparable: an output carries a mask, over which Keras takes the mean, or has no axis beside
        that of the examples, over which it takes it before it weights examples.
    """
    for output in tree.flatten(outputs):
        if backend.get_keras_mask(output) is not None:
            raise NotSeparable("an output has a mask")
        if output is not None and len(output.shape) < 2:
            raise NotSeparable("an output has one axis")
