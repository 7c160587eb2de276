"""A small residual network with batch norm, for 32 x 32 images.

He, Zhang, Ren and Sun 2015 (arXiv:1512.03385, section 4.2) with n = 3 blocks a stage: 20 layers.
Where a stage changes the shape the shortcut is a 1 x 1 convolution (their option B).
"""

import functools

import keras

from towers.networks import layers, seeds

STAGE_FILTERS = (16, 32, 64)


def build(
    image_shape: tuple[int, int, int],
    num_classes: int,
    dtype: keras.DTypePolicy,
    seed: int,
    *,
    blocks_per_stage: int = 3,
) -> keras.Model:
    """Builds the network.

    Args:
      image_shape, num_classes, dtype, seed: as those of `Network.build`; standardized images.
      blocks_per_stage: residual blocks of two convolutions in each of three stages.
    """

    def he_normal(layer):
        return keras.initializers.HeNormal(seed=seeds.derive(seed, layer))

    def relu(x, name):
        return keras.layers.ReLU(name=name, dtype=dtype)(x)

    convolution = functools.partial(normalized_convolution, initializer=he_normal, dtype=dtype)
    images = keras.Input(image_shape, name="images")
    x = relu(convolution(images, STAGE_FILTERS[0], 3, 1, "conv1"), "conv1_relu")
    for stage, filters in enumerate(STAGE_FILTERS, start=1):
        for block in range(1, blocks_per_stage + 1):
            name = f"stage{stage}_block{block}"
            strides = 2 if stage > 1 and block == 1 else 1  # halves height and width
            shortcut = x
            if strides > 1:
                shortcut = convolution(x, filters, 1, strides, f"{name}_shortcut")
            x = relu(convolution(x, filters, 3, strides, f"{name}_conv1"), f"{name}_relu1")
            x = convolution(x, filters, 3, 1, f"{name}_conv2")
            x = keras.layers.Add(name=f"{name}_add", dtype=dtype)([x, shortcut])
            x = relu(x, f"{name}_relu2")
    x = keras.layers.GlobalAveragePooling2D(name="pool", dtype=dtype)(x)  # (n, filters)
    logits = keras.layers.Dense(
        num_classes, kernel_initializer=he_normal("logits"), name="logits", dtype=dtype
    )(x)
    return keras.Model(images, logits, name="resnet")


def normalized_convolution(
    x, filters, kernel_size, strides, name, *, initializer, dtype, padding="same", scale="ones"
):
    """A convolution and its batch norm; `initializer` makes that of the kernel from a name."""
    x = keras.layers.Conv2D(
        filters,
        kernel_size,
        strides=strides,
        padding=padding,
        use_bias=False,  # batch norm's offset does its work
        kernel_initializer=initializer(name),
        name=name,
        dtype=dtype,
    )(x)
    return layers.FusedBatchNormalization(
        momentum=0.9, epsilon=1e-5, gamma_initializer=scale, name=f"{name}_norm", dtype=dtype
    )(x)
