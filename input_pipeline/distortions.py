"""What an augmentation does to the pixels of one image, as Pillow does it (docs/data.md)."""

import math

import numpy as np
import tensorflow as tf

_LUMINANCE = (0.299, 0.587, 0.114)  # of red, green and blue: ITU-R 601-2, as in Pillow
_VALUES = np.arange(256, dtype=np.float32)[:, np.newaxis]
# Over 13, Pillow's filter SMOOTH.
_SMOOTHING = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32)


@tf.function(autograph=False)  # traced once for each shape
def apply(image: tf.Tensor, operation: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """One operation on one image.

    Args:
      image: uint8 [height, width, 3].
      operation: int32, a place in OPERATIONS.
      value: float32. Of a shear, its tangent; of a translation, pixels to the left or upwards; of
        `rotate`, degrees counterclockwise; of `brightness`, `colour`, `contrast` and `sharpness`
        a factor, 1 for none; of `posterize`, the bits that are kept; of `solarize`, the least value
        that is inverted. The others take none.

    Returns:
      uint8 [height, width, 3]. What moves into the image is black.
    """
    # As tf.switch_case, of which TensorFlow makes one graph with all branches: each time it visits
    # every operation of those that are not taken, which for a small image takes longer than the
    # one that is.
    inputs = [image, value]
    specs = list(map(tf.TensorSpec.from_tensor, inputs))
    branches = [
        tf.function(distort, autograph=False).get_concrete_function(*specs)
        for distort in _DISTORTED_BY.values()
    ]
    [distorted] = tf.raw_ops.StatelessCase(
        branch_index=operation, input=inputs, Tout=[tf.uint8], branches=branches, output_shapes=[]
    )
    return tf.ensure_shape(distorted, image.shape)


def _floats(image: tf.Tensor) -> tf.Tensor:
    return tf.cast(image, tf.float32)


def _bytes(values: tf.Tensor) -> tf.Tensor:
    """Rounded down, from 0 to 255."""
    return tf.cast(tf.clip_by_value(values, 0, 255), tf.uint8)


def _moved(image: tf.Tensor, *affine) -> tf.Tensor:
    """Each pixel is the nearest to (ax + by + c, dx + ey + f), where its middle is (x, y)."""
    a, b, c, d, e, f = (tf.cast(number, tf.float32) for number in affine)
    # TensorFlow counts from the middle of the first pixel, Pillow from its corner.
    c, f = c + (a + b - 1) / 2, f + (d + e - 1) / 2
    moved = tf.raw_ops.ImageProjectiveTransformV3(
        images=image[tf.newaxis],
        transforms=tf.stack([[a, b, c, d, e, f, 0.0, 0.0]]),
        output_shape=image.shape[:2],
        fill_value=0.0,
        interpolation="NEAREST",
    )
    return moved[0]


def _rotated(image: tf.Tensor, degrees: tf.Tensor) -> tf.Tensor:
    """Around the middle, counterclockwise."""
    x, y = image.shape[1] / 2, image.shape[0] / 2
    angle = degrees * (math.pi / 180)
    cosine, sine = tf.cos(angle), tf.sin(angle)
    across, down = x - cosine * x + sine * y, y - sine * x - cosine * y
    return _moved(image, cosine, -sine, across, sine, cosine, down)


def _grey(image: tf.Tensor) -> tf.Tensor:
    """Grey values, three times: float32, whole numbers."""
    weights = np.tile(np.array(_LUMINANCE, np.float32)[:, np.newaxis], 3)
    return tf.reshape(tf.round(tf.reshape(_floats(image), [-1, 3]) @ weights), image.shape)


def _smoothed(image: tf.Tensor) -> tf.Tensor:
    """A mean of a pixel, five times, and its eight neighbours; edges stay as they are."""
    pixels, kernel = _floats(image), np.tile(_SMOOTHING[:, :, np.newaxis, np.newaxis], [1, 1, 3, 1])
    sums = tf.nn.depthwise_conv2d(pixels[tf.newaxis], kernel, [1, 1, 1, 1], "SAME")
    is_inside = np.zeros(image.shape, bool)
    is_inside[1:-1, 1:-1] = True
    return tf.where(is_inside, tf.round(sums[0] / 13), pixels)


def _blended(first: tf.Tensor, image: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """From the first image to the second and, where the factor is above 1, beyond it."""
    return _bytes(first + factor * (_floats(image) - first))


def _by_table(image: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    """Each value of an image replaced by its channel's in a table, float32 [256, 3]."""
    table = tf.reshape(_bytes(table), [-1])
    channels = np.tile(np.arange(3, dtype=np.int32), image.shape[0] * image.shape[1])
    places = 3 * tf.cast(tf.reshape(image, [-1]), tf.int32) + channels
    return tf.reshape(tf.gather_nd(table, places[:, tf.newaxis]), image.shape)


def _posterized(image: tf.Tensor, bits: tf.Tensor) -> tf.Tensor:
    mask = 256 - 2 ** (8 - tf.cast(bits, tf.int32))
    return tf.bitwise.bitwise_and(image, tf.cast(mask, tf.uint8))


def _stretched(image: tf.Tensor) -> tf.Tensor:
    """A table that stretches each channel from 0 to 255."""
    least, most = (_floats(reduce(image, [0, 1])) for reduce in (tf.reduce_min, tf.reduce_max))
    scale = 255 / (most - least)
    return tf.where(most == least, _VALUES, _VALUES * scale - least * scale)


def _equalized(image: tf.Tensor) -> tf.Tensor:
    """Pillow's table, which makes all values of each channel about as frequent."""
    channels = tf.transpose(tf.reshape(tf.cast(image, tf.int32), [-1, 3]))
    counts = tf.math.bincount(channels, minlength=256, maxlength=256, axis=-1)
    counts = tf.transpose(counts)  # [256, 3]
    last = tf.gather(tf.transpose(counts), tf.reduce_max(channels, axis=1), batch_dims=1)
    step = (image.shape[0] * image.shape[1] - last) // 255
    before = tf.cumsum(counts, exclusive=True)
    return tf.where(step > 0, _floats((step // 2 + before) // tf.maximum(step, 1)), _VALUES)


# Each takes an image and `apply`'s value.
_DISTORTED_BY = {
    "identity": lambda image, _: tf.identity(image),
    "shear_x": lambda image, tangent: _moved(image, 1, tangent, 0, 0, 1, 0),
    "shear_y": lambda image, tangent: _moved(image, 1, 0, 0, tangent, 1, 0),
    "translate_x": lambda image, pixels: _moved(image, 1, 0, pixels, 0, 1, 0),
    "translate_y": lambda image, pixels: _moved(image, 1, 0, 0, 0, 1, pixels),
    "rotate": _rotated,
    "brightness": lambda image, factor: _bytes(_floats(image) * factor),
    "colour": lambda image, factor: _blended(_grey(image), image, factor),
    "contrast": lambda image, factor: _blended(
        tf.round(tf.reduce_mean(_grey(image))), image, factor
    ),
    "sharpness": lambda image, factor: _blended(_smoothed(image), image, factor),
    "posterize": _posterized,
    "solarize": lambda image, least: tf.where(_floats(image) >= least, 255 - image, image),
    "autocontrast": lambda image, _: _by_table(image, _stretched(image)),
    "equalize": lambda image, _: _by_table(image, _equalized(image)),
}
# In the order of torchvision's TrivialAugmentWide.
OPERATIONS = tuple(_DISTORTED_BY)
