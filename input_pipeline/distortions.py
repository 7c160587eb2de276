"""What an augmentation does to the pixels of one image: what Pillow does, to a step of 255.

Colours are seen as rows of width x 3 numbers: TensorFlow's operations on a last axis of three take
several times as long.
"""

import math

import numpy as np
import tensorflow as tf

_CHANNELS = 3
_LUMINANCE = (0.299, 0.587, 0.114)  # of red, green and blue: ITU-R 601-2, as in Pillow


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


def _bytes(pixels: tf.Tensor) -> tf.Tensor:
    """Rounded down, from 0 to 255."""
    return tf.cast(tf.clip_by_value(pixels, 0, 255), tf.uint8)


def _blended(first: tf.Tensor, second: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """From the first image to the second and, where the factor is above 1, beyond it."""
    return _bytes(first + factor * (_floats(second) - first))


def _posterized(image: tf.Tensor, bits: tf.Tensor) -> tf.Tensor:
    mask = 256 - 2 ** (8 - tf.cast(bits, tf.int32))
    return tf.bitwise.bitwise_and(image, tf.cast(mask, tf.uint8))


def _solarized(image: tf.Tensor, least: tf.Tensor) -> tf.Tensor:
    is_inverted = tf.cast(_floats(image) >= least, tf.uint8)
    return tf.bitwise.bitwise_xor(image, is_inverted * tf.constant(255, tf.uint8))


def _moved(image: tf.Tensor, for_column: tuple, for_row: tuple) -> tf.Tensor:
    """Each pixel is the one that lies where an affine map leads from its middle.

    Args:
      image: uint8 [height, width, 3].
      for_column: (a, b, c), which lead from (x, y) to column ax + by + c.
      for_row: likewise.
    """
    height, width, channels = image.shape
    x, y = np.arange(width, dtype=np.int32), np.arange(height, dtype=np.int32)[:, np.newaxis]

    def place(a, b, c, length):  # in an image with a black edge of one pixel
        a, b, c = (tf.cast(number, tf.float64) for number in (a, b, c))
        in_65536ths = tf.floor(tf.stack([a, b, c + (a + b) / 2]) * 65536 + 0.5)  # as Pillow counts
        a, b, c = tf.unstack(tf.cast(in_65536ths, tf.int32))
        return tf.clip_by_value(tf.bitwise.right_shift(a * x + (b * y + c), 16), -1, length)

    flat = place(*for_row, height) * (width + 2) + place(*for_column, width) + (width + 3)
    with_edge = tf.pad(image, [[1, 1], [1, 1], [0, 0]])
    return tf.gather(tf.reshape(with_edge, [-1, channels]), flat)


def _rotated(image: tf.Tensor, degrees: tf.Tensor) -> tf.Tensor:
    """Around the middle, counterclockwise."""
    x, y = image.shape[1] / 2, image.shape[0] / 2
    angle = tf.cast(degrees, tf.float64) * (math.pi / 180)
    cosine, sine = tf.cos(angle), tf.sin(angle)
    return _moved(
        image,
        (cosine, -sine, x - cosine * x + sine * y),
        (sine, cosine, y - sine * x - cosine * y),
    )


def _grey(image: tf.Tensor) -> tf.Tensor:
    """Pillow's grey values, three times, float32."""
    weights = np.tile(np.float32(_LUMINANCE)[:, np.newaxis], _CHANNELS)
    return tf.reshape(tf.round(tf.reshape(_floats(image), [-1, _CHANNELS]) @ weights), image.shape)


def _smoothed(image: tf.Tensor) -> tf.Tensor:
    """A mean of a pixel, five times, and its eight neighbours; edges stay as they are."""
    height, width, channels = image.shape
    pixels = tf.reshape(_floats(image), [height, width * channels])
    if height < 3 or width < 3:
        return tf.reshape(pixels, image.shape)
    columns = pixels[:-2] + pixels[1:-1] + pixels[2:]
    squares = columns[:, : -2 * channels] + columns[:, channels:-channels]
    squares += columns[:, 2 * channels :]
    inside = tf.round((squares + 4 * pixels[1:-1, channels:-channels]) / 13)
    is_edge = np.ones(pixels.shape, np.float32)
    is_edge[1:-1, channels:-channels] = 0
    smooth = tf.pad(inside, [[1, 1], [channels, channels]]) + pixels * is_edge
    return tf.reshape(smooth, image.shape)


def _autocontrast(image: tf.Tensor) -> tf.Tensor:
    """Each channel stretched from 0 to 255."""
    height, width, channels = image.shape
    rows = tf.reshape(_floats(image), [height, width * channels])

    def by_channel(reduce):
        return reduce(tf.reshape(reduce(rows, axis=0), [width, channels]), axis=0)

    least, most = by_channel(tf.reduce_min), by_channel(tf.reduce_max)
    is_flat = most == least  # and stays as it is
    scale = tf.where(is_flat, 1.0, 255 / (most - least))
    offset = tf.where(is_flat, 0.0, -least * scale)
    return tf.reshape(
        _bytes(rows * tf.tile(scale, [width]) + tf.tile(offset, [width])), image.shape
    )


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
    "identity": lambda image, _: tf.identity(image),
    "shear_x": lambda image, tangent: _moved(image, (1.0, tangent, 0.0), (0.0, 1.0, 0.0)),
    "shear_y": lambda image, tangent: _moved(image, (1.0, 0.0, 0.0), (tangent, 1.0, 0.0)),
    "translate_x": lambda image, pixels: _moved(image, (1.0, 0.0, pixels), (0.0, 1.0, 0.0)),
    "translate_y": lambda image, pixels: _moved(image, (1.0, 0.0, 0.0), (0.0, 1.0, pixels)),
    "rotate": _rotated,
    "brightness": lambda image, factor: _bytes(_floats(image) * factor),
    "colour": lambda image, factor: _blended(_grey(image), image, factor),
    "contrast": lambda image, factor: _blended(
        tf.round(tf.reduce_mean(_grey(image))), image, factor
    ),
    "sharpness": lambda image, factor: _blended(_smoothed(image), image, factor),
    "posterize": _posterized,
    "solarize": _solarized,
    "autocontrast": lambda image, _: _autocontrast(image),
    "equalize": lambda image, _: _equalized(image),
}
# In the order of torchvision's TrivialAugmentWide.
OPERATIONS = tuple(_DISTORTED_BY)
