"""Distortions for training and their evaluation twins, on whole batches, with a draw per image.

tf.image's random functions share one draw among the images of a batch, and a map over single
images is several times slower. Here each image has its own (`batches.Draws`), all made at once.

Source of the distortions for the tutorial's network: tensorflow/models,
tutorials/image/cifar10/cifar10_input.py, `distorted_inputs`.
"""

import dataclasses
import math
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from . import augment, batches, mixing

MAX_BRIGHTNESS_DELTA = 63.0  # added to pixels in [0, 255]
MIN_CONTRAST, MAX_CONTRAST = 0.2, 1.8
PIXEL_MEAN, PIXEL_DEVIATION = 120.7, 64.2  # of CIFAR-10, over all images and channels
# Of ImageNet's red, green and blue, times 255, as torchvision and timm have them.
COLOUR_MEANS, COLOUR_DEVIATIONS = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
_SHORTER_SIDE = 8 / 7  # of a picture, to the middle of it that is evaluated: 256 to 224

_TOP_DRAW, _LEFT_DRAW, _FLIP_DRAW, _BRIGHTNESS_DRAW, _CONTRAST_DRAW = range(5)


def draw_placement(draws: batches.Draws, max_top: int, max_left: int) -> tuple[tf.Tensor, ...]:
    """Draws for each image top and left of its crop, int32 [batch], and whether it is mirrored."""
    return (
        draws.uniform(_TOP_DRAW, low=0, high=max_top + 1, dtype=tf.int32),
        draws.uniform(_LEFT_DRAW, low=0, high=max_left + 1, dtype=tf.int32),
        draws.uniform(_FLIP_DRAW) < 0.5,
    )


def draw_colour(draws: batches.Draws) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws for each image a brightness, added to each pixel, and a contrast: float32 [batch]."""
    most = MAX_BRIGHTNESS_DELTA
    brightness = draws.uniform(_BRIGHTNESS_DRAW, (), -most, most)
    return brightness, draws.uniform(_CONTRAST_DRAW, (), MIN_CONTRAST, MAX_CONTRAST)


# Images are uint8 or float32 [batch, height, width, channels] in [0, 255]; results are float32.


def distort_for_tutorial(
    images: tf.Tensor, draws: batches.Draws, crop_height: int, crop_width: int
) -> tf.Tensor:
    """Random crop, mirroring, brightness and contrast, then standardization, per image.

    Gives float32 [batch, crop_height, crop_width, channels], each image of mean 0 and deviation 1.
    """
    _, height, width, _ = images.shape
    placement = draw_placement(draws, height - crop_height, width - crop_width)
    cropped = crop_and_flip(images, placement, crop_height, crop_width)
    brightness, contrast = draw_colour(draws)
    return standardize(adjust_colour(tf.cast(cropped, tf.float32), brightness, contrast))


def distort_pad_crop_flip(images: tf.Tensor, draws: batches.Draws, padding: int = 4) -> tf.Tensor:
    """Zero padding, a random crop back to the image's size, mirroring, then standardization.

    The usual augmentation for residual networks on CIFAR-10 (He et al. 2015, arXiv:1512.03385,
    section 4.2).
    """
    around = [padding, padding]
    padded = tf.pad(images, [[0, 0], around, around, [0, 0]])
    placement = draw_placement(draws, 2 * padding, 2 * padding)
    return standardize(crop_and_flip(padded, placement, *images.shape[1:3]))


def distort_shift_flip(images: tf.Tensor, draws: batches.Draws, margin: int = 2) -> tf.Tensor:
    """A shift by at most `margin` pixels each way, alternate mirroring, then `scale_pixels`.

    What lies behind an edge is the image's own reflection. Jordan 2024 (arXiv:2404.00498): mirrored
    alternately, an example is seen both ways in any two epochs; by a coin for each epoch, half of
    them are seen one way only.
    """
    around = [margin, margin]
    padded = tf.pad(images, [[0, 0], around, around, [0, 0]], "REFLECT")
    top, left, _ = draw_placement(draws, 2 * margin, 2 * margin)
    return scale_pixels(crop_and_flip(padded, (top, left, draws.mirrored), *images.shape[1:3]))


def scale_pixels(images: tf.Tensor) -> tf.Tensor:
    """Pixels minus PIXEL_MEAN, divided by PIXEL_DEVIATION: the same for all images."""
    return (keras.ops.cast(images, "float32") - PIXEL_MEAN) * (1.0 / PIXEL_DEVIATION)


def scale_colours(images: tf.Tensor) -> tf.Tensor:
    """Each of three channels minus its COLOUR_MEANS, divided by its COLOUR_DEVIATIONS."""
    _, height, width, channels = images.shape
    # For a whole row of pixels: over three channels TensorFlow broadcasts 10 times slower.
    means = np.tile(np.array(COLOUR_MEANS, np.float32), width)
    factors = np.tile(np.float32(1 / np.array(COLOUR_DEVIATIONS)), width)
    rows = keras.ops.reshape(keras.ops.cast(images, "float32"), (-1, height, width * channels))
    return keras.ops.reshape((rows - means) * factors, (-1, height, width, channels))


def standardize(images: tf.Tensor) -> tf.Tensor:
    """Each image minus its mean, divided by max(deviation, 1 / sqrt(number of values)).

    As tf.image.per_image_standardization; the bound keeps images of one colour finite.
    """
    ops, axes = keras.ops, (1, 2, 3)
    images = ops.cast(images, "float32")
    centered = images - ops.mean(images, axes, keepdims=True)
    deviations = ops.sqrt(ops.mean(ops.square(centered), axes, keepdims=True))
    # In this order: of 1 / sqrt TensorFlow makes rsqrt, whose last bits depend on how many images
    # are computed together.
    return centered * (1.0 / ops.maximum(deviations, math.prod(images.shape[1:]) ** -0.5))


def center(images: tf.Tensor, crop_height: int, crop_width: int) -> tf.Tensor:
    """The middle of each image, [batch, crop_height, crop_width, channels]."""
    top, left = (images.shape[1] - crop_height) // 2, (images.shape[2] - crop_width) // 2
    return images[:, top : top + crop_height, left : left + crop_width, :]


def crop_and_flip(
    images: tf.Tensor, placement: tuple[tf.Tensor, ...], crop_height: int, crop_width: int
) -> tf.Tensor:
    """Cuts each image where `draw_placement` says: [batch, crop_height, crop_width, channels]."""
    top, left, flip = placement
    rows = top[:, tf.newaxis] + tf.range(crop_height)  # [batch, crop_height]
    columns = tf.range(crop_width)
    # A mirrored image reads its columns backwards: no further pass over the pixels.
    columns = tf.where(flip[:, tf.newaxis], columns[::-1], columns)
    columns += left[:, tf.newaxis]  # [batch, crop_width]
    images = tf.gather(images, rows, axis=1, batch_dims=1)
    return tf.gather(images, columns, axis=2, batch_dims=1)


def adjust_colour(images: tf.Tensor, brightness: tf.Tensor, contrast: tf.Tensor) -> tf.Tensor:
    """Adds the brightness, then multiplies each channel's distance to its mean by the contrast.

    As tf.image.adjust_brightness and adjust_contrast with a number per image, and as in the
    tutorial without clipping to [0, 255] in between: then standardization undoes the brightness.
    """
    _, height, width, channels = images.shape
    means = tf.reduce_mean(images, axis=[1, 2])  # [batch, channels]
    # With x the pixel, b the brightness, c the contrast and m the mean:
    # ((x + b) - (m + b)) * c + (m + b) = x * c + (m * (1 - c) + b)
    added = means * (1 - contrast[:, tf.newaxis]) + brightness[:, tf.newaxis]
    # Repeated for a whole row of pixels: over three channels TensorFlow broadcasts 10 times slower.
    added = tf.tile(added, [1, width])[:, tf.newaxis]  # [batch, 1, width * channels]
    rows = tf.reshape(images, [-1, height, width * channels])
    adjusted = rows * contrast[:, tf.newaxis, tf.newaxis] + added
    return tf.reshape(adjusted, [-1, height, width, channels])


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """What happens to images between the data set and the network.

    Where a set has pictures of different sizes, each becomes an image first: in training a part of
    it, at random or the middle; in evaluation the middle, of the picture scaled so that its shorter
    side is that of `raw_shape`.
    """

    # (images uint8 [batch, h, w, c], draws) -> float32 [batch, *output_shape]
    train: Callable[[tf.Tensor, batches.Draws], tf.Tensor]
    # (images) -> float32 [batch, *output_shape]; also for Keras's symbolic tensors of raw images
    evaluate: Callable
    output_shape: tuple[int, int, int]
    raw_shape: tuple[int, ...] = ()  # of raw images, or of the middle of pictures
    cuts_at_random: bool = False  # then `train` draws nothing more
    name: str = ""
    image_shape: tuple[int, ...] = ()  # of an image as the data set gives it
    augmentation: augment.Augmentation = augment.Augmentation()
    mixed: mixing.Mixing = mixing.Mixing()  # the images that `in_training` gives

    def in_training(self, images: tf.Tensor, draws: batches.Draws) -> tf.Tensor:
        """`train`, with the augmentation around it; arguments and result are the same."""
        images = self.train(self.augmentation.distort(images, draws), draws)
        return self.augmentation.erase(images, draws)


def _crop_flip_colour(height: int, width: int, channels: int) -> Preprocessing:
    rows, columns = height * 3 // 4, width * 3 // 4
    return Preprocessing(
        train=lambda images, draws: distort_for_tutorial(images, draws, rows, columns),
        evaluate=lambda images: standardize(center(images, rows, columns)),
        output_shape=(rows, columns, channels),
    )


def _random_resized_crop(height: int, width: int, channels: int) -> Preprocessing:
    return Preprocessing(
        train=lambda images, draws: scale_colours(images),  # cut and mirrored as they are decoded
        evaluate=lambda images: scale_colours(center(images, height, width)),
        output_shape=(height, width, channels),
        raw_shape=(int(height * _SHORTER_SIDE), int(width * _SHORTER_SIDE), channels),
        cuts_at_random=True,
    )


_BY_NAME = {
    "crop_flip_colour": _crop_flip_colour,
    "pad_crop_flip": lambda *shape: Preprocessing(distort_pad_crop_flip, standardize, shape),
    "shift_alternating_flip": lambda *shape: Preprocessing(distort_shift_flip, scale_pixels, shape),
    "random_resized_crop": _random_resized_crop,
}


def for_images(
    name: str,
    image_shape: tuple[int, int, int],
    augmentation: str = "none",
    random_erasing: float = 0.0,
    mixed: mixing.Mixing | None = None,
) -> Preprocessing:
    """The preprocessing called `name` for images of `image_shape`.

    Args:
      name: `crop_flip_colour`, the tutorial's (a crop of 3/4 of each side: 24 of 32);
        `pad_crop_flip`, for residual networks (the size stays); `shift_alternating_flip`, for few
        epochs (the size stays); or `random_resized_crop`, for pictures of different sizes.
      image_shape: (height, width, channels) of the images in the data set.
      augmentation: name of an `augment.Augmentation`, for training.
      random_erasing: its probability of erasing.
      mixed: what training images are mixed by, with their labels; None for nothing.

    Raises:
      ValueError: no preprocessing or augmentation has that name, or it does not take such images.
    """
    if name not in _BY_NAME:
        raise ValueError(f"preprocessing={name!r}: must be one of {', '.join(_BY_NAME)}")
    height, width, channels = image_shape
    image_shape = height, width, channels
    made = _BY_NAME[name](height, width, channels)
    return dataclasses.replace(
        made,
        name=name,
        image_shape=image_shape,
        raw_shape=made.raw_shape or image_shape,
        augmentation=augment.Augmentation(
            augmentation, random_erasing, image_shape, made.output_shape
        ),
        mixed=mixed or mixing.Mixing(),
    )
