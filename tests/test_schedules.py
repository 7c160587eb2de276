"""The learning rate by hand, against Keras's schedules, and for any batch size."""

import doctest
import math

import keras
import numpy as np
import pytest

from towers import distribution, schedules

EPOCH = 1000
GLOBAL_BATCH = 10
STEPS = EPOCH // GLOBAL_BATCH


def rate(schedule, initial=1.0, examples_per_epoch=EPOCH, **arguments):
    return schedules.LearningRate(schedule, initial, examples_per_epoch, **arguments)


OF_KERAS = keras.optimizers.schedules
EACH = [  # ours, and Keras's
    (rate("exponential", epochs_per_decay=2.0, decay_factor=0.5),
     OF_KERAS.ExponentialDecay(1.0, 2 * STEPS, decay_rate=0.5, staircase=True)),
    # Keras decays after the boundary's step, we with it.
    (rate("piecewise", decay_factor=0.5, decay_epochs=(1.0, 3.0)),
     OF_KERAS.PiecewiseConstantDecay([STEPS - 1, 3 * STEPS - 1], [1.0, 0.5, 0.25])),
    (rate("constant", 0.3), lambda step: 0.3),
    (rate("cosine", total_epochs=4.0), OF_KERAS.CosineDecay(1.0, 4 * STEPS)),
    (rate("linear", total_epochs=4.0), OF_KERAS.PolynomialDecay(1.0, 4 * STEPS, 0.0)),
    (rate("cosine", warmup_epochs=1.0, total_epochs=4.0),
     OF_KERAS.CosineDecay(0.0, 3 * STEPS, warmup_target=1.0, warmup_steps=STEPS)),
]  # fmt: skip


@pytest.mark.parametrize("epochs_per_decay", [0.1, 0.3, 0.7, 1.1, 350.0])
def test_decays_come_in_time_whatever_the_rounding_of_fractions(epochs_per_decay):
    examples_per_decay = round(epochs_per_decay * 50_000)
    options = {"epochs_per_decay": epochs_per_decay, "decay_factor": 0.5}
    learning_rate = schedules.LearningRate("exponential", 1.0, 50_000, **options)
    for decays in range(1, 40):
        at = decays * examples_per_decay
        assert (learning_rate(at - 1), learning_rate(at)) == (0.5 ** (decays - 1), 0.5**decays)


@pytest.mark.parametrize(("ours", "keras_s"), EACH)
def test_rate_is_keras_s_at_every_step(ours, keras_s):
    steps = range(5 * STEPS)
    outcome = [ours(step * GLOBAL_BATCH) for step in steps]
    np.testing.assert_allclose(outcome, [float(keras_s(step)) for step in steps], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "schedule, wrong",
    [
        ("constant", {"examples_per_epoch": 0}), ("exponential", {"epochs_per_decay": 0.0}),
        ("constant", {"initial": 0.0}), ("constant", {"initial": math.nan}),
        ("exponential", {"decay_factor": 0.0}), ("exponential", {"decay_factor": 1.5}),
        ("piecewise", {"decay_epochs": (3.0, 1.0)}), ("piecewise", {"decay_epochs": (0.0, 1.0)}),
        ("constant", {"warmup_epochs": -1.0}),
        ("cosine", {"total_epochs": 2.0, "warmup_epochs": 2.0}),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(schedule, wrong):
    rate(schedule, examples_per_epoch=1, decay_factor=1.0, total_epochs=1.0)
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}="):
        rate(schedule, **wrong)


@pytest.mark.parametrize("module", [schedules, distribution], ids=lambda module: module.__name__)
def test_examples_in_docstrings_are_true(module):
    result = doctest.testmod(module)
    assert result.attempted > 0 and result.failed == 0
