"""Mixup and CutMix: each image of a training batch is mixed with its neighbour, as are the labels.

The neighbours are places 0 and 1 of the global batch, 2 and 3, and so on. The order of examples is
random, so a neighbour may be any other example.
"""

import dataclasses

import tensorflow as tf

from . import batches

LEAST_ALPHA, MOST_ALPHA = 0.1, 100.0  # with less, nearly all draws are 0 or 1
CUTMIX_SHARE = 0.5  # of the images, where mixup and CutMix are both on

_KIND_DRAW, _TOP_DRAW, _LEFT_DRAW = range(48, 51)
_MIXUP_DRAWS, _CUTMIX_DRAWS = (51, 52), (53, 54)


@dataclasses.dataclass(frozen=True)
class Mixing:
    """What training images are mixed by.

    With both, a coin thrown for each image decides which of the two it is.

    Attributes:
      mixup_alpha: an image becomes `w * image + (1 - w) * neighbour`, with w drawn from
        Beta(alpha, alpha) (Zhang et al. 2017, arXiv:1710.09412). 0 for no mixup.
      cutmix_alpha: a rectangle of the image becomes the neighbour's. Before it is clipped to the
        image it has the share 1 - w of the area, with w drawn likewise; its middle is anywhere
        (Yun et al. 2019, arXiv:1905.04899). 0 for no CutMix.
      num_classes: of the labels.
    """

    mixup_alpha: float = 0.0
    cutmix_alpha: float = 0.0
    num_classes: int = 0

    def __post_init__(self):
        for name in ("mixup_alpha", "cutmix_alpha"):
            alpha = getattr(self, name)
            if alpha and not LEAST_ALPHA <= alpha <= MOST_ALPHA:
                raise ValueError(
                    f"{name}={alpha}: must be 0, or from {LEAST_ALPHA:g} to {MOST_ALPHA:g}"
                )
        if (self.mixup_alpha or self.cutmix_alpha) and self.num_classes < 1:
            raise ValueError(f"num_classes={self.num_classes}: must be the number of classes")

    def __call__(
        self, images: tf.Tensor, labels: tf.Tensor, draws: batches.Draws
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Mixes a batch.

        Args:
          images: float32 or uint8 [n, height, width, channels].
          labels: integer [n] or [n, 1], in [0, num_classes).
          draws: of the batch.

        Returns:
          images: float32 of the same shape.
          labels: float32 [n, num_classes], the share of each class; they add up to 1.
          Where nothing is mixed, both as they came.

        Raises:
          ValueError: an image has no neighbour, or these are not images or not labels.
          tf.errors.InvalidArgumentError: a label is out of range.
        """
        if not (self.mixup_alpha or self.cutmix_alpha):
            return images, labels
        images, labels = tf.cast(images, tf.float32), tf.convert_to_tensor(labels)
        is_column = labels.shape.rank == 2 and labels.shape[1] == 1
        labels = labels[:, 0] if is_column else labels
        if not labels.dtype.is_integer or labels.shape.rank != 1 or images.shape.rank != 4:
            raise ValueError(
                "mixup and CutMix take images [n, height, width, channels] and integer labels [n], "
                f"but these are {images.shape} and {labels.dtype.name} {labels.shape}"
            )
        if draws.batch_size % 2:
            raise ValueError(
                "mixup and CutMix mix pairs of images: a batch must have an even number of them, "
                f"but this one has {draws.batch_size}"
            )
        _, height, width, channels = images.shape
        share, rows, columns, weight = self.plan(draws, height, width)
        # Over three channels TensorFlow broadcasts 10 times slower than over rows of pixels.
        pixels = tf.reshape(images, [-1, height, width * channels])
        columns = tf.repeat(columns, channels, axis=1)
        in_rectangle = rows[:, :, tf.newaxis] * columns[:, tf.newaxis]
        mixed = _mixed(weight[:, tf.newaxis, tf.newaxis] - in_rectangle, pixels)
        text = f"mixup and CutMix: labels must be less than {self.num_classes}, and at least 0"
        most = tf.constant(self.num_classes - 1, tf.uint64)
        tf.debugging.assert_less_equal(tf.cast(labels, tf.uint64), most, text)
        classes = tf.one_hot(labels, self.num_classes)
        return tf.reshape(mixed, images.shape), _mixed(share[:, tf.newaxis], classes)

    def plan(self, draws: batches.Draws, height: int, width: int) -> tuple[tf.Tensor, ...]:
        """Draws how each image is mixed with its neighbour; all float32.

        Returns:
          share: [n], of the label that is the image's own.
          rows: [n, height], 1 where a row crosses the neighbour's rectangle; with mixup none does.
          columns: [n, width], likewise.
          weight: [n], of the image's own pixels outside that rectangle.
        """
        # Where only one of the two is on, every draw is on its side.
        cutmix_share = CUTMIX_SHARE if self.mixup_alpha else 1.0
        is_cut = draws.uniform(_KIND_DRAW) < (cutmix_share if self.cutmix_alpha else 0.0)
        weight = tf.where(
            is_cut,
            _beta(draws, _CUTMIX_DRAWS, self.cutmix_alpha or 1.0),
            _beta(draws, _MIXUP_DRAWS, self.mixup_alpha or 1.0),
        )
        half = 0.5 * tf.sqrt(1.0 - weight)
        rows = _crossed(draws.uniform(_TOP_DRAW), half, height)
        columns = _crossed(draws.uniform(_LEFT_DRAW), half, width)
        area = tf.reduce_sum(rows, axis=1) * tf.reduce_sum(columns, axis=1)
        share = tf.where(is_cut, 1.0 - area / (height * width), weight)
        rows = tf.where(is_cut[:, tf.newaxis], rows, 0.0)
        return share, rows, columns, tf.where(is_cut, 1.0, weight)


def _mixed(weight: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """So much of each of [n, ...], and the rest of its neighbour: 0 and 1, 2 and 3, and so on."""
    pairs = tf.reshape(values, [-1, 2, *values.shape[1:]])
    return weight * values + (1.0 - weight) * tf.reshape(tf.reverse(pairs, [1]), values.shape)


def _crossed(middle: tf.Tensor, half: tf.Tensor, length: int) -> tf.Tensor:
    """Which rows or columns a rectangle crosses, as torchvision has it: float32 [n, length].

    It has whole pixels on both sides of its middle, and what lies outside the image is cut off.
    Middle and half the rectangle's side are float32 [n], shares of the image's length in pixels.
    """
    at, reach = tf.floor(middle * length), tf.floor(half * length)
    places = tf.range(length, dtype=tf.float32)
    is_crossed = (places >= (at - reach)[:, tf.newaxis]) & (places < (at + reach)[:, tf.newaxis])
    return tf.cast(is_crossed, tf.float32)


def _beta(draws: batches.Draws, kinds: tuple[int, int], alpha: float) -> tf.Tensor:
    """float32 [n], of Beta(alpha, alpha): a gamma variable as a share of two."""

    def gamma(kind):
        seed = tf.random.experimental.stateless_fold_in(draws.seed, kind, alg=batches.ALGORITHM)
        return tf.random.stateless_gamma([draws.batch_size], seed, alpha, dtype=tf.float64)

    one, other = map(gamma, kinds)
    return tf.cast(one / (one + other), tf.float32)
