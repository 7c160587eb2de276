"""The embedded data set: the same for the same seed, balanced."""

import functools

import numpy as np

from input_pipeline import shapes

make = functools.cache(shapes.make)


def test_sizes_dtypes_and_balance():
    for (images, labels), count in ((make("train"), 5000), (make("test"), 1000)):
        assert images.shape == (count, 32, 32, 3)
        assert (images.dtype, labels.dtype) == (np.uint8, np.int32)
        assert list(np.bincount(labels)) == [count // 10] * 10
        assert labels[:50].tolist() != sorted(labels[:50])
    assert len(set(shapes.CLASS_NAMES)) == 10


def test_pictures_differ():
    both = np.concatenate([make("train")[0], make("test")[0]]).reshape(6000, -1)
    assert len(np.unique(both, axis=0)) == 6000


def test_has_these_pixels():
    """Rounding may differ by 1 between machines."""
    images, labels = make("test")
    assert labels[:10].tolist() == [4, 5, 7, 6, 1, 4, 5, 9, 7, 8]
    pixels = [[252, 33, 136], [91, 126, 124]], [[134, 250, 175], [113, 69, 156]]
    np.testing.assert_allclose(images[:2, [16, 2], [16, 29]].astype(int), pixels, atol=1)
    edges = np.abs(np.diff(images.astype(int), axis=2)).mean((1, 2, 3))
    means = [13.97, 15.57, 14.24, 15.66, 13.70, 14.81, 14.68, 14.92, 17.62, 18.99]
    np.testing.assert_allclose(np.bincount(labels, edges) / 100, means, atol=0.01)
