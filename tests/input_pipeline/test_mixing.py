"""Mixup and CutMix, beside NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from input_pipeline import arrays, batches, mixing

CLASSES, SHAPE = 5, (12, 20, 3)
RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (20, *SHAPE)).astype(np.float32)
LABELS = RNG.integers(0, CLASSES, 20).astype(np.int32)
EACH = {
    "mixup": mixing.Mixing(0.4, 0.0, CLASSES),
    "cutmix": mixing.Mixing(0.0, 1.0, CLASSES),
    "both": mixing.Mixing(0.4, 1.0, CLASSES),
}


def draws(count: int = 16) -> batches.Draws:
    seed = batches.augmentation_seed(3, seed=7)
    return batches.Draws(seed, tf.zeros([0], tf.bool), count)


def plan(mix: mixing.Mixing, count: int) -> list[np.ndarray]:
    """The shares, rows, columns and weights of so many images."""
    return [part.numpy() for part in mix.plan(draws(count), *SHAPE[:2])]


@pytest.mark.parametrize("mix", EACH.values(), ids=EACH)
def test_a_batch_by_hand(mix):
    """Pixel by pixel, from the weights and rectangles that were drawn."""
    pixels, labels = PIXELS[:16], LABELS[:16]
    result, shares = mix(pixels, labels[:, np.newaxis], draws())
    for place, (drawn_share, rows, columns, weight) in enumerate(zip(*plan(mix, 16), strict=True)):
        other = place + 1 if place % 2 == 0 else place - 1
        rectangle = np.outer(rows, columns).astype(bool)
        expected = weight * pixels[place] + (1 - weight) * pixels[other]
        expected[rectangle] = pixels[other][rectangle]
        np.testing.assert_allclose(result[place], expected, rtol=0, atol=1e-3)
        share = 1 - np.mean(rectangle) if rectangle.any() else drawn_share
        assert drawn_share == pytest.approx(share)
        expected = np.zeros(CLASSES)
        expected[labels[place]] += share
        expected[labels[other]] += 1 - share
        np.testing.assert_allclose(shares[place], expected, atol=1e-6)
    assert result.dtype == shares.dtype == tf.float32
    assert np.abs(result - pixels).max() > 1


@pytest.mark.parametrize("alpha", [0.1, 0.4, 1.0, 8.0])
def test_weights_are_of_the_beta_distribution(alpha):
    shares, _, _, weights = plan(mixing.Mixing(alpha, 0.0, CLASSES), 20_000)
    np.testing.assert_array_equal(shares, weights)
    expected = np.random.default_rng(1).beta(alpha, alpha, 20_000)
    # The largest distance of two samples' distributions; above 0.02 once in 2,000 times.
    places = np.linspace(0.001, 0.999, 999)[:, np.newaxis]
    one, other = (np.mean(values <= places, axis=1) for values in (shares, expected))
    assert np.abs(one - other).max() < 0.02


def test_rectangles_are_torchvision_s():
    """Half a side is int(length * 0.5 * sqrt(1 - w)), cut off at the edges."""
    middle, half = tf.constant([0.0, 0.5, 0.99, 0.5]), tf.constant([0.3, 0.26, 0.3, 0.01])
    for length in SHAPE[:2]:
        for place, result in enumerate(mixing._crossed(middle, half, length).numpy()):
            at, reach = int(middle[place] * length), int(half[place] * length)
            expected = np.zeros(length)
            expected[max(0, at - reach) : min(length, at + reach)] = 1
            np.testing.assert_array_equal(result, expected)
    assert result.sum() == 0  # then the image stays as it is


def test_shares_of_cutmix_are_those_of_rectangles_drawn_anywhere():
    weights, *middles = np.random.default_rng(1).uniform(size=(3, 20_000))
    area = 1.0
    for middle, length in zip(middles, SHAPE[:2], strict=True):
        halves = middle, 0.5 * np.sqrt(1 - weights)
        at, reach = ((length * part).astype(int) for part in halves)
        area *= (np.minimum(length, at + reach) - np.maximum(0, at - reach)) / length
    shares = plan(mixing.Mixing(0.0, 1.0, CLASSES), 20_000)[0]
    assert np.mean(shares) == pytest.approx(1 - np.mean(area), abs=0.01)


def test_of_both_each_has_half_of_the_images():
    _, rows, _, weights = plan(EACH["both"], 4_000)
    is_mixup = weights < 1
    assert 0.45 < np.mean(is_mixup) < 0.55
    assert not rows[is_mixup].any()
    assert np.all(plan(EACH["cutmix"], 100)[3] == 1)
    assert not plan(EACH["mixup"], 100)[1].any()


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((0.05, 0.0, 3), "mixup_alpha=0.05"), ((0.0, 101.0, 3), "cutmix_alpha=101.0"),
        ((float("nan"), 0.0, 3), "mixup_alpha=nan"), ((-1.0, 0.0, 3), "mixup_alpha=-1.0"),
        ((0.2, 0.0, 0), "num_classes=0"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(arguments, names):
    with pytest.raises(ValueError, match=names):
        mixing.Mixing(*arguments)


@pytest.mark.parametrize(
    ("pixels", "labels"),
    [
        (PIXELS[:7], LABELS[:7]),  # one has no neighbour
        (PIXELS[:4], np.zeros(4, np.float32)), (PIXELS[:4], np.zeros((4, 5), np.int32)),
        (PIXELS[:4, 0], LABELS[:4]), (PIXELS[:4, 0, 0], LABELS[:4]),
        *((PIXELS[:4], np.array([0, 1, label, 0])) for label in (-1, CLASSES, 2**32)),
    ],
)  # fmt: skip
def test_what_cannot_be_mixed_is_refused(pixels, labels):
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="mixup and CutMix"):
        EACH["mixup"](pixels, labels, draws(len(pixels)))
    result = mixing.Mixing()(pixels, labels, draws())
    assert result[0] is pixels and result[1] is labels


def test_arrays_that_are_mixed_have_no_weights():
    with pytest.raises(ValueError, match="sample_weight"):
        arrays.batches(PIXELS, LABELS, np.ones(20), mix=EACH["mixup"])
