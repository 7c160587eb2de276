"""Beginning a run where another one is, with other settings.

What a run computes is fixed by the settings it began with. A run that diverged, or that needs more
memory than there is, can still continue with others: as a new run, in a folder of its own, that
begins from one of its checkpoints, at the same number of examples seen.
"""

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from towers import train_state, worker
from towers.runs import checkpoints, definition, run_folder, warm_start
from towers.support import worker_errors
from towers_cli import own_model, run_config, settings


class CommandsRun(definition.Definition):
    """What a run of the command is: the settings that define it, the data, what it begins from."""

    def __init__(self, config: Mapping):
        """
        Args:
          config: from `run_config.make` and `with_beginning`.
        """
        self.config = config

    def defining(self) -> dict:
        return run_config.defining(self.config)

    def sha256(self) -> str:
        return run_config.run_sha256(self.config)

    def begin_with(self, taken: Mapping | None) -> None:
        self.config["resolved"]["init_from"] = taken

    def earlier(self, folder: run_folder.RunFolder) -> dict | None:
        config = folder.read_config()
        if config is not None:
            run_config.check(config, folder.path)
        return config

    def check_same(self, earlier: Mapping, folder: run_folder.RunFolder) -> None:
        run_config.check_same_run(earlier, self.config)

    def differences(self, earlier: Mapping, who: str = "the run") -> list[str]:
        old = run_config.defining(earlier)
        return run_folder.differences(old, self.defining(), who, settings.label)

    def begin(self, state: train_state.TrainState, folder: run_folder.RunFolder) -> None:
        begins = self.config["resolved"]["begins_from"]
        if begins:
            restore(state, begins)

    def how_to_change(self, folder: run_folder.RunFolder, is_saved: bool) -> str:
        if not is_saved:
            begins = self.config["resolved"]["begins_from"]
            also = " and an earlier checkpoint for --begin_from" if begins else ""
            return f"The same command takes other settings{also}, and starts over."
        return (
            "To continue from it or from an earlier one with other settings, give them with "
            f"--begin_from={folder.path}, or a checkpoint in it, and a new --train_dir."
        )


def with_beginning(workers: worker.Workers, config: Mapping, earlier: Mapping | None) -> dict:
    """The configuration with the checkpoint that the run begins from, where there is one.

    Args:
      workers: of the run.
      config: as it is now.
      earlier: the configuration of the run that continues, if one does.

    Raises:
      RunFolderError: the settings are not those of the run that continues.
      SettingsError: the run cannot begin from what `--begin_from` or `--init_from` names.
    """

    def find():
        if earlier is not None:
            run_config.check_same_run(earlier, config)
            return earlier["resolved"]["begins_from"]
        if init_from := config["settings"]["init_from"]:
            try:
                warm_start.locate(init_from)
            except warm_start.WarmStartError as error:
                raise settings.SettingsError(f"--{error}") from error
        given = config["settings"]["begin_from"]
        return given and look(given, config)

    begins = workers.from_chief("what it begins from", find)
    worker_errors.check_fits(run_config.is_beginning(begins), workers.name(0))
    return run_config.with_begins(config, begins)


def look(given: str, config: Mapping) -> dict:
    """Finds the checkpoint that a run begins from, and checks that it can.

    Args:
      given: the folder of a run, for its newest checkpoint; or a checkpoint's path.
      config: of the run that begins.

    Returns:
      For the new run's `config.json`: `checkpoint`, its path; `sha256`, of all values in it;
      `examples_seen`, in it; `first_step`, the step of the new run that this is; `optimizer`,
      whether its slots are taken over.

    Raises:
      SettingsError: there is no such checkpoint, or it does not fit.
    """
    path, earlier = _find(given)
    chosen, before = config["settings"], earlier["settings"]
    _check_same(given, chosen["model"], before["model"], "--model")
    same_data = (c["resolved"]["data_sha256"][:12] for c in (config, earlier))
    _check_same(given, *same_data, "the images' sha256")
    classes = (c["resolved"]["class_names"] for c in (config, earlier))
    for now, was in itertools.zip_longest(*classes, fillvalue="(none)"):
        _check_same(given, now, was, "the class")
    # In another type, layers are others; networks of the package are known by their names.
    is_own = own_model.is_own(chosen["model"])
    is_own &= chosen["compute_dtype"] == before["compute_dtype"]
    layers = (c["resolved"]["layers"] for c in (config, earlier))
    if is_own and definition.are_others(*layers):
        raise settings.SettingsError(
            f"--begin_from={given}: its --model={chosen['model']} was a different network then"
        )
    values = checkpoints.read(path)
    examples_seen, batch = int(values["examples_seen"]), chosen["global_batch_size"]
    if examples_seen % batch:
        fitting = _fitting_batch(examples_seen, batch, chosen["num_microbatches"])
        raise settings.SettingsError(
            f"--begin_from={given}: its {examples_seen:,} examples seen are not a whole number of "
            f"batches of --global_batch_size={batch}"
            + (f"; {fitting} would fit" if fitting else "")
        )
    same_slots = all(chosen[name] == before[name] for name in ("optimizer", "nesterov"))
    same_slots &= bool(chosen["momentum"]) == bool(before["momentum"])
    return {
        "checkpoint": path,
        "sha256": _sha256(values),
        "examples_seen": examples_seen,
        "first_step": examples_seen // batch,
        "optimizer": same_slots,
    }


def _sha256(values: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name, value in values.items():
        digest.update(f"{name}{value.dtype}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()


def _find(given: str) -> tuple[str, dict]:
    """The checkpoint's path, and the configuration of its run."""
    place = Path(given)
    is_run = place.is_dir() and not checkpoints.is_checkpoint(place)
    folder = run_folder.RunFolder(str(place if is_run else place.parent.parent))
    try:
        earlier = folder.read_config() if folder.config.exists() else None
        if earlier is not None:
            run_config.check(earlier, folder.path)
    except run_folder.RunFolderError as error:
        reason = str(error).partition(": ")[2]
        raise settings.SettingsError(f"--begin_from={given}: {reason}") from error
    if earlier is None:
        raise settings.SettingsError(
            f"--begin_from={given}: must be the folder of a run, or a checkpoint in one such as "
            "runs/first/checkpoints/step-500"
        )
    path = checkpoints.newest(folder.checkpoints) if is_run else str(place)
    if path is None or not checkpoints.is_checkpoint(path):
        raise settings.SettingsError(
            f"--begin_from={given}: {folder.checkpoints} holds no such checkpoint"
        )
    try:
        checkpoints.check_origin(path, run_config.run_sha256(earlier))
    except checkpoints.CheckpointError as error:
        raise settings.SettingsError(f"--begin_from={given}: {error}") from error
    return path, earlier


def _check_same(given: str, now, before, name: str) -> None:
    if now != before:
        raise settings.SettingsError(
            f"--begin_from={given}: it has {name} {before}, but this run has {now}"
        )


def _fitting_batch(examples: int, at_most: int, num_microbatches: int) -> int | None:
    """The largest batch that divides the examples and splits into microbatches; or None."""
    sizes = range(at_most - at_most % num_microbatches, 0, -num_microbatches)
    return next((size for size in sizes if examples % size == 0), None)


def restore(state: train_state.TrainState, begins: Mapping) -> None:
    """Gives a new run the state that it begins from.

    Weights, batch-norm state and counters are the checkpoint's. So are moving averages, or they
    begin at the weights where it has none. So are the optimizer's slots, where the new run has the
    same optimizer, and the loss scale, where both have one.

    Args:
      state: of the new run, at step 0.
      begins: from `look`.

    Raises:
      CheckpointError: the checkpoint cannot be read, or does not fit the state.
    """
    path = begins["checkpoint"]
    values = checkpoints.read(path)
    if _sha256(values) != begins["sha256"]:
        raise checkpoints.CheckpointError(f"checkpoint {path} has changed since the run began")
    model = state.model
    weights = checkpoints.part(values, "weights")
    _assign(path, "weights", model.trainable_variables, weights)
    model_state = checkpoints.part(values, "model_state")
    _assign(path, "model_state", model.non_trainable_variables, model_state)
    if state.averages:
        averages = checkpoints.part(values, "moving_averages") or weights
        _assign(path, "moving_averages", state.averages, averages)
    _assign_statistics(state, checkpoints.part(values, "statistics_of_each"))
    if begins["optimizer"]:
        found, slots = checkpoints.part(values, "optimizer"), list(state.optimizer.variables)
        if len(found) != len(slots):  # one of the two has a loss scale, which comes first
            slots = list(getattr(state.optimizer, "inner_optimizer", state.optimizer).variables)
        _assign(path, "optimizer", slots, found[-len(slots) :])
    state.step.assign(begins["first_step"])
    state.examples_seen.assign(begins["examples_seen"])


def _assign(path: str, part: str, variables: Sequence, values: Sequence[np.ndarray]) -> None:
    shapes = [tuple(variable.shape) for variable in variables]
    found = [value.shape for value in values]
    if shapes != found:
        raise checkpoints.CheckpointError(
            f"checkpoint {path} does not fit: its {part} have other shapes than this run's"
        )
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _assign_statistics(state: train_state.TrainState, values: Sequence[np.ndarray]) -> None:
    """Each microbatch's own statistics; the model's where the checkpoint has not as many."""
    shapes = [tuple(variable.shape) for variable in state.statistics_of_each]
    if shapes == [value.shape for value in values]:
        for variable, value in zip(state.statistics_of_each, values, strict=True):
            variable.assign(value)
        return
    warm_start.begin_statistics_at_models(state)
