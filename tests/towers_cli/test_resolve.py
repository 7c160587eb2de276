"""What follows from settings, by hand-computed cases; and how an evaluation mirrors images."""

import numpy as np
import pytest
import scripts

from towers_cli import resolve, tally


@pytest.mark.parametrize(
    ("every", "last_step", "epochs"),
    [(0, 10, [3]), (1, 10, [1, 2, 3]), (2, 10, [2, 3]), (2, 16, [2, 4]), (9, 4, [1])],
)
def test_the_epochs_after_which_there_is_an_evaluation(every, last_step, epochs):
    """Four steps of 10 are an epoch of 40 examples; the last is always evaluated."""
    chosen = scripts.settings_of("--global_batch_size=10", f"--eval_every_epochs={every}")
    assert resolve.evaluated_epochs(chosen, last_step, 40) == epochs


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
