"""Augmentations by the field's names: TrivialAugment, RandAugment, colour jitter, random erasing.

Each image has its own draws (`batches.Draws`). The operations are Pillow's.
"""

import dataclasses
import itertools
import math

import numpy as np
import tensorflow as tf
from PIL import Image, ImageEnhance, ImageOps

from . import batches


def _moved(image: Image.Image, *affine: float) -> Image.Image:
    """Each pixel is the one at (ax + by + c, dx + ey + f), where it is at (x, y)."""
    return image.transform(image.size, Image.Transform.AFFINE, affine, Image.Resampling.NEAREST)


# Of an image and the operation's value, as `distorted` has them; in the order of torchvision's
# TrivialAugmentWide.
_OPERATIONS = {
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
OPERATIONS = tuple(_OPERATIONS)

NAMES = ("none", "trivial_augment", "rand_augment", "colour_jitter")
LEVELS = 31  # from nothing to the most, as in both papers
RAND_OPERATIONS, RAND_LEVEL = 2, 9  # torchvision's defaults
LEAST_JITTER, MOST_JITTER = 0.6, 1.4
LEAST_AREA, MOST_AREA = 0.02, 0.33  # of the image, that is erased
LEAST_RATIO, MOST_RATIO = 0.3, 3.3  # height / width
_JITTERED = ("brightness", "contrast", "colour")
_ORDERS = list(itertools.permutations(map(OPERATIONS.index, _JITTERED)))

# Apart from those of `preprocess` and `images`.
_OPERATION_DRAW, _LEVEL_DRAW, _SIGN_DRAW, _FACTOR_DRAW, _ORDER_DRAW = range(32, 37)
_ERASE_DRAW, _AREA_DRAW, _RATIO_DRAW, _PLACE_DRAW = range(37, 41)


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
            raise ValueError(f"{self.name} takes images of 3 channels, not {self.image_shape[2]}")

    def operations(self, draws: batches.Draws) -> tuple[tf.Tensor, tf.Tensor]:
        """What each image of a batch is distorted by, one after the other, as for `distorted`."""
        if self.name == "colour_jitter":
            order = draws.uniform(_ORDER_DRAW, [], 0, len(_ORDERS), tf.int32)
            factors = draws.uniform(_FACTOR_DRAW, [len(_JITTERED)], LEAST_JITTER, MOST_JITTER)
            return tf.gather(tf.constant(_ORDERS, tf.int32), order), factors
        is_trivial = self.name == "trivial_augment"
        shape = [1 if is_trivial else RAND_OPERATIONS]
        operations = draws.uniform(_OPERATION_DRAW, shape, 0, len(OPERATIONS), tf.int32)
        sign = draws.uniform(_SIGN_DRAW, shape, 0, 2, tf.int32)
        level = RAND_LEVEL
        if is_trivial:
            level = draws.uniform(_LEVEL_DRAW, shape, 0, LEVELS, tf.int32)
        table = strengths(self.name, *self.image_shape[:2]).reshape(-1)
        return operations, tf.gather(table, (operations * 2 + sign) * LEVELS + level)

    def rectangles(self, draws: batches.Draws) -> tf.Tensor:
        """What is erased of each image: int32 [n, 4], (top, left, height, width), or four 0."""
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

    def distort(self, images: tf.Tensor, draws: batches.Draws) -> tf.Tensor:
        """Images after their operations, uint8, before their pixels are scaled.

        Args:
          images: uint8, or float32 in [0, 255] and then rounded, [n, height, width, channels].
          draws: of these images.
        """
        if self.name == "none":
            return images
        if images.dtype != tf.uint8:
            images = tf.cast(tf.clip_by_value(tf.round(images), 0, 255), tf.uint8)
        result = tf.numpy_function(distorted, [images, *self.operations(draws)], tf.uint8)
        return tf.ensure_shape(result, images.shape)

    def erase(self, images: tf.Tensor, draws: batches.Draws) -> tf.Tensor:
        """Images, float32 [n, height, width, channels], with 0 in their rectangles."""
        if not self.erasing:
            return images
        _, height, width, channels = images.shape
        rectangles = self.rectangles(draws)[..., tf.newaxis]
        top, left, rows, columns = tf.unstack(rectangles, axis=1)  # [n, 1] each
        y, x = tf.range(height), np.repeat(np.arange(width, dtype=np.int32), channels)
        is_row, is_column = ((y >= top) & (y < top + rows), (x >= left) & (x < left + columns))
        is_erased = is_row[:, :, tf.newaxis] & is_column[:, tf.newaxis]
        # Over three channels TensorFlow broadcasts 10 times slower than over rows of pixels.
        pixels = tf.reshape(images, [-1, height, width * channels])
        return tf.reshape(tf.where(is_erased, 0.0, pixels), [-1, height, width, channels])


def distorted(images: np.ndarray, operations: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Operations on each image of a batch, one after the other.

    Args:
      images: uint8 [n, height, width, 3].
      operations: integers [n, k], places in OPERATIONS.
      values: floats [n, k], how much of each. Of a shear, its tangent; of a translation, pixels to
        the left or upwards; of `rotate`, degrees counterclockwise; of `brightness`, `colour`,
        `contrast` and `sharpness` a factor, 1 for none; of `posterize`, the bits that are kept; of
        `solarize`, the least value that is inverted. The others take none.

    Returns:
      uint8 [n, height, width, 3]. What moves into an image is black.
    """
    functions = [*_OPERATIONS.values()]
    result = np.empty_like(images)
    for place, drawn in enumerate(zip(operations.tolist(), values.tolist(), strict=True)):
        image = Image.fromarray(images[place])
        for number, value in zip(*drawn, strict=True):
            image = functions[number](image, value)
        result[place] = image
    return result


def strengths(name: str, height: int, width: int) -> np.ndarray:
    """The values of an augmentation for `distorted`: float32 [operations, signs, levels]."""
    part = np.arange(LEVELS) / (LEVELS - 1)
    signed = np.stack([part, -part])
    if name == "trivial_augment":  # the wide space
        shear, rightwards, downwards, degrees, blend, bits = 0.99, 32.0, 32.0, 135.0, 0.99, 6
    else:
        rightwards, downwards = 150 / 331 * width, 150 / 331 * height
        shear, degrees, blend, bits = 0.3, 30.0, 0.9, 4
    values = dict.fromkeys(("brightness", "colour", "contrast", "sharpness"), 1 + blend * signed)
    values |= {
        "shear_x": shear * signed,
        "shear_y": shear * signed,
        "translate_x": np.trunc(rightwards * signed),
        "translate_y": np.trunc(downwards * signed),
        "rotate": degrees * signed,
        "posterize": 8 - np.round(bits * abs(signed)),
        "solarize": 255 * (1 - abs(signed)),
    }
    return np.array([values.get(name, 0 * signed) for name in OPERATIONS], np.float32)
