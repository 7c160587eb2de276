"""Batched distortions against tf.image, image by image with the same draws."""

import numpy as np
import pytest
import tensorflow as tf

from input_pipeline import batches, preprocess

SEED = np.array([3, 4])


def draws(count, seed=SEED):
    """What the images of a batch are distorted by; the first half of them is mirrored."""
    return batches.Draws(tf.constant(seed, tf.int64), tf.range(count) < count // 2)


def random_images(count, height=32, width=32):
    return np.random.default_rng(0).integers(0, 256, (count, height, width, 3), np.uint8)


def one_by_one(images, placement, crop_height, crop_width, colour=None):
    """The oracle: the tutorial's order of tf.image functions on each image alone."""
    results = []
    for i, image in enumerate(images):
        image = tf.image.crop_to_bounding_box(
            tf.cast(image, tf.float32), placement.top[i], placement.left[i], crop_height, crop_width
        )
        if placement.flip[i]:
            image = tf.image.flip_left_right(image)
        if colour is not None:
            image = tf.image.adjust_brightness(image, colour.brightness[i])
            image = tf.image.adjust_contrast(image, colour.contrast[i])
        results.append(tf.image.per_image_standardization(image))
    return tf.stack(results)


class TestOracle:
    @pytest.mark.parametrize(("height", "width"), [(32, 32), (28, 30)])
    def test_distort_for_tutorial(self, height, width):
        images = random_images(12, height, width)
        found = preprocess.distort_for_tutorial(images, draws(12), 24, 21)
        placement = preprocess.draw_placement(SEED, 12, height - 24, width - 21)
        colour = preprocess.draw_colour(SEED, 12)
        expected = one_by_one(images, placement, 24, 21, colour)
        assert {*placement.flip.numpy()} == {True, False}
        np.testing.assert_allclose(found, expected, atol=2e-5)

    def test_distort_pad_crop_flip(self):
        images = random_images(12)
        found = preprocess.distort_pad_crop_flip(images, draws(12))
        padded = np.pad(images, [(0, 0), (4, 4), (4, 4), (0, 0)])
        placement = preprocess.draw_placement(SEED, 12, 8, 8)
        np.testing.assert_allclose(found, one_by_one(padded, placement, 32, 32), atol=2e-5)

    def test_distort_shift_flip(self):
        images = random_images(12)
        mirrored = np.arange(12) % 3 == 0
        found = preprocess.distort_shift_flip(images, batches.Draws(SEED, tf.constant(mirrored)))
        padded = np.pad(images, [(0, 0), (2, 2), (2, 2), (0, 0)], mode="reflect")
        placement = preprocess.draw_placement(SEED, 12, 4, 4)
        assert len({*zip(placement.top.numpy(), placement.left.numpy(), strict=True)}) > 4
        for image, result, top, left, flip in zip(
            padded, found, placement.top, placement.left, mirrored, strict=True
        ):
            shifted = image[top : top + 32, left : left + 32]
            shifted = shifted[:, ::-1] if flip else shifted
            np.testing.assert_allclose(result, (shifted - 120.7) / 64.2, atol=1e-5)

    def test_center_for_tutorial(self):
        images = random_images(3, 32, 29)
        cropped = images[:, 4:28, 4:25]  # margins of 8 and 8
        expected = tf.image.per_image_standardization(tf.cast(cropped, tf.float32))
        found = preprocess.center_for_tutorial(images, 24, 21)
        np.testing.assert_allclose(found, expected, atol=2e-5)

    def test_standardize(self):
        expected = tf.image.per_image_standardization(tf.cast(random_images(3), tf.float32))
        np.testing.assert_allclose(preprocess.standardize(random_images(3)), expected, atol=2e-5)

    def test_standardize_keeps_images_of_one_colour_finite(self):
        white = np.full((2, 4, 4, 3), 255, np.uint8)
        np.testing.assert_array_equal(preprocess.standardize(white), np.zeros((2, 4, 4, 3)))

    def test_crop_and_flip_by_hand(self):
        image = tf.reshape(tf.range(12), [1, 3, 4, 1])  # rows 0-3, 4-7, 8-11
        placement = preprocess.Placement(tf.constant([1]), tf.constant([1]), tf.constant([True]))
        found = preprocess.crop_and_flip(image, placement, 2, 3)
        np.testing.assert_array_equal(found[0, :, :, 0], [[7, 6, 5], [11, 10, 9]])


class TestDraws:
    def test_ranges_are_reached_and_kept(self):
        placement = preprocess.draw_placement(SEED, 20_000, max_top=8, max_left=7)
        assert {*placement.top.numpy()} == set(range(9))
        assert {*placement.left.numpy()} == set(range(8))
        assert np.mean(placement.flip) == pytest.approx(0.5, abs=0.02)
        colour = preprocess.draw_colour(SEED, 20_000)
        assert -63 <= np.min(colour.brightness) < -62.9
        assert 62.9 < np.max(colour.brightness) <= 63
        assert 0.2 <= np.min(colour.contrast) < 0.201
        assert 1.799 < np.max(colour.contrast) <= 1.8

    def test_kinds_of_draws_are_independent(self):
        placement = preprocess.draw_placement(SEED, 20_000, max_top=1000, max_left=1000)
        drawn = [
            np.asarray(draw, float) for draw in (*placement, *preprocess.draw_colour(SEED, 20_000))
        ]
        assert np.abs(np.corrcoef(drawn) - np.eye(5)).max() < 0.04


@pytest.mark.parametrize("name", ["crop_flip_colour", "pad_crop_flip", "shift_alternating_flip"])
class TestEachPreprocessing:
    @pytest.mark.pitfall(16)
    def test_images_of_a_batch_are_distorted_each_in_its_own_way(self, name):
        same = np.repeat(random_images(1), 32, axis=0)
        distorted = preprocess.for_images(name, (32, 32, 3)).train(same, draws(32)).numpy()
        assert len(np.unique(distorted.reshape(32, -1), axis=0)) > 16  # the third has 50 ways

    @pytest.mark.pitfall(16)
    def test_the_number_of_operations_does_not_grow_with_the_batch(self, name):
        chosen = preprocess.for_images(name, (32, 32, 3))
        graphs = [
            tf.function(chosen.train)
            .get_concrete_function(
                tf.TensorSpec([count, 32, 32, 3], tf.uint8),
                batches.Draws(tf.TensorSpec([2], tf.int64), tf.TensorSpec([count], tf.bool)),
            )
            .graph
            for count in (2, 64)
        ]
        small, large = ([op.type for op in graph.get_operations()] for graph in graphs)
        assert small == large
        assert not {"Unpack", "While", "StatelessWhile", "MapDefun"} & {*large}

    @pytest.mark.parametrize("image_shape", [(32, 32, 3), (28, 28, 1), (20, 36, 3)])
    def test_output_shape(self, name, image_shape):
        chosen = preprocess.for_images(name, image_shape)
        images = np.zeros((2, *image_shape), np.uint8)
        for result in (chosen.train(images, draws(2)), chosen.evaluate(images)):
            assert result.shape == (2, *chosen.output_shape)
            assert result.dtype == tf.float32


@pytest.mark.parametrize(
    ("name", "image_shape", "output_shape"),
    [
        ("crop_flip_colour", (32, 32, 3), (24, 24, 3)),
        ("crop_flip_colour", (28, 28, 1), (21, 21, 1)),
        ("pad_crop_flip", (32, 32, 3), (32, 32, 3)),
        ("shift_alternating_flip", (32, 28, 1), (32, 28, 1)),
    ],
)
def test_for_images_names_the_size(name, image_shape, output_shape):
    chosen = preprocess.for_images(name, image_shape)
    assert (chosen.name, chosen.output_shape) == (name, output_shape)


def test_for_images_refuses_unknown_names():
    with pytest.raises(ValueError, match="'mixup': must be one of crop_flip_colour, pad_crop_fl"):
        preprocess.for_images("mixup", (32, 32, 3))


def test_crops_larger_than_the_image_are_refused():
    with pytest.raises(ValueError, match="24x40 does not fit images of 32x32"):
        preprocess.distort_for_tutorial(random_images(1), draws(1), 24, 40)
    with pytest.raises(ValueError, match="40x24 does not fit images of 32x32"):
        preprocess.center_for_tutorial(random_images(1), 40, 24)
