"""Which part of a picture is seen."""

import numpy as np
import pytest
import tensorflow as tf

from input_pipeline import batches, cuts

SIZES = np.random.default_rng(0).integers(20, 900, (64, 2)).astype(np.int32)


def draws(step: int = 0, share: range | None = None) -> batches.Draws:
    count = 64 if share is None else len(share)
    seed = batches.augmentation_seed(step, seed=3)
    return batches.Draws(seed, tf.zeros([count], tf.bool), share, 64)


@pytest.mark.parametrize(
    ("size", "side"), [((600, 800), (256, 341)), ((341, 256), (341, 256)), ((1, 3), (256, 768))]
)
def test_the_middle_is_scaled_as_torchvision_does(size, side):
    cut = cuts.middle(tf.constant([size]), 256)
    np.testing.assert_array_equal(cut.box, [[0, 0, *size]])
    np.testing.assert_array_equal(cut.side, [side])


def by_hand(height, width, areas, ratios, top, left):
    """torchvision's RandomResizedCrop.get_params, with these numbers for its random ones."""
    for share, ratio in zip(areas, ratios, strict=True):
        area = np.float32(height * width) * share
        w = round(float(np.sqrt(np.float32(area * ratio))))
        h = round(float(np.sqrt(np.float32(area / ratio))))
        if 0 < w <= width and 0 < h <= height:
            return int(top * (height - h + 1)), int(left * (width - w + 1)), h, w
    ratio = width / height
    if ratio < 3 / 4:
        w, h = width, round(width / (3 / 4))
    elif ratio > 4 / 3:
        w, h = round(height * (4 / 3)), height
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w


@pytest.mark.parametrize("sizes", [SIZES, SIZES * [1, 40]], ids=["pictures", "panoramas"])
def test_a_part_at_random_is_torchvision_s(sizes):
    sizes = sizes.astype(np.int32)
    drawn = cuts._draw(draws().seed, 64)
    found = cuts.at_random(tf.constant(sizes), draws(), 224)
    expected = [
        by_hand(*size, drawn.area[place], drawn.ratio[place], *drawn.place[place].numpy())
        for place, size in enumerate(sizes)
    ]
    np.testing.assert_array_equal(found.box, expected)
    np.testing.assert_array_equal(found.side, np.full((64, 2), 224))


def test_parts_lie_within_and_have_the_areas_and_ratios_that_are_asked_for():
    sizes = np.full((4096, 2), 1000, np.int32)
    of_many = batches.Draws(batches.augmentation_seed(0, seed=1), tf.zeros([4096], tf.bool))
    top, left, height, width = cuts.at_random(tf.constant(sizes), of_many, 224).box.numpy().T
    assert min(top.min(), left.min()) >= 0
    assert max((top + height).max(), (left + width).max()) <= 1000
    areas, ratios = height * width / 1e6, width / height
    assert areas.min() > 0.07 and 0.45 < areas.mean() < 0.57
    assert abs(np.log(ratios).mean()) < 0.02
    assert ratios.min() > 3 / 4 - 0.01 and ratios.max() < 4 / 3 + 0.01
    assert abs(np.median(top / np.maximum(1, 1000 - height)) - 0.5) < 0.05


def test_a_share_has_the_parts_of_the_whole_batch():
    whole = cuts.at_random(tf.constant(SIZES), draws(), 32).box.numpy()
    for share in (range(0, 21), range(21, 64), range(5, 6)):
        own = cuts.at_random(tf.constant(SIZES[share.start : share.stop]), draws(0, share), 32)
        np.testing.assert_array_equal(own.box, whole[share.start : share.stop])


def test_half_of_the_parts_at_random_are_mirrored_and_no_middle():
    mirrored = [cuts.at_random(tf.constant(SIZES), draws(step), 32).mirrored for step in range(20)]
    assert 0.45 < np.mean(mirrored) < 0.55
    assert not np.any(cuts.middle(tf.constant(SIZES), 32).mirrored)
