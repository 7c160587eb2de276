"""Which part of a picture becomes the square that a network sees."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from . import batches

LEAST_AREA, MOST_AREA = 0.08, 1.0  # of the picture
LEAST_RATIO, MOST_RATIO = 3 / 4, 4 / 3  # width / height
_TRIES = 10
_DRAW = 16  # apart from those of `preprocess`


class Cut(NamedTuple):
    """A part of a picture."""

    box: tuple[float, float, float, float]  # (left, top, right, bottom), in pixels
    mirrored: bool = False  # whether left becomes right


def middle(width: int, height: int) -> Cut:
    """The largest square in the middle."""
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return Cut((left, top, left + side, top + side))


def at_random(width: int, height: int, drawn: Sequence[float]) -> Cut:
    """A part of random area and ratio, mirrored by a coin.

    Szegedy et al. 2014 (arXiv:1409.4842, section 6), by the rule of torchvision's
    `RandomResizedCrop`: ten tries, and where none fits the middle, in the nearest ratio allowed.

    Args:
      width, height: of the picture, in pixels.
      drawn: of this picture, one of `draw`.
    """
    areas, ratios = drawn[:_TRIES], drawn[_TRIES : 2 * _TRIES]
    y, x, coin = drawn[2 * _TRIES :]
    for area, ratio in zip(areas, ratios, strict=True):
        area = width * height * (LEAST_AREA + (MOST_AREA - LEAST_AREA) * area)
        ratio = LEAST_RATIO * (MOST_RATIO / LEAST_RATIO) ** ratio
        columns, rows = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 1 <= columns <= width and 1 <= rows <= height:
            left, top = int(x * (width - columns + 1)), int(y * (height - rows + 1))
            break
    else:
        columns = min(width, round(height * MOST_RATIO))
        rows = min(height, round(width / LEAST_RATIO))
        left, top = (width - columns) // 2, (height - rows) // 2
    return Cut((left, top, left + columns, top + rows), coin < 0.5)


def draw(draws: batches.Draws) -> tf.Tensor:
    """What parts at random are drawn from: float32 [images, 23], each in [0, 1)."""
    return draws.uniform(_DRAW, [2 * _TRIES + 3])
