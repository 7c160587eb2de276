"""The start table: what it says of the learning rate. Whole tables are in test_train_command.py."""

import math

import pytest
import scripts

from towers import schedules
from towers_cli import resolve, start_table


def rate(schedule, **arguments):
    return schedules.LearningRate(schedule, 1.0, 1000, **arguments)


EACH = {
    "exponential": rate("exponential", epochs_per_decay=2.0, decay_factor=0.5),
    "piecewise": rate("piecewise", decay_factor=0.5, decay_epochs=(1.0, 3.0)),
    "cosine": rate("cosine", total_epochs=4.0),
    "linear": rate("linear", total_epochs=4.0),
    "constant": rate("constant"),
}


def test_every_schedule_is_tested():
    assert set(EACH) == set(schedules.SCHEDULES)


@pytest.mark.pitfall(4)
@pytest.mark.parametrize(
    "schedule, epoch",
    [("exponential", 2.0), ("piecewise", 1.0), ("cosine", 0.0), ("constant", math.inf)],
)
def test_first_decay(schedule, epoch):
    assert start_table.first_decay_epoch(EACH[schedule]) == epoch


@pytest.mark.pitfall(4)
def test_the_tutorial_s_rate_has_not_decayed_when_its_headline_run_ends():
    tutorial = schedules.LearningRate("exponential", 0.1, 50_000)
    assert start_table.first_decay_epoch(tutorial) == 350.0
    assert tutorial(256 * 50_000) == 0.1 and tutorial(350 * 50_000) == pytest.approx(0.01)


@pytest.mark.parametrize(
    "schedule, line",
    [
        ("exponential", "1, x 0.5 every 2 epochs"),
        ("piecewise", "1, x 0.5 at epochs 1, 3"),
        ("cosine", "1, cosine to 0 at epoch 4"),
        ("linear", "1, linear to 0 at epoch 4"),
        ("constant", "1, constant"),
    ],
)
def test_description(schedule, line):
    assert start_table.describe_rate(EACH[schedule]) == line


def test_description_names_the_warm_up():
    assert (
        start_table.describe_rate(rate("constant", warmup_epochs=2.5))
        == "1, 2.5 epochs of warm-up, constant"
    )
    goyal = rate("constant", warmup_epochs=2.5, warmup_start_factor=0.125)
    assert start_table.describe_rate(goyal) == "1, 2.5 epochs of warm-up from 0.125, constant"


def test_the_flags_of_the_rate_make_the_schedule():
    chosen = scripts.settings_of(
        "--learning_rate=0.8", "--learning_rate_schedule=piecewise", "--decay_epochs=3,4",
        "--decay_factor=0.5", "--warmup_epochs=2", "--warmup_start_factor=0.25",
    )  # fmt: skip
    of_flags = resolve.learning_rate(chosen, 1_000)
    # 0.25 of the rate at first, half way up after an epoch, then halved twice.
    rates = [of_flags(epoch * 1_000) for epoch in range(5)]
    assert rates == pytest.approx([0.2, 0.5, 0.8, 0.4, 0.2])
