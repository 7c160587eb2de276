"""The record of settings: what is accepted, what is derived, what defines a run.

Values that are refused are in test_bad_input.py, as flags.
"""

import dataclasses

import pytest
import scripts

from input_pipeline import mixing
from towers_cli import settings


@pytest.mark.parametrize(
    "flag",
    [
        "--max_steps=1",
        "--global_batch_size=1",
        "--global_batch_size=1048576",
        "--microbatch_size=0",
        "--microbatch_size=1048576",
        "--num_towers=1024",
        "--train_epochs=0.000001",
        "--train_epochs=1e9",
        "--learning_rate=3.4e38",
        "--warmup_epochs=0",
        "--warmup_start_factor=0",
        "--warmup_epochs=300",  # longer than the run: the rate rises to the end
        "--momentum=0",
        "--momentum=0.999",
        "--moving_average_decay=0",
        "--decay_factor=1",
        "--weight_decay=0",
        "--clip_norm=0",
        "--random_erasing=0",
        "--random_erasing=1",
        "--mixup_alpha=0",
        "--mixup_alpha=0.1",
        "--cutmix_alpha=100",
        "--label_smoothing=0",
        "--label_smoothing=0.999",
        "--seed=0",
        "--seed=2147483647",
        "--summary_every_steps=0",
        "--verify_every_steps=0",
        "--intra_op_threads=1",
        "--eval_every_epochs=0",
        "--profile_steps=1,2",
    ],
)
def test_values_at_the_edge_of_their_range_are_accepted(flag):
    name, value = flag.removeprefix("--").split("=")
    accepted = getattr(scripts.settings_of(flag), name)
    assert accepted == (tuple(map(int, value.split(","))) if "," in value else float(value))


def test_the_range_of_alpha_is_that_of_mixing():
    for alpha in (0, mixing.LEAST_ALPHA, mixing.MOST_ALPHA):
        assert settings.ALPHA.holds(alpha)
    for alpha in (0.99 * mixing.LEAST_ALPHA, 1.01 * mixing.MOST_ALPHA):
        assert not settings.ALPHA.holds(alpha)


@pytest.mark.parametrize(
    "flags",
    [
        ["--learning_rate_schedule=piecewise", "--decay_epochs=1,2.5,80"],
        ["--learning_rate_schedule=cosine", "--warmup_epochs=1", "--train_epochs=1.5"],
        ["--optimizer=rmsprop", "--momentum=0.9"],
        ["--momentum=0.9", "--nesterov"],
        ["--optimizer=muon", "--momentum=0.6", "--nesterov"],
        ["--optimizer=adamw", "--weight_decay=0.05"],
    ],
)
def test_settings_that_go_together_are_accepted(flags):
    scripts.settings_of(*flags)


def test_the_record_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        scripts.settings_of().seed = 1


@pytest.mark.parametrize(
    ("texts", "of_type", "expected"),
    [
        (None, int, None),
        ([], float, ()),
        (["3", "7"], int, (3, 7)),
        (["1", "2.5"], float, (1.0, 2.5)),
    ],
)
def test_lists_of_numbers(texts, of_type, expected):
    field = dataclasses.make_dataclass("Flags", [("a_flag", tuple[of_type, ...] | None)])
    assert settings.of_text(dataclasses.fields(field)[0], texts) == expected


def test_a_list_of_numbers_that_holds_something_else_is_refused():
    with pytest.raises(
        settings.SettingsError, match="--profile_steps=1,2.5: must be numbers separated"
    ):
        field = settings.definition(settings.TrainSettings, "profile_steps")
        settings.of_text(field, ["1", "2.5"])


@pytest.mark.parametrize(
    ("value", "of_type", "expected"),
    [
        (3, int, True),
        (3.0, int, False),
        (True, int, False),
        (True, bool, True),
        (1, bool, False),
        (3, float, True),  # JSON has no 3.0
        (True, float, False),
        ("3", float, False),
        (None, str, False),
        (None, str | None, True),
        ("a", str | None, True),
        ([1, 2.5], tuple[float, ...], True),  # JSON has no tuples
        ([1, "2"], tuple[float, ...], False),
        ((1, 2), tuple[int, int] | None, True),
        ("12", tuple[str, ...], False),
    ],
)
def test_types_of_what_was_read(value, of_type, expected):
    assert settings.is_of(value, of_type) is expected


NAMES = {field.name for field in dataclasses.fields(settings.TrainSettings)}
# Where the work is done, when it is reported and when it ends.
MAY_CHANGE = {
    "train_dir",
    "init_from",  # what lies there is compared by its hash
    "data_dir",  # the images themselves are compared
    "num_towers",
    "accumulate_gradients",  # the same bits
    "parameter_device",  # like the towers' devices, which are recorded
    "worker_wait_seconds",
    "train_epochs",
    "max_steps",
    "log_every_steps",
    "summary_every_steps",
    "verify_every_steps",
    "checkpoint_every_steps",
    "checkpoints_to_keep",
    "eval_split",  # of what is reported
    "eval_every_epochs",
    "profile_steps",
    "dry_run",
    "show_batch",
    "recipe",  # a name for other settings, which are compared
}


def test_a_run_does_not_have_what_a_command_does_once():
    recorded = settings.recorded(scripts.settings_of("--seed=3"))
    assert NAMES - set(recorded) == {"dry_run", "show_batch"}
    assert recorded["seed"] == 3


def test_every_setting_either_defines_a_run_or_may_change():
    defining = settings.run_defining(dataclasses.asdict(scripts.settings_of()))
    assert NAMES - set(defining) == MAY_CHANGE


@pytest.mark.parametrize(
    ("schedule", "defines"),
    [("exponential", False), ("constant", False), ("cosine", True), ("linear", True)],
)
def test_the_end_defines_a_run_whose_rate_depends_on_it(schedule, defines):
    chosen = scripts.settings_of(f"--learning_rate_schedule={schedule}", "--train_epochs=7")
    defining = settings.run_defining(dataclasses.asdict(chosen))
    assert ("train_epochs" in defining) == defines
    assert set(defining) - {"train_epochs"} == NAMES - MAY_CHANGE


def test_only_names_are_labelled_as_flags():
    assert settings.label("seed") == "--seed=" and settings.label("the layers") == "the layers "
