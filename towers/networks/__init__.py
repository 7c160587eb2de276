"""The networks that `--model` names. Any other Keras model can be trained as well."""

import dataclasses
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from towers import devices, weight_decay
from towers.networks import cifarnet, fastnet, resnet, resnet50
from towers.networks.fusing import fused as fused


@dataclasses.dataclass(frozen=True)
class Network:
    """A network and what goes with it.

    Attributes:
      build: (image_shape, num_classes, dtype, seed) to a Keras model of images, floating [n,
        height, width, channels], to logits [n, num_classes]; `dtype` is the policy of all layers,
        `seed` that of the initial weights.
      weight_decay: default coefficient.
      decayed: the weights of such a model that decay.
      preprocessing: default name of the input pipeline's preprocessing.
      adapt: (model, images) fits what is not trained to preprocessed training images, before the
        first step; None where there is nothing to fit.
    """

    build: Callable[[tuple[int, int, int], int, keras.DTypePolicy, int], keras.Model]
    weight_decay: float
    decayed: Callable[[keras.Model], list[keras.Variable]]
    preprocessing: str
    adapt: Callable[[keras.Model, np.ndarray], None] | None = None


NETWORKS: dict[str, Network] = {
    "cifarnet": Network(
        cifarnet.build, 0.004, weight_decay.hidden_dense_kernels, "crop_flip_colour"
    ),
    "resnet": Network(resnet.build, 1e-4, weight_decay.kernels, "pad_crop_flip"),
    "resnet50": Network(resnet50.build, 1e-4, weight_decay.kernels, "random_resized_crop"),
    "fastnet": Network(
        fastnet.build, 0.0, weight_decay.kernels, "shift_alternating_flip", fastnet.adapt
    ),
}

# Weights are float32 in all of them; what changes is the type that layers compute in.
DTYPE_POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


def build(
    name: str | Network,
    image_shape: tuple[int, int, int],
    num_classes: int,
    *,
    compute_dtype: str = "float32",
    seed: int = 0,
    parameter_device: str | None = None,
) -> keras.Model:
    """Builds a network.

    Where `NETWORKS[name].adapt` is not None, it must see training images before the first step.

    Args:
      name: key of NETWORKS, or a network itself.
      image_shape: (height, width, channels) after preprocessing.
      num_classes: number of logits.
      compute_dtype: key of DTYPE_POLICIES.
      seed: of the initial weights.
      parameter_device: where its variables are made; None for the CPU.

    Raises:
      ValueError: unknown `name` or `compute_dtype`, or images too small for the network.
    """
    if isinstance(name, str) and name not in NETWORKS:
        raise ValueError(f"model={name!r}: must be one of {', '.join(NETWORKS)}")
    network = NETWORKS[name] if isinstance(name, str) else name
    if compute_dtype not in DTYPE_POLICIES:
        raise ValueError(f"compute_dtype={compute_dtype!r}: must be in {[*DTYPE_POLICIES]}")
    if min(image_shape) < 1:
        raise ValueError(f"images of {list(image_shape)} after preprocessing are too small")
    policy = keras.DTypePolicy(DTYPE_POLICIES[compute_dtype])
    with tf.device(devices.HOST):  # whose draws are the same for every run of a seed
        model = network.build(image_shape, num_classes, policy, seed)
    if parameter_device in (None, devices.HOST):
        return model
    with tf.device(parameter_device):
        there = network.build(image_shape, num_classes, policy, seed)
    there.set_weights(model.get_weights())
    return there
