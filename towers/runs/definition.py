"""What a run is: what decides the weights it ends with, and what `config.json` records."""

import hashlib
import json
import re
from collections.abc import Mapping

import keras
import numpy as np

from towers import train_state, trainer, worker
from towers.runs import run_folder, stretches
from towers.support import worker_errors


def is_of_a_program(config: Mapping) -> bool:
    """Whether a `config.json` is that of a run made by a program, and not by the command."""
    whole = all(isinstance(config.get(key), dict) for key in ("defining", "resolved", "settings"))
    return whole and stretches.are_valid(config.get("stretches"))


class Definition:
    """Of a run that a program makes: its Trainer and its data decide it.

    A model is known by what Keras saves of its layers, and the loss by its name: where the code
    within them changes, give the run a new folder.

    Attributes:
      config: what `config.json` holds, with one stretch: what the run runs on now.
    """

    def __init__(
        self,
        tower_trainer: trainer.Trainer,
        *,
        data: Mapping,
        resolved: Mapping,
        settings: Mapping | None = None,
    ):
        """
        Args:
          tower_trainer: of the run.
          data: what identifies its data, by name.
          resolved: what else `config.json` records of the run.
          settings: what TensorBoard compares runs by.
        """
        self.config = _plain(
            {
                "settings": dict(settings or {}),
                "resolved": dict(resolved)
                | {"init_from": None}
                | of_model(tower_trainer.state.model),
                "defining": _of_trainer(tower_trainer) | dict(data),
                "stretches": stretches.extended([], 0, _runs_on(tower_trainer)),
            }
        )

    def defining(self) -> dict:
        """What decides the weights that the run ends with, by name."""
        return self.config["defining"]

    def sha256(self) -> str:
        """A hash over it: two runs that have it in common are the same run."""
        return hashlib.sha256(json.dumps(self.defining(), sort_keys=True).encode()).hexdigest()

    def begin_with(self, taken: Mapping | None) -> None:
        """Adds the weights that the run begins with, as `warm_start` records them."""
        self.config["resolved"]["init_from"] = taken
        if taken:
            self.config["defining"]["init_from"] = f"weights of sha256 {taken['sha256'][:12]}"

    def earlier(self, folder: run_folder.RunFolder) -> dict | None:
        """The configuration of the run that is in a folder, or None where there is none.

        Raises:
          RunFolderError: the folder holds something other than a program's run.
        """
        config = folder.read_config()
        if config is None:
            return None
        if not is_of_a_program(config):
            raise run_folder.RunFolderError(
                f"{folder.shown} holds a run of the command train.py, or of another version; "
                "choose another folder"
            )
        return config

    def check_same(self, earlier: Mapping, folder: run_folder.RunFolder) -> None:
        """Checks that what defines the run is what it began with.

        Raises:
          RunFolderError: names what differs.
        """
        if different := self.differences(earlier):
            raise run_folder.RunFolderError(
                f"{folder.shown} holds a run with other settings: {'; '.join(different)}. Continue "
                "it with its own, or choose another folder"
            )

    def differences(self, earlier: Mapping, who: str = "the run") -> list[str]:
        """What differs from an earlier configuration, in words."""
        return run_folder.differences(earlier["defining"], self.defining(), who)

    def how_to_change(self, folder: run_folder.RunFolder, is_saved: bool) -> str:
        """A sentence on how a run that cannot continue may be given other settings."""
        if not is_saved:
            return "Run the program again with other settings; it starts over."
        return (
            "To continue from its weights with other settings, give Run another folder and "
            f"init_from={str(folder.path)!r}, or a checkpoint in it."
        )


def check_untrained(state: train_state.TrainState, folder: run_folder.RunFolder) -> None:
    """Checks that no step was made that no log of a run would show.

    Raises:
      RunFolderError: the Trainer has trained already.
    """
    if made := int(state.step):
        raise run_folder.RunFolderError(
            f"the Trainer has made {made} steps already, and the run in {folder.path} starts at "
            "step 0: make a new Trainer, with a new model"
        )


def check_alike(workers: worker.Workers, defined: Definition) -> None:
    """Checks that all workers are about to make the same run.

    Raises:
      WorkerError: names what differs, and on which worker.
    """
    chief, *others = everyone = workers.exchange(
        "what they train", defined.defining() | stretches.versions() | stretches.kernels()
    )
    for index, message in enumerate(everyone):
        worker_errors.check_fits(isinstance(message, dict), workers.name(index))
    for index, other in enumerate(others, start=1):
        if found := run_folder.differences(chief, other, workers.name(0)):
            raise worker_errors.WorkerError(
                f"{workers.name(index)} differs from {workers.name(0)}: {'; '.join(found)}"
            )


def _of_trainer(of: trainer.Trainer) -> dict:
    program = of.program
    tower = program.tower_program
    return {
        "global_batch_size": of.global_batch_size,
        "num_microbatches": of.num_microbatches,
        "gradient_reduction": program.gradient_reduction,
        "batch_norm_statistics": program.batch_norm_statistics,
        "moving_average_decay": program.moving_average_decay,
        "weight_decay": tower.weight_decay,
        "weights that decay": sorted(tower.decayed.values()) if tower.weight_decay else [],
        "jit_compile": tower.jit_compile,
        "loss": tower.objective.described(),
        "learning_rate": _rate(of),
        "optimizer": _optimizer(of),
        "model": _variables(program.state.model),
    }


def of_model(model: keras.Model) -> dict:
    """What `config.json` records of a model.

    `layers`: from `layers`. `places_of_weights`: for each weight in a checkpoint, in the
    checkpoint's order, its place in `model.variables`; that order changes where layers are frozen.
    """
    place_of = {id(variable): place for place, variable in enumerate(model.variables)}
    saved = [*model.trainable_variables, *model.non_trainable_variables]
    return {
        "layers": layers(model),
        "places_of_weights": [place_of[id(variable)] for variable in saved],
    }


# The first three differ from process to process.
_NO_PART_OF_IT = ("module", "seed", "shared_object_id", "compile_config")
_NAME = re.compile(r'"name": "([^"]+)"')


def layers(model: keras.Model) -> dict[str, str] | None:
    """A hash of a model's layers as Keras saves them, and of which weights train.

    Code within a layer or your own model is not in it, nor are seeds, which are state. None
    where Keras cannot save the model. Keras's version stands beside it.
    """
    try:
        kept = _kept(keras.saving.serialize_keras_object(model))
        text = json.dumps(kept, sort_keys=True)
    except (NotImplementedError, TypeError, ValueError):
        return None
    for number, name in enumerate(dict.fromkeys(_NAME.findall(text))):
        # Keras numbers names by what a process has built before.
        text = text.replace(f'"{name}"', f'"name {number}"')
    weights = [(list(v.shape), v.dtype, v.trainable) for v in model.variables]
    digest = hashlib.sha256(f"{text} {weights}".encode()).hexdigest()
    return {"keras": keras.version(), "sha256": digest}


def _kept(config):
    if isinstance(config, dict):
        if "DTypePolicy" in str(config.get("class_name")):  # its name is what it is
            return f"{config['class_name']} {config['config']}"
        if config.get("class_name") == "__lambda__":
            return "a lambda"  # Keras saves its code with its file and its lines
        return {k: _kept(value) for k, value in config.items() if k not in _NO_PART_OF_IT}
    return [_kept(value) for value in config] if isinstance(config, (list, tuple)) else config


def are_others(now: Mapping | None, before: object) -> bool:
    """Whether two results of `layers` are of different models, as far as one Keras can tell."""
    known = isinstance(now, Mapping) and isinstance(before, Mapping)
    return known and now["keras"] == before.get("keras") and now["sha256"] != before.get("sha256")


def check_same_layers(earlier: Mapping, config: Mapping, folder: run_folder.RunFolder) -> None:
    """Checks that the model of a run that continues is the one that it began with.

    Raises:
      RunFolderError: it is another one.
    """
    if are_others(config["resolved"].get("layers"), earlier["resolved"].get("layers")):
        raise run_folder.RunFolderError(
            f"{folder.shown} holds a run of another model: its layers had other settings, such as "
            "an activation, or other weights were trained. Continue it with the model it began "
            "with, or choose another folder"
        )


_RATES_AT = (0, 1, 10, 100, 1000, 10_000)  # steps, where a function of the examples is looked at


def _rate(of: trainer.Trainer) -> str | None:
    """A schedules.LearningRate says all that it is; of a function there are some values."""
    rate = of.learning_rate
    if rate is None or hasattr(rate, "schedule"):
        return rate and repr(rate)
    values = []
    for step in _RATES_AT:
        try:
            values.append(f"{float(rate(step * of.global_batch_size)):.9g}")
        except Exception:  # whatever it raises beyond the end of the run
            values.append("none")
    return f"{getattr(rate, '__name__', 'a function')}, from step 0 on {', '.join(values)}"


def _optimizer(of: trainer.Trainer) -> str:
    optimizer = of.program.state.optimizer
    # The Trainer's own rate takes the place of the optimizer's, which then says only where it is.
    left_out = {"name"} if of.learning_rate is None else {"name", "learning_rate"}

    def kept(config):
        if isinstance(config, dict):
            return {key: kept(value) for key, value in config.items() if key not in left_out}
        return config

    config = kept(optimizer.get_config())
    inner = getattr(optimizer, "inner_optimizer", optimizer)  # of a LossScaleOptimizer
    decays = getattr(inner, "_use_weight_decay", None)
    if inner.weight_decay and decays is not None:
        weights = of.program.state.model.trainable_variables
        config["places of what does not decay"] = [
            place for place, weight in enumerate(weights) if not decays(weight)
        ]
    return f"{type(optimizer).__name__} {json.dumps(config, sort_keys=True, default=str)}"


def _variables(model: keras.Model) -> str:
    """Their number, and a hash of their shapes and types; names depend on what else was built."""
    shapes = [(list(v.shape), v.dtype, v.trainable) for v in model.variables]
    digest = hashlib.sha256(json.dumps(shapes).encode()).hexdigest()
    return f"{len(shapes)} variables, sha256 of their shapes {digest[:12]}"


def _runs_on(of: trainer.Trainer) -> dict:
    return stretches.environment() | stretches.on_devices(
        of.tower_devices, of.program.parameter_device
    )


def _plain(config: Mapping) -> dict:
    """As it is when read back from JSON."""
    return json.loads(json.dumps(config, default=_as_number))


def _as_number(value):
    """NumPy's numbers as Python's; anything else as text."""
    return value.item() if isinstance(value, np.generic) else str(value)
