"""The tutorial's network, after Krizhevsky's cuda-convnet.

Layers, initial values and weight decay are those of tensorflow/models
`tutorials/image/cifar10/cifar10.py`: 1,068,298 weights for 24 x 24 x 3 images and 10 classes. The
first pooling comes before bias and ReLU, which is the same function in less time (layers.BiasRelu).
"""

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

    def normal(stddev: float, layer: str) -> keras.initializers.Initializer:
        return keras.initializers.TruncatedNormal(stddev=stddev, seed=seeds.of_layer(seed, layer))

    images = keras.Input(image_shape, name="images")
    x = _convolution("conv1", filters, normal(0.05, "conv1"), dtype)(images)
    x = _pool("pool1", dtype)(x)  # (n, height/2, width/2, filters)
    x = _bias_relu("relu1", 0.0, dtype)(x)  # after the pool: the same values, a quarter of the work
    x = _normalization("norm1", dtype)(x)
    x = _convolution("conv2", filters, normal(0.05, "conv2"), dtype)(x)
    x = _bias_relu("relu2", 0.1, dtype)(x)
    x = _normalization("norm2", dtype)(x)
    x = _pool("pool2", dtype)(x)  # (n, height/4, width/4, filters)
    x = keras.layers.Flatten(name="flatten", dtype=dtype)(x)
    x = _dense("local3", hidden_units[0], 0.1, normal(0.04, "local3"), dtype, "relu")(x)
    x = _dense("local4", hidden_units[1], 0.1, normal(0.04, "local4"), dtype, "relu")(x)
    last = normal(1 / hidden_units[1], "softmax_linear")
    logits = _dense("softmax_linear", num_classes, 0.0, last, dtype, None)(x)
    return keras.Model(images, logits, name="cifarnet")


def _convolution(name, filters, kernel_initializer, dtype):
    return keras.layers.Conv2D(
        filters,
        5,
        padding="same",
        use_bias=False,
        kernel_initializer=kernel_initializer,
        name=name,
        dtype=dtype,
    )


def _bias_relu(name, bias, dtype):
    initializer = keras.initializers.Constant(bias)
    return layers.BiasRelu(bias_initializer=initializer, name=name, dtype=dtype)


def _pool(name, dtype):
    return keras.layers.MaxPooling2D(3, strides=2, padding="same", name=name, dtype=dtype)


def _normalization(name, dtype):
    return layers.LocalResponseNormalization(
        depth_radius=4, bias=1.0, alpha=0.001 / 9.0, beta=0.75, name=name, dtype=dtype
    )


def _dense(name, units, bias, kernel_initializer, dtype, activation):
    return keras.layers.Dense(
        units,
        activation=activation,
        kernel_initializer=kernel_initializer,
        bias_initializer=keras.initializers.Constant(bias),
        name=name,
        dtype=dtype,
    )
