"""The start table: what a run says of itself. A whole one is in test_train_command.py."""

import dataclasses
import functools

import pytest
import scripts

from towers import schedules
from towers_cli import resolve, run_config, settings

RATE = functools.partial(schedules.LearningRate, initial=1.0, examples_per_epoch=1000)
RATES = {
    "exponential": RATE("exponential", epochs_per_decay=2.0, decay_factor=0.5),
    "piecewise": RATE("piecewise", decay_factor=0.5, decay_epochs=(1.0, 3.0)),
    "cosine": RATE("cosine", total_epochs=4.0),
    "linear": RATE("linear", total_epochs=4.0),
    "constant": RATE("constant"),
    "warm-up": RATE("constant", warmup_epochs=0.984),
}


@pytest.mark.pitfall(4)
def test_the_tutorial_s_rate_has_not_decayed_when_its_headline_run_ends():
    tutorial = schedules.LearningRate("exponential", 0.1, 50_000)
    assert tutorial(256 * 50_000) == 0.1 and tutorial(350 * 50_000) == pytest.approx(0.01)


def test_the_flags_of_the_rate_make_the_schedule():
    chosen = scripts.settings_of(
        "--learning_rate=0.8", "--learning_rate_schedule=piecewise", "--decay_epochs=3,4",
        "--decay_factor=0.5", "--warmup_epochs=2",
    )  # fmt: skip
    of_flags = resolve.learning_rate(chosen, 1_000)
    # Half way up after an epoch, then halved twice.
    rates = [of_flags(epoch * 1_000) for epoch in range(5)]
    assert rates == pytest.approx([0.0, 0.4, 0.8, 0.4, 0.2])


def table(*flags, device="/CPU:0", workers=1, rate="constant", last_step=9) -> str:
    """That of a run of 1,000 images in batches of 24."""
    chosen = scripts.settings_of("--global_batch_size=24", "--microbatch_size=6", *flags)
    chosen = dataclasses.asdict(resolve.resolved(chosen, 0, 1))
    derived = {
        "last_step": last_step,
        "examples_per_epoch": 1000,
        "class_names": ["a", "b"],
        "image_shape": [24, 24, 3],
        "data_source": "drawn",
    }
    config = {"settings": chosen, "resolved": derived}
    return run_config.start_table(config, [device], [1] * workers, 250_000, RATES[rate], 100)


@pytest.mark.pitfall(4)
@pytest.mark.parametrize(
    "rate, last_step, warns",
    [
        ("exponential", 84, True),  # it begins at epoch 1.992, and the rate decays at 2
        ("exponential", 85, False), ("piecewise", 41, True), ("cosine", 166, True),
        ("cosine", 167, False), ("linear", 100, True), ("constant", 9, False),
        ("warm-up", 41, True), ("warm-up", 42, False),
    ],
)  # fmt: skip
def test_warns_of_a_rate_that_does_not_change_as_it_was_to(rate, last_step, warns):
    assert ("WARNING" in table(rate=rate, last_step=last_step)) == warns


@pytest.mark.parametrize(
    "device, flags, promised",
    [("/CPU:0", [], True), ("/GPU:0", [], False), ("/GPU:0", ["--deterministic"], True)],
)
def test_promises_the_same_bits_where_they_are_kept(device, flags, promised):
    assert ("--microbatch_size=6" in table(*flags, device=device)) == promised


def test_says_what_averaging_on_the_cpu_copies_to_gpus():
    [row] = [line for line in table(device="/GPU:0").splitlines() if "averaging" in line]
    assert " 1.0 MB " in row and "--parameter_device=gpu" in row
    assert "averaging" not in table() + table(device="/GPU:0", workers=2)


class TestTheDefaultsOfGpus:
    @pytest.mark.parametrize(
        ("flags", "workers", "size", "device"),
        [
            (["--recipe=shapes", "--global_batch_size=2048"], 1, 256, "gpu"),
            (["--recipe=fast"], 2, 128, "cpu"),  # the recipe's
            (["--recipe=shapes"], 1, 64, "gpu"),  # the whole batch
            (["--global_batch_size=512"], 1, 128, "cpu"),
            (["--microbatch_size=16", "--parameter_device=gpu"], 1, 16, "gpu"),
            (["--recipe=shapes", "--parameter_device=cpu"], 1, 64, "cpu"),
        ],
    )
    def test_do_not_depend_on_how_many_there_are(self, flags, workers, size, device):
        chosen = scripts.settings_of("--gpu_defaults", *flags)
        for num_gpus in (1, 8):
            resolved = resolve.resolved(chosen, num_gpus, 4, workers)
            assert resolved.jit_compile and resolved.num_towers == num_gpus
            assert resolved.intra_op_threads == resolve.SHARED_THREADS
            assert (resolved.microbatch_size, resolved.parameter_device) == (size, device)

    def test_do_not_override_a_flag(self):
        chosen = scripts.settings_of("--gpu_defaults", "--nojit_compile")
        assert resolve.resolved(chosen, 1, 4).jit_compile is False

    def test_are_for_gpus(self):
        with pytest.raises(settings.SettingsError, match="--gpu_defaults"):
            resolve.resolved(scripts.settings_of("--gpu_defaults"), 0, 4)
