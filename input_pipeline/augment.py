"""Augmentations by the field's names: TrivialAugment, RandAugment, colour jitter, random erasing.

Each picture of the global batch has its own draws, made at once from the seed and the step
(`batches.Draws`), so that they do not depend on the number of towers and workers. The operations
give whole numbers from 0 to 255, as Pillow's do.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from . import batches

# In the order of torchvision's TrivialAugmentWide.
OPERATIONS = (
    "identity",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
    "rotate",
    "brightness",
    "colour",
    "contrast",
    "sharpness",
    "posterize",
    "solarize",
    "autocontrast",
    "equalize",
)
NAMES = ("none", "trivial_augment", "rand_augment", "colour_jitter")
LEVELS = 31  # from nothing to the most, as in both papers
RAND_OPERATIONS, RAND_LEVEL = 2, 9  # torchvision's defaults
LEAST_JITTER, MOST_JITTER = 0.6, 1.4
LEAST_AREA, MOST_AREA = 0.02, 0.33  # of the image, that is erased
LEAST_RATIO, MOST_RATIO = 0.3, 3.3  # height / width
_JITTERED = ("brightness", "contrast", "colour")
_ORDERS = list(itertools.permutations(map(OPERATIONS.index, _JITTERED)))

# Apart from those of `preprocess` and `cuts`.
_OPERATION_DRAW, _LEVEL_DRAW, _SIGN_DRAW, _FACTOR_DRAW, _ORDER_DRAW = range(32, 37)
_ERASE_DRAW, _AREA_DRAW, _RATIO_DRAW, _TOP_DRAW, _LEFT_DRAW = range(37, 42)


class Plan(NamedTuple):
    """What is done to each image of a batch, or to one where the first axis is left out.

    Attributes:
      operations: int32 [n, k], places in OPERATIONS, one after the other; k is at least 1.
      values: float32 [n, k], how much of each, in the terms of `apply`.
      erased: int32 [n, 4], (top, left, height, width); nothing where the height is 0.
    """

    operations: tf.Tensor
    values: tf.Tensor
    erased: tf.Tensor


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """What is drawn for each image of a training batch, besides its crop and its mirroring.

    Attributes:
      name: one of NAMES. `trivial_augment` is one operation of random strength (Müller & Hutter
        2021, arXiv:2103.10158, the wide space), `rand_augment` two of strength 9 of 30 (Cubuk et
        al. 2019, arXiv:1909.13719), `colour_jitter` brightness, contrast and saturation, each
        times 0.6 to 1.4, in random order.
      erasing: the probability that a rectangle of 2 to 33 % of an image is erased, which is made
        0 once pixels are scaled (Zhong et al. 2017, arXiv:1708.04896). A side that would be longer
        than the image's is as long as it.
      image_shape: (height, width, channels) of an image before its pixels are scaled.
      output_shape: likewise, after that.
    """

    name: str = "none"
    erasing: float = 0.0
    image_shape: tuple[int, int, int] = (0, 0, 0)
    output_shape: tuple[int, int, int] = (0, 0, 0)

    def __post_init__(self):
        if self.name not in NAMES:
            raise ValueError(f"augmentation={self.name!r}: must be one of {', '.join(NAMES)}")
        if not 0.0 <= self.erasing <= 1.0:
            raise ValueError(f"random_erasing={self.erasing}: must be from 0 to 1")
        if self.name != "none" and self.image_shape[2] != 3:
            raise ValueError(
                f"{self.name} takes images of 3 channels, but these have {self.image_shape[2]}"
            )

    @property
    def is_any(self) -> bool:
        """Whether it does anything."""
        return self.name != "none" or self.erasing > 0.0

    def plan(self, draws: batches.Draws, count: int | tf.Tensor) -> Plan:
        """Draws what is done to each of `count` images, of the batch or of a share of it."""
        return draws.own(functools.partial(self._plan, draws.seed), count)

    def _plan(self, seed: tf.Tensor, count: int | tf.Tensor) -> Plan:
        number, uniform = _drawn_from(seed)
        height, width, _ = self.image_shape
        if self.name == "none":
            # One operation, not none: TensorFlow 2.21 crashes when it unbatches empty tensors.
            operations = tf.fill([count, 1], OPERATIONS.index("identity"))
            values = tf.zeros([count, 1])
        elif self.name == "colour_jitter":
            order = number(_ORDER_DRAW, [count], len(_ORDERS))
            operations = tf.gather(tf.constant(_ORDERS, tf.int32), order)
            values = uniform(_FACTOR_DRAW, [count, len(_JITTERED)], LEAST_JITTER, MOST_JITTER)
        else:
            is_trivial = self.name == "trivial_augment"
            shape = [count, 1 if is_trivial else RAND_OPERATIONS]
            operations = number(_OPERATION_DRAW, shape, len(OPERATIONS))
            level = number(_LEVEL_DRAW, shape, LEVELS) if is_trivial else RAND_LEVEL
            sign = number(_SIGN_DRAW, shape, 2)
            table = _values_of_trivial() if is_trivial else _values_of_rand(height, width)
            values = tf.gather(table.reshape(-1), (operations * 2 + sign) * LEVELS + level)
        return Plan(operations, values, self._erased(number, uniform, count))

    def _erased(self, number: Callable, uniform: Callable, count: int | tf.Tensor) -> tf.Tensor:
        height, width, _ = self.output_shape
        if not self.erasing:
            return tf.zeros([count, 4], tf.int32)
        area = uniform(_AREA_DRAW, [count], LEAST_AREA, MOST_AREA) * height * width
        # For the whole batch: the last bits of exp depend on how many are computed together.
        ratio = tf.exp(uniform(_RATIO_DRAW, [count], math.log(LEAST_RATIO), math.log(MOST_RATIO)))
        of_height = tf.clip_by_value(tf.round(tf.sqrt(area * ratio)), 1, height)
        of_width = tf.clip_by_value(tf.round(tf.sqrt(area / ratio)), 1, width)
        top = tf.floor(uniform(_TOP_DRAW, [count], 0.0, 1.0) * (height - of_height + 1))
        left = tf.floor(uniform(_LEFT_DRAW, [count], 0.0, 1.0) * (width - of_width + 1))
        top, left = tf.minimum(top, height - of_height), tf.minimum(left, width - of_width)
        box = tf.cast(tf.stack([top, left, of_height, of_width], axis=1), tf.int32)
        chosen = uniform(_ERASE_DRAW, [count], 0.0, 1.0) < self.erasing
        return tf.where(chosen[:, tf.newaxis], box, 0)

    def distort(self, image: tf.Tensor, plan: Plan) -> tf.Tensor:
        """An image as its plan has it: before its pixels are scaled.

        Args:
          image: uint8, or float32 in [0, 255] and then rounded, [height, width, channels].
          plan: of this image.

        Returns:
          uint8 of the same shape.
        """
        if image.dtype != tf.uint8:
            image = tf.cast(tf.clip_by_value(tf.round(image), 0, 255), tf.uint8)
        for place in range(plan.operations.shape[-1]):
            image = apply(image, plan.operations[place], plan.values[place])
        return image

    def erase(self, image: tf.Tensor, plan: Plan) -> tf.Tensor:
        """An image, float32 [height, width, channels], with 0 in its erased rectangle."""
        height, width, _ = image.shape
        top, left, of_height, of_width = tf.unstack(plan.erased)
        rows, columns = tf.range(height), tf.range(width)
        in_rows = (rows >= top) & (rows < top + of_height)
        in_columns = (columns >= left) & (columns < left + of_width)
        erased = in_rows[:, tf.newaxis] & in_columns
        return tf.where(erased[..., tf.newaxis], tf.zeros_like(image), image)


def _drawn_from(draw_seed: tf.Tensor) -> tuple[Callable, Callable]:
    """Draws whole numbers below one, and numbers between two, each kind from its own stream."""

    def seed(kind):
        return tf.random.experimental.stateless_fold_in(draw_seed, kind, alg=batches.ALGORITHM)

    def number(kind, shape, below):
        return tf.random.stateless_uniform(
            shape, seed(kind), 0, below, tf.int32, alg=batches.ALGORITHM
        )

    def uniform(kind, shape, low, high):
        return tf.random.stateless_uniform(shape, seed(kind), low, high, alg=batches.ALGORITHM)

    return number, uniform


def _values_of_trivial() -> np.ndarray:
    """TrivialAugment's wide space: float32 [operations, signs, levels], in the terms of `apply`."""
    return _values(shear=0.99, translate=(32.0, 32.0), rotate=135.0, blend=0.99, bits=6)


def _values_of_rand(height: int, width: int) -> np.ndarray:
    """RandAugment's space, likewise."""
    translate = (150 / 331 * width, 150 / 331 * height)
    return _values(shear=0.3, translate=translate, rotate=30.0, blend=0.9, bits=4)


def _values(shear, translate, rotate, blend, bits) -> np.ndarray:
    part = np.arange(LEVELS) / (LEVELS - 1)
    of_none = np.zeros(LEVELS)
    symmetric = {
        "shear_x": shear * part,
        "shear_y": shear * part,
        "translate_x": np.trunc(translate[0] * part),
        "translate_y": np.trunc(translate[1] * part),
        "rotate": rotate * part,
    }
    values = {name: (size, -size) for name, size in symmetric.items()}
    for name in ("brightness", "colour", "contrast", "sharpness"):
        values[name] = (1 + blend * part, 1 - blend * part)
    values["posterize"] = (8 - np.round(bits * part),) * 2
    values["solarize"] = (255 * (1 - part),) * 2
    return np.array([values.get(name, (of_none, of_none)) for name in OPERATIONS], np.float32)


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
    functions = (
        lambda: image,
        lambda: _moved(image, [1.0, value, 0.0], [0.0, 1.0, 0.0]),
        lambda: _moved(image, [1.0, 0.0, 0.0], [value, 1.0, 0.0]),
        lambda: _moved(image, [1.0, 0.0, value], [0.0, 1.0, 0.0]),
        lambda: _moved(image, [1.0, 0.0, 0.0], [0.0, 1.0, value]),
        lambda: _rotated(image, value),
        lambda: _blended(tf.zeros_like(image), image, value),
        lambda: _blended(_grey(image), image, value),
        lambda: _blended(_mean_grey(image), image, value),
        lambda: _blended(_smoothed(image), image, value),
        lambda: _posterized(image, tf.cast(value, tf.int32)),
        lambda: tf.where(tf.cast(image, tf.float32) < value, image, 255 - image),
        lambda: _autocontrast(image),
        lambda: _equalized(image),
    )
    return tf.switch_case(operation, functions)


def _posterized(image: tf.Tensor, bits: tf.Tensor) -> tf.Tensor:
    return tf.bitwise.bitwise_and(image, tf.cast(256 - 2 ** (8 - bits), tf.uint8))


def _moved(image: tf.Tensor, for_column: list, for_row: list) -> tf.Tensor:
    """Each pixel from where the two rows of an affine map say, in pixels from the top left corner.

    As Pillow's `transform(size, AFFINE, NEAREST)`.
    """
    # TensorFlow counts from the middle of the first pixel.
    rows = [[a, b, (a + b) / 2 + c - 0.5] for a, b, c in (for_column, for_row)]
    flat = [tf.cast(number, tf.float32) for row in rows for number in row]
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=image[tf.newaxis],
        transforms=tf.stack([*flat, 0.0, 0.0])[tf.newaxis],
        output_shape=tf.shape(image)[:2],
        interpolation="NEAREST",
        fill_mode="CONSTANT",
        fill_value=0.0,
    )[0]


def _rotated(image: tf.Tensor, degrees: tf.Tensor) -> tf.Tensor:
    """Around the middle, counterclockwise."""
    height, width, _ = image.shape
    angle = degrees * (math.pi / 180)
    cosine, sine = tf.cos(angle), tf.sin(angle)
    x, y = width / 2, height / 2
    return _moved(
        image,
        [cosine, -sine, x - cosine * x + sine * y],
        [sine, cosine, y - sine * x - cosine * y],
    )


def _blended(first: tf.Tensor, second: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """From the first image to the second and, where the factor is above 1, beyond it."""
    first, second = tf.cast(first, tf.float32), tf.cast(second, tf.float32)
    return tf.cast(tf.clip_by_value(first + factor * (second - first), 0, 255), tf.uint8)


def _luminance(image: tf.Tensor) -> tf.Tensor:
    """Pillow's grey values, int32 [height, width]: ITU-R 601-2."""
    red, green, blue = tf.unstack(tf.cast(image, tf.int32), axis=2)
    return (red * 19595 + green * 38470 + blue * 7471 + 32768) // 65536


def _grey(image: tf.Tensor) -> tf.Tensor:
    return tf.tile(_luminance(image)[..., tf.newaxis], [1, 1, 3])


def _mean_grey(image: tf.Tensor) -> tf.Tensor:
    total = tf.reduce_sum(tf.cast(_luminance(image), tf.int64))
    count = image.shape[0] * image.shape[1]
    return tf.fill(image.shape, (2 * total + count) // (2 * count))


def _smoothed(image: tf.Tensor) -> tf.Tensor:
    """A mean of a pixel, five times, and its eight neighbours; edges stay as they are."""
    height, width, _ = image.shape
    if height < 3 or width < 3:
        return image
    pixels = tf.cast(image, tf.int32)
    total = 4 * pixels[1:-1, 1:-1]
    for row, column in itertools.product(range(3), range(3)):
        total += pixels[row : height - 2 + row, column : width - 2 + column]
    inside = tf.pad((2 * total + 13) // 26, [[1, 1], [1, 1], [0, 0]])
    rows, columns = tf.range(height), tf.range(width)
    is_inside = ((rows > 0) & (rows < height - 1))[:, tf.newaxis]
    is_inside &= (columns > 0) & (columns < width - 1)
    return tf.where(is_inside[..., tf.newaxis], inside, pixels)


def _autocontrast(image: tf.Tensor) -> tf.Tensor:
    """Each channel stretched from 0 to 255."""
    pixels = tf.cast(image, tf.int32)
    least, most = tf.reduce_min(pixels, axis=[0, 1]), tf.reduce_max(pixels, axis=[0, 1])
    stretched = (pixels - least) * 255 // tf.maximum(most - least, 1)
    return tf.cast(tf.where(most > least, stretched, pixels), tf.uint8)


def _equalized(image: tf.Tensor) -> tf.Tensor:
    """Each channel by Pillow's table, which makes all values about as frequent."""
    pixels = tf.cast(image, tf.int32)
    height, width, channels = image.shape
    shifted = tf.reshape(pixels + 256 * tf.range(channels), [-1])
    counts = tf.reshape(tf.math.bincount(shifted, minlength=256 * channels), [channels, 256])
    values = tf.where(counts > 0, tf.range(256), -1)
    last = tf.gather(counts, tf.reduce_max(values, axis=1), axis=1, batch_dims=1)  # [channels]
    step = ((height * width - last) // 255)[:, tf.newaxis]
    before = tf.cumsum(counts, axis=1, exclusive=True)
    table = tf.minimum((step // 2 + before) // tf.maximum(step, 1), 255)
    table = tf.where(step > 0, table, tf.range(256))
    return tf.cast(
        tf.reshape(tf.gather(tf.reshape(table, [-1]), shifted), [height, width, channels]), tf.uint8
    )
