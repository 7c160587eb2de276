"""Augmentations: what each operation does, and draws that do not depend on who reads a batch."""

import numpy as np
import pytest
import tensorflow as tf

from input_pipeline import augment, batches, preprocess

SHAPE = (24, 36, 3)
NAMES = augment.OPERATIONS


def sheared(picture: np.ndarray) -> np.ndarray:
    """Each row half as far to the left as it is from the top."""
    moves = [int(0.75 + y / 2) for y in range(len(picture))]
    padded = np.pad(picture, [(0, 0), (0, max(moves)), (0, 0)])
    width = picture.shape[1]
    return np.stack([row[x : x + width] for row, x in zip(padded, moves, strict=True)])


def equalized(channel: np.ndarray) -> np.ndarray:
    """Each value becomes the share of darker pixels, without the brightest ones."""
    counts = np.bincount(channel.astype(int).ravel(), minlength=256)
    step = (channel.size - counts[int(channel.max())]) // 255
    darker = counts.cumsum() - counts
    return ((step // 2 + darker) // step).clip(max=255)[channel.astype(int)]


NOISY = np.random.default_rng(3).integers(20, 230, SHAPE).astype(float)
GREY = np.rint(NOISY @ [[0.299], [0.587], [0.114]])
LEAST, MOST = NOISY.min((0, 1)), NOISY.max((0, 1))
# An operation's value, and what becomes of the picture, from the papers.
BY_HAND = {
    "identity": (0, NOISY),
    "shear_x": (0.5, sheared(NOISY)),
    "shear_y": (0.5, sheared(NOISY.swapaxes(0, 1)).swapaxes(0, 1)),
    "translate_x": (3, np.pad(NOISY[:, 3:], [(0, 0), (0, 3), (0, 0)])),
    "translate_y": (-2, np.pad(NOISY[:-2], [(2, 0), (0, 0), (0, 0)])),
    "rotate": (180, NOISY[::-1, ::-1]),
    "brightness": (0.5, NOISY / 2),
    "colour": (0.25, GREY + 0.25 * (NOISY - GREY)),
    "contrast": (1.5, (GREY.mean() + 1.5 * (NOISY - GREY.mean())).clip(0, 255)),
    "sharpness": (1, NOISY),
    "posterize": (2, NOISY // 64 * 64),
    "solarize": (100, np.where(NOISY < 100, NOISY, 255 - NOISY)),
    "autocontrast": (0, (NOISY - LEAST) * 255 / (MOST - LEAST)),
    "equalize": (0, np.stack([equalized(NOISY[..., channel]) for channel in range(3)], axis=2)),
}


@pytest.mark.parametrize("name", NAMES)
def test_an_operation_does_what_its_name_says(name):
    value, expected = BY_HAND[name]
    pixels = NOISY.astype(np.uint8)[np.newaxis]
    [result] = augment.distorted(pixels, np.array([[NAMES.index(name)]]), np.array([[value]]))
    assert result.dtype == np.uint8
    assert np.abs(result - expected).max() <= 1


def test_the_strengths_are_those_of_the_papers():
    """Of torchvision's TrivialAugmentWide and RandAugment, written down by hand."""
    wide = dict(zip(NAMES, augment.strengths("trivial_augment", 0, 0), strict=True))
    assert wide["shear_x"][:, -1].tolist() == pytest.approx([0.99, -0.99])
    assert wide["translate_y"][:, -1].tolist() == [32, -32]
    assert wide["rotate"][:, 10].tolist() == [45, -45]
    assert wide["contrast"][:, -1].tolist() == pytest.approx([1.99, 0.01])
    bits = [8] * 3 + [7] * 5 + [6] * 5 + [5] * 5 + [4] * 5 + [3] * 5 + [2] * 3
    assert wide["posterize"][0].tolist() == bits
    assert wide["solarize"][0, [0, 15, 30]].tolist() == [255, 127.5, 0]
    rand = dict(zip(NAMES, augment.strengths("rand_augment", 100, 331), strict=True))
    assert rand["translate_x"][:, -1].tolist() == [150, -150]
    assert rand["rotate"][0, augment.RAND_LEVEL] == 9
    assert rand["brightness"][0, -1] == pytest.approx(1.9)
    assert rand["posterize"][0, -1] == 4


def draws(count):
    seed = batches.augmentation_seed(3, seed=7)
    return batches.Draws(seed, tf.zeros([0], tf.bool), count)


def drawn(name, count):
    """Operations, values and rectangles."""
    chosen = augment.Augmentation(name, 0.5, SHAPE, (20, 30, 3))
    parts = *chosen.operations(draws(count)), chosen.rectangles(draws(count))
    return [part.numpy() for part in parts]


class TestDraws:
    def test_are_each_operation_and_level_about_as_often(self):
        operations, values, _ = drawn("trivial_augment", 20_000)
        assert operations.shape == (20_000, 1)
        counts = np.bincount(operations[:, 0], minlength=14)
        assert abs(counts - 20_000 / 14).max() < 5 * (20_000 / 14) ** 0.5
        rotations = values[operations == NAMES.index("rotate")]
        assert len(np.unique(rotations)) == 2 * augment.LEVELS - 1
        assert rotations.min() == -135 and rotations.max() == 135
        assert abs(np.mean(rotations > 0) - 0.48) < 0.07

    def test_of_rand_augment_are_two_of_one_strength(self):
        operations, values, _ = drawn("rand_augment", 5_000)
        assert {*values[operations == NAMES.index("rotate")]} == {9.0, -9.0}
        assert operations.shape == (5_000, 2)

    def test_of_jitter_are_three_factors_in_any_order(self):
        operations, values, _ = drawn("colour_jitter", 3_000)
        orders, counts = np.unique(operations, axis=0, return_counts=True)
        assert len(orders) == 6 and counts.min() > 400
        assert {NAMES[place] for place in orders[0]} == {"brightness", "contrast", "colour"}
        assert 0.6 <= values.min() < 0.61 < 1.39 < values.max() < 1.4

    def test_of_a_rectangle_are_within_the_image(self):
        top, left, height, width = drawn("rand_augment", 20_000)[2].T
        chosen = height > 0
        assert abs(chosen.mean() - 0.5) < 0.02
        assert top.min() >= 0 and left.min() >= 0
        assert (top + height).max() == 20 and (left + width).max() == 30
        middles = np.mean([2 * top + height, 2 * left + width], axis=1, where=chosen)
        np.testing.assert_allclose(middles, [20, 30], atol=0.2)
        part = (height * width / 600)[chosen]
        assert 0.01 < part.min() < 0.03 and 0.32 < part.max() < 0.36  # whole pixels
        # By the formula: the mean area, where nothing is cut off, is the middle of the range.
        assert part.mean() == pytest.approx(0.175, abs=0.01)


@pytest.mark.parametrize("name", augment.NAMES[1:])
def test_a_batch_is_made_of_images_one_by_one(name):
    images = np.random.default_rng(3).integers(0, 256, (64, *SHAPE), np.uint8)
    how = preprocess.for_images("pad_crop_flip", SHAPE, name, 0.5)
    result = how.in_training(tf.constant(images), draws(64)).numpy()
    operations = [part.numpy() for part in how.augmentation.operations(draws(64))]
    distorted = [
        augment.distorted(images[n : n + 1], *(part[n : n + 1] for part in operations))
        for n in range(64)
    ]
    expected = preprocess.distort_pad_crop_flip(np.concatenate(distorted), draws(64)).numpy()
    rectangles = how.augmentation.rectangles(draws(64)).numpy()
    for image, (top, left, height, width) in zip(expected, rectangles, strict=True):
        image[top : top + height, left : left + width] = 0.0
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(how.evaluate(images), preprocess.standardize(images))
