"""Trainers that runs of the commands share, so that each step is traced once in a file of tests.

Tracing is half of a short run. A run whose settings build the trainer of an earlier run gets that
one again, with its state as it was when it was built: which settings these are is not listed here,
but seen, as the ones that `build_trainer` reads. Runs of several workers, and of networks that are
not this package's, have trainers of their own.
"""

import contextlib
from collections.abc import Iterator

import keras
import pytest

from towers import Trainer, networks
from towers.runs import definition
from towers.support import container_limits
from towers_cli import build, own_model

# What was read of the settings, what else it was built for, the trainer, its state at step 0.
_built: list[tuple[dict, tuple, Trainer, dict]] = []


class _Read:
    """Settings that remember which of them were read."""

    def __init__(self, chosen):
        self._chosen, self.values = chosen, {}

    def __getattr__(self, name):
        self.values[name] = getattr(self._chosen, name)
        return self.values[name]


@contextlib.contextmanager
def trainers() -> Iterator[None]:
    """While entered, `build_trainer` gives trainers that were built before.

    A run within a run has a trainer of its own, and a test that replaces `build_trainer` has its.
    """
    with pytest.MonkeyPatch.context() as patch:
        if build.build_trainer is _build_trainer:
            patch.setattr(build, "build_trainer", _new)
        elif build.build_trainer is _new:
            patch.setattr(build, "build_trainer", _build_trainer)
        yield


def let_go() -> None:
    """Forgets all trainers."""
    _built.clear()


def _build_trainer(
    chosen, tower_devices, model, learning_rate, training_images, workers=None, device=None
):
    reading = _Read(chosen)
    given = tower_devices, model, learning_rate, training_images, workers, device
    if chosen.model not in networks.NETWORKS or (workers and workers.count > 1):
        return _new(chosen, *given)
    cores = container_limits.available_cores()  # so many microbatches at a time
    built_for = tower_devices, cores, device, definition.layers(model)["sha256"]
    for read, earlier, made, initial in _built:
        if earlier == built_for and all(getattr(chosen, n) == v for n, v in read.items()):
            adapt = own_model.network(chosen.model).adapt
            if adapt is not None:
                adapt(model, training_images())
            _begin_again(made, _with_weights(made, initial, model))
            made.learning_rate = learning_rate
            return made
    made = _new(reading, *given)
    _built.append((reading.values, built_for, made, _values(made)))
    return made


_new = build.build_trainer


def _with_weights(made: Trainer, initial: dict, model: keras.Model) -> dict:
    """The initial state of a trainer, with the weights of a model that was just built."""
    weights = [weight.numpy() for weight in model.trainable_variables]
    return initial | {
        "weights": weights,
        "model_state": [variable.numpy() for variable in model.non_trainable_variables],
        "moving_averages": weights if made.state.averages else [],
    }


def _values(made: Trainer) -> dict:
    """The state of a trainer."""
    return {
        part: [variable.numpy() for variable in variables]
        for part, variables in made.state.parts().items()
    }


def _begin_again(made: Trainer, initial: dict) -> None:
    for part, variables in made.state.parts().items():
        for variable, value in zip(variables, initial[part], strict=True):
            variable.assign(value)
