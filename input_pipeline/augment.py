"""Augmentations by the field's names: TrivialAugment, RandAugment, colour jitter, random erasing.

Each picture of the global batch has its own draws, made at once from the seed and the step
(`batches.Draws`), so that they do not depend on the number of towers and workers. The operations
are Pillow's.
"""

import dataclasses
import itertools
import math
import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from PIL import Image, ImageEnhance, ImageOps

from . import batches


def _moved(image: Image.Image, *affine: float) -> Image.Image:
    """Each pixel is the one at (ax + by + c, dx + ey + f), where it is at (x, y)."""
    return image.transform(image.size, Image.Transform.AFFINE, affine, Image.Resampling.NEAREST)


# Each takes an image and `distorted`'s value. In the order of torchvision's TrivialAugmentWide.
_BY_NAME = {
    "identity": lambda image, _: image,
    "shear_x": lambda image, tangent: _moved(image, 1, tangent, 0, 0, 1, 0),
    "shear_y": lambda image, tangent: _moved(image, 1, 0, 0, tangent, 1, 0),
    "translate_x": lambda image, pixels: _moved(image, 1, 0, pixels, 0, 1, 0),
    "translate_y": lambda image, pixels: _moved(image, 1, 0, 0, 0, 1, pixels),
    "rotate": lambda image, degrees: image.rotate(degrees),
    "brightness": lambda image, factor: ImageEnhance.Brightness(image).enhance(factor),
    "colour": lambda image, factor: ImageEnhance.Color(image).enhance(factor),
    "contrast": lambda image, factor: ImageEnhance.Contrast(image).enhance(factor),
    "sharpness": lambda image, factor: ImageEnhance.Sharpness(image).enhance(factor),
    "posterize": lambda image, bits: ImageOps.posterize(image, int(bits)),
    "solarize": lambda image, least: ImageOps.solarize(image, least),
    "autocontrast": lambda image, _: ImageOps.autocontrast(image),
    "equalize": lambda image, _: ImageOps.equalize(image),
}
OPERATIONS, _DISTORTED_BY = tuple(_BY_NAME), tuple(_BY_NAME.values())

NAMES = ("none", "trivial_augment", "rand_augment", "colour_jitter")
LEVELS = 31  # from nothing to the most, as in both papers
RAND_OPERATIONS, RAND_LEVEL = 2, 9  # torchvision's defaults
LEAST_JITTER, MOST_JITTER = 0.6, 1.4
LEAST_AREA, MOST_AREA = 0.02, 0.33  # of the image, that is erased
LEAST_RATIO, MOST_RATIO = 0.3, 3.3  # height / width
_JITTERED = ("brightness", "contrast", "colour")
_ORDERS = list(itertools.permutations(map(OPERATIONS.index, _JITTERED)))

# Of small images Python does most of the work: threads would only wait for each other.
_one_at_a_time = threading.Lock()

# Apart from those of `preprocess` and `cuts`.
_OPERATION_DRAW, _LEVEL_DRAW, _SIGN_DRAW, _FACTOR_DRAW, _ORDER_DRAW = range(32, 37)
_ERASE_DRAW, _AREA_DRAW, _RATIO_DRAW, _PLACE_DRAW = range(37, 41)


class Plan(NamedTuple):
    """What is done to each image of a batch, or to one where the first axis is left out."""

    operations: tf.Tensor  # int32 [n, k], one after the other, of OPERATIONS
    values: tf.Tensor  # float32 [n, k], how much of each, in the terms of `distorted`
    erased: tf.Tensor  # int32 [n, 4], (top, left, height, width); nothing where the height is 0


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

    def plan(self, draws: batches.Draws) -> Plan:
        """Draws what is done to each image of the batch, or of a share of it."""
        if self.name == "colour_jitter":
            order = draws.uniform(_ORDER_DRAW, [], 0, len(_ORDERS), tf.int32)
            operations = tf.gather(tf.constant(_ORDERS, tf.int32), order)
            values = draws.uniform(_FACTOR_DRAW, [len(_JITTERED)], LEAST_JITTER, MOST_JITTER)
        else:
            is_trivial = self.name == "trivial_augment"
            shape = [{"trivial_augment": 1, "rand_augment": RAND_OPERATIONS}.get(self.name, 0)]
            operations = draws.uniform(_OPERATION_DRAW, shape, 0, len(OPERATIONS), tf.int32)
            level = draws.uniform(_LEVEL_DRAW, shape, 0, LEVELS, tf.int32)
            level = level if is_trivial else RAND_LEVEL
            sign = draws.uniform(_SIGN_DRAW, shape, 0, 2, tf.int32)
            table = values_of_trivial() if is_trivial else values_of_rand(*self.image_shape[:2])
            values = tf.gather(table.reshape(-1), (operations * 2 + sign) * LEVELS + level)
        return Plan(operations, values, self._erased(draws))

    def _erased(self, draws: batches.Draws) -> tf.Tensor:
        """The rectangles of a `Plan`."""
        sides = tf.constant(self.output_shape[:2], tf.float32)  # of the image
        area = draws.uniform(_AREA_DRAW, [], LEAST_AREA, MOST_AREA) * tf.reduce_prod(sides)
        ratio = draws.uniform(_RATIO_DRAW, [], math.log(LEAST_RATIO), math.log(MOST_RATIO))
        # The last bits of a narrower exp depend on how many are computed together.
        ratio = tf.cast(tf.exp(tf.cast(ratio, tf.float64)), tf.float32)
        shape = tf.sqrt(tf.stack([area * ratio, area / ratio], axis=1))  # [n, 2]
        shape = tf.clip_by_value(tf.round(shape), 1, sides)
        place = draws.uniform(_PLACE_DRAW, [2])
        first = tf.minimum(tf.floor(place * (sides - shape + 1)), sides - shape)
        box = tf.cast(tf.concat([first, shape], axis=1), tf.int32)
        return tf.where(draws.uniform(_ERASE_DRAW, [1]) < self.erasing, box, 0)

    def distort(self, images: tf.Tensor, plan: Plan) -> tf.Tensor:
        """Images as their plan has them, uint8, before their pixels are scaled.

        Args:
          images: uint8, or float32 in [0, 255] and then rounded, [n, height, width, channels].
          plan: of these images.
        """
        if self.name == "none":
            return images
        if images.dtype != tf.uint8:
            images = tf.cast(tf.clip_by_value(tf.round(images), 0, 255), tf.uint8)
        each = [images, plan.operations, plan.values]
        return tf.ensure_shape(tf.numpy_function(_distorted, each, tf.uint8), images.shape)

    def erase(self, images: tf.Tensor, plan: Plan) -> tf.Tensor:
        """Images, float32 [n, height, width, channels], with 0 in their erased rectangles."""
        if not self.erasing:
            return images
        _, height, width, channels = images.shape
        top, left, rows, columns = tf.unstack(plan.erased[..., tf.newaxis], axis=1)  # [n, 1] each
        y, x = tf.range(height), np.repeat(np.arange(width, dtype=np.int32), channels)
        is_row, is_column = ((y >= top) & (y < top + rows), (x >= left) & (x < left + columns))
        is_erased = is_row[:, :, tf.newaxis] & is_column[:, tf.newaxis]
        # Over three channels TensorFlow broadcasts 10 times slower than over rows of pixels.
        pixels = tf.reshape(images, [-1, height, width * channels])
        return tf.reshape(tf.where(is_erased, 0.0, pixels), [-1, height, width, channels])


def _distorted(images: np.ndarray, operations: np.ndarray, values: np.ndarray) -> np.ndarray:
    with _one_at_a_time:
        each = map(distorted, images, operations.tolist(), values.tolist())
        return np.stack([*each])


def distorted(pixels: np.ndarray, operations: Sequence[int], values: Sequence[float]) -> np.ndarray:
    """Operations on one image, one after the other.

    Args:
      pixels: uint8 [height, width, 3].
      operations: places in OPERATIONS.
      values: how much of each. Of a shear, its tangent; of a translation, pixels to the left or
        upwards; of `rotate`, degrees counterclockwise; of `brightness`, `colour`, `contrast` and
        `sharpness` a factor, 1 for none; of `posterize`, the bits that are kept; of `solarize`, the
        least value that is inverted. The others take none.

    Returns:
      uint8 [height, width, 3]. What moves into the image is black.
    """
    image = Image.fromarray(pixels)
    for operation, value in zip(operations, values, strict=True):
        image = _DISTORTED_BY[operation](image, value)
    return np.asarray(image)


def values_of_trivial() -> np.ndarray:
    """TrivialAugment's wide space for `distorted`: float32 [operations, signs, levels]."""
    return _values(shear=0.99, translate=(32.0, 32.0), rotate=135.0, blend=0.99, bits=6)


def values_of_rand(height: int, width: int) -> np.ndarray:
    """RandAugment's space, likewise."""
    translate = (150 / 331 * width, 150 / 331 * height)
    return _values(shear=0.3, translate=translate, rotate=30.0, blend=0.9, bits=4)


def _values(shear, translate, rotate, blend, bits) -> np.ndarray:
    part = np.arange(LEVELS) / (LEVELS - 1)
    sizes = {
        "shear_x": shear * part,
        "shear_y": shear * part,
        "translate_x": np.trunc(translate[0] * part),
        "translate_y": np.trunc(translate[1] * part),
        "rotate": rotate * part,
    }
    values = {name: (size, -size) for name, size in sizes.items()}
    for name in ("brightness", "colour", "contrast", "sharpness"):
        values[name] = (1 + blend * part, 1 - blend * part)
    values["posterize"] = (8 - np.round(bits * part),) * 2
    values["solarize"] = (255 * (1 - part),) * 2
    nothing = (np.zeros(LEVELS),) * 2
    return np.array([values.get(name, nothing) for name in OPERATIONS], np.float32)
