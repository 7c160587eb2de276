"""The settings: choices, recipes, parsing, which of them define a run; help, and lost output.

Values that are refused are in test_bad_input.py, as flags.
"""

import dataclasses
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import forked
import pytest
import scripts
from absl import flags

from input_pipeline import augment, preprocess
from towers import networks, schedules
from towers.networks import optimizers
from towers_cli import settings

NAMES = {field.name for field in dataclasses.fields(settings.TrainSettings)}
REGISTRIES = {
    "model": networks.NETWORKS, "compute_dtype": networks.DTYPE_POLICIES,
    "learning_rate_schedule": schedules.SCHEDULES, "optimizer": optimizers.OPTIMIZERS,
    "preprocessing": preprocess._BY_NAME, "augment": augment.NAMES,
}  # fmt: skip
# Where the work is done, when it is reported and when it ends.
MAY_CHANGE = {
    *("train_dir", "data_dir", "recipe", "dry_run"),
    *("num_towers", "accumulate_gradients", "parameter_device", "gpu_defaults"),
    "worker_wait_seconds",
    *("train_epochs", "max_steps", "eval_split", "eval_every_epochs"),
    *("log_every_steps", "summary_every_steps", "verify_every_steps"),
    *("checkpoint_every_steps", "checkpoints_to_keep"),
}
# tensorflow/models tutorials/image/cifar10: cifar10.py and cifar10_multi_gpu_train.py.
TUTORIAL = {
    "dataset": "cifar10", "model": "cifarnet", "global_batch_size": 128, "learning_rate": 0.1,
    "learning_rate_schedule": "exponential", "epochs_per_decay": 350.0, "decay_factor": 0.1,
    "warmup_epochs": 0.0, "optimizer": "sgd", "momentum": 0.0, "moving_average_decay": 0.9999,
    "clip_norm": 0.0, "compute_dtype": "float32", "microbatch_size": None,
}  # fmt: skip


def test_choices_are_those_of_the_package():
    """They are written out in the settings so that --help need not import the package."""
    choices = {
        field.name: allowed.allowed.removeprefix("one of ").partition(", or")[0].split(", ")
        for field in dataclasses.fields(settings.TrainSettings)
        if (allowed := field.metadata["allowed"]) and allowed.allowed.startswith("one of ")
        if field.name not in ("recipe", "parameter_device")
    }
    assert choices == {name: list(registry) for name, registry in REGISTRIES.items()}
    assert settings.WITH_MOMENTUM == optimizers.WITH_MOMENTUM
    assert settings.WITH_NESTEROV == optimizers.WITH_NESTEROV
    for schedule in schedules.SCHEDULES:
        options = {"total_epochs": 4.0, "decay_epochs": (1.0,)}
        rate = schedules.LearningRate(schedule, 1.0, 100, **options)
        assert (rate(400) == 0) == (schedule in settings.ENDING_SCHEDULES)


def test_defaults_are_the_tutorials():
    chosen = dataclasses.asdict(scripts.settings_of())
    assert {name: chosen[name] for name in TUTORIAL} == TUTORIAL


@pytest.mark.parametrize("recipe", settings.RECIPES)
def test_a_recipe_is_defaults_and_a_given_flag_wins_even_with_its_default(recipe):
    values = settings.RECIPES[recipe]
    chosen = scripts.settings_of(f"--recipe={recipe}", "--momentum=0", "--nesterov=false")
    without = {k: v for k, v in values.items() if k not in ("momentum", "nesterov")}
    assert {name: getattr(chosen, name) for name in without} == without
    assert (chosen.momentum, chosen.nesterov) == (0.0, False)


@pytest.mark.pitfall(18)
def test_false_is_false_and_numbers_may_be_in_lists():
    for text, value in {"": True, "=true": True, "=False": False, "=0": False}.items():
        assert scripts.settings_of("--momentum=0.9", f"--nesterov{text}").nesterov is value
    chosen = scripts.settings_of("--learning_rate_schedule=piecewise", "--decay_epochs=82,123.5")
    assert chosen.decay_epochs == (82.0, 123.5)
    assert scripts.settings_of("--decay_epochs=").decay_epochs == ()  # as --help shows it


@pytest.mark.pitfall(18)
def test_importing_a_script_parses_nothing(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--learning_rate=7", "--no_such_flag"])
    spec = importlib.util.spec_from_file_location("train", scripts.ROOT / "train.py")
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert "learning_rate" not in flags.FLAGS


@pytest.mark.parametrize("schedule", schedules.SCHEDULES)
def test_every_setting_either_defines_a_run_or_may_change(schedule):
    """The end of a run defines it where the rate depends on it."""
    decay = ["--decay_epochs=1"] if schedule == "piecewise" else []
    chosen = scripts.settings_of(f"--learning_rate_schedule={schedule}", *decay)
    defining = settings.run_defining(dataclasses.asdict(chosen))
    assert ("train_epochs" in defining) == (schedule in ("cosine", "linear"))
    assert set(defining) - {"train_epochs"} == NAMES - MAY_CHANGE


pytestmark = pytest.mark.whole_program

COMMANDS = ("towers-train", "towers-eval", "towers-predict", "towers-compare", "towers-launch")
HEAVY = {"tensorflow", "keras", "numpy", "towers", "input_pipeline", "tensorflow_datasets"}


@pytest.mark.parametrize(
    ("command", "flag", "code"),
    [*((command, "--help", 0) for command in COMMANDS), ("towers-train", "--momentum=2", 2)],
)
def test_what_needs_no_tensorflow_does_not_wait_for_it(command, flag, code, tmp_path):
    """It goes to stdout, but for an error, which names the command as it was called."""
    program = Path(sys.executable).with_name(command)
    done = subprocess.run(
        [sys.executable, "-X", "importtime", program, flag],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == code
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert not HEAVY & {module.split(".")[0] for module in imported}
    if code:
        assert "\ntowers-train: error: --momentum=2.0: " in done.stderr and not done.stdout
    else:
        assert command in done.stdout


@pytest.mark.parametrize("name", scripts.COMMANDS)
def test_help_is_of_every_flag(forked_command, name):
    done = forked_command(f"{name}.py", "--train_dir=runs/a", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= 80
    text = "".join(done.stdout.split())
    for field in dataclasses.fields(scripts.COMMANDS[name][1]):
        assert f"  --{field.name}: " in done.stdout or f"  --[no]{field.name}: " in done.stdout
        assert "".join(settings.described(field).split()) in text
        default = f"(default:'{field.default}')".lower()
        assert field.default in (None, ()) or default in text.lower()


@pytest.mark.parametrize(("flag", "code"), [("--dry_run", 141), ("--help", -signal.SIGPIPE)])
def test_a_reader_that_has_gone_is_no_traceback(flag, code, tmp_path):
    read, write = os.pipe()
    os.close(read)
    call = [sys.executable, str(scripts.ROOT / "train.py"), f"--train_dir={tmp_path / 'run'}"]
    with os.fdopen(write) as closed:
        done = forked.run([*call, "--dataset=shapes", flag], stdout=closed, timeout=60)
    assert (done.returncode, done.stderr) == (code, "")
