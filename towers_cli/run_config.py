"""A run's `config.json`: what it holds, and whether two define the same run."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from input_pipeline import datasets
from towers import errors, worker
from towers.runs import checkpoints, run_folder
from towers_cli import settings


def make(
    chosen: settings.TrainSettings,
    tower_devices: Sequence[str],
    towers_of_workers: Sequence[int],
    workers: worker.Workers,
    last_step: int,
    image_shape: tuple[int, ...],
    training: datasets.Images,
    evaluated: datasets.Images,
) -> dict:
    """What `towers.Run` takes for a command's `config.json`."""
    resolved = {
        "tower_devices": list(tower_devices),
        "towers_of_workers": list(towers_of_workers),
        "workers": [workers.name(index) for index in range(workers.count)],
        "num_microbatches": -(-chosen.global_batch_size // chosen.microbatch_size),
        "steps_per_epoch": training.num_examples / chosen.global_batch_size,
        "last_step": last_step,
        "examples_per_epoch": training.num_examples,
        "class_names": list(training.class_names),
        "image_shape": list(image_shape),
        "data_source": training.source,
        "data_sha256": training.fingerprint,
        "eval_sha256": evaluated.fingerprint,
    }
    return {
        "settings": settings.recorded(chosen),
        "resolved": resolved,
        "definition": definition(chosen, training),
    }


# What a run that continues, or an evaluation, reads from a config.json beside the settings.
_READ = {
    "class_names", "data_sha256", "eval_sha256", "examples_per_epoch", "image_shape", "last_step",
    "tower_devices", "workers",
}  # fmt: skip


def is_of_command(config: Mapping) -> bool:
    """Whether a `config.json` is of `train.py`, and not of another program."""
    return "train_dir" in config["settings"]


def check(config: Mapping, train_dir: str | Path) -> None:
    """Checks that a `config.json` is of `train.py`, of this version.

    Raises:
      RunFolderError: it is of another program, or lacks a value.
    """
    if not is_of_command(config):
        raise run_folder.RunFolderError(
            f"--train_dir={train_dir}: is a program's own run; continue or evaluate it with that "
            "program"
        )
    not_set = set(settings.recorded_names()) - set(config["settings"])
    if missing := sorted(not_set | _READ - set(config["resolved"])):
        raise run_folder.RunFolderError(
            f"--train_dir={train_dir}: its config.json lacks {', '.join(missing)}; another version "
            "of towers may have made it"
        )


def earlier_run(folder: run_folder.RunFolder) -> dict | None:
    """The configuration of the run that continues in `folder`.

    None where there is no run, or where it never saved a checkpoint: it then has nothing to
    continue from, and starts over with any settings.

    Raises:
      RunFolderError: the folder holds something other than a run.
    """
    config = folder.read_config()
    if config is None:
        return None
    check(config, folder.path)
    is_begun = run_folder.FIRST_CHECKPOINT in config or checkpoints.newest(folder.checkpoints)
    return config if is_begun else None


def definition(chosen: settings.TrainSettings, training: datasets.Images) -> dict:
    """What decides the weights that a command's run ends with, by name."""
    defining = settings.run_defining(settings.recorded(chosen))
    return defining | {
        "init_from": chosen.init_from,
        "sha256 of the images": training.fingerprint[:12],
        "names of the classes": list(training.class_names),
    }


def check_same_run(earlier: Mapping, config: Mapping, train_dir: str | Path) -> None:
    """Checks that what defines a run is what it began with.

    Raises:
      RunFolderError: names each setting that differs.
    """
    now = dict(config["definition"])
    began = {name: earlier["defining"].get(name) for name in now}
    splits = [one["settings"]["eval_split"] for one in (earlier, config)]
    if splits[0] == splits[1]:  # another one may be evaluated from now on
        name = f"sha256 of the {splits[0]} images"
        for values, one in ((began, earlier), (now, config)):
            values[name] = one["resolved"]["eval_sha256"][:12]
    if different := errors.differences(began, now, label=settings.label):
        raise run_folder.RunFolderError(
            f"--train_dir={train_dir} holds a run with other settings: {'; '.join(different)}. "
            "Give the run's own settings to continue it, or choose another --train_dir"
        )
