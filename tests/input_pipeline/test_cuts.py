"""Which part of a picture is seen."""

import numpy as np
import pytest
import tensorflow as tf

from input_pipeline import batches, cuts

SIZES = np.random.default_rng(0).integers(20, 900, (64, 2)).astype(np.int32)


def draws(step: int = 0, share: range | None = None, count: int = 64) -> batches.Draws:
    seed = batches.augmentation_seed(step, seed=3)
    return batches.Draws(seed, tf.zeros([len(share or range(count))], tf.bool), share, count)


@pytest.mark.parametrize(
    ("size", "side"), [((600, 800), (256, 341)), ((341, 256), (341, 256)), ((1, 3), (256, 768))]
)
def test_the_middle_is_scaled_as_torchvision_does(size, side):
    cut = cuts.middle(tf.constant([size]), 256)
    np.testing.assert_array_equal(cut.box, [[0, 0, *size]])
    np.testing.assert_array_equal(cut.side, [side])
    assert not cut.mirrored[0]


def by_hand(height, width, areas, ratios, place):
    """torchvision's RandomResizedCrop.get_params, with these numbers for its random ones."""
    for share, ratio in zip(areas, ratios, strict=True):
        area = np.float32(height * width) * share
        w = round(float(np.sqrt(np.float32(area * ratio))))
        h = round(float(np.sqrt(np.float32(area / ratio))))
        if 0 < w <= width and 0 < h <= height:
            return int(place[0] * (height - h + 1)), int(place[1] * (width - w + 1)), h, w
    ratio = width / height
    if ratio < 3 / 4:
        w, h = width, round(width / (3 / 4))
    elif ratio > 4 / 3:
        w, h = round(height * (4 / 3)), height
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w


@pytest.mark.parametrize("stretch", [[1, 1], [1, 40], [40, 1]])
def test_a_part_at_random_is_torchvision_s(stretch):
    sizes = (SIZES * stretch).astype(np.int32)
    found = cuts.at_random(tf.constant(sizes), draws(), 224)
    drawn = [part.numpy() for part in cuts.draw(draws().seed, 64)]
    for place, size in enumerate(sizes):
        expected = by_hand(*size, *(part[place] for part in drawn[:3]))
        np.testing.assert_array_equal(found.box[place], expected)
    np.testing.assert_array_equal(found.side, np.full((64, 2), 224))
    for share in (range(0, 21), range(21, 64), range(5, 6)):
        part = cuts.at_random(tf.constant(sizes)[share.start : share.stop], draws(0, share), 224)
        np.testing.assert_array_equal(part.box, found.box[share.start : share.stop])


def test_parts_have_the_areas_and_ratios_that_are_asked_for():
    cut = cuts.at_random(tf.fill([4096, 2], 1000), draws(count=4096), 224)
    top, _, height, width = cut.box.numpy().T
    areas, ratios = height * width / 1e6, width / height
    assert areas.min() > 0.07 and 0.45 < areas.mean() < 0.57
    assert abs(np.log(ratios).mean()) < 0.02
    assert ratios.min() > 3 / 4 - 0.01 and ratios.max() < 4 / 3 + 0.01
    assert abs(np.median(top / np.maximum(1, 1000 - height)) - 0.5) < 0.05
    assert 0.45 < np.mean(cut.mirrored) < 0.55
