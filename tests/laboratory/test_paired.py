"""Comparisons on the same test images."""

import numpy as np
import pytest

from laboratory import paired


class TestDifference:
    def test_by_hand(self):
        ours = [np.array([True, True, False, True]), np.array([True, False, False, True])]
        theirs = [np.array([True, False, False, False]), np.array([True, False, False, True])]
        found = paired.difference(ours, theirs)
        assert found.of_seeds == (0.5, 0.0)
        assert found.mean == 0.25
        assert 0 <= found.low <= 0.25 <= found.high <= 0.5
        assert found.verdict == 0  # a seed saw none

    def test_its_interval_is_that_of_paired_means(self):
        draws = np.random.default_rng(0)
        ours, theirs = draws.random(5_000) < 0.6, draws.random(5_000) < 0.5
        found = paired.difference([ours], [theirs])
        assert paired.difference([theirs] * 2, [ours] * 2).verdict == -1
        each = ours.astype(float) - theirs
        half = 1.96 * each.std() / np.sqrt(len(each))  # the normal one: the count is large
        assert found.high - found.mean == pytest.approx(half, rel=0.1)
        assert found.mean - found.low == pytest.approx(half, rel=0.1)
