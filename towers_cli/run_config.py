"""A run's `config.json`: what it holds, and whether two define the same run."""

import dataclasses
from collections.abc import Mapping, Sequence

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
    definition = settings.run_defining(recorded) | {
        "sha256 of the images": training.fingerprint[:12],
        "names of the classes": list(training.class_names),
    }
    return {"settings": recorded, "resolved": resolved, "definition": definition}


def read(folder: run_folder.RunFolder) -> dict | None:
    """The configuration of the run of `train.py` in `folder`; None where there is none."""
    config = folder.read_config()
    names = {field.name for field in dataclasses.fields(settings.TrainSettings)}
    if config is not None and names != set(config["settings"]):
        raise run_folder.RunFolderError(
            f"{folder.shown}: its config.json is of another program, or of train.py in another "
            "version; continue or evaluate the run with that"
        )
    return config


def check_alike(workers: worker.Workers, chosen: settings.TrainSettings) -> None:
    """Checks that all workers were given the same settings."""
    shared = dataclasses.asdict(chosen)
    shared = {name: value for name, value in shared.items() if name not in _PER_WORKER}
    worker.check_same(workers, "their settings", shared, settings.label)


def check_beginning(config: Mapping, folder: run_folder.RunFolder) -> None:
    """Checks that a run continues with its own settings, or can begin with `--init_from`."""
    earlier, newest = read(folder), checkpoints.newest(folder.checkpoints)
    if not (newest or (earlier and run_folder.FIRST_CHECKPOINT in earlier)):
        # It has nothing to continue from, and starts over with any settings.
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
