"""The settings of a training run: one frozen record, checked once, before anything is built.

A setting that is wrong by itself or beside another raises a `SettingsError` that names the flag,
the value and what is allowed.
"""

import dataclasses
import hashlib
import itertools
import json
import math
import os
import re
import reprlib
import types
import typing
from collections.abc import Mapping

from towers import (
    batch_norm,
    cluster,
    collectives,
    gradients,
    losses,
    models,
    optimizers,
    schedules,
)

TRAINING_SPLIT = "train"


class SettingsError(ValueError):
    """A setting is out of range or contradicts another; the message names the flag."""


@dataclasses.dataclass(frozen=True)
class TrainSettings:
    """The flags of `train.py` under their own names; `python train.py --help` explains each."""

    train_dir: str
    begin_from: str | None
    dataset: str
    data_dir: str | None
    model: str
    num_towers: int | None
    workers: tuple[str, ...]
    worker_index: int | None
    worker_reduction: str | None
    worker_wait_seconds: float
    global_batch_size: int
    num_microbatches: int
    train_epochs: float
    max_steps: int | None
    learning_rate: float
    learning_rate_schedule: str
    epochs_per_decay: float
    decay_factor: float
    decay_epochs: tuple[float, ...]
    warmup_epochs: float
    learning_rate_scaling: str
    base_batch_size: int
    optimizer: str
    momentum: float
    nesterov: bool
    weight_decay: float | None
    weight_decay_filter: str | None
    clip_norm: float
    label_smoothing: float
    gradient_reduction: str
    batch_norm_statistics: str
    moving_average_decay: float
    compute_dtype: str
    intra_op_threads: int | None
    deterministic: bool
    jit_compile: bool
    seed: int
    log_every_steps: int
    summary_every_steps: int
    verify_every_steps: int
    checkpoint_every_steps: int
    checkpoints_to_keep: int
    eval_split: str
    eval_every_epochs: float
    eval_of_workers: bool
    profile_steps: tuple[int, int] | None
    recipe: str

    def __post_init__(self):
        for name in names():
            check_value(name, getattr(self, name))
        for name in ("train_dir", "begin_from", "data_dir"):
            check_home(name, getattr(self, name) or "")
        self._check_eval_split()
        self._check_workers()
        self._check_schedule()
        self._check_optimizer()
        self._check_profile()

    def _check_eval_split(self):
        if self.eval_split == TRAINING_SPLIT:
            raise SettingsError(
                f"--eval_split={TRAINING_SPLIT}: must be another split than the run is trained on, "
                f"such as test or validation; eval.py takes --split={TRAINING_SPLIT}"
            )

    def _check_workers(self):
        if not self.workers:
            if self.worker_index is not None:
                raise SettingsError(
                    f"--worker_index={self.worker_index}: only with --workers=host:port,host:port"
                )
            return
        given = f"--workers={shown(self.workers)}"
        if len(self.workers) < 2:
            raise SettingsError(f"{given}: must be at least two; one worker needs no flag")
        if self.worker_index is None:
            raise SettingsError(f"{given}: needs --worker_index, which of them this process is")
        try:
            cluster.check(self.workers, self.worker_index)
        except ValueError as error:
            raise SettingsError(f"{given}: {error}") from error

    def _check_schedule(self):
        kind = self.learning_rate_schedule
        if kind == "piecewise" and not self.decay_epochs:
            raise SettingsError(
                "--learning_rate_schedule=piecewise needs --decay_epochs, such as 82,123"
            )
        if kind != "piecewise" and self.decay_epochs:
            raise SettingsError(
                f"--decay_epochs={shown(self.decay_epochs)}: only for "
                f"--learning_rate_schedule=piecewise, and it is {kind}"
            )
        increasing = all(a < b for a, b in itertools.pairwise(self.decay_epochs))
        if not increasing or any(not 0 < epoch < math.inf for epoch in self.decay_epochs):
            raise SettingsError(
                f"--decay_epochs={shown(self.decay_epochs)}: must be above 0 and increase"
            )
        if kind in ("cosine", "linear") and self.warmup_epochs >= self.train_epochs:
            raise SettingsError(
                f"--warmup_epochs={self.warmup_epochs:g}: must be below "
                f"--train_epochs={self.train_epochs:g} for the {kind} schedule"
            )

    def _check_optimizer(self):
        if self.momentum and self.optimizer not in optimizers.WITH_MOMENTUM:
            raise SettingsError(
                f"--momentum={self.momentum:g}: only for --optimizer="
                f"{' or '.join(optimizers.WITH_MOMENTUM)}, and it is {self.optimizer}"
            )
        if self.nesterov and not (self.momentum and self.optimizer in optimizers.WITH_NESTEROV):
            raise SettingsError(
                f"--nesterov: only for --optimizer={' or '.join(optimizers.WITH_NESTEROV)} with "
                "--momentum above 0"
            )

    def _check_profile(self):
        steps = self.profile_steps
        if steps is not None and not (len(steps) == 2 and 0 < steps[0] <= steps[1]):
            raise SettingsError(
                f"--profile_steps={shown(self.profile_steps)}: must be two steps A,B with "
                "0 < A <= B"
            )


def names() -> list[str]:
    """The names of all settings, which are those of the flags."""
    return [field.name for field in dataclasses.fields(TrainSettings)]


def check_value(name: str, value: object) -> None:
    """Checks one setting by itself, wherever it was read.

    Raises:
      SettingsError: it is not of the setting's type, out of its range, or none of its choices.
    """
    of_type, choices = _TYPES[name], _CHOICES.get(name)
    holds, allowed = _RANGES.get(name, (None, ""))
    problem = ""
    if not is_of(value, of_type):
        problem = f"must be of type {getattr(of_type, '__name__', of_type)}"
    elif value is None:
        pass
    elif holds and not holds(value):
        problem = f"must be {allowed}"
    elif choices and value not in choices:
        problem = f"must be one of {', '.join(choices)}"
    elif is_of(0.5, of_type) and not abs(value) <= _LARGEST_FLOAT32:
        problem = "must be finite, in float32"
    if problem:
        raise SettingsError(f"--{name}={shown(value)}: {problem}")
    if isinstance(value, str):
        check_text(name, value)


def check_split(name: str, split: str) -> None:
    """Checks that a split is called by its plain name: it names folders, and lines of logs.

    Raises:
      SettingsError: it is a part or a sum of splits, as TFDS writes them, or no name.
    """
    holds, allowed = _SPLIT
    if not holds(split):
        raise SettingsError(f"--{name}={shown(split)}: must be {allowed}")


def check_text(name: str, text: str) -> None:
    """Checks that terminals, logs and TensorFlow can show a name, and the system take it.

    Raises:
      SettingsError: it is too long, or holds a control character or half of a surrogate pair.
    """
    if not _TEXT.fullmatch(text):
        raise SettingsError(
            f"--{name}={shown(text)}: must be text of at most 4096 characters, without control "
            "characters"
        )


def check_home(name: str, path: str) -> None:
    """Checks that a path that begins with `~` is of a home folder that the system knows.

    Raises:
      SettingsError: it is not; a folder of that name would be made in the current one.
    """
    if path.startswith("~") and os.path.expanduser(path) == path:
        home = path.partition("/")[0]
        raise SettingsError(
            f"--{name}={shown(path)}: {home} is no home folder that this system knows (is HOME "
            f"set?); give the whole path, or ./{path} for a folder of that name here"
        )


def check_run_path(name: str, path: str) -> None:
    """Checks the path of a run or of a checkpoint, wherever it was read.

    Raises:
      SettingsError: TensorFlow would take it for a pattern, or it is not local.
    """
    holds, allowed = _RUN_PATH
    if not holds(path):
        raise SettingsError(f"--{name}={shown(path)}: must be {allowed}")


def is_of(value: object, of_type) -> bool:
    """Whether a value, perhaps read from JSON, is of an annotated type."""
    if isinstance(of_type, types.UnionType):
        return any(is_of(value, one) for one in typing.get_args(of_type))
    if typing.get_origin(of_type) is tuple:  # a list in JSON
        item = typing.get_args(of_type)[0]
        return isinstance(value, (tuple, list)) and all(is_of(one, item) for one in value)
    if isinstance(value, bool):
        return of_type is bool
    return isinstance(value, (int, float) if of_type is float else of_type)


def shown(value: object) -> str:
    """A value as a flag has it, for a message; without its middle where it is long."""
    if isinstance(value, (tuple, list)):
        text = ",".join(f"{one:g}" if isinstance(one, float) else str(one) for one in value)
    else:
        text = str(value)
    return text if len(text) <= 60 and text.isprintable() else reprlib.repr(text)


def numbers(name: str, texts: list[str] | None, of_type: type) -> tuple | None:
    """A flag's comma-separated numbers.

    Raises:
      SettingsError: one of `texts` is not a number of that type.
    """
    try:
        return None if texts is None else tuple(of_type(text) for text in texts)
    except ValueError as error:
        raise SettingsError(
            f"--{name}={shown(texts)}: must be numbers separated by commas"
        ) from error


_TYPES = {field.name: field.type for field in dataclasses.fields(TrainSettings)}

_TEXT = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{0,4096}")
_LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127

# TensorFlow reads these characters as patterns: a run in `lr?` would delete checkpoints of `lr1`.
_PATTERN = re.compile(r"[*?\[\]\\]")
_RUN_PATH = (
    lambda value: value and "://" not in value and not _PATTERN.search(value),
    "a local path without the characters * ? [ ] and \\, which TensorFlow reads as patterns",
)
_AT_LEAST_1 = (lambda value: value >= 1, "at least 1")
_AT_LEAST_0 = (lambda value: value >= 0, "at least 0")
_ABOVE_0 = (lambda value: value > 0, "above 0")
_PARTS = (lambda value: 1 <= value <= 1024, "at least 1 and at most 1024")
_BATCH = (lambda value: 1 <= value <= 2**20, "at least 1 and at most 1048576")
_SHARE = (lambda value: 0 <= value < 1, "at least 0 and below 1")

_SPLIT = (
    re.compile(r"\w[\w.-]{0,99}", re.ASCII).fullmatch,
    "the name of one whole split, such as test or validation; parts and sums of splits "
    "(train[:10%], train+test) are not taken",
)

_RANGES = {
    "train_dir": _RUN_PATH,
    "begin_from": _RUN_PATH,
    "num_towers": _PARTS,
    "worker_index": _AT_LEAST_0,
    "worker_wait_seconds": (lambda value: 0 < value <= 1e6, "above 0 and at most 1e6"),
    "global_batch_size": _BATCH,
    "num_microbatches": (lambda value: 0 <= value <= 1024, "at least 0 and at most 1024"),
    # Epochs are taken to the millionth; and positions in the data have to fit 64 bits.
    "train_epochs": (lambda value: 1e-6 <= value <= 1e9, "at least 0.000001 and at most 1e9"),
    "max_steps": _AT_LEAST_1,
    "learning_rate": _ABOVE_0,
    "epochs_per_decay": (lambda value: value >= 1e-6, "at least 0.000001"),
    "decay_factor": (lambda value: 0 < value <= 1, "above 0 and at most 1"),
    "warmup_epochs": _AT_LEAST_0,
    "base_batch_size": _BATCH,
    "momentum": _SHARE,
    "weight_decay": _AT_LEAST_0,
    # Its inverse has to be a number that processors do not round to 0.
    "clip_norm": (lambda value: value == 0 or 1e-30 <= value <= 1e30, "0, or 1e-30 to 1e30"),
    "label_smoothing": _SHARE,
    "moving_average_decay": _SHARE,
    "intra_op_threads": _PARTS,
    "seed": (lambda value: 0 <= value < 2**31, "at least 0 and below 2147483648"),
    "log_every_steps": _AT_LEAST_1,
    "summary_every_steps": _AT_LEAST_0,
    "verify_every_steps": _AT_LEAST_0,
    "checkpoint_every_steps": _AT_LEAST_1,
    "checkpoints_to_keep": _AT_LEAST_1,
    "eval_split": _SPLIT,
    "eval_every_epochs": (lambda value: value == 0 or value >= 1e-6, "0, or at least 0.000001"),
}

_CHOICES = {
    "model": tuple(models.NETWORKS),
    "worker_reduction": collectives.REDUCTIONS,
    "learning_rate_schedule": schedules.SCHEDULES,
    "learning_rate_scaling": schedules.SCALINGS,
    "optimizer": tuple(optimizers.OPTIMIZERS),
    "weight_decay_filter": tuple(losses.WEIGHT_FILTERS),
    "gradient_reduction": gradients.REDUCTIONS,
    "batch_norm_statistics": batch_norm.POLICIES,
    "compute_dtype": tuple(models.DTYPE_POLICIES),
}

# Settings that decide which weights a run ends with. The rest say where the work is done, when it
# is reported and when it ends, and may change when a run is continued.
RUN_DEFINING = (
    "dataset",
    "model",
    "global_batch_size",
    "num_microbatches",
    "learning_rate",
    "learning_rate_schedule",
    "epochs_per_decay",
    "decay_factor",
    "decay_epochs",
    "warmup_epochs",
    "learning_rate_scaling",
    "base_batch_size",
    "optimizer",
    "momentum",
    "nesterov",
    "weight_decay",
    "weight_decay_filter",
    "clip_norm",
    "label_smoothing",
    "gradient_reduction",
    "batch_norm_statistics",
    "moving_average_decay",
    "compute_dtype",
    "intra_op_threads",
    "deterministic",
    "jit_compile",
    "seed",
)


def defining(config: Mapping) -> dict:
    """Of a run's `config.json`, what decides the weights that it ends with, by name."""
    derived, begins = config["resolved"], config["resolved"]["begins_from"]
    return run_defining(config["settings"]) | {
        "sha256 of the images": derived["data_sha256"][:12],
        "sha256 of what it began from": begins and begins["sha256"][:12],
    }


def run_sha256(config: Mapping) -> str:
    """A hash over `defining`: two runs that have it in common are the same run."""
    text = json.dumps(defining(config), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def run_defining(settings: Mapping) -> dict:
    """Of resolved settings, those that decide the weights that a run ends with, by flag name."""
    defining = {name: settings[name] for name in RUN_DEFINING}
    if settings["learning_rate_schedule"] in ("cosine", "linear"):
        defining["train_epochs"] = settings["train_epochs"]
    return defining
