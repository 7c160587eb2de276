"""Augmentations: Pillow's operations, and draws that do not depend on who reads a batch."""

import combinations
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageEnhance, ImageOps

from input_pipeline import augment, batches, distortions, preprocess

SHAPE = (24, 36, 3)


def pictures(count=5, shape=SHAPE):
    """Smooth and noisy ones, one of a single colour, and one with a flat channel."""
    height, width, _ = shape
    rows, columns = np.mgrid[:height, :width]
    smooth = np.stack([rows * 5 + 20, columns * 4 + 60, rows * 2 + columns * 3], axis=-1)
    noisy = np.random.default_rng(3).integers(0, 256, shape)
    dark = np.random.default_rng(4).integers(40, 90, shape)
    flat = np.where(np.arange(3) == 1, 200, dark)
    return [x.astype(np.uint8) for x in (smooth, noisy, dark, np.full(shape, 77), flat)][:count]


def affine(image, *matrix):
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST)


# By Pillow, in the terms of `distortions.apply`.
PILLOW = {
    "identity": lambda image, value: image,
    "shear_x": lambda image, value: affine(image, 1, value, 0, 0, 1, 0),
    "shear_y": lambda image, value: affine(image, 1, 0, 0, value, 1, 0),
    "translate_x": lambda image, value: affine(image, 1, 0, value, 0, 1, 0),
    "translate_y": lambda image, value: affine(image, 1, 0, 0, 0, 1, value),
    "rotate": lambda image, value: image.rotate(value, Image.Resampling.NEAREST),
    "brightness": lambda image, value: ImageEnhance.Brightness(image).enhance(value),
    "colour": lambda image, value: ImageEnhance.Color(image).enhance(value),
    "contrast": lambda image, value: ImageEnhance.Contrast(image).enhance(value),
    "sharpness": lambda image, value: ImageEnhance.Sharpness(image).enhance(value),
    "posterize": lambda image, value: ImageOps.posterize(image, int(value)),
    "solarize": lambda image, value: ImageOps.solarize(image, value),
    "autocontrast": lambda image, value: ImageOps.autocontrast(image),
    "equalize": lambda image, value: ImageOps.equalize(image),
}
SPACES = {
    "trivial": augment.values_of_trivial(),
    "rand": augment.values_of_rand(*SHAPE[:2]),
}


def distorted(name, value, pixels):
    """By this package and by Pillow."""
    place = distortions.OPERATIONS.index(name)
    mine = distortions.apply(pixels, np.int32(place), np.float32(value)).numpy()
    return mine, np.asarray(PILLOW[name](Image.fromarray(pixels), float(value)))


def check_close(mine, expected):
    """Within a step of 255."""
    assert np.abs(mine.astype(int) - expected).max() <= 1


@pytest.mark.parametrize("name", distortions.OPERATIONS)
@pytest.mark.parametrize("values", SPACES.values(), ids=SPACES)
def test_an_operation_is_pillow_s(name, values):
    changed = 0
    for value in np.unique(values[distortions.OPERATIONS.index(name)][:, ::2]):
        for pixels in pictures():
            mine, expected = distorted(name, value, pixels)
            check_close(mine, expected)
            changed += np.any(mine != pixels)
    assert bool(changed) == (name != "identity")


@pytest.mark.parametrize("name", distortions.OPERATIONS)
@pytest.mark.parametrize("shape", [(1, 1, 3), (2, 5, 3), (3, 4, 3), (31, 20, 3)])
def test_an_operation_on_an_image_of_another_size(name, shape):
    """Of odd sizes a quarter turn has its middle between two pixels."""
    for value in SPACES["trivial"][distortions.OPERATIONS.index(name), :, 20]:
        mine, expected = distorted(name, value, pictures(2, shape)[1])
        check_close(mine, expected)


def test_the_strengths_are_those_of_the_papers():
    """Of torchvision's TrivialAugmentWide and RandAugment, written down by hand."""
    wide = dict(zip(distortions.OPERATIONS, augment.values_of_trivial(), strict=True))
    assert wide["shear_x"][:, -1].tolist() == pytest.approx([0.99, -0.99])
    assert wide["translate_y"][:, -1].tolist() == [32, -32]
    assert wide["rotate"][:, 10].tolist() == [45, -45]
    assert wide["contrast"][:, -1].tolist() == pytest.approx([1.99, 0.01])
    assert (
        wide["posterize"][0].tolist()
        == [8] * 3 + [7] * 5 + [6] * 5 + [5] * 5 + [4] * 5 + [3] * 5 + [2] * 3
    )
    assert wide["solarize"][0, [0, 15, 30]].tolist() == [255, 127.5, 0]
    rand = dict(zip(distortions.OPERATIONS, augment.values_of_rand(100, 331), strict=True))
    assert rand["translate_x"][:, -1].tolist() == [150, -150]
    assert rand["rotate"][0, augment.RAND_LEVEL] == 9
    assert rand["brightness"][0, -1] == pytest.approx(1.9)
    assert rand["posterize"][0, -1] == 4


def drawn(name, count, share=None, erasing=0.5, step=3):
    chosen = augment.Augmentation(name, erasing, SHAPE, (20, 30, 3))
    seed = batches.augmentation_seed(step, seed=7)
    draws = batches.Draws(seed, tf.zeros([count], tf.bool), share, 64)
    return chosen.plan(draws, count)


class TestDraws:
    @pytest.mark.parametrize("name", augment.NAMES)
    def test_of_a_share_are_those_of_the_batch(self, name):
        whole, part = drawn(name, 64), drawn(name, 21, range(5, 26))
        for of_all, of_share in zip(whole, part, strict=True):
            np.testing.assert_array_equal(of_share, of_all[5:26])

    def test_are_each_operation_and_level_about_as_often(self):
        plan = drawn("trivial_augment", 20_000)
        assert plan.operations.shape == (20_000, 1)
        counts = np.bincount(plan.operations[:, 0], minlength=14)
        assert abs(counts - 20_000 / 14).max() < 5 * (20_000 / 14) ** 0.5
        rotations = plan.values[plan.operations == distortions.OPERATIONS.index("rotate")].numpy()
        assert len(np.unique(rotations)) == 2 * augment.LEVELS - 1
        assert rotations.min() == -135 and rotations.max() == 135
        assert abs(np.mean(rotations > 0) - 0.48) < 0.07

    def test_of_rand_augment_are_two_of_one_strength(self):
        plan = drawn("rand_augment", 5_000)
        assert plan.operations.shape == (5_000, 2)
        rotations = plan.values[plan.operations == distortions.OPERATIONS.index("rotate")].numpy()
        assert set(rotations) == {9.0, -9.0}

    def test_of_jitter_are_three_factors_in_any_order(self):
        plan = drawn("colour_jitter", 3_000)
        orders, counts = np.unique(plan.operations, axis=0, return_counts=True)
        names = {tuple(distortions.OPERATIONS[place] for place in order) for order in orders}
        assert len(names) == 6 and {"brightness", "contrast", "colour"} == set(*[*names][:1])
        assert counts.min() > 400
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


class TestAWholeBatch:
    @pytest.mark.parametrize(
        ("name",), combinations.crossed(augment.NAMES[1:], often=[("trivial_augment",)])
    )
    def test_is_made_of_images_one_by_one(self, name):
        images = np.stack(pictures(4) * 16)
        how = preprocess.for_images("pad_crop_flip", SHAPE, name, 0.5)
        mirrored = tf.zeros([64], tf.bool)
        draws = batches.Draws(batches.augmentation_seed(3, seed=7), mirrored, None, 64)
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
        assert np.any(images != 0)

    def test_in_evaluation_is_not_augmented(self):
        images = tf.constant(np.stack(pictures()))
        how = preprocess.for_images("pad_crop_flip", SHAPE, "trivial_augment", 1.0)
        np.testing.assert_array_equal(how.evaluate(images), preprocess.standardize(images))


@pytest.mark.parametrize(
    ("name", "erasing", "shape", "problem"),
    [
        ("mixup", 0.0, SHAPE, "augmentation='mixup': must be one of none, trivial_augment"),
        ("none", 1.5, SHAPE, "random_erasing=1.5: must be from 0 to 1"),
        (
            "rand_augment",
            0.0,
            (8, 8, 1),
            "rand_augment takes images of 3 channels",
        ),
    ],
)
def test_what_does_not_fit_is_said(name, erasing, shape, problem):
    with pytest.raises(ValueError, match=problem):
        preprocess.for_images("pad_crop_flip", shape, name, erasing)
