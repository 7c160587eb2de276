"""Comparisons on the same test images."""

import numpy as np
import pytest

from laboratory import paired


def test_the_interval_of_a_difference_is_that_of_paired_means():
    draws = np.random.default_rng(0)
    ours, theirs = draws.random(5_000) < 0.6, draws.random(5_000) < 0.5
    result = paired.difference([ours], [theirs])
    assert paired.difference([theirs] * 2, [ours] * 2).verdict == -1
    assert paired.difference([ours, theirs], [theirs, theirs]).verdict == 0  # a seed saw none
    each = ours.astype(float) - theirs
    half = 1.96 * each.std() / np.sqrt(len(each))  # the normal one: the count is large
    assert result.high - result.mean == pytest.approx(half, rel=0.05)
    assert result.mean - result.low == pytest.approx(half, rel=0.05)
    assert str(paired.Difference(-0.0001, -0.0119, 0.0, ())) == "+0.0 (-1.2 to +0.0)"
