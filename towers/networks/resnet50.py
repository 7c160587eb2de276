"""A residual network of 50 layers with bottleneck blocks, for pictures of about 224 x 224.

He, Zhang, Ren and Sun 2015 (arXiv:1512.03385, table 1), in the form known as v1.5: a block that
halves height and width does so in its 3 x 3 convolution and not in the first 1 x 1, as in
torchvision and NVIDIA's examples. The last scale of each block begins at 0, so that a block begins
as its shortcut (Goyal et al. 2017, arXiv:1706.02677, section 5.1).
"""

import keras

from towers.networks import resnet, seeds

STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))  # blocks, and filters of their first convolutions
_WIDENING = 4  # of a block's last convolution
_STRIDES = 32  # from the image to the last stage


def build(
    image_shape: tuple[int, int, int],
    num_classes: int,
    dtype: keras.DTypePolicy,
    seed: int,
    *,
    stages: tuple[tuple[int, int], ...] = STAGES,
) -> keras.Model:
    """Builds the network.

    Args:
      image_shape, num_classes, dtype, seed: as those of `Network.build`; height and
        width at least 32.
      stages: (blocks, filters) of each.

    Raises:
      ValueError: the images are too small.
    """
    if min(image_shape[:2]) < _STRIDES:
        raise ValueError(
            f"images of {image_shape[0]} x {image_shape[1]} are too small for resnet50: it needs "
            f"at least {_STRIDES} x {_STRIDES}"
        )

    def he_normal(layer):
        return keras.initializers.VarianceScaling(
            2.0, "fan_out", "untruncated_normal", seed=seeds.derive(seed, layer)
        )

    def convolution(x, filters, kernel_size, strides, name, scale="ones"):
        if kernel_size > 1:  # as torchvision pads, by the same number of pixels on each side
            x = keras.layers.ZeroPadding2D(kernel_size // 2, name=f"{name}_pad", dtype=dtype)(x)
        options = {"initializer": he_normal, "dtype": dtype, "padding": "valid", "scale": scale}
        return resnet.normalized_convolution(x, filters, kernel_size, strides, name, **options)

    def relu(x, name):
        return keras.layers.ReLU(name=name, dtype=dtype)(x)

    images = keras.Input(image_shape, name="images")
    x = relu(convolution(images, 64, 7, 2, "conv1"), "conv1_relu")
    x = keras.layers.ZeroPadding2D(1, name="pool1_pad", dtype=dtype)(x)  # with ReLU's least
    x = keras.layers.MaxPooling2D(3, strides=2, name="pool1", dtype=dtype)(x)
    for stage, (blocks, filters) in enumerate(stages, start=1):
        for block in range(1, blocks + 1):
            name = f"stage{stage}_block{block}"
            strides = 2 if stage > 1 and block == 1 else 1
            shortcut = x
            if block == 1:
                shortcut = convolution(x, _WIDENING * filters, 1, strides, f"{name}_shortcut")
            x = relu(convolution(x, filters, 1, 1, f"{name}_conv1"), f"{name}_relu1")
            x = relu(convolution(x, filters, 3, strides, f"{name}_conv2"), f"{name}_relu2")
            x = convolution(x, _WIDENING * filters, 1, 1, f"{name}_conv3", scale="zeros")
            x = keras.layers.Add(name=f"{name}_add", dtype=dtype)([x, shortcut])
            x = relu(x, f"{name}_relu3")
    x = keras.layers.GlobalAveragePooling2D(name="pool", dtype=dtype)(x)  # (n, 4 * filters)
    small = keras.initializers.RandomNormal(stddev=0.01, seed=seeds.derive(seed, "logits"))
    dense = keras.layers.Dense(num_classes, kernel_initializer=small, name="logits", dtype=dtype)
    return keras.Model(images, dense(x), name="resnet50")
