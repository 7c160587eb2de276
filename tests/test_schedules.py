"""The learning rate by hand, against Keras's schedules, and for any batch size."""

import doctest
import itertools
import math

import keras
import numpy as np
import pytest
import toys

import towers
from input_pipeline import arrays
from towers import distribution, schedules
from towers.runs import callbacks

EPOCH = 1000


def rate(schedule, initial=1.0, examples_per_epoch=EPOCH, **arguments):
    return schedules.LearningRate(schedule, initial, examples_per_epoch, **arguments)


def at_epochs(learning_rate, *epochs):
    return [learning_rate(round(epoch * EPOCH)) for epoch in epochs]


EACH = {
    "exponential": rate("exponential", epochs_per_decay=2.0, decay_factor=0.5),
    "piecewise": rate("piecewise", decay_factor=0.5, decay_epochs=(1.0, 3.0)),
    "cosine": rate("cosine", total_epochs=4.0),
    "linear": rate("linear", total_epochs=4.0),
    "constant": rate("constant"),
}


def test_every_schedule_is_tested():
    assert set(EACH) == set(schedules.SCHEDULES)


@pytest.mark.parametrize(
    "schedule, rates",
    [
        ("exponential", [1.0, 1.0, 1.0, 0.5, 0.5, 0.25]),
        ("piecewise", [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]),
        ("cosine", [1.0, 1.0, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2, 0.0]),
        ("linear", [1.0, 0.99975, 0.75, 0.5, 0.25, 0.0]),
        ("constant", [1.0] * 6),
    ],
)
def test_rates_by_hand(schedule, rates):
    # 0.001 epochs are one example.
    assert at_epochs(EACH[schedule], 0, 0.001, 1, 2, 3, 4) == pytest.approx(rates, abs=1e-6)


@pytest.mark.parametrize(("schedule", "epoch"), [("exponential", 2), ("piecewise", 1)])
def test_decay_comes_with_the_first_example_of_its_epoch(schedule, epoch):
    learning_rate, first = EACH[schedule], epoch * EPOCH
    assert (learning_rate(first - 1), learning_rate(first)) == (1.0, 0.5)


@pytest.mark.parametrize("epochs_per_decay", [0.1, 0.3, 0.7, 1.1, 350.0])
def test_decays_come_in_time_whatever_the_rounding_of_fractions(epochs_per_decay):
    examples_per_decay = round(epochs_per_decay * 50_000)
    learning_rate = rate(
        "exponential",
        examples_per_epoch=50_000,
        epochs_per_decay=epochs_per_decay,
        decay_factor=0.5,
    )
    for decays in range(1, 40):
        at = decays * examples_per_decay
        assert (learning_rate(at - 1), learning_rate(at)) == (0.5 ** (decays - 1), 0.5**decays)


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_rate_stays_0_after_the_end(schedule):
    assert at_epochs(EACH[schedule], 4, 5, 400) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("schedule", EACH)
@pytest.mark.parametrize(
    "start_factor, expected",
    [
        (0.0, [0.0, 0.25, 0.5, 1.0]),
        # Goyal et al. 2017: four GPUs have four times the rate of one and begin with that of one.
        (0.25, [0.25, 0.4375, 0.625, 1.0]),
    ],
)
def test_warm_up_rises_to_the_rate_by_the_share_of_it_that_is_done(
    schedule, start_factor, expected
):
    warm = rate(
        schedule,
        warmup_epochs=0.5,
        warmup_start_factor=start_factor,
        total_epochs=4.0,
        decay_epochs=(1.0,) if schedule == "piecewise" else (),
    )
    assert at_epochs(warm, 0, 0.125, 0.25, 0.5) == expected


def test_a_start_without_a_warm_up_changes_nothing():
    assert at_epochs(rate("constant", warmup_start_factor=0.25), 0, 1) == [1.0, 1.0]


def test_decay_of_cosine_and_linear_starts_where_the_warm_up_ends():
    for schedule in ("cosine", "linear"):
        warm = rate(schedule, warmup_epochs=2.0, total_epochs=6.0)
        assert at_epochs(warm, 2, 4, 6) == pytest.approx([1.0, 0.5, 0.0])


@pytest.mark.parametrize("schedule", EACH)
def test_rate_never_rises_without_a_warm_up_and_is_never_negative(schedule):
    rates = [EACH[schedule](examples) for examples in range(0, 5 * EPOCH, 7)]
    assert all(later <= earlier for earlier, later in itertools.pairwise(rates))
    assert min(rates) >= 0.0 and max(rates) == 1.0


GLOBAL_BATCH = 10
STEPS_PER_EPOCH = EPOCH // GLOBAL_BATCH
KERAS_S = {
    "exponential": keras.optimizers.schedules.ExponentialDecay(
        1.0, decay_steps=2 * STEPS_PER_EPOCH, decay_rate=0.5, staircase=True
    ),
    # Keras decays after the boundary's step, we with it.
    "piecewise": keras.optimizers.schedules.PiecewiseConstantDecay(
        [STEPS_PER_EPOCH - 1, 3 * STEPS_PER_EPOCH - 1], [1.0, 0.5, 0.25]
    ),
    "cosine": keras.optimizers.schedules.CosineDecay(1.0, decay_steps=4 * STEPS_PER_EPOCH),
    "linear": keras.optimizers.schedules.PolynomialDecay(
        1.0, decay_steps=4 * STEPS_PER_EPOCH, end_learning_rate=0.0, power=1.0
    ),
}


@pytest.mark.parametrize("schedule", KERAS_S)
def test_rate_is_keras_s_at_every_step(schedule):
    steps = range(0, 5 * STEPS_PER_EPOCH, 1)
    ours = [EACH[schedule](step * GLOBAL_BATCH) for step in steps]
    keras_s = [float(KERAS_S[schedule](step)) for step in steps]
    np.testing.assert_allclose(ours, keras_s, rtol=1e-5, atol=1e-6)


def test_warm_up_and_cosine_are_keras_s():
    keras_s = keras.optimizers.schedules.CosineDecay(
        0.0, 3 * STEPS_PER_EPOCH, warmup_target=1.0, warmup_steps=STEPS_PER_EPOCH
    )
    ours = rate("cosine", warmup_epochs=1.0, total_epochs=4.0)
    for step in range(0, 5 * STEPS_PER_EPOCH, 7):
        assert ours(step * GLOBAL_BATCH) == pytest.approx(float(keras_s(step)), abs=1e-6)


@pytest.mark.pitfall(1, 2)
@pytest.mark.parametrize(("num_towers", "batch_size"), [(1, 2), (2, 4), (4, 8)])
def test_rate_at_an_epoch_does_not_depend_on_towers_or_batch_size(tmp_path, num_towers, batch_size):
    model = toys.linear(1.0)
    model.compile(keras.optimizers.SGD(1.0), toys.output_itself)
    towers.distribute(model, num_towers, microbatch_size=1, joined_loss=False)
    halved = rate("exponential", examples_per_epoch=8, epochs_per_decay=1.0, decay_factor=0.5)
    seen = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(float(model.optimizer.learning_rate))
    )
    images = toys.column(*range(8))
    towers.Run(tmp_path / "run", model).fit(
        arrays.batches(images, toys.labels_for(images)), batch_size=batch_size, epochs=3,
        verbose=0, callbacks=[callbacks.LearningRate(halved), note],
    )  # fmt: skip
    assert seen == [r for r in (1.0, 0.5, 0.25) for _ in range(8 // batch_size)]


@pytest.mark.parametrize(
    "scaling, expected", [("none", 0.1), ("linear", 0.1 * 4), ("sqrt", 0.1 * 2)]
)
def test_scaling_to_four_times_the_batch(scaling, expected):
    assert schedules.scaled_rate(0.1, scaling, 512, 128) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize(
    "schedule, arguments, message",
    [
        ("step", {}, "schedule='step': must be one of exponential, piecewise, cosine"),
        ("constant", {"examples_per_epoch": 0}, "examples_per_epoch=0: must be at least 1"),
        ("constant", {"warmup_start_factor": 1.5}, "warmup_start_factor=1.5: must be in "),
        ("exponential", {"epochs_per_decay": 0.0}, "epochs_per_decay=0.0: must be above 0"),
        (
            "cosine",
            {"total_epochs": 2.0, "warmup_epochs": 2.0},
            "total_epochs=2.*: must be above warmup_epochs=2",
        ),
        ("constant", {"initial": 0.0}, "initial=0.0: must be above 0"),
        ("constant", {"initial": -0.1}, "initial=-0.1: must be above 0"),
        ("constant", {"initial": math.nan}, "initial=nan: must be above 0"),
        ("exponential", {"decay_factor": 0.0}, "decay_factor=0.0: must be in "),
        ("exponential", {"decay_factor": 1.5}, "decay_factor=1.5: must be in "),
        ("piecewise", {"decay_epochs": (3.0, 1.0)}, "decay_epochs=.*: must be above 0 and rising"),
        ("piecewise", {"decay_epochs": (0.0, 1.0)}, "decay_epochs=.*: must be above 0 and rising"),
        ("constant", {"warmup_epochs": -1.0}, "warmup_epochs=-1.0: must be at least 0"),
        ("linear", {}, "total_epochs=0.0: must be above warmup_epochs=0"),
    ],
)
def test_wrong_arguments_are_refused(schedule, arguments, message):
    with pytest.raises(ValueError, match=message):
        rate(schedule, **arguments)


def test_unknown_scaling_is_refused():
    with pytest.raises(ValueError, match="scaling='log': must be one of none, linear, sqrt"):
        schedules.scaled_rate(0.1, "log", 256, 128)


@pytest.mark.parametrize("module", [schedules, distribution], ids=lambda module: module.__name__)
def test_examples_in_docstrings_are_true(module):
    result = doctest.testmod(module)
    assert result.attempted > 0 and result.failed == 0
