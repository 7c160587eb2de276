"""The scripts' flags: the settings under their names, the registries as their choices, --help."""

import dataclasses
import importlib.util
import subprocess
import sys

import pytest
import scripts
from absl import flags

from input_pipeline import augment, preprocess
from towers import errors, networks, schedules, weight_decay
from towers.networks import optimizers
from towers_cli import build, command_line, settings

from tensorflow.python.framework import config  # isort: skip

TRAIN, EVAL = (scripts.line_of(name) for name in ("train", "eval"))

EVAL_FLAGS = {
    "train_dir",
    "checkpoint",
    "dataset",
    "data_dir",
    "write_predictions",
    "split",
    "num_towers",
    "global_batch_size",
    "test_time_flip",
    "run_once",
    "eval_interval_seconds",
}


def test_eval_has_the_flags_that_were_promised():
    assert set(EVAL.values) == EVAL_FLAGS


@pytest.mark.parametrize(
    ("flag", "registry"),
    [
        ("model", networks.NETWORKS),
        ("compute_dtype", networks.DTYPE_POLICIES),
        ("learning_rate_schedule", schedules.SCHEDULES),
        ("learning_rate_scaling", schedules.SCALINGS),
        ("optimizer", optimizers.OPTIMIZERS),
        ("preprocessing", preprocess._BY_NAME),
        ("augment", augment.NAMES),
        ("weight_decay_filter", weight_decay.FILTERS),
    ],
)
def test_choices_are_those_of_the_package(flag, registry):
    """They are written out in the settings so that --help need not import the package."""
    definition = settings.definition(settings.TrainSettings, flag)
    assert definition.metadata["choices"] == tuple(registry)


def test_every_flag_that_has_choices_was_compared():
    definitions = dataclasses.fields(settings.TrainSettings)
    with_choices = {field.name for field in definitions if field.metadata["choices"]}
    compared = test_choices_are_those_of_the_package.pytestmark[0].args[1]
    assert with_choices == {flag for flag, _ in compared} | {"recipe", "parameter_device"}


def test_what_goes_with_what_is_as_the_package_has_it():
    assert settings.WITH_MOMENTUM == optimizers.WITH_MOMENTUM
    assert settings.WITH_NESTEROV == optimizers.WITH_NESTEROV
    for schedule in schedules.SCHEDULES:
        options = {"total_epochs": 4.0, "decay_epochs": (1.0,)}
        rate = schedules.LearningRate(schedule, 1.0, 100, **options)
        assert (rate(400) == 0) == (schedule in settings.ENDING_SCHEDULES)


def test_defaults_are_the_tutorials():
    """tensorflow/models tutorials/image/cifar10: cifar10.py and cifar10_multi_gpu_train.py."""
    chosen = dataclasses.asdict(scripts.settings_of())
    assert {name: chosen[name] for name in TUTORIAL} == TUTORIAL


TUTORIAL = {
    "dataset": "cifar10",
    "model": "cifarnet",
    "global_batch_size": 128,
    "learning_rate": 0.1,
    "learning_rate_schedule": "exponential",
    "epochs_per_decay": 350.0,
    "decay_factor": 0.1,
    "warmup_epochs": 0.0,
    "learning_rate_scaling": "none",
    "optimizer": "sgd",
    "momentum": 0.0,
    "moving_average_decay": 0.9999,
    "clip_norm": 0.0,
    "compute_dtype": "float32",
    "microbatch_size": 0,
    "eval_every_epochs": 0,
    "max_steps": None,
    "data_dir": None,
}


class TestRecipes:
    @pytest.mark.parametrize("recipe", settings.RECIPES)
    def test_name_flags_and_make_valid_settings(self, recipe):
        values = settings.RECIPES[recipe]
        assert set(values) <= set(TRAIN.values) - {"recipe"}
        chosen = scripts.settings_of(f"--recipe={recipe}")
        assert {name: getattr(chosen, name) for name in values} == values

    def test_a_given_flag_wins_even_with_its_default(self):
        chosen = scripts.settings_of("--recipe=shapes", "--dataset=cifar10", "--momentum=0.5")
        assert (chosen.dataset, chosen.momentum) == ("cifar10", 0.5)
        assert chosen.learning_rate == settings.RECIPES["shapes"]["learning_rate"]

    def test_another_recipe_does_not_leak_in(self):
        scripts.settings_of("--recipe=shapes")
        assert scripts.settings_of().dataset == "cifar10"


@pytest.mark.pitfall(18)
class TestParsing:
    @pytest.mark.parametrize(
        ("arguments", "value"),
        [
            ([], False),
            (["--nesterov"], True),
            (["--nesterov=true"], True),
            (["--nesterov=False"], False),
            (["--nesterov=0"], False),
            (["--nonesterov"], False),
        ],
    )
    def test_false_is_false(self, arguments, value):
        assert scripts.settings_of("--momentum=0.9", *arguments).nesterov is value

    def test_importing_a_script_parses_nothing(self, monkeypatch):
        monkeypatch.setattr(sys, "argv", ["train.py", "--learning_rate=7", "--no_such_flag"])
        spec = importlib.util.spec_from_file_location("train", scripts.ROOT / "train.py")
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
        assert "learning_rate" not in flags.FLAGS

    def test_the_packages_define_no_flags(self):
        ours = [
            name
            for name in flags.FLAGS.flags_by_module_dict()
            if name.split(".")[0] in ("towers", "towers_cli", "input_pipeline")
        ]
        assert ours == []

    def test_numbers_in_lists(self):
        chosen = scripts.settings_of(
            "--learning_rate_schedule=piecewise", "--decay_epochs=82,123.5", "--profile_steps=3,5"
        )
        assert chosen.decay_epochs == (82.0, 123.5)
        assert chosen.profile_steps == (3, 5)


@pytest.mark.parametrize(("name", "script"), [("train", TRAIN), ("eval", EVAL)])
def test_help_lists_every_flag_and_imports_no_tensorflow(name, script):
    path = scripts.ROOT / f"{name}.py"
    done = subprocess.run(
        [sys.executable, "-X", "importtime", str(path), "--help"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0
    said = " ".join(done.stdout.split())
    for flag in script.values:
        assert f"  --{flag}=" in done.stdout or f"  --[no]{flag}" in done.stdout
        field = settings.definition(script.record, flag)
        assert " ".join(command_line.described(field).split()) in said
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert "absl.flags" in imported
    heavy = {"tensorflow", "keras", "numpy", "towers", "input_pipeline", "tensorflow_datasets"}
    assert not heavy & {module.split(".")[0] for module in imported}


@pytest.mark.pitfall(13)
@pytest.mark.parametrize("script", [TRAIN, EVAL])
def test_no_flag_calls_accuracy_precision(script):
    assert "precision" not in script.help().lower()


def test_help_begins_with_the_ten_everyday_flags():
    everyday = TRAIN.help().partition("Everyday:\n")[2].partition("\n\n")[0]
    flags_of = [line.split("=")[0] for line in everyday.splitlines() if line.startswith("  --")]
    assert len(flags_of) == 10
    assert {"  --train_dir", "  --model", "  --num_towers", "  --learning_rate"} <= set(flags_of)
    assert TRAIN.help().index("Everyday:") < TRAIN.help().index("Data:")


@pytest.mark.parametrize("line", [TRAIN, EVAL])
def test_every_setting_has_a_topic_that_help_shows(line):
    shown = [field.name for _, fields in settings.by_topic(line.record) for field in fields]
    assert sorted(shown) == sorted(field.name for field in dataclasses.fields(line.record))


def test_a_deterministic_run_here_leaves_the_process_as_it_was(tmp_path, monkeypatch):
    """Else what runs here after it has other bits than in a process of its own."""
    was_on = []

    def ends(*_):
        was_on.append(config.is_op_determinism_enabled())
        raise errors.UserError("the end")

    monkeypatch.setattr(build, "tower_devices", ends)
    done = scripts.train(tmp_path, "--deterministic")
    assert done == (1, "", "train.py: error: the end\n")
    assert was_on == [True] and not config.is_op_determinism_enabled()
