"""A run's `config.json`: what it holds, and whether two define the same run."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from input_pipeline import datasets
from towers import errors, worker
from towers.runs import checkpoints, run_folder, warm_start
from towers_cli import settings

# What may differ between workers: where things are on each machine, how many towers it has, and
# which worker it is.
_PER_WORKER = ("train_dir", "data_dir", "num_towers", "worker_wait_seconds")


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
    recorded = dataclasses.asdict(chosen)
    definition = (
        settings.run_defining(recorded)
        | {  # decides the weights that the run ends with
            "init_from": chosen.init_from,
            "sha256 of the images": training.fingerprint[:12],
            "names of the classes": list(training.class_names),
        }
    )
    return {"settings": recorded, "resolved": resolved, "definition": definition}


def is_of_command(config: Mapping) -> bool:
    """Whether a `config.json` is of `train.py`, and not of another program."""
    return "train_dir" in config["settings"]


def check(config: Mapping, train_dir: str | Path) -> None:
    """Checks that a `config.json` is of `train.py`, of this version."""
    if not is_of_command(config):
        raise run_folder.RunFolderError(
            f"--train_dir={train_dir}: is a program's own run; continue or evaluate it with that "
            "program"
        )
    names = {field.name for field in dataclasses.fields(settings.TrainSettings)}
    if missing := names - set(config["settings"]):
        raise run_folder.RunFolderError(
            f"--train_dir={train_dir}: its config.json lacks {', '.join(sorted(missing))}; another "
            "version of towers may have made it"
        )


def earlier_run(folder: run_folder.RunFolder) -> dict | None:
    """The configuration of the run that continues in `folder`.

    None where there is no run, or where it never saved a checkpoint: it then has nothing to
    continue from, and starts over with any settings.
    """
    config = folder.read_config()
    if config is None:
        return None
    check(config, folder.path)
    is_begun = run_folder.FIRST_CHECKPOINT in config or checkpoints.newest(folder.checkpoints)
    return config if is_begun else None


def check_alike(workers: worker.Workers, chosen: settings.TrainSettings) -> None:
    """Checks that all workers were given the same settings."""
    shared = dataclasses.asdict(chosen)
    shared = {name: value for name, value in shared.items() if name not in _PER_WORKER}
    worker.check_same(workers, "their settings", shared, settings.label)


def check_beginning(config: Mapping, folder: run_folder.RunFolder) -> None:
    """Checks that a run continues with its own settings, or can begin with `--init_from`."""
    earlier = earlier_run(folder)  # looked at again: another may have begun while data were read
    if earlier is None:
        if init_from := config["settings"]["init_from"]:
            warm_start.locate(init_from)
        return
    now = dict(config["definition"])
    began = {name: earlier["defining"].get(name) for name in now}
    splits = [one["settings"]["eval_split"] for one in (earlier, config)]
    if splits[0] == splits[1]:  # another one may be evaluated from now on
        name = f"sha256 of the {splits[0]} images"
        began[name] = earlier["resolved"]["eval_sha256"][:12]
        now[name] = config["resolved"]["eval_sha256"][:12]
    if different := errors.differences(began, now, label=settings.label):
        raise run_folder.RunFolderError(
            f"{folder.shown} holds a run with other settings: {'; '.join(different)}. "
            "Give the run's own settings to continue it, or choose another --train_dir"
        )
