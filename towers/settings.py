"""The settings of a training run: one frozen record, checked once, before anything is built.

A setting that is wrong by itself or beside another raises a `SettingsError` that names the flag,
the value and what is allowed.
"""

import dataclasses
import itertools
import math

from towers import batch_norm, gradients, losses, models, optimizers, schedules


class SettingsError(ValueError):
    """A setting is out of range or contradicts another; the message names the flag."""


@dataclasses.dataclass(frozen=True)
class TrainSettings:
    """The flags of `train.py` under their own names; `python train.py --help` explains each."""

    train_dir: str
    dataset: str
    data_dir: str | None
    model: str
    num_towers: int | None
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
    eval_every_epochs: float
    profile_steps: tuple[int, int] | None
    recipe: str

    def __post_init__(self):
        for name, (holds, allowed) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not holds(value):
                raise SettingsError(f"--{name}={value}: must be {allowed}")
            if not _is_finite(value):
                raise SettingsError(f"--{name}={value}: must be finite")
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value is not None and value not in choices:
                raise SettingsError(f"--{name}={value}: must be one of {', '.join(choices)}")
        self._check_schedule()
        self._check_optimizer()
        self._check_profile()

    def _check_schedule(self):
        kind = self.learning_rate_schedule
        if kind == "piecewise" and not self.decay_epochs:
            raise SettingsError(
                "--learning_rate_schedule=piecewise needs --decay_epochs, such as 82,123"
            )
        if kind != "piecewise" and self.decay_epochs:
            raise SettingsError(
                f"--decay_epochs={_joined(self.decay_epochs)}: only for "
                f"--learning_rate_schedule=piecewise, and it is {kind}"
            )
        increasing = all(a < b for a, b in itertools.pairwise(self.decay_epochs))
        if not increasing or any(not 0 < epoch < math.inf for epoch in self.decay_epochs):
            raise SettingsError(
                f"--decay_epochs={_joined(self.decay_epochs)}: must be above 0 and increase"
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
                f"--profile_steps={_joined(self.profile_steps)}: must be two steps A,B with "
                "0 < A <= B"
            )


def names() -> list[str]:
    """The names of all settings, which are those of the flags."""
    return [field.name for field in dataclasses.fields(TrainSettings)]


def numbers(name: str, texts: list[str] | None, of_type: type) -> tuple | None:
    """A flag's comma-separated numbers.

    Raises:
      SettingsError: one of `texts` is not a number of that type.
    """
    try:
        return None if texts is None else tuple(of_type(text) for text in texts)
    except ValueError as error:
        raise SettingsError(
            f"--{name}={','.join(texts)}: must be numbers separated by commas"
        ) from error


def _is_finite(value) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _joined(values) -> str:
    return ",".join(f"{value:g}" for value in values)


_AT_LEAST_1 = (lambda value: value >= 1, "at least 1")
_AT_LEAST_0 = (lambda value: value >= 0, "at least 0")
_ABOVE_0 = (lambda value: value > 0, "above 0")
_SHARE = (lambda value: 0 <= value < 1, "at least 0 and below 1")

_RANGES = {
    "train_dir": (bool, "a folder"),
    "num_towers": _AT_LEAST_1,
    "global_batch_size": _AT_LEAST_1,
    "num_microbatches": _AT_LEAST_0,
    "train_epochs": _ABOVE_0,
    "max_steps": _AT_LEAST_1,
    "learning_rate": _ABOVE_0,
    "epochs_per_decay": _ABOVE_0,
    "decay_factor": (lambda value: 0 < value <= 1, "above 0 and at most 1"),
    "warmup_epochs": _AT_LEAST_0,
    "base_batch_size": _AT_LEAST_1,
    "momentum": _SHARE,
    "weight_decay": _AT_LEAST_0,
    "clip_norm": _AT_LEAST_0,
    "label_smoothing": _SHARE,
    "moving_average_decay": _SHARE,
    "intra_op_threads": (lambda value: 1 <= value <= 1024, "at least 1 and at most 1024"),
    "seed": (lambda value: 0 <= value < 2**31, "at least 0 and below 2147483648"),
    "log_every_steps": _AT_LEAST_1,
    "summary_every_steps": _AT_LEAST_0,
    "verify_every_steps": _AT_LEAST_0,
    "checkpoint_every_steps": _AT_LEAST_1,
    "checkpoints_to_keep": _AT_LEAST_1,
    "eval_every_epochs": _AT_LEAST_0,
}

_CHOICES = {
    "model": tuple(models.NETWORKS),
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


# What runs had whose config.json is older than the setting.
BEFORE_IT_WAS_A_SETTING = {"label_smoothing": 0.0, "deterministic": False, "jit_compile": False}


def run_defining(settings: dict) -> dict:
    """Of resolved settings, those that a continued run must share, by flag name."""
    settings = BEFORE_IT_WAS_A_SETTING | settings
    defining = {name: settings[name] for name in RUN_DEFINING if name in settings}
    if settings["learning_rate_schedule"] in ("cosine", "linear"):
        defining["train_epochs"] = settings["train_epochs"]
    return defining
