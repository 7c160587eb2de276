"""What training minimizes: the loss of a model's output, or the weighted sum of several outputs'.

It takes what Keras's `compile` takes: a loss by its name, an object of `keras.losses`, a function,
or for several outputs a dict or a list of them.
"""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from towers.support import checks, classes, hashes, per_example, structures

# A loss of an output: Keras's name of it, an object, or (labels, outputs) to [n] or [n, ...].
Loss = str | keras.losses.Loss | Callable[[tf.Tensor, tf.Tensor], tf.Tensor]

# By name, the losses of classes that are integers: the largest output is the model's answer.
_OF_CLASSES = ("cross_entropy", "sparse_categorical_crossentropy")
_TAKEN = ("total", "model")  # by the other terms of tower.loss_terms


def of(loss: "Loss | Objective", argument: str = "loss") -> "Objective":
    """An `Objective` of a loss, or of several; it may be one already."""
    return loss if isinstance(loss, Objective) else Objective(loss, argument=argument)


class Term(NamedTuple):
    """A term of the objective: the loss of each of n examples, floating [n], and its weight."""

    of_each: tf.Tensor
    weight: float


class Objective:
    """One loss, or one for each of several outputs.

    Attributes:
      of_classes: whether the loss is one for integer classes. None where only the shapes of labels
        and outputs can tell, as for your own function.
    """

    def __init__(
        self,
        loss: Loss | Mapping[str, Loss | None] | Sequence[Loss | None],
        loss_weights: Mapping[str, float] | Sequence[float] | None = None,
        argument: str = "loss",
    ):
        """
        Args:
          loss: of the one output; or a dict by the names of the outputs, or a list in their order,
            with None for an output that is not trained. A function may also take the labels and the
            outputs of several outputs, as the structures that they are.
          loss_weights: of several losses, a dict or a list likewise; 1 where none is given.
          argument: what messages call `loss`.

        Raises:
          TypeError, ValueError: one is not a loss, or loss and weights do not fit together.
        """
        self._argument = argument
        self._single = self._of_outputs = None
        if structures.is_of_several(loss):
            self.of_classes = False
            given = checks.by_output(loss)
            of_each = {
                key: None if one is None else _named(one, f"{argument}[{key!r}]")
                for key, one in given.items()
            }
            if not any(of_each.values()):
                raise ValueError(f"{argument} names no loss: at least one output must be trained")
            weights = _weights(loss_weights, loss, argument)
            is_dict = isinstance(loss, Mapping)
            self._of_outputs = of_each if is_dict else list(of_each.values())
            self._weights = weights if is_dict else list(weights.values())
            return
        if loss_weights is not None:
            raise ValueError(
                f"loss_weights is {checks.described(loss_weights)}, but {argument} a single loss: "
                "weights are only for the losses of several outputs"
            )
        self._single, self._name = _per_example(loss, argument), _name_of(loss)
        self._described = _described(loss)
        self.of_classes = _is_of_classes(loss)
        self._takes_one = self._single.is_keras_s or bool(self.of_classes)

    def __call__(
        self, model: keras.Model, labels: structures.Structure, outputs: structures.Structure
    ) -> dict[str, Term]:
        """The terms by name, in the order of the losses.

        The name is that of the loss, or of the output where there are several.

        Args:
          model: names its outputs.
          labels: [n, ...], or a structure of these.
          outputs: of the model, likewise.

        Raises:
          TypeError, ValueError: labels, outputs and losses do not fit together.
        """
        if self._single is not None:
            if self._takes_one:
                labels, outputs = self._one(model, labels, outputs)
            if self.of_classes and self._single.is_keras_s and classes.are_shares(labels, outputs):
                raise ValueError(
                    f"{self._argument} is {self._name}, and the labels are shares of classes, as "
                    "mixup makes them: give towers.losses.cross_entropy"
                )
            return {self._name: Term(self._single(labels, outputs), 1.0)}
        of_model = checks.outputs_by_name(model, outputs)
        if taken := [name for name in of_model if name in _TAKEN]:
            raise ValueError(
                f"the model has an output {taken[0]!r}, which is the name of another term of the "
                "loss: give it another name"
            )
        names = list(of_model)
        losses = checks.by_output_s_name(self._argument, self._of_outputs, outputs, names)
        if sorted(losses) != sorted(names):
            raise ValueError(
                f"{self._argument} is for {', '.join(map(repr, losses))}, but the model has the "
                f"outputs {', '.join(map(repr, names))}: give each a loss, or None to leave it out"
            )
        weights = checks.by_output_s_name("loss_weights", self._weights, outputs, names)
        terms = {}
        for name, loss in losses.items():
            if loss is not None:
                own = checks.labels_of(labels, outputs, names, name)
                terms[name] = Term(loss(own, of_model[name]), weights[name])
        return terms

    def _one(self, model, labels, outputs) -> tuple[tf.Tensor, tf.Tensor]:
        """The labels and the output of a model that has one, for a loss that takes no more."""
        of_model = checks.outputs_by_name(model, outputs)
        names = list(of_model)
        if len(names) > 1:
            raise ValueError(
                f"{self._argument} is one loss, {self._name}, but the model has the outputs "
                f"{', '.join(map(repr, names))}: give a dict with a loss for each of them, or None"
            )
        return checks.labels_of(labels, outputs, names, names[0]), of_model[names[0]]

    def described(self) -> str:
        """The losses with their arguments, as far as they tell, and the weights of several."""
        if self._single is not None:
            return self._described
        losses, weights = map(checks.by_output, (self._of_outputs, self._weights))
        return ", ".join(
            f"{key}: {loss and loss.described} * {weights[key]:g}" for key, loss in losses.items()
        )

    def is_of_classes(self, labels: structures.Structure, outputs: structures.Structure) -> bool:
        """Whether the largest output is the model's answer."""
        return self.of_classes is not False and classes.is_classifier(labels, outputs)

    def count_correct(self, labels, outputs, sample_weight: tf.Tensor | None) -> tf.Tensor | None:
        """`classes.count_correct`, or None where the loss is not one for classes.

        Where an example has shares of classes, the largest is its label.
        """
        if self.of_classes is False:
            return None
        if self.of_classes and classes.are_shares(labels, outputs):
            labels = tf.argmax(labels, axis=-1)
        return classes.count_correct(labels, outputs, sample_weight)


def _per_example(loss: Loss, argument: str) -> per_example.PerExample:
    if isinstance(loss, str):
        try:
            loss = keras.losses.get(loss)
        except ValueError as error:
            raise ValueError(
                f"{argument}={loss!r}: Keras has no loss of that name; it has names such as "
                "'sparse_categorical_crossentropy' and 'mean_squared_error'"
            ) from error
    return per_example.of(loss, argument)


def _named(loss: Loss, argument: str) -> per_example.PerExample:
    made = _per_example(loss, argument)
    made.name, made.described = _name_of(loss), _described(loss)
    return made


def _plain(loss: Loss) -> keras.losses.Loss | Callable:
    """The object or the function behind a name or a partial."""
    return keras.losses.get(loss) if isinstance(loss, str) else per_example.plain(loss)


def _name_of(loss: Loss) -> str:
    """As Keras has it, such as `mean_squared_error`; of a function its own, `loss` of a lambda."""
    loss = _plain(loss)
    name = getattr(loss, "name", None) or getattr(loss, "__name__", None) or "loss"
    return "loss" if name in _TAKEN or not name.isidentifier() else name


def _shown(value) -> str:
    """An argument in a text that is the same in every process."""
    if isinstance(value, (bool, int, float, str, type(None))):
        return str(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_shown, value))}]"
    if isinstance(value, np.ndarray) or tf.is_tensor(value):
        return f"array {hashes.sha256([np.asarray(value)])[:12]}"
    return getattr(value, "__name__", type(value).__name__)


def _described(loss: Loss) -> str:
    """The name, with the arguments of a partial or of what Keras saves of an object."""
    given = {}
    if isinstance(loss, functools.partial):
        given = loss.keywords
    elif isinstance(loss, keras.losses.Loss):
        with contextlib.suppress(Exception):  # whatever one of the user's own raises
            given = loss.get_config()
        given = given | getattr(loss, "_fn_kwargs", {})  # Keras 3.15 leaves Huber's delta out
    shown = [
        f"{key}={_shown(value)}"
        for key, value in sorted(given.items())
        if key not in ("name", "reduction", "dtype", "fn")
    ]
    return f"{_name_of(loss)}({', '.join(shown)})" if shown else _name_of(loss)


def _is_of_classes(loss: Loss) -> bool | None:
    """As `Objective.of_classes`, of a single loss."""
    loss = _plain(loss)
    function = getattr(loss, "fn", loss)  # of an object of Keras's the function that it calls
    if getattr(function, "__name__", None) in _OF_CLASSES:
        return True
    return False if per_example.is_keras_s(function) else None


def _weights(given, losses: Mapping | Sequence, argument: str) -> dict[object, float]:
    weights = dict.fromkeys(checks.by_output(losses), 1.0)
    if given is None:
        return weights
    if not structures.is_of_several(given):
        raise TypeError(
            f"loss_weights is {checks.described(given)}: must be a dict or a list, like {argument}"
        )
    is_list = not isinstance(given, Mapping)
    if is_list == isinstance(losses, Mapping) or is_list and len(given) != len(losses):
        raise ValueError(
            f"loss_weights is {checks.described(given)}, and {argument} "
            f"{checks.described(losses)}: they must match"
        )
    given = checks.by_output(given)
    if unknown := [key for key in given if key not in weights]:
        raise ValueError(
            f"loss_weights has {unknown[0]!r}, but {argument} only {', '.join(map(repr, weights))}"
        )
    for key, weight in given.items():
        checks.number(f"loss_weights[{key!r}]", weight)
    return weights | {key: float(weight) for key, weight in given.items()}
