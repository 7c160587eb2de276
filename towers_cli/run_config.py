"""A run's `config.json`: what it holds, whether it is one, and whether two define the same run."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from towers import devices
from towers.runs import definition, resuming, run_folder, stretches, warm_start
from towers.support import shares
from towers_cli import settings


def make(
    chosen: settings.TrainSettings,
    tower_devices: tuple[str, ...],
    last_step: int,
    image_shape: tuple[int, ...],
    training,
    evaluated,
    of_model: Mapping,
    towers_of_workers: Sequence[int] = (),
    parameter_device: str = devices.HOST,
) -> dict:
    """What `config.json` holds: settings, what follows from them, and what the run runs on.

    Args:
      chosen: resolved.
      tower_devices: one per tower.
      last_step: of the run.
      image_shape: of an image after its preprocessing.
      training: the training split, an `input_pipeline.datasets.Images`.
      evaluated: the split that is evaluated, likewise.
      of_model: of the network, from `definition.of_model`.
      towers_of_workers: how many towers each worker has; where empty, there is one worker.
      parameter_device: where the weights are.
    """
    of = shares.Shares(
        chosen.global_batch_size,
        chosen.num_microbatches,
        towers_of_workers or [len(tower_devices)],
    )
    return {
        "settings": settings.recorded(chosen),
        "resolved": {
            "tower_devices": list(tower_devices),
            "num_workers": len(of.of_workers),
            "microbatches_of_towers": [[len(own) for own in towers] for towers in of.of_workers],
            "microbatch_size": of.microbatch_size,
            "steps_per_epoch": training.num_examples / chosen.global_batch_size,
            "last_step": last_step,
            "examples_per_epoch": training.num_examples,
            "class_names": list(training.class_names),
            "image_shape": image_shape,
            "data_source": training.source,
            "data_sha256": training.fingerprint,
            "eval_sha256": evaluated.fingerprint,
            "init_from": None,
        }
        | of_model,
        "stretches": stretches.extended(
            [], 0, stretches.environment() | stretches.on_devices(tower_devices, parameter_device)
        ),
    }


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


def check(config: Mapping, train_dir: str | Path) -> None:
    """Checks what was read from a `config.json`, which anyone may have edited.

    Raises:
      RunFolderError: names the first value that is missing, or that no run has.
    """
    if "defining" in config:
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
        shares.check(chosen["global_batch_size"], chosen["num_microbatches"])
        for name, of_type in _READ_OF_RESOLVED.items():
            if name not in derived or not settings.is_of(derived[name], of_type):
                raise ValueError(f"{name}={settings.shown(derived.get(name, 'missing'))}")
        if not isinstance(derived.get("layers", "missing"), (dict, type(None))):
            raise ValueError(f"layers={settings.shown(derived.get('layers', 'missing'))}")
        if derived["examples_per_epoch"] < 1:
            raise ValueError(f"examples_per_epoch={derived['examples_per_epoch']}")
        if not warm_start.is_recorded(taken := derived.get("init_from", "missing")):
            raise ValueError(f"init_from={settings.shown(taken)}")
        if not stretches.are_valid(config.get("stretches")):
            raise ValueError("stretches must be a list of what the run ran on")
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
    return config if resuming.is_begun(folder, config) else None


def check_same_run(earlier: Mapping, config: Mapping) -> None:
    """Checks that the settings which define a run are those that it began with.

    Raises:
      RunFolderError: names each setting that differs.
    """
    # The weights it began with are the earlier run's, whether or not they are still there.
    taken = {"init_from": earlier["resolved"]["init_from"]}
    config = dict(config) | {"resolved": config["resolved"] | taken}
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
    kept = {"init_from": chosen["init_from"]} | defining(config)
    kept["names of the classes"] = derived["class_names"]
    if same_split:
        kept[f"sha256 of the {chosen['eval_split']} images"] = derived["eval_sha256"][:12]
    return kept


def defining(config: Mapping) -> dict:
    """Of a run's `config.json`, what decides the weights that it ends with, by name."""
    derived = config["resolved"]
    taken = derived["init_from"]
    return settings.run_defining(config["settings"]) | {
        "sha256 of the images": derived["data_sha256"][:12],
        "sha256 of the weights it took": taken and taken["sha256"][:12],
    }


def run_sha256(config: Mapping) -> str:
    """A hash over `defining`: two runs that have it in common are the same run."""
    text = json.dumps(defining(config), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


class CommandsRun(definition.Definition):
    """What a run of the command is: the settings that define it, and the data."""

    def __init__(self, config: Mapping):
        """
        Args:
          config: from `make`.
        """
        self.config = config

    def sha256(self) -> str:
        return run_sha256(self.config)

    def begin_with(self, taken: Mapping | None) -> None:
        self.config["resolved"]["init_from"] = taken

    def earlier(self, folder: run_folder.RunFolder) -> dict | None:
        config = folder.read_config()
        if config is not None:
            check(config, folder.path)
        return config

    def check_same(self, earlier: Mapping, folder: run_folder.RunFolder) -> None:
        check_same_run(earlier, self.config)

    def differences(self, earlier: Mapping, who: str) -> list[str]:
        return run_folder.differences(defining(earlier), defining(self.config), who, settings.label)

    def how_to_change(self, folder: run_folder.RunFolder, is_saved: bool) -> str:
        if not is_saved:
            return "The same command takes other settings, and starts over."
        return (
            "To begin with its weights and other settings, give "
            f"--init_from={folder.path}, or a checkpoint in it, and a new --train_dir."
        )
