"""What an augmentation does to the pixels of one image: exactly what Pillow does.

Each operation takes and gives uint8 pixels. Blends are computed in float32, in which the sums here
are whole numbers below 2**24 and thus exact, and every quotient that is rounded down is too far
from the next whole number to be rounded to it. What moves is computed in 1/65536 of a pixel.
Colours are seen as rows of width x 3 numbers where that lets the processor's vector instructions
work: TensorFlow's operations on a last axis of three, and its selection of single numbers, take
several times as long (docs/data.md).
"""

import math

import numpy as np
import tensorflow as tf

from . import branches

_CHANNELS = 3
_LUMINANCE = (19595, 38470, 7471)  # of red, green and blue, in 1/65536: ITU-R 601-2, as in Pillow


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
    return branches.run_one(operation, list(_DISTORTED_BY.values()), image, value)


def _floats(image: tf.Tensor) -> tf.Tensor:
    return tf.cast(image, tf.float32)


def _bytes(pixels: tf.Tensor) -> tf.Tensor:
    """Rounded down, from 0 to 255."""
    return tf.cast(tf.clip_by_value(pixels, 0, 255), tf.uint8)


def _blended(first: tf.Tensor, second: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """From the first image to the second and, where the factor is above 1, beyond it."""
    return _bytes(first + factor * (_floats(second) - first))


def _posterized(image: tf.Tensor, bits: tf.Tensor) -> tf.Tensor:
    bits = tf.cast(bits, tf.int32)
    return tf.bitwise.bitwise_and(image, tf.cast(256 - 2 ** (8 - bits), tf.uint8))


def _solarized(image: tf.Tensor, least: tf.Tensor) -> tf.Tensor:
    is_inverted = tf.cast(_floats(image) >= least, tf.uint8)
    return tf.bitwise.bitwise_xor(image, is_inverted * tf.constant(255, tf.uint8))


def _moved(image: tf.Tensor, for_column: list, for_row: list) -> tf.Tensor:
    """Each pixel is the one that lies where an affine map leads from its middle.

    As Pillow's `transform(size, AFFINE, NEAREST)`, which counts in 1/65536 of a pixel.

    Args:
      image: uint8 [height, width, 3].
      for_column: (a, b, c), which lead from (x, y) to column ax + by + c; numbers, or float32 or
        float64.
      for_row: likewise.
    """
    height, width, channels = image.shape
    numbers = [tf.cast(number, tf.float64) for number in (*for_column, *for_row)]
    a, b, c = tf.unstack(tf.reshape(tf.stack(numbers), [2, 3]), axis=1)
    in_65536ths = tf.floor(tf.stack([a, b, c + a * 0.5 + b * 0.5]) * 65536.0 + 0.5)
    of_x, of_y, first = (tf.unstack(each) for each in tf.unstack(tf.cast(in_65536ths, tf.int32)))
    x, y = np.arange(width, dtype=np.int32), np.arange(height, dtype=np.int32)[:, np.newaxis]

    def place(which, length):  # in an image with a black edge of one pixel
        place = of_x[which] * x + (of_y[which] * y + first[which])
        return tf.clip_by_value(tf.bitwise.right_shift(place, 16), -1, length)  # rounded down

    column, row = place(0, width), place(1, height)
    with_edge = tf.pad(image, [[1, 1], [1, 1], [0, 0]])
    flat = row * (width + 2) + column + (width + 3)
    return tf.gather(tf.reshape(with_edge, [-1, channels]), flat)


def _rotated(image: tf.Tensor, degrees: tf.Tensor) -> tf.Tensor:
    """Around the middle, counterclockwise."""
    height, width, _ = image.shape
    angle = tf.cast(degrees, tf.float64) * (math.pi / 180)
    cosine, sine = tf.cos(angle), tf.sin(angle)
    x, y = width / 2, height / 2
    return _moved(
        image,
        [cosine, -sine, x - cosine * x + sine * y],
        [sine, cosine, y - sine * x - cosine * y],
    )


def _luminance(image: tf.Tensor, copies: int) -> tf.Tensor:
    """Pillow's grey values, float32 [height * width, copies]."""
    weights = tf.tile(tf.constant(_LUMINANCE, tf.float32)[:, tf.newaxis], [1, copies])
    weighted = tf.matmul(tf.reshape(_floats(image), [-1, _CHANNELS]), weights)
    return tf.floor((weighted + 32768) * (1 / 65536))


def _grey(image: tf.Tensor) -> tf.Tensor:
    return tf.reshape(_luminance(image, _CHANNELS), image.shape)


def _mean_grey(image: tf.Tensor) -> tf.Tensor:
    """One number."""
    height, width, _ = image.shape
    # Of a row, exact in float32 up to a width of 65,792.
    of_rows = tf.reduce_sum(tf.reshape(_luminance(image, 1), [height, width]), axis=1)
    total, count = tf.reduce_sum(tf.cast(of_rows, tf.int64)), height * width
    return _floats((2 * total + count) // (2 * count))


def _smoothed(image: tf.Tensor) -> tf.Tensor:
    """A mean of a pixel, five times, and its eight neighbours; edges stay as they are."""
    height, width, channels = image.shape
    pixels = tf.reshape(_floats(image), [height, width * channels])
    if height < 3 or width < 3:
        return tf.reshape(pixels, image.shape)
    columns = pixels[:-2] + pixels[1:-1] + pixels[2:]
    squares = columns[:, : -2 * channels] + columns[:, channels:-channels]
    squares += columns[:, 2 * channels :]
    inside = tf.floor((2 * (squares + 4 * pixels[1:-1, channels:-channels]) + 13) / 26)
    is_edge = np.ones(pixels.shape, np.float32)
    is_edge[1:-1, channels:-channels] = 0
    smooth = tf.pad(inside, [[1, 1], [channels, channels]]) + pixels * is_edge
    return tf.reshape(smooth, image.shape)


def _autocontrast(image: tf.Tensor) -> tf.Tensor:
    """Each channel stretched from 0 to 255, in Pillow's order of operations."""
    height, width, channels = image.shape
    rows = tf.reshape(image, [height, width * channels])

    def of_channels(reduce):
        of_columns = tf.reshape(reduce(rows, axis=0), [width, channels])
        return tf.cast(reduce(of_columns, axis=0), tf.float64)

    least, most = of_channels(tf.reduce_min), of_channels(tf.reduce_max)
    is_flat = most == least  # and stays as it is
    scale = tf.where(is_flat, tf.constant(1.0, tf.float64), 255.0 / (most - least))
    offset = tf.where(is_flat, tf.constant(0.0, tf.float64), -least * scale)
    stretched = tf.cast(rows, tf.float64) * tf.tile(scale, [width]) + tf.tile(offset, [width])
    return tf.reshape(_bytes(stretched), image.shape)


def _equalized(image: tf.Tensor) -> tf.Tensor:
    """Each channel by Pillow's table, which makes all values about as frequent."""
    height, width, channels = image.shape
    first = np.tile(256 * np.arange(channels, dtype=np.int32), height * width)
    shifted = tf.cast(tf.reshape(image, [-1]), tf.int32) + first
    counts = tf.reshape(tf.math.bincount(shifted, minlength=256 * channels), [channels, 256])
    values = tf.where(counts > 0, tf.range(256), -1)
    last = tf.gather(counts, tf.reduce_max(values, axis=1), axis=1, batch_dims=1)  # [channels]
    step = ((height * width - last) // 255)[:, tf.newaxis]
    before = tf.cumsum(counts, axis=1, exclusive=True)
    table = tf.minimum((step // 2 + before) // tf.maximum(step, 1), 255)
    table = tf.reshape(tf.cast(tf.where(step > 0, table, tf.range(256)), tf.uint8), [-1])
    return tf.reshape(tf.gather_nd(table, shifted[:, tf.newaxis]), image.shape)


# Each takes an image and `apply`'s value.
_DISTORTED_BY = {
    "identity": lambda image, _: image,
    "shear_x": lambda image, tangent: _moved(image, [1.0, tangent, 0.0], [0.0, 1.0, 0.0]),
    "shear_y": lambda image, tangent: _moved(image, [1.0, 0.0, 0.0], [tangent, 1.0, 0.0]),
    "translate_x": lambda image, pixels: _moved(image, [1.0, 0.0, pixels], [0.0, 1.0, 0.0]),
    "translate_y": lambda image, pixels: _moved(image, [1.0, 0.0, 0.0], [0.0, 1.0, pixels]),
    "rotate": _rotated,
    "brightness": lambda image, factor: _bytes(_floats(image) * factor),
    "colour": lambda image, factor: _blended(_grey(image), image, factor),
    "contrast": lambda image, factor: _blended(_mean_grey(image), image, factor),
    "sharpness": lambda image, factor: _blended(_smoothed(image), image, factor),
    "posterize": _posterized,
    "solarize": _solarized,
    "autocontrast": lambda image, _: _autocontrast(image),
    "equalize": lambda image, _: _equalized(image),
}
# In the order of torchvision's TrivialAugmentWide.
OPERATIONS = tuple(_DISTORTED_BY)
