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


class _Drawn(NamedTuple):
    area: tf.Tensor  # float32 [n, tries], in [LEAST_AREA, MOST_AREA)
    ratio: tf.Tensor  # float32 [n, tries], in [LEAST_RATIO, MOST_RATIO)
    place: tf.Tensor  # float32 [n, 2], in [0, 1), of height and width
    mirrored: tf.Tensor  # bool [n]


def at_random(sizes: tf.Tensor, draws: batches.Draws, size: int) -> Cut:
    """A part of random area and ratio, scaled to `size` x `size`, and mirrored by a coin.

    Szegedy et al. 2014 (arXiv:1409.4842, section 6), by the rule of torchvision's
    `RandomResizedCrop`: ten tries, and where none fits the middle, in the nearest ratio allowed.

    Args:
      sizes: int32 [n, 2], height and width.
      draws: of the batch.
      size: pixels.
    """
    drawn = draws.for_share(lambda n: _draw(draws.seed, n), tf.shape(sizes)[0])
    whole = tf.cast(sizes, tf.float32)  # [n, 2], height and width
    area = tf.reduce_prod(whole, axis=1, keepdims=True) * drawn.area
    tried = tf.round(tf.sqrt(tf.stack([area / drawn.ratio, area * drawn.ratio], axis=2)))
    # [n, tries, 2]
    fits = tf.reduce_all((tried >= 1) & (tried <= whole[:, tf.newaxis]), axis=2)
    first = tf.gather(tried, tf.argmax(tf.cast(fits, tf.int32), axis=1), axis=1, batch_dims=1)
    height, width = tf.unstack(whole, axis=1)
    otherwise = tf.stack(
        [
            tf.where(width / height < LEAST_RATIO, tf.round(width / LEAST_RATIO), height),
            tf.where(width / height > MOST_RATIO, tf.round(height * MOST_RATIO), width),
        ],
        axis=1,
    )
    does_fit = tf.reduce_any(fits, axis=1, keepdims=True)
    part = tf.where(does_fit, first, otherwise)
    left_over = whole - part
    at = tf.minimum(tf.floor(drawn.place * (left_over + 1)), left_over)
    begin = tf.where(does_fit, at, tf.floor(left_over / 2))
    box = tf.cast(tf.concat([begin, part], axis=1), tf.int32)
    return Cut(box, tf.fill(tf.shape(sizes), float(size)), drawn.mirrored)


def _draw(seed: tf.Tensor, count: int | tf.Tensor) -> _Drawn:
    uniform = functools.partial(batches.uniform, seed)
    ratios = math.log(LEAST_RATIO), math.log(MOST_RATIO)
    return _Drawn(
        uniform(_AREA_DRAW, [count, _TRIES], LEAST_AREA, MOST_AREA),
        # For the whole batch: the last bits of exp depend on how many are computed together.
        tf.exp(uniform(_RATIO_DRAW, [count, _TRIES], *ratios)),
        tf.stack([uniform(_TOP_DRAW, [count]), uniform(_LEFT_DRAW, [count])], axis=1),
        uniform(_FLIP_DRAW, [count]) < 0.5,
    )
