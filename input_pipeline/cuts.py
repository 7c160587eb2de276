"""Which part of a picture becomes the square that a network sees, and how large it is scaled."""

import functools
import math
from typing import NamedTuple

import tensorflow as tf

from . import batches

LEAST_AREA, MOST_AREA = 0.08, 1.0  # of the picture
LEAST_RATIO, MOST_RATIO = 3 / 4, 4 / 3  # width / height
_TRIES = 10

# Apart from those of `preprocess`.
_AREA_DRAW, _RATIO_DRAW, _TOP_DRAW, _LEFT_DRAW, _FLIP_DRAW = range(16, 21)


class Cut(NamedTuple):
    """A part of each picture, and the size it is scaled to, of which the middle is kept.

    Attributes:
      box: int32 [n, 4], (top, left, height, width).
      side: float32 [n, 2], height and width.
      mirrored: bool [n], whether left becomes right.
    """

    box: tf.Tensor
    side: tf.Tensor
    mirrored: tf.Tensor


def middle(sizes: tf.Tensor, shorter: int) -> Cut:
    """The whole picture, scaled so that its shorter side is `shorter`; the longer one is cut off.

    As torchvision's `Resize(shorter)` before `CenterCrop`.

    Args:
      sizes: int32 [n, 2], height and width.
      shorter: pixels.
    """
    least = tf.reduce_min(sizes, axis=1, keepdims=True)
    side = sizes * shorter // least  # whole pixels, downwards, as torchvision has them
    box = tf.concat([tf.zeros_like(sizes), sizes], axis=1)
    never = tf.zeros([tf.shape(sizes)[0]], tf.bool)
    return Cut(box, tf.cast(side, tf.float32), never)


def at_random(sizes: tf.Tensor, draws: batches.Draws, size: int) -> Cut:
    """A part of random area and ratio, scaled to `size` x `size`, and mirrored by a coin.

    Szegedy et al. 2014 (arXiv:1409.4842, section 6), by the rule of torchvision's
    `RandomResizedCrop`: ten tries, and where none fits the middle, in the nearest ratio allowed.

    Args:
      sizes: int32 [n, 2], height and width.
      draws: of the batch.
      size: pixels.
    """
    areas, ratios, place, mirrored = draws.for_share(
        functools.partial(draw, draws.seed), tf.shape(sizes)[0]
    )
    whole = tf.cast(sizes, tf.float32)  # [n, 2], height and width
    areas *= tf.reduce_prod(whole, axis=1, keepdims=True)
    tried = tf.round(tf.sqrt(tf.stack([areas / ratios, areas * ratios], axis=2)))
    # [n, tries, 2]
    fits = tf.reduce_all((tried >= 1) & (tried <= whole[:, tf.newaxis]), axis=2)
    first = tf.gather(tried, tf.argmax(tf.cast(fits, tf.int32), axis=1), batch_dims=1)
    # As wide and high as the other side allows.
    otherwise = tf.minimum(whole, tf.round(whole[:, ::-1] * (1 / LEAST_RATIO, MOST_RATIO)))
    does_fit = tf.reduce_any(fits, axis=1, keepdims=True)
    part = tf.where(does_fit, first, otherwise)
    left_over = whole - part
    at = tf.minimum(tf.floor(place * (left_over + 1)), left_over)
    begin = tf.where(does_fit, at, tf.floor(left_over / 2))
    box = tf.cast(tf.concat([begin, part], axis=1), tf.int32)
    return Cut(box, tf.fill(tf.shape(sizes), float(size)), mirrored)


def draw(seed: tf.Tensor, count: int | tf.Tensor) -> tuple:
    """What parts at random are drawn from.

    Returns:
      Shares of the area and ratios, float32 [count, tries] each; the place, float32 [count, 2], in
      [0, 1), of height and width; and whether it is mirrored, bool [count].
    """
    uniform = functools.partial(batches.uniform, seed)
    ratios = math.log(LEAST_RATIO), math.log(MOST_RATIO)
    return (
        uniform(_AREA_DRAW, [count, _TRIES], LEAST_AREA, MOST_AREA),
        # For the whole batch: the last bits of exp depend on how many are computed together.
        tf.exp(uniform(_RATIO_DRAW, [count, _TRIES], *ratios)),
        tf.stack([uniform(_TOP_DRAW, [count]), uniform(_LEFT_DRAW, [count])], axis=1),
        uniform(_FLIP_DRAW, [count]) < 0.5,
    )
