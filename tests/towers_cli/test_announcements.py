"""The start table: what a run says of itself. A whole one is in test_train_command.py."""

import math

import pytest
import scripts

from towers import machine, schedules
from towers_cli import announcements, resolve, settings


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
    assert announcements.first_decay_epoch(EACH[schedule]) == epoch


@pytest.mark.pitfall(4)
def test_the_tutorial_s_rate_has_not_decayed_when_its_headline_run_ends():
    tutorial = schedules.LearningRate("exponential", 0.1, 50_000)
    assert announcements.first_decay_epoch(tutorial) == 350.0
    assert tutorial(256 * 50_000) == 0.1 and tutorial(350 * 50_000) == pytest.approx(0.01)


def test_the_flags_of_the_rate_make_the_schedule():
    chosen = scripts.settings_of(
        "--learning_rate=0.8", "--learning_rate_schedule=piecewise", "--decay_epochs=3,4",
        "--decay_factor=0.5", "--warmup_epochs=2", "--warmup_start_factor=0.25",
    )  # fmt: skip
    of_flags = resolve.learning_rate(chosen, 1_000)
    # 0.25 of the rate at first, half way up after an epoch, then halved twice.
    rates = [of_flags(epoch * 1_000) for epoch in range(5)]
    assert rates == pytest.approx([0.2, 0.5, 0.8, 0.4, 0.2])


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
    assert announcements.describe_rate(EACH[schedule]) == line


def test_description_names_the_warm_up():
    goyal = rate("constant", warmup_epochs=2.5, warmup_start_factor=0.125)
    assert announcements.describe_rate(goyal) == "1, 2.5 epochs of warm-up from 0.125, constant"


def rows(*flags, device="/CPU:0", towers=(1,), schedule="constant", last_step=9):
    """The table of a run of 1,000 images in batches of 24, row by row."""
    chosen = scripts.settings_of("--global_batch_size=24", "--microbatch_size=6", *flags)
    chosen = settings.recorded(resolve.resolved(chosen, None, 0, 1))
    derived = {
        "tower_devices": [device] * towers[0],
        "towers_of_workers": list(towers),
        "workers": [f"worker {index}" for index in range(len(towers))],
        "num_microbatches": -(-24 // chosen["microbatch_size"]),
        "steps_per_epoch": 1000 / 24,
        "last_step": last_step,
        "examples_per_epoch": 1000,
        "class_names": ["a", "b"],
        "image_shape": [24, 24, 3],
        "data_source": "drawn",
    }
    config = {"settings": chosen, "resolved": derived}
    return announcements.rows(config, EACH[schedule], 100)


@pytest.mark.parametrize(
    "emulates, device, flags, warns",
    [
        (True, "/CPU:0", ["--compute_dtype=bfloat16"], True),
        (True, "/CPU:0", ["--compute_dtype=bfloat16", "--jit_compile"], False),
        (True, "/CPU:0", [], False),
        (True, "/GPU:0", ["--compute_dtype=bfloat16"], False),
        (False, "/CPU:0", ["--compute_dtype=bfloat16"], False),
    ],
)
def test_warns_of_a_type_that_the_processor_emulates(monkeypatch, emulates, device, flags, warns):
    monkeypatch.setattr(machine, "emulates_half_precision", lambda: emulates)
    assert ("warning" in dict(rows(*flags, device=device))) == warns


@pytest.mark.pitfall(4)
@pytest.mark.parametrize(
    "schedule, last_step, warns",
    [
        ("exponential", 83, True),  # 1.99 epochs
        ("exponential", 84, False),
        ("piecewise", 41, True),
        ("cosine", 166, True),
        ("cosine", 167, False),
        ("linear", 100, True),
        ("constant", 9, False),
    ],
)
def test_warns_of_a_rate_that_does_not_fall_as_it_was_to(schedule, last_step, warns):
    assert ("warning" in dict(rows(schedule=schedule, last_step=last_step))) == warns


@pytest.mark.parametrize(
    "flags, device, promised",
    [([], "/CPU:0", True), ([], "/GPU:0", False), (["--deterministic"], "/GPU:0", True)],
)
def test_same_bits_are_promised_where_they_are_kept(flags, device, promised):
    said = dict(rows(*flags, device=device))["same bits"]
    assert ("--microbatch_size=6" in said) == promised


@pytest.mark.parametrize(
    "device, flags, towers, is_said",
    [
        ("/CPU:0", [], (1,), False),
        ("/GPU:0", [], (1,), True),
        ("/GPU:0", ["--jit_compile"], (1,), False),
        ("/GPU:0", [], (1, 1), False),
    ],
)
def test_says_what_is_faster_on_gpus(device, flags, towers, is_said):
    assert ("faster" in dict(rows(*flags, device=device, towers=towers))) == is_said


@pytest.mark.parametrize(
    "of_workers, towers, batch",
    [
        ([3], "3 on /CPU:0, /CPU:0, /CPU:0", "2 or 1 for a tower"),
        ([2, 2], "2 on each worker, here on /CPU:0, /CPU:0", "1 for each tower"),
        ([2, 1], "2, 1 on the workers in their order, here on /CPU:0", "2 or 1 for a tower"),
        ([6], "6 on /CPU:0", "2 of 6 towers rest"),
    ],
)
def test_says_what_each_worker_and_tower_has(of_workers, towers, batch):
    table = dict(rows(towers=of_workers))
    assert table["towers"].startswith(towers)
    assert table["batch"].endswith(batch)
    assert ("workers" in table) == (len(of_workers) > 1)
