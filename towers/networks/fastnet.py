"""A network for 90 % on CIFAR-10 in minutes: whitening, and three blocks of two convolutions.

The network of airbench94 (Jordan 2024, "94% on CIFAR-10 in 3.29 seconds on a single GPU",
arXiv:2404.00498), which goes back to Page 2019 ("How to train your ResNet"), with the activations
that are fast on a CPU: ReLU after the whitening, whose filters come in pairs of opposite sign, and
ELU after batch norm. Its batch norm begins with a scale of 1 / 0.3, and as the next batch norm
takes a factor out again this is the CELU of alpha = 0.3 (Barron 2017, arXiv:1704.07483) that Page's
recipe has, in one fused operation (after the last block, where no batch norm follows, LOGIT_SCALE
stands for the factor). GELU (Hendrycks and Gimpel 2016, arXiv:1606.08415) takes many.
"""

import keras
import numpy as np
import tensorflow as tf

from towers.networks import layers, seeds

BLOCK_FILTERS = (64, 256, 256)
CELU_ALPHA = 0.3
LOGIT_SCALE = 0.03  # so the last layer's weights are of a size that the optimizer's steps suit


def build(
    image_shape: tuple[int, int, int],
    num_classes: int,
    dtype: keras.DTypePolicy,
    seed: int,
    *,
    block_filters: tuple[int, ...] = BLOCK_FILTERS,
) -> keras.Model:
    """Builds the network; `adapt` must see some images before it is trained.

    Args:
      image_shape, num_classes, dtype, seed: as those of `Network.build`; images of mean about 0 and
        deviation about 1.
      block_filters: of the two convolutions in each block, which halves height and width.

    Raises:
      ValueError: nothing would be left of the images.
    """
    halved = 2 ** len(block_filters)
    if min(image_shape[:2]) < halved + 1:
        raise ValueError(
            f"images of {image_shape[0]} x {image_shape[1]} are too small for fastnet: it needs at "
            f"least {halved + 1} x {halved + 1}"
        )

    def convolution(x, filters, name):
        return keras.layers.Conv2D(
            filters,
            3,
            padding="same",
            use_bias=False,  # batch norm's offset does its work
            kernel_initializer=PartialIdentity(seeds.derive(seed, name)),
            kernel_constraint=UnitMeanSquareNorm(),
            name=name,
            dtype=dtype,
        )(x)

    def norm_elu(x, name):
        x = layers.FusedBatchNormalization(
            momentum=0.6,  # in a run of a few hundred steps
            epsilon=1e-6,
            gamma_initializer=keras.initializers.Constant(1 / CELU_ALPHA),
            name=f"{name}_norm",
            dtype=dtype,
        )(x)
        return keras.layers.Activation("elu", name=f"{name}_elu", dtype=dtype)(x)

    images = keras.Input(image_shape, name="images")
    x = layers.Whitening(name="whitening", dtype=dtype)(images)  # (n, height - 1, width - 1, 24)
    x = keras.layers.ReLU(name="whitening_relu", dtype=dtype)(x)
    for block, filters in enumerate(block_filters, start=1):
        x = convolution(x, filters, f"block{block}_conv1")
        x = keras.layers.MaxPooling2D(2, name=f"block{block}_pool", dtype=dtype)(x)
        x = norm_elu(x, f"block{block}_1")
        x = convolution(x, filters, f"block{block}_conv2")
        x = norm_elu(x, f"block{block}_2")
    x = keras.layers.GlobalMaxPooling2D(name="pool", dtype=dtype)(x)  # (n, filters)
    x = keras.layers.Rescaling(LOGIT_SCALE, name="rescaling", dtype=dtype)(x)
    logits = keras.layers.Dense(
        num_classes,
        use_bias=False,
        kernel_initializer=keras.initializers.RandomNormal(
            stddev=1 / (block_filters[-1] * LOGIT_SCALE), seed=seeds.derive(seed, "logits")
        ),
        name="logits",
        dtype=dtype,
    )(x)
    return keras.Model(images, logits, name="fastnet")


def adapt(model: keras.Model, images: np.ndarray) -> None:
    """Fits the whitening to preprocessed `images`, floating [n, height, width, channels]."""
    model.get_layer("whitening").adapt(images)


@keras.saving.register_keras_serializable(package="towers")
class PartialIdentity(keras.initializers.Initializer):
    """A convolution's first filters pass its input channels through; the others are random.

    Zagoruyko and Komodakis 2017 (arXiv:1706.00388) for the identity, Jordan 2024
    (arXiv:2404.00498) for the part. The random ones are uniform within +- 1 / sqrt(fan in).
    """

    def __init__(self, seed):
        self.seed = seed

    def __call__(self, shape, dtype=None):
        """A kernel of `shape`, (height, width, channels, filters)."""
        height, width, channels, filters = shape
        random = keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform", seed=self.seed)
        shared = min(channels, filters)
        identity = np.zeros((height, width, channels, shared))
        identity[height // 2, width // 2, range(shared), range(shared)] = 1.0
        kernel = random(shape, dtype)
        return tf.concat([tf.cast(identity, kernel.dtype), kernel[..., shared:]], axis=-1)

    def get_config(self):
        return {"seed": self.seed}


@keras.saving.register_keras_serializable(package="towers")
class UnitMeanSquareNorm(keras.constraints.Constraint):
    """Brings the mean square norm of a kernel's filters to 1 after each step.

    Batch norm makes the size of the filters immaterial, except that updates of one size turn large
    filters less: so the learning rate says by how much they turn (Jordan 2024, airbench94_muon),
    and weight decay has nothing to do on them.
    """

    def __call__(self, w):
        """`w`, [..., filters], times sqrt(filters) / norm(w)."""
        return w * (tf.sqrt(float(w.shape[-1])) * tf.math.rsqrt(tf.reduce_sum(tf.square(w))))
