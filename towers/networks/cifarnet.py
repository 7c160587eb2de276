"""The tutorial's network, after Krizhevsky's cuda-convnet.

Layers, initial values and weight decay are those of tensorflow/models
`tutorials/image/cifar10/cifar10.py`: 1,068,298 weights for 24 x 24 x 3 images and 10 classes. The
first pooling comes before bias and ReLU, which is the same function in less time (layers.BiasRelu).
"""

import functools

import keras

from towers.networks import layers, seeds


def build(
    image_shape: tuple[int, int, int],
    num_classes: int,
    dtype: keras.DTypePolicy,
    seed: int,
    *,
    filters: int = 64,
    hidden_units: tuple[int, int] = (384, 192),
) -> keras.Model:
    """Builds the network.

    Args:
      image_shape, num_classes, dtype, seed: as those of `Network.build`; standardized images.
      filters: of both convolutions.
      hidden_units: of the two hidden dense layers.
    """
    constant = keras.initializers.Constant
    pool = functools.partial(keras.layers.MaxPooling2D, 3, strides=2, padding="same", dtype=dtype)
    normalization = functools.partial(
        layers.LocalResponseNormalization,
        depth_radius=4, bias=1.0, alpha=0.001 / 9.0, beta=0.75, dtype=dtype,
    )  # fmt: skip

    def normal(stddev: float, layer: str) -> keras.initializers.Initializer:
        return keras.initializers.TruncatedNormal(stddev=stddev, seed=seeds.derive(seed, layer))

    def convolution(name):
        kernel = normal(0.05, name)
        return keras.layers.Conv2D(
            filters, 5, padding="same", use_bias=False, kernel_initializer=kernel, name=name,
            dtype=dtype,
        )  # fmt: skip

    def dense(name, units, stddev, bias, activation=None):
        kernel = normal(stddev, name)
        return keras.layers.Dense(
            units, activation, kernel_initializer=kernel, bias_initializer=constant(bias),
            name=name, dtype=dtype,
        )  # fmt: skip

    images = keras.Input(image_shape, name="images")
    x = convolution("conv1")(images)
    x = pool(name="pool1")(x)  # (n, height/2, width/2, filters)
    # After the pool, which leaves the same values and a quarter of the work.
    x = layers.BiasRelu(constant(0.0), name="relu1", dtype=dtype)(x)
    x = normalization(name="norm1")(x)
    x = convolution("conv2")(x)
    x = layers.BiasRelu(constant(0.1), name="relu2", dtype=dtype)(x)
    x = normalization(name="norm2")(x)
    x = pool(name="pool2")(x)  # (n, height/4, width/4, filters)
    x = keras.layers.Flatten(name="flatten", dtype=dtype)(x)
    x = dense("local3", hidden_units[0], 0.04, 0.1, "relu")(x)
    x = dense("local4", hidden_units[1], 0.04, 0.1, "relu")(x)
    logits = dense("softmax_linear", num_classes, 1 / hidden_units[1], 0.0)(x)
    return keras.Model(images, logits, name="cifarnet")
