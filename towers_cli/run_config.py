"""A run's `config.json`: what it holds, whether it is one, and whether two define the same run."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from towers.runs import checkpoints, run_folder, stretches, warm_start
from towers_cli import settings


def make(
    chosen: settings.TrainSettings,
    tower_devices: Sequence[str],
    last_step: int,
    image_shape: tuple[int, ...],
    training,
    evaluated,
    towers_of_workers: Sequence[int],
) -> dict:
    """What a command's run has in its `config.json`: `settings`, and what follows from them.

    Args:
      chosen: resolved.
      tower_devices: one per tower.
      last_step: of the run.
      image_shape: of an image after its preprocessing.
      training: the training split, an `input_pipeline.datasets.Images`.
      evaluated: the split that is evaluated, likewise.
      towers_of_workers: how many towers each worker has.
    """
    resolved = {
        "tower_devices": list(tower_devices),
        "num_workers": len(towers_of_workers),
        "towers_of_workers": list(towers_of_workers),
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
    return {"settings": settings.recorded(chosen), "resolved": resolved}


# What a run that continues, or an evaluation, reads from a config.json beside the settings.
_READ_OF_RESOLVED = {
    "examples_per_epoch": int,
    "last_step": int,
    "class_names": tuple[str, ...],
    "image_shape": tuple[int, ...],
    "data_sha256": str,
    "eval_sha256": str,
    "num_workers": int,
    "tower_devices": tuple[str, ...],
}


def is_of_command(config: Mapping) -> bool:
    """Whether a `config.json` is of `train.py`, and not of another program."""
    chosen = config.get("settings")
    return not isinstance(chosen, dict) or "train_dir" in chosen or "defining" not in config


def check(config: Mapping, train_dir: str | Path) -> None:
    """Checks what was read from a `config.json`, which anyone may have edited.

    Raises:
      RunFolderError: names the first value that is missing, or that no run has.
    """
    if not is_of_command(config):
        raise run_folder.RunFolderError(
            f"--train_dir={train_dir}: is a program's own run; continue or evaluate it with that "
            "program"
        )
    chosen, derived = config["settings"], config["resolved"]
    try:
        if not (isinstance(chosen, dict) and isinstance(derived, dict)):
            raise ValueError("settings and resolved must be objects")
        for name in settings.recorded_names():
            if name not in chosen:
                raise ValueError(f"{name} is missing; another version of towers may have made it")
            settings.check_value(name, chosen[name])
        if chosen["microbatch_size"] < 1:
            raise ValueError(f"microbatch_size={chosen['microbatch_size']}")
        for name, of_type in _READ_OF_RESOLVED.items():
            if name not in derived or not settings.is_of(derived[name], of_type):
                raise ValueError(f"{name}={settings.shown(derived.get(name, 'missing'))}")
        if not isinstance(derived.get("layers", "missing"), (dict, type(None))):
            raise ValueError(f"layers={settings.shown(derived.get('layers', 'missing'))}")
        if not isinstance(derived.get("places_of_weights"), list):
            raise ValueError("places_of_weights is missing")
        if derived["examples_per_epoch"] < 1:
            raise ValueError(f"examples_per_epoch={derived['examples_per_epoch']}")
        if not warm_start.is_recorded(taken := derived.get("init_from", "missing")):
            raise ValueError(f"init_from={settings.shown(taken)}")
        if not (stretches.are_valid(config.get("stretches")) and "run_sha256" in config):
            raise ValueError("stretches, what the run ran on, or run_sha256 is missing")
    except ValueError as error:
        raise run_folder.RunFolderError(
            f"--train_dir={train_dir}: its config.json is not that of a run: {error}"
        ) from error


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


def check_same_run(earlier: Mapping, config: Mapping) -> None:
    """Checks that the settings which define a run are those that it began with.

    Raises:
      RunFolderError: names each setting that differs.
    """
    splits = {one["settings"]["eval_split"] for one in (earlier, config)}
    # Another split may be evaluated from now on; the same one must have the same images.
    began, now = (_fixed(one, same_split=len(splits) == 1) for one in (earlier, config))
    different = run_folder.differences(began, now, label=settings.label)
    if different:
        raise run_folder.RunFolderError(
            f"--train_dir={config['settings']['train_dir']} holds a run with other settings: "
            f"{'; '.join(different)}. Give the run's own settings to continue it, or choose "
            "another --train_dir"
        )


def _fixed(config: Mapping, *, same_split: bool) -> dict:
    """What a run that continues keeps: what defines it, and what its logs are about."""
    chosen, derived = config["settings"], config["resolved"]
    kept = {"init_from": chosen["init_from"]} | settings.run_defining(chosen)
    kept["sha256 of the images"] = derived["data_sha256"][:12]
    kept["names of the classes"] = derived["class_names"]
    if same_split:
        kept[f"sha256 of the {chosen['eval_split']} images"] = derived["eval_sha256"][:12]
    return kept
