"""Keras optimizers by name, with the options that the flags give."""

import re
from collections.abc import Sequence

import keras
import tensorflow as tf

from towers import devices

# The share of Muon's learning rate, for the weights that Adam updates.
MUON_ADAM_RATIO = 0.08


@keras.saving.register_keras_serializable(package="towers")
class Muon(keras.optimizers.Muon):
    """Muon (Jordan 2024, kellerjordan.github.io/posts/muon) for convolutions as well.

    A matrix moves by rate * U S' V', where U S V' is the singular value decomposition of its
    momentum and S' is about 1: a few Newton-Schulz iterations bring the larger singular values to
    between 0.5 and 1.5. Keras's class leaves all but matrices to Adam; here a convolution's kernel
    is the matrix [height * width * channels, filters]. Scales, biases, and what `exclude_layers`
    names, are Adam's, at `adam_lr_ratio` of the rate.
    """

    def _should_use_adamw(self, variable):
        if len(variable.shape) == 4:
            return any(re.search(pattern, variable.path) for pattern in self.exclude_layers)
        return super()._should_use_adamw(variable)

    def zeropower_via_newtonschulz5(self, x, steps):
        """U S' V' of `x`, seen as a matrix [all others, last dimension]; in the shape of `x`."""
        matrix = tf.reshape(x, [-1, x.shape[-1]])
        return tf.reshape(super().zeropower_via_newtonschulz5(matrix, steps), x.shape)


OPTIMIZERS: dict[str, type[keras.optimizers.Optimizer]] = {
    "sgd": keras.optimizers.SGD,
    "adam": keras.optimizers.Adam,
    "adamw": keras.optimizers.AdamW,
    "lion": keras.optimizers.Lion,
    "rmsprop": keras.optimizers.RMSprop,
    "muon": Muon,
}
# These shrink the weights directly (Loshchilov and Hutter 2019, arXiv:1711.05101); with all others
# weight decay is a term of the loss.
DECOUPLED_WEIGHT_DECAY = ("adamw", "lion", "muon")
WITH_MOMENTUM = ("sgd", "rmsprop", "muon")
WITH_NESTEROV = ("sgd", "muon")


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
    parameter_device: str | None = None,
) -> keras.optimizers.Optimizer:
    """Makes an optimizer; its learning rate is set at every step.

    Args:
      name: key of OPTIMIZERS.
      momentum: in [0, 1); only for WITH_MOMENTUM.
      nesterov: only for WITH_NESTEROV.
      clip_norm: largest global norm of the reduced gradients; 0 for no clipping. Keras clips in
        `apply`, which comes after the reduction over towers.
      weight_decay: decoupled coefficient; only for DECOUPLED_WEIGHT_DECAY.
      model: whose weights outside `decayed` are kept from decoupled weight decay, and whose last
        dense layer is kept from Muon.
      decayed: the weights that decay.
      loss_scaling: wraps the optimizer in Keras's dynamic loss scaling, for float16.
      parameter_device: of its rate and its count of steps; None for the CPU.

    Raises:
      ValueError: unknown `name`.
    """
    if name not in OPTIMIZERS:
        raise ValueError(f"optimizer={name!r}: must be one of {', '.join(OPTIMIZERS)}")
    options: dict[str, object] = {"learning_rate": 0.0, "global_clipnorm": clip_norm or None}
    if name in WITH_MOMENTUM:
        options["momentum"] = momentum
    if name in WITH_NESTEROV:
        options["nesterov"] = nesterov
    if name in DECOUPLED_WEIGHT_DECAY:
        options["weight_decay"] = weight_decay
    if name == "muon":
        layers = model.layers if model else []
        dense = [layer for layer in layers if isinstance(layer, keras.layers.Dense)]
        options |= {
            "adam_weight_decay": weight_decay,
            "adam_lr_ratio": MUON_ADAM_RATIO,
            "adam_beta_2": 0.99,
            "ns_steps": 3,
            "rms_rate": None,  # the update is U S' V' itself
            "exclude_layers": [f"^{re.escape(layer.path)}/" for layer in dense[-1:]],
        }
    with tf.device(parameter_device or devices.HOST):
        optimizer = OPTIMIZERS[name](**options)
        if name in DECOUPLED_WEIGHT_DECAY and model is not None:
            kept = set(map(id, decayed))
            optimizer.exclude_from_weight_decay(
                var_list=[v for v in model.trainable_variables if id(v) not in kept]
            )
        return keras.optimizers.LossScaleOptimizer(optimizer) if loss_scaling else optimizer
