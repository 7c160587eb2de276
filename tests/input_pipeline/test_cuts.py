"""Which part of a picture is seen."""

import numpy as np
import pytest
import tensorflow as tf

from input_pipeline import batches, cuts

SIZES = np.random.default_rng(0).integers(20, 900, (64, 2))


def drawn(count: int) -> list[list[float]]:
    seed = batches.augmentation_seed(0, seed=3)
    return cuts.draw(batches.Draws(seed, tf.zeros([count], tf.bool))).numpy().tolist()


def by_hand(height, width, drawn):
    """torchvision's RandomResizedCrop.get_params, with these numbers for its random ones."""
    areas = 0.08 + 0.92 * np.array(drawn[:10])
    ratios = np.exp(np.log(3 / 4) + np.log((4 / 3) / (3 / 4)) * np.array(drawn[10:20]))
    for share, ratio in zip(areas, ratios, strict=True):
        area = height * width * share
        w, h = round(np.sqrt(area * ratio)), round(np.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return int(drawn[20] * (height - h + 1)), int(drawn[21] * (width - w + 1)), h, w
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
    for size, numbers in zip((SIZES * stretch).tolist(), drawn(64), strict=True):
        top, left, height, width = by_hand(*size, numbers)
        cut = cuts.at_random(*size[::-1], numbers)
        assert cut.box == (left, top, left + width, top + height)


def test_parts_have_the_areas_and_ratios_that_are_asked_for():
    found = [cuts.at_random(1000, 1000, numbers) for numbers in drawn(4096)]
    left, top, right, bottom = np.array([cut.box for cut in found]).T
    width, height = right - left, bottom - top
    areas, ratios = height * width / 1e6, width / height
    assert areas.min() > 0.07 and 0.45 < areas.mean() < 0.57
    assert abs(np.log(ratios).mean()) < 0.02
    assert ratios.min() > 3 / 4 - 0.01 and ratios.max() < 4 / 3 + 0.01
    for at, length in ((top, height), (left, width)):
        assert abs(np.median(at / np.maximum(1, 1000 - length)) - 0.5) < 0.05
    assert 0.45 < np.mean([cut.mirrored for cut in found]) < 0.55


def test_the_middle_is_the_largest_square():
    assert cuts.middle(800, 600).box == (100, 0, 700, 600)
    assert cuts.middle(3, 8).box == (0, 2.5, 3, 5.5)
