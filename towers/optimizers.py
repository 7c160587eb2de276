"""Keras optimizers by name, with the options that the flags give."""

from collections.abc import Sequence

import keras

OPTIMIZERS: dict[str, type[keras.optimizers.Optimizer]] = {
    "sgd": keras.optimizers.SGD,
    "adam": keras.optimizers.Adam,
    "adamw": keras.optimizers.AdamW,
    "lion": keras.optimizers.Lion,
    "rmsprop": keras.optimizers.RMSprop,
}
# These shrink the weights directly (Loshchilov and Hutter 2019, arXiv:1711.05101); with all others
# weight decay is a term of the loss.
DECOUPLED_WEIGHT_DECAY = ("adamw", "lion")
WITH_MOMENTUM = ("sgd", "rmsprop")
WITH_NESTEROV = ("sgd",)


def make(
    name: str,
    *,
    momentum: float = 0.0,
    nesterov: bool = False,
    clip_norm: float = 0.0,
    weight_decay: float = 0.0,
    model: keras.Model | None = None,
    decayed: Sequence[keras.Variable] = (),
    loss_scaling: bool = False,
) -> keras.optimizers.Optimizer:
    """Makes an optimizer; its learning rate is set at every step.

    Args:
      name: key of OPTIMIZERS.
      momentum: in [0, 1); only for WITH_MOMENTUM.
      nesterov: only for WITH_NESTEROV.
      clip_norm: largest global norm of the reduced gradients; 0 for no clipping. Keras clips in
        `apply`, which comes after the reduction over towers.
      weight_decay: decoupled coefficient; only for DECOUPLED_WEIGHT_DECAY.
      model: whose weights outside `decayed` are kept from decoupled weight decay.
      decayed: the weights that decay.
      loss_scaling: wraps the optimizer in Keras's dynamic loss scaling, for float16.

    Raises:
      ValueError: unknown `name`.
    """
    if name not in OPTIMIZERS:
        raise ValueError(f"optimizer={name!r}: must be one of {', '.join(OPTIMIZERS)}")
    options = {"learning_rate": 0.0, "global_clipnorm": clip_norm or None}
    if name in WITH_MOMENTUM:
        options["momentum"] = momentum
    if name in WITH_NESTEROV:
        options["nesterov"] = nesterov
    if name in DECOUPLED_WEIGHT_DECAY:
        options["weight_decay"] = weight_decay
    optimizer = OPTIMIZERS[name](**options)
    if name in DECOUPLED_WEIGHT_DECAY and model is not None:
        kept = {id(variable) for variable in decayed}
        optimizer.exclude_from_weight_decay(
            var_list=[v for v in model.trainable_variables if id(v) not in kept]
        )
    return keras.optimizers.LossScaleOptimizer(optimizer) if loss_scaling else optimizer
