"""Mixup and CutMix, beside NumPy, and drawn the same by whoever reads a part of a batch."""

import numpy as np
import pytest
import tensorflow as tf

from input_pipeline import arrays, batches, mixing, preprocess

CLASSES, SHAPE = 5, (12, 20, 3)
RNG = np.random.default_rng(0)
EACH = {
    "mixup": mixing.Mixing(0.4, 0.0, CLASSES),
    "cutmix": mixing.Mixing(0.0, 1.0, CLASSES),
    "both": mixing.Mixing(0.4, 1.0, CLASSES),
}


def batch(count: int) -> tuple[np.ndarray, np.ndarray]:
    pixels = RNG.integers(0, 256, (count, *SHAPE)).astype(np.float32)
    return pixels, RNG.integers(0, CLASSES, count).astype(np.int32)


def draws(count: int, share: range | None = None, step: int = 3) -> batches.Draws:
    own = range(count) if share is None else share
    mirrored = tf.zeros([len(own)], tf.bool)
    return batches.Draws(batches.augmentation_seed(step, seed=7), mirrored, share, count)


def plan(of: mixing.Mixing, count: int) -> mixing.Plan:
    return mixing.Plan(*(part.numpy() for part in of._plan(draws(count).seed, count, *SHAPE[:2])))


@pytest.mark.parametrize("kind", EACH)
def test_a_batch_by_hand(kind):
    """Pixel by pixel, from the weights and rectangles that were drawn."""
    pixels, labels = batch(16)
    found, shares = EACH[kind](tf.constant(pixels), tf.constant(labels), draws(16))
    drawn = plan(EACH[kind], 16)
    for place in range(16):
        other = place + 1 if place % 2 == 0 else place - 1
        rectangle = np.outer(drawn.rows[place], drawn.columns[place]).astype(bool)
        weight = drawn.weight[place]
        expected = weight * pixels[place] + (1 - weight) * pixels[other]
        expected[rectangle] = pixels[other][rectangle]
        np.testing.assert_allclose(found[place], expected, rtol=0, atol=1e-3)
        share = 1 - np.mean(rectangle) if rectangle.any() else drawn.share[place]
        assert drawn.share[place] == pytest.approx(share)
        expected = np.zeros(CLASSES)
        expected[labels[place]] += share
        expected[labels[other]] += 1 - share
        np.testing.assert_allclose(shares[place], expected, atol=1e-6)
    assert found.dtype == shares.dtype == tf.float32
    assert np.abs(found - pixels).max() > 1


@pytest.mark.parametrize("alpha", [0.1, 0.4, 1.0, 8.0])
def test_weights_are_of_the_beta_distribution(alpha):
    drawn = plan(mixing.Mixing(alpha, 0.0, CLASSES), 20_000)
    np.testing.assert_array_equal(drawn.share, drawn.weight)
    expected = np.sort(np.random.default_rng(1).beta(alpha, alpha, 20_000))
    # The largest distance of two samples' distributions; above 0.02 once in 2,000 times.
    places = np.linspace(0.001, 0.999, 999)
    distances = [
        np.abs(np.mean(drawn.share <= place) - np.mean(expected <= place)) for place in places
    ]
    assert max(distances) < 0.02


def test_rectangles_are_torchvision_s():
    """Half a side is int(length * 0.5 * sqrt(1 - w)), cut off at the edges."""
    height, width = SHAPE[:2]
    middle, half = tf.constant([0.0, 0.5, 0.99, 0.5]), tf.constant([0.3, 0.26, 0.3, 0.01])
    rows = mixing._crossed(middle, half, height).numpy()
    columns = mixing._crossed(middle, half, width).numpy()
    for place in range(4):
        for found, length in ((rows[place], height), (columns[place], width)):
            at, reach = int(middle[place] * length), int(half[place] * length)
            expected = np.zeros(length)
            expected[max(0, at - reach) : min(length, at + reach)] = 1
            np.testing.assert_array_equal(found, expected)
    assert rows[3].sum() == 0  # then the image stays as it is


def test_of_both_each_has_half_of_the_images():
    drawn = plan(EACH["both"], 4_000)
    is_mixup = drawn.weight < 1
    assert 0.45 < np.mean(is_mixup) < 0.55
    assert not drawn.rows[is_mixup].any()
    assert np.all(plan(EACH["cutmix"], 100).weight == 1)
    assert not plan(EACH["mixup"], 100).rows.any()


@pytest.mark.parametrize("kind", EACH)
@pytest.mark.parametrize("share", [range(0, 4), range(4, 6), range(6, 16)])
def test_a_share_is_that_of_the_whole_batch(kind, share):
    pixels, labels = batch(16)
    whole = EACH[kind](tf.constant(pixels), tf.constant(labels), draws(16))
    own = slice(share.start, share.stop)
    part = EACH[kind](tf.constant(pixels[own]), tf.constant(labels[own]), draws(16, share))
    for of_whole, of_part in zip(whole, part, strict=True):
        np.testing.assert_array_equal(of_whole[own], of_part)


@pytest.mark.parametrize("share", [None, range(1, 3), range(2, 5)])
def test_an_image_without_a_neighbour_is_refused(share):
    count = 7
    pixels, labels = batch(count if share is None else len(share))
    with pytest.raises(ValueError, match="must have an even number of them"):
        EACH["both"](tf.constant(pixels), tf.constant(labels), draws(count, share))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((0.05, 0.0, 3), "mixup_alpha=0.05: must be 0, or from 0.1 to 100"),
        ((0.0, 101.0, 3), "cutmix_alpha=101.0: must be"),
        ((float("nan"), 0.0, 3), "mixup_alpha=nan: must be"),
        ((-1.0, 0.0, 3), "mixup_alpha=-1.0: must be"),
        ((0.2, 0.0, 0), "num_classes=0: must be the number of classes"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, problem):
    with pytest.raises(ValueError, match=problem):
        mixing.Mixing(*arguments)
    assert not mixing.Mixing().is_any


def test_nothing_is_mixed_where_nothing_was_asked_for():
    pixels, labels = batch(7)
    found = mixing.Mixing(num_classes=CLASSES)(pixels, labels, draws(7))
    assert found[0] is pixels and found[1] is labels


@pytest.mark.parametrize("label", [-1, CLASSES])
def test_a_label_out_of_range_is_refused(label):
    pixels, labels = batch(4)
    labels[2] = label
    with pytest.raises(tf.errors.InvalidArgumentError, match="a label is not from 0 to 4"):
        EACH["mixup"](tf.constant(pixels), tf.constant(labels), draws(4))


@pytest.mark.parametrize(
    ("inputs", "labels", "problem"),
    [
        (
            np.zeros((4, *SHAPE)),
            np.zeros(4, np.float32),
            r"integer labels .n., but these are .* float32",
        ),
        (np.zeros((4, *SHAPE)), np.zeros((4, 5), np.int32), r"and int32 \(4, 5\)"),
        (np.zeros((4, 3)), np.zeros(4, np.int32), r"but these are \(4, 3\) and"),
    ],
)
def test_what_are_no_images_or_labels_is_said(inputs, labels, problem):
    with pytest.raises(ValueError, match=problem):
        EACH["mixup"](tf.constant(inputs), tf.constant(labels), draws(4))


class TestOfADataSet:
    """In memory, from arrays: preprocessed first, then mixed, and the same for any share."""

    pixels = RNG.integers(0, 256, (20, *SHAPE)).astype(np.uint8)
    labels = np.arange(20, dtype=np.int32) % CLASSES

    def taken(self, of: mixing.Mixing | None, share=None, first=0):
        how = preprocess.for_images("pad_crop_flip", SHAPE)
        source = arrays.batches(self.pixels, self.labels, seed=2, augment=how.in_training, mix=of)
        found = source.batches(first, 3, global_batch_size=8, share=share)
        return [tuple(np.asarray(part) for part in each) for each in found]

    def test_is_preprocessed_and_then_mixed(self):
        for step, (plain, mixed) in enumerate(
            zip(self.taken(None), self.taken(EACH["both"]), strict=True)
        ):
            seed = batches.augmentation_seed(step, seed=2)
            drawn = batches.Draws(seed, tf.zeros([8], tf.bool), None, 8)
            expected = EACH["both"](*map(tf.constant, plain), drawn)
            for found, by_hand in zip(mixed, expected, strict=True):
                np.testing.assert_allclose(found, by_hand, rtol=0, atol=1e-5)

    def test_is_the_same_in_shares_and_when_it_goes_on(self):
        whole = self.taken(EACH["both"])
        for share, first in ((range(2, 6), 0), (range(0, 8), 2)):
            part = self.taken(EACH["both"], share, first)
            for of_whole, of_part in zip(whole[first:], part, strict=True):
                for all_, some in zip(of_whole, of_part, strict=True):
                    np.testing.assert_array_equal(all_[share.start : share.stop], some)

    def test_has_a_fingerprint_of_whether_it_is_mixed(self):
        one, other = (
            arrays.batches(self.pixels, self.labels, mix=of) for of in (None, EACH["both"])
        )
        assert one.fingerprint != other.fingerprint

    def test_has_no_weights(self):
        with pytest.raises(ValueError, match="sample_weight and mix do not go together"):
            arrays.batches(self.pixels, self.labels, np.ones(20), mix=EACH["mixup"])
