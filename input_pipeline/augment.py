"""Augmentations by the field's names: TrivialAugment, RandAugment, colour jitter, random erasing.

Each picture of the global batch has its own draws, made at once from the seed and the step
(`batches.Draws`), so that they do not depend on the number of towers and workers. `distortions` has
the arithmetic of the operations.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from . import batches, distortions

NAMES = ("none", "trivial_augment", "rand_augment", "colour_jitter")
LEVELS = 31  # from nothing to the most, as in both papers
RAND_OPERATIONS, RAND_LEVEL = 2, 9  # torchvision's defaults
LEAST_JITTER, MOST_JITTER = 0.6, 1.4
LEAST_AREA, MOST_AREA = 0.02, 0.33  # of the image, that is erased
LEAST_RATIO, MOST_RATIO = 0.3, 3.3  # height / width
_JITTERED = ("brightness", "contrast", "colour")
_ORDERS = list(itertools.permutations(map(distortions.OPERATIONS.index, _JITTERED)))

# Apart from those of `preprocess` and `cuts`.
_OPERATION_DRAW, _LEVEL_DRAW, _SIGN_DRAW, _FACTOR_DRAW, _ORDER_DRAW = range(32, 37)
_ERASE_DRAW, _AREA_DRAW, _RATIO_DRAW, _TOP_DRAW, _LEFT_DRAW = range(37, 42)


class Plan(NamedTuple):
    """What is done to each image of a batch, or to one where the first axis is left out.

    Attributes:
      operations: int32 [n, k], one after the other, as places in `distortions.OPERATIONS`; k is at
        least 1.
      values: float32 [n, k], how much of each, in the terms of `distortions.apply`.
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
        return draws.for_share(functools.partial(self._plan, draws.seed), count)

    def _plan(self, seed: tf.Tensor, count: int | tf.Tensor) -> Plan:
        number, uniform = _drawn_from(seed)
        height, width, _ = self.image_shape
        if self.name == "none":
            # One operation, not none: TensorFlow 2.21 crashes when it unbatches empty tensors.
            operations = tf.fill([count, 1], distortions.OPERATIONS.index("identity"))
            values = tf.zeros([count, 1])
        elif self.name == "colour_jitter":
            order = number(_ORDER_DRAW, [count], len(_ORDERS))
            operations = tf.gather(tf.constant(_ORDERS, tf.int32), order)
            values = uniform(_FACTOR_DRAW, [count, len(_JITTERED)], LEAST_JITTER, MOST_JITTER)
        else:
            is_trivial = self.name == "trivial_augment"
            shape = [count, 1 if is_trivial else RAND_OPERATIONS]
            operations = number(_OPERATION_DRAW, shape, len(distortions.OPERATIONS))
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
            image = distortions.apply(image, plan.operations[place], plan.values[place])
        return image

    def erase(self, image: tf.Tensor, plan: Plan) -> tf.Tensor:
        """An image, float32 [height, width, channels], with 0 in its erased rectangle."""
        height, width, channels = image.shape
        top, left, of_height, of_width = tf.unstack(plan.erased)
        rectangle = tf.slice(image, [top, left, 0], [of_height, of_width, channels])
        around = [[top, height - top - of_height], [left, width - left - of_width], [0, 0]]
        return image - tf.pad(rectangle, around)  # finite x - x is 0; tf.where is slower


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
    """TrivialAugment's wide space, in the terms of `distortions.apply`.

    Returns:
      float32 [operations, signs, levels].
    """
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
    return np.array(
        [values.get(name, (of_none, of_none)) for name in distortions.OPERATIONS], np.float32
    )
