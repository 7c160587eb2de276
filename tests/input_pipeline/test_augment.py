"""Augmentations: Pillow's operations, and draws that do not depend on who reads a batch."""

import combinations
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageEnhance, ImageOps

from input_pipeline import augment, batches, distortions, preprocess

SHAPE = (24, 36, 3)
NAMES = distortions.OPERATIONS


def pictures(shape=SHAPE):
    """Smooth and noisy ones, one of a single colour, and one with a flat channel."""
    height, width, _ = shape
    rows, columns = np.mgrid[:height, :width]
    smooth = np.stack([rows * 5 + 20, columns * 4 + 60, rows * 2 + columns * 3], axis=-1)
    noisy = np.random.default_rng(3).integers(0, 256, shape)
    dark = np.random.default_rng(4).integers(40, 90, shape)
    flat = np.where(np.arange(3) == 1, 200, dark)
    return [x.astype(np.uint8) for x in (smooth, noisy, dark, np.full(shape, 77), flat)]


def affine(image, *matrix):
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST)


def rotated(image, degrees, x=0.0, y=0.0):
    middle = image.width / 2 + x, image.height / 2 + y
    return image.rotate(degrees, Image.Resampling.NEAREST, center=middle)


# By Pillow, in the terms of `distortions.apply`.
MOVED = {
    "shear_x": lambda image, value, x, y: affine(image, 1, value, x, 0, 1, y),
    "shear_y": lambda image, value, x, y: affine(image, 1, 0, x, value, 1, y),
    "translate_x": lambda image, value, x, y: affine(image, 1, 0, value, 0, 1, 0),
    "translate_y": lambda image, value, x, y: affine(image, 1, 0, 0, 0, 1, value),
    "rotate": rotated,
}
PILLOW = {
    "identity": lambda image, value: image,
    "brightness": lambda image, value: ImageEnhance.Brightness(image).enhance(value),
    "colour": lambda image, value: ImageEnhance.Color(image).enhance(value),
    "contrast": lambda image, value: ImageEnhance.Contrast(image).enhance(value),
    "sharpness": lambda image, value: ImageEnhance.Sharpness(image).enhance(value),
    "posterize": lambda image, value: ImageOps.posterize(image, int(value)),
    "solarize": lambda image, value: ImageOps.solarize(image, value),
    "autocontrast": lambda image, value: ImageOps.autocontrast(image),
    "equalize": lambda image, value: ImageOps.equalize(image),
}
SPACES = np.concatenate([augment.values_of_trivial(), augment.values_of_rand(*SHAPE[:2])], axis=1)


@pytest.mark.parametrize("shape", [SHAPE, (1, 1, 3), (2, 5, 3), (3, 4, 3), (31, 20, 3)])
@pytest.mark.parametrize("name", NAMES)
def test_an_operation_is_pillow_s(name, shape):
    """To a step of 255; where two pixels are as near, a moved one may come from either."""
    place, changed = NAMES.index(name), False
    for value in np.unique(SPACES[place, :, :: 2 if shape == SHAPE else 10]):
        for pixels in pictures(shape):
            found = distortions.apply(pixels, np.int32(place), value).numpy().astype(int)
            image, changed = Image.fromarray(pixels), changed or np.any(found != pixels)
            if name in MOVED:
                near = [(x, y) for x in (0, -0.01, 0.01) for y in (0, -0.01, 0.01)]
                expected = [MOVED[name](image, float(value), *each) for each in near]
            else:
                expected = [PILLOW[name](image, float(value))]
            differences = [np.abs(found - np.asarray(each)).max(axis=2) for each in expected]
            assert np.min(differences, axis=0).max() <= 1
            assert np.mean(differences[0] <= 1) > 0.8 or shape != SHAPE
    assert changed == (name != "identity") or shape != SHAPE


def test_the_strengths_are_those_of_the_papers():
    """Of torchvision's TrivialAugmentWide and RandAugment, written down by hand."""
    wide = dict(zip(NAMES, augment.values_of_trivial(), strict=True))
    assert wide["shear_x"][:, -1].tolist() == pytest.approx([0.99, -0.99])
    assert wide["translate_y"][:, -1].tolist() == [32, -32]
    assert wide["rotate"][:, 10].tolist() == [45, -45]
    assert wide["contrast"][:, -1].tolist() == pytest.approx([1.99, 0.01])
    bits = [8] * 3 + [7] * 5 + [6] * 5 + [5] * 5 + [4] * 5 + [3] * 5 + [2] * 3
    assert wide["posterize"][0].tolist() == bits
    assert wide["solarize"][0, [0, 15, 30]].tolist() == [255, 127.5, 0]
    rand = dict(zip(NAMES, augment.values_of_rand(100, 331), strict=True))
    assert rand["translate_x"][:, -1].tolist() == [150, -150]
    assert rand["rotate"][0, augment.RAND_LEVEL] == 9
    assert rand["brightness"][0, -1] == pytest.approx(1.9)
    assert rand["posterize"][0, -1] == 4


def drawn(name, count, share=None, erasing=0.5):
    chosen = augment.Augmentation(name, erasing, SHAPE, (20, 30, 3))
    seed = batches.augmentation_seed(3, seed=7)
    return chosen.plan(batches.Draws(seed, tf.zeros([count], tf.bool), share, 64), count)


class TestDraws:
    @pytest.mark.parametrize("name", augment.NAMES)
    def test_of_a_share_are_those_of_the_batch(self, name):
        for whole, part in zip(drawn(name, 64), drawn(name, 21, range(5, 26)), strict=True):
            np.testing.assert_array_equal(part, whole[5:26])

    def test_are_each_operation_and_level_about_as_often(self):
        plan = drawn("trivial_augment", 20_000)
        assert plan.operations.shape == (20_000, 1)
        counts = np.bincount(plan.operations[:, 0], minlength=14)
        assert abs(counts - 20_000 / 14).max() < 5 * (20_000 / 14) ** 0.5
        rotations = plan.values[plan.operations == NAMES.index("rotate")].numpy()
        assert len(np.unique(rotations)) == 2 * augment.LEVELS - 1
        assert rotations.min() == -135 and rotations.max() == 135
        assert abs(np.mean(rotations > 0) - 0.48) < 0.07

    def test_of_rand_augment_are_two_of_one_strength(self):
        plan = drawn("rand_augment", 5_000)
        assert plan.operations.shape == (5_000, 2)
        assert {*plan.values[plan.operations == NAMES.index("rotate")].numpy()} == {9.0, -9.0}

    def test_of_jitter_are_three_factors_in_any_order(self):
        plan = drawn("colour_jitter", 3_000)
        orders, counts = np.unique(plan.operations, axis=0, return_counts=True)
        assert len(orders) == 6 and counts.min() > 400
        assert {NAMES[place] for place in orders[0]} == {"brightness", "contrast", "colour"}
        assert 0.6 <= plan.values.numpy().min() < 0.61 < 1.39 < plan.values.numpy().max() < 1.4

    def test_of_a_rectangle_are_within_the_image(self):
        top, left, height, width = drawn("none", 20_000).erased.numpy().T
        chosen = height > 0
        assert abs(chosen.mean() - 0.5) < 0.02
        assert top.min() >= 0 and left.min() >= 0
        assert (top + height).max() == 20 and (left + width).max() == 30
        part = (height * width / 600)[chosen]
        assert 0.01 < part.min() < 0.03 and 0.32 < part.max() < 0.36  # whole pixels
        # By the formula: the mean area, where nothing is cut off, is the middle of the range.
        assert part.mean() == pytest.approx(0.175, abs=0.01)


@pytest.mark.parametrize(
    ("name",), combinations.crossed(augment.NAMES[1:], often=[("trivial_augment",)])
)
def test_a_batch_is_made_of_images_one_by_one(name):
    images = np.stack(pictures()[:4] * 16)
    how = preprocess.for_images("pad_crop_flip", SHAPE, name, 0.5)
    seed = batches.augmentation_seed(3, seed=7)
    draws = batches.Draws(seed, tf.zeros([64], tf.bool), None, 64)
    found = how.in_training(tf.constant(images), draws).numpy()
    plan = how.augmentation.plan(draws, 64)
    expected = images.copy()
    for index, image in enumerate(images):
        for place, value in zip(plan.operations[index], plan.values[index], strict=True):
            image = np.asarray(distortions.apply(tf.constant(image), place, value))
        expected[index] = image
    expected = preprocess.distort_pad_crop_flip(tf.constant(expected), draws).numpy()
    for image, (top, left, height, width) in zip(expected, plan.erased, strict=True):
        image[top : top + height, left : left + width] = 0.0
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(how.evaluate(images), preprocess.standardize(images))


@pytest.mark.parametrize(
    ("name", "erasing", "shape", "names"),
    [
        ("mixup", 0.0, SHAPE, "augmentation='mixup'"),
        ("none", 1.5, SHAPE, "random_erasing=1.5"),
        ("rand_augment", 0.0, (8, 8, 1), "rand_augment takes images of 3 channels"),
    ],
)
def test_what_does_not_fit_is_refused(name, erasing, shape, names):
    with pytest.raises(ValueError, match=names):
        preprocess.for_images("pad_crop_flip", shape, name, erasing)
