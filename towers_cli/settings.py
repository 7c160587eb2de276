"""The settings of a training and of an evaluation, each defined once.

Flags, --help, the checked record, `config.json`, what two runs are compared by, and the table in
docs/settings.md are made of the definitions. What is wrong by itself or beside another setting
raises a `SettingsError`, before anything is built. This file imports nothing of TensorFlow's.
"""

import contextlib
import dataclasses
import functools
import itertools
import math
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

TRAINING_SPLIT = "train"

# These, and the choices below, are those of the packages, which a test compares.
WITH_MOMENTUM = ("sgd", "rmsprop", "muon")
WITH_NESTEROV = ("sgd", "muon")
ENDING_SCHEDULES = ("cosine", "linear")  # those that depend on where the run ends

# A recipe is a named set of defaults; a flag that is given overrides it. `tutorial` is the defaults
# themselves: the settings of tensorflow/models tutorials/image/cifar10.
RECIPES = {
    "tutorial": {},
    # A first look in half a minute on two CPU cores, with nothing to download.
    "shapes": {
        "train_dir": "runs/shapes",
        "dataset": "shapes",
        "global_batch_size": 64,
        "train_epochs": 8.0,
        "learning_rate": 0.02,
        "learning_rate_schedule": "cosine",
        "warmup_epochs": 1.0,
        "momentum": 0.9,
        "moving_average_decay": 0.99,
        "eval_every_epochs": 1,
    },
    # 90 % on CIFAR-10 in few epochs (docs/fast.md).
    "fast": {
        "train_dir": "runs/fast",
        "model": "fastnet",
        "compute_dtype": "bfloat16",
        "global_batch_size": 2048,
        "microbatch_size": 128,
        "train_epochs": 11.0,
        "learning_rate": 0.24,
        "learning_rate_schedule": "linear",
        "optimizer": "muon",
        "momentum": 0.6,
        "nesterov": True,
        "label_smoothing": 0.2,
        "moving_average_decay": 0.0,
        "checkpoint_every_steps": 50,
        "summary_every_steps": 100,
    },
}


class SettingsError(Exception):
    """A setting is out of range or contradicts another; the message names the flag."""

    exit_code = 2


@contextlib.contextmanager
def as_flags(prefix: str = "") -> Iterator[None]:
    """Makes a SettingsError, with `prefix`, of a ValueError that names an argument."""
    try:
        yield
    except ValueError as error:
        raise SettingsError(f"{prefix}{error}") from error


class Range(NamedTuple):
    """Which values are allowed, and how a message says it."""

    holds: Callable[[Any], object]
    allowed: str


def least_most(least: float, most: float = math.inf) -> Range:
    """From `least` to `most`, both allowed."""
    upper = "" if most == math.inf else f" and at most {most}"
    return Range(lambda value: least <= value <= most, f"at least {least}{upper}")


def one_of(*choices: str) -> Range:
    """One of these texts."""
    return Range(lambda value: value in choices, f"one of {', '.join(choices)}")


# TensorFlow and TensorBoard read these characters as patterns.
_PATTERN = re.compile(r"[*?\[\]\\]")
RUN_PATH = Range(
    lambda value: value and "://" not in value and not _PATTERN.search(value),
    "a local path without the characters * ? [ ] and \\, which TensorFlow reads as patterns",
)
SPLIT = Range(
    re.compile(r"\w[\w.-]{0,99}", re.ASCII).fullmatch,
    "the name of one whole split, such as validation; not a part or a sum, as train[:10%]",
)
NETWORKS = ("cifarnet", "resnet", "resnet50", "fastnet")
MODEL = Range(
    re.compile(rf"{'|'.join(NETWORKS)}|[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*|[A-Z]\w*").fullmatch,
    f"one of {', '.join(NETWORKS)}, or package.module:function, or a network of keras.applications "
    "such as MobileNetV3Small",
)
AT_LEAST_1, AT_LEAST_0 = least_most(1), least_most(0)
ABOVE_0 = Range(lambda value: value > 0, "above 0")
SHARE = Range(lambda value: 0 <= value < 1, "at least 0 and below 1")
ALPHA = Range(lambda value: value == 0 or 0.1 <= value <= 100, "0, or from 0.1 to 100")
PARTS, BATCH = least_most(1, 1024), least_most(1, 2**20)


def setting(
    default: Any, help_: str, allowed: Range | None = None, *, topic: str = "", may_change=False
) -> Any:
    """A field of a record of settings, which decides the weights that a run ends with.

    The first one of a topic names it.
    """
    metadata = {"help": help_, "allowed": allowed, "topic": topic, "may_change": may_change}
    return dataclasses.field(default=default, metadata=metadata)


# May be another when a run is continued.
option = functools.partial(setting, may_change=True)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the records of settings share: each value is checked by its definition."""

    def __post_init__(self):
        for field in dataclasses.fields(self):
            check(field, getattr(self, field.name))


@dataclasses.dataclass(frozen=True)
class TrainSettings(Settings):
    """The flags of `train.py` under their own names."""

    # fmt: off
    train_dir: str = option(
        "runs/tutorial", "Folder of the run; a run in it is resumed.", RUN_PATH, topic="Everyday"
    )
    recipe: str = option("tutorial", "Named set of defaults for other flags.", one_of(*RECIPES))
    dataset: str = setting(
        "cifar10", "cifar10, shapes (generated, nothing to download), folder (the pictures in "
        "--data_dir), or the name of a TFDS data set."
    )
    data_dir: str | None = option(
        None, "Folder of prepared TFDS data sets; default: TFDS's own. With --dataset=folder, that "
        "of the pictures: class_name/*.jpg, or train/class_name/*.jpg and test/class_name/*.jpg."
    )
    model: str = setting(
        "cifarnet", "Network to train. A function of your own takes (image_shape, num_classes) and "
        "returns a Keras model that outputs logits.", MODEL
    )
    num_towers: int | None = option(
        None, "Number of towers of each worker; default: one per visible GPU, else 1.", PARTS
    )
    global_batch_size: int = setting(
        128, "Examples per step, over all towers and workers together.", BATCH
    )
    train_epochs: float = option(
        # Epochs are taken to the millionth; and positions in the data have to fit 64 bits.
        256.0, "Epoch at which the run ends.", least_most(1e-6, 10**9)
    )
    learning_rate: float = setting(0.1, "Learning rate before any decay.", ABOVE_0)
    dry_run: bool = option(
        False, "Print what the run would be, and exit. Nothing is written or downloaded."
    )

    eval_split: str = option(
        "test", "Split to evaluate: any split of the data set except train.", SPLIT, topic="Data"
    )
    seed: int = setting(
        0, "Seed of the initial weights, the order of the examples and the augmentation.",
        Range(lambda value: 0 <= value < 2**31, "at least 0 and below 2147483648")
    )
    preprocessing: str | None = setting(
        None, "What is done to images before they reach the network; default: depends on the model "
        "(crop_flip_colour for cifarnet; pad_crop_flip for resnet and your own function; "
        "shift_alternating_flip for fastnet; random_resized_crop, which needs pictures that are "
        "read from disk, for resnet50 and keras.applications).",
        one_of("crop_flip_colour", "pad_crop_flip", "shift_alternating_flip", "random_resized_crop")
    )
    augment: str = setting(
        "none", "Augmentation of the training images in addition to --preprocessing.",
        one_of("none", "trivial_augment", "rand_augment", "colour_jitter")
    )
    random_erasing: float = setting(
        0.0, "Probability that a rectangle of a training image is erased.", least_most(0, 1)
    )
    mixup_alpha: float = setting(
        0.0, "Mixup: each training image, and its label, becomes a weighted mean of two, with a "
        "weight drawn from Beta(alpha, alpha), for example with alpha 0.2. 0: no mixup.", ALPHA
    )
    cutmix_alpha: float = setting(
        0.0, "CutMix: a rectangle of each training image, and its share of the label, comes from "
        "another image; its area is drawn from Beta(alpha, alpha), such as 1. 0: no CutMix.", ALPHA
    )
    image_size: int | None = setting(
        None, "Pixels, the side of the square that each picture becomes; default: 224 where sizes "
        "differ. With it, other TFDS sets stay encoded, which takes less memory.",
        least_most(1, 4096)
    )

    compute_dtype: str = setting(
        "float32", "Type in which layers compute; weights are always float32.",
        one_of("float32", "bfloat16", "float16"), topic="Network and loss"
    )
    label_smoothing: float = setting(
        0.0, "Share of each training label that is spread evenly over all classes; evaluations use "
        "the labels as they are.", SHARE
    )
    weight_decay: float | None = setting(
        None, "Weight decay of all kernels (of cifarnet, those of hidden dense layers): a term of "
        "the loss, but decoupled from it for adamw, lion and muon. Default: depends on the model "
        "(cifarnet 0.004, resnet and resnet50 0.0001, others 0).", AT_LEAST_0
    )

    microbatch_size: int | None = setting(
        None, "Examples of a microbatch; the last of a batch may be smaller. With the same size, "
        "runs end with the same weights on any number of towers. Batch norm normalizes each "
        "microbatch separately, so the size is then part of the model. Default: an eighth of the "
        "batch, but at least 16.", BATCH, topic="Towers and arithmetic"
    )
    intra_op_threads: int | None = setting(
        None, "Threads that share the work of one operation; on a CPU, their number changes the "
        "last bits of the result. Default: 8 with GPUs; on a CPU, all cores with one microbatch, "
        "otherwise 1 (8 with --jit_compile). A run continues with the number it began with.", PARTS
    )
    deterministic: bool = setting(
        False, "Use TensorFlow's deterministic operations and no TF32, so that GPUs give the same "
        "bits in every run. A CPU does not need this."
    )
    parameter_device: str | None = option(
        None, "Device of the weights, the optimizer's state, the average and the update: the CPU, "
        "or the first tower's GPU (with one worker only). Default: cpu, but see --gpu_defaults.",
        one_of("cpu", "gpu")
    )
    accumulate_gradients: bool = option(
        False, "Compute a tower's microbatches one after the other, which keeps the activations of "
        "only one at a time, and not side by side, which is faster. The bits are the same."
    )
    jit_compile: bool | None = setting(
        None, "Compile the passes of a microbatch, and the update, with XLA, which is faster on "
        "GPUs, and on CPUs that emulate bfloat16. Default: with --gpu_defaults."
    )
    gpu_defaults: bool = option(
        False, "With GPUs: keep XLA's choices of kernels for later runs, and, unless flags say "
        "otherwise, --jit_compile, microbatches of at least 128 examples, and, with one worker and "
        "any recipe but the tutorial, --parameter_device=gpu."
    )
    worker_wait_seconds: float = option(
        300.0, "Seconds that a worker waits for the others of TF_CONFIG.", least_most(1, 10**6)
    )

    learning_rate_schedule: str = setting(
        "exponential", "How the learning rate decays over epochs; exponential decays in steps.",
        one_of("exponential", "piecewise", "cosine", "linear", "constant"), topic="Learning rate"
    )
    epochs_per_decay: float = setting(350.0, "Epochs per decay (exponential).", least_most(1e-6))
    decay_factor: float = setting(
        0.1, "Factor by which each decay multiplies the rate (exponential, piecewise).",
        Range(lambda value: 0 < value <= 1, "above 0 and at most 1")
    )
    decay_epochs: tuple[float, ...] = setting(
        (), "Epochs at which the rate decays (piecewise), for example 82,123."
    )
    warmup_epochs: float = setting(
        0.0, "Epochs over which the rate rises linearly from 0 to its full value.", AT_LEAST_0
    )

    optimizer: str = setting(
        "sgd", "Keras optimizer.", one_of("sgd", "adam", "adamw", "lion", "rmsprop", "muon"),
        topic="Optimizer and averages"
    )
    momentum: float = setting(0.0, "Momentum (sgd, rmsprop, muon).", SHARE)
    nesterov: bool = setting(False, "Nesterov momentum (sgd, muon).")
    clip_norm: float = setting(
        0.0, "Global norm to which the reduced gradients are clipped; 0: no clipping.",
        # Its inverse has to be a number that processors do not round to 0.
        Range(lambda value: value == 0 or 1e-30 <= value <= 1e30, "0, or 1e-30 to 1e30")
    )
    moving_average_decay: float = setting(
        0.9999, "Decay of the moving averages of the weights, which are evaluated and exported. 0: "
        "no averages are kept.", SHARE
    )

    init_from: str | None = setting(
        None, "Where a new run takes its initial weights from: a run, a checkpoint in one, or a "
        ".keras file. Layers are matched by name and shape.", RUN_PATH,
        topic="What is written, and when"
    )
    max_steps: int | None = option(
        None, "Step at which the run ends, if it is before --train_epochs.", AT_LEAST_1
    )
    eval_every_epochs: int = option(
        0, "Epochs between two evaluations; there is one at the end in any case.", AT_LEAST_0
    )
    log_every_steps: int = option(20, "Steps between two lines of metrics.jsonl.", AT_LEAST_1)
    summary_every_steps: int = option(
        500, "Steps between two sets of histograms and images in TensorBoard; 0: none.", AT_LEAST_0
    )
    verify_every_steps: int = option(
        0, "Steps between two hashes of the whole state in metrics.jsonl, by which `towers-compare "
        "RUN_A RUN_B` finds the step at which two runs begin to differ. 0: no hashes.", AT_LEAST_0
    )
    checkpoint_every_steps: int = option(500, "Steps between two checkpoints.", AT_LEAST_1)
    checkpoints_to_keep: int = option(5, "How many of the newest checkpoints are kept.", AT_LEAST_1)
    # fmt: on

    def __post_init__(self):
        super().__post_init__()
        schedule, decays = self.learning_rate_schedule, self.decay_epochs
        is_mixed = self.mixup_alpha or self.cutmix_alpha
        is_rising = all(a < b for a, b in itertools.pairwise((0.0, *decays, math.inf)))
        has_end = schedule in ENDING_SCHEDULES
        has_nesterov = self.optimizer in WITH_NESTEROV and self.momentum
        for name, is_wrong, problem in (
            ("eval_split", self.eval_split == TRAINING_SPLIT,
             f"must be another split than the run is trained on; eval.py takes {TRAINING_SPLIT}"),
            ("global_batch_size", is_mixed and self.global_batch_size % 2,
             "must be even for --mixup_alpha and --cutmix_alpha"),
            ("decay_epochs", (schedule == "piecewise") != bool(decays) or not is_rising,
             "must increase from above 0 for --learning_rate_schedule=piecewise, such as 82,123; "
             f"for others, there are none, and it is {schedule}"),
            ("warmup_epochs", has_end and self.warmup_epochs >= self.train_epochs,
             f"must be below --train_epochs={self.train_epochs:g} for the {schedule} schedule"),
            ("momentum", self.momentum and self.optimizer not in WITH_MOMENTUM,
             f"only for --optimizer={' or '.join(WITH_MOMENTUM)}, and it is {self.optimizer}"),
            ("nesterov", self.nesterov and not has_nesterov,
             f"only for --optimizer={' or '.join(WITH_NESTEROV)} with --momentum above 0"),
        ):  # fmt: skip
            if is_wrong:
                raise SettingsError(f"--{name}={shown(getattr(self, name))}: {problem}")


@dataclasses.dataclass(frozen=True)
class EvalSettings(Settings):
    """The flags of `eval.py` under their own names."""

    # fmt: off
    train_dir: str = option("runs/tutorial", "Folder of the run.", RUN_PATH, topic="Everyday")
    checkpoint: str | None = option(
        None, "Checkpoint to evaluate, by path or step; default: the newest.", RUN_PATH
    )
    split: str | None = option(
        None, "Split to evaluate, such as train, or all of a folder; default: the run's.", SPLIT
    )
    num_towers: int | None = option(
        None, "Number of towers; default: one per visible GPU, or 1 without a GPU.", PARTS
    )
    test_time_flip: bool = option(False, "Average the logits of each image and its mirror image.")
    run_once: bool = option(
        True, "Evaluate one checkpoint and exit; --run_once=false follows a running training."
    )
    eval_interval_seconds: float = option(
        10.0, "Seconds between two checks for a new checkpoint.", least_most(0.01, 86_400)
    )
    data_dir: str | None = option(None, "Folder of the data; default: the run's.")
    global_batch_size: int | None = option(
        None, "Examples per batch, over all towers together; default: the run's.", BATCH
    )
    # fmt: on

    def __post_init__(self):
        super().__post_init__()
        if self.checkpoint is not None and not self.run_once:
            raise SettingsError(f"--checkpoint={self.checkpoint}: not with --run_once=false")


def described(field: dataclasses.Field) -> str:
    """A setting's help, with what is allowed."""
    allowed = field.metadata["allowed"]
    return field.metadata["help"] + (f" Must be {allowed.allowed}." if allowed else "")


def check(field: dataclasses.Field, value: Any) -> None:
    """Checks the value of one setting by its definition."""
    allowed, problem = field.metadata["allowed"], ""
    if value is not None and allowed and not allowed.holds(value):
        problem = f"must be {allowed.allowed}"
    elif isinstance(value, float) and not abs(value) <= _LARGEST_FLOAT32:
        problem = "must be finite, in float32"
    elif isinstance(value, str) and not _TEXT.fullmatch(value):
        problem = "must be text of at most 4096 characters, without control characters"
    if problem:
        raise SettingsError(f"--{field.name}={shown(value)}: {problem}")


# What terminals, logs and TensorFlow can show, and the system takes: no control characters, and no
# half of a surrogate pair.
_TEXT = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{0,4096}")
_LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127


def shown(value: object) -> str:
    """A value as a flag has it, for a message; without its middle where it is long."""
    if isinstance(value, (tuple, list)):
        text = ",".join(f"{one:g}" if isinstance(one, float) else str(one) for one in value)
    else:
        text = str(value)
    return text if len(text) <= 60 and text.isprintable() else reprlib.repr(text)


def label(name: str) -> str:
    """What stands before a value in a message; not everything that defines a run has a flag."""
    return f"--{name}=" if name in TrainSettings.__dataclass_fields__ else f"{name} "


def by_topic(record: type[Settings]) -> dict[str, list[dataclasses.Field]]:
    """The definitions under each topic, in their order."""
    topics, topic = dict[str, list[dataclasses.Field]](), ""
    for field in dataclasses.fields(record):
        topic = field.metadata["topic"] or topic
        topics.setdefault(topic, []).append(field)
    return topics


def run_defining(chosen: Mapping) -> dict:
    """Of resolved settings, those that decide the weights that a run ends with, by name."""
    decides_end = chosen["learning_rate_schedule"] in ENDING_SCHEDULES
    return {
        field.name: chosen[field.name]
        for field in dataclasses.fields(TrainSettings)
        if not field.metadata["may_change"] or (field.name == "train_epochs" and decides_end)
    }
