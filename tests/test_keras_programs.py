"""Keras is the oracle: each program of helpers/keras_programs.py with and without towers.

Where Keras itself is imprecise, towers are right:

- The loss of one of several outputs. Keras takes the mean over batches that do not count by their
  examples where its graph does not know their sizes; right is the mean over examples, so that they
  add up to the loss.
- The optimizer's count of steps, after data of unknown cardinality. Keras's is one higher for some
  ends of the data, as its graph may count before it finds that there is no batch.
"""

import keras
import keras_programs
import numpy as np
import pytest
from keras_programs import PROGRAMS

import towers


def named(names):
    return [
        pytest.param(name, marks=pytest.mark.long if PROGRAMS[name].long else ()) for name in names
    ]


WITH_ORACLE = [name for name, program in PROGRAMS.items() if program.tolerance is not None]


def leaves(value, path=""):
    """(path, number or array) of everything in what a program returns."""
    if isinstance(value, dict):
        value = list(value.items())
    elif isinstance(value, (list, tuple)) and not (value and isinstance(value[0], (int, float))):
        value = list(enumerate(value))
    else:
        return {path: np.asarray(value)}
    return {
        key: leaf for name, part in value for key, leaf in leaves(part, f"{path}/{name}").items()
    }


@pytest.mark.parametrize("name", named(WITH_ORACLE))
def test_equals_keras(name):
    program = PROGRAMS[name]
    theirs, ours = (leaves(keras_programs.found(name, k)) for k in (0, 3))
    assert theirs.keys() == ours.keys()
    wrong = {}
    for path, right in theirs.items():
        if path.endswith(program.imprecise) and program.imprecise:
            continue
        try:
            np.testing.assert_allclose(ours[path], right, program.tolerance, program.tolerance)
        except AssertionError as error:
            wrong[path] = str(error)
    assert not wrong, "\n".join(f"{path}: {error}" for path, error in wrong.items())


def test_losses_of_outputs_are_means_over_examples():
    """Keras's own are not, after a ragged batch."""
    x, y, weights = keras_programs.PAIR
    right, found = {}, {}
    for num_towers in (0, 3):
        keras.utils.set_random_seed(1)
        model = keras_programs.two_by_two()
        if num_towers:
            towers.distribute(model, num_towers, microbatch_size=16)
        found[num_towers] = model.evaluate(x, y, batch_size=64, verbose=0, return_dict=True)
    outputs = model.predict(x, verbose=0)
    kinds = outputs["kind"] - np.log(np.exp(outputs["kind"]).sum(-1, keepdims=True))
    right["kind_loss"] = -np.mean(kinds[np.arange(len(kinds)), y["kind"]])
    right["size_loss"] = np.mean((outputs["size"] - y["size"]) ** 2)
    right["loss"] = right["kind_loss"] + 0.25 * right["size_loss"]
    for name, value in right.items():
        np.testing.assert_allclose(found[3][name], value, 1e-5)
    np.testing.assert_allclose(found[0]["loss"], right["loss"], 1e-5)
    assert abs(found[0]["size_loss"] - right["size_loss"]) > 1e-3  # else the table can go


def test_losses_of_outputs_add_up_in_training():
    history = keras_programs.found("dicts_with_a_weight_for_each_output", 3)["history"]
    kind, size = (np.array(history[f"{name}_loss"]) for name in ("kind", "size"))
    np.testing.assert_allclose(kind + 0.25 * size, history["loss"], atol=1e-5)


@pytest.mark.parametrize("name", named(PROGRAMS))
def test_bits_do_not_depend_on_towers(name):
    one, three = (keras_programs.sha256(keras_programs.found(name, k)) for k in (1, 3))
    assert one == three


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_bits_do_not_depend_on_more_towers(name):
    one, eight = (keras_programs.sha256(keras_programs.found(name, k)) for k in (1, 8))
    assert one == eight
