"""How an evaluation mirrors images."""

import numpy as np
import pytest

from towers_cli import tally


def test_mirrored_images_are_evaluated_from_right_to_left():
    class Columns:
        """Its logits are an image's columns."""

        def predict_on_batch(self, images):
            return images.mean(axis=(1, 3))

    images = np.zeros((1, 2, 3, 1), np.float32)
    images[:, :, 0], images[:, :, 2] = 3.0, 1.0
    batches = [(images, np.array([2]))]
    assert tally.evaluate(Columns(), batches).predicted == [0]
    mean = tally.evaluate(Columns(), batches, test_time_flip=True)
    assert mean.losses == pytest.approx(np.log(2 + np.exp(-2)))  # of 2, 0 and 2
