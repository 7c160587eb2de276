"""The graph of a step: what XLA compiles of it, and several steps in one call."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
import toys
from keras import layers

import towers
from towers import devices, hashes, machine, step

from tensorflow.python.framework import op_callbacks  # isort: skip

CROSSENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def sha256(model: keras.Model) -> str:
    state = (*model.variables, *model.optimizer.variables, *model.metrics_variables)
    return hashes.sha256(variable.numpy() for variable in state)


class TestWhatXlaCompiles:
    @staticmethod
    def graph(model, batch, num_towers=1, microbatch_size=2):
        with tf.device(towers.devices.HOST):
            model.compile("adam", CROSSENTROPY, metrics=["accuracy"], jit_compile=True)
        towers.distribute(model, toys.cpus(num_towers), microbatch_size=microbatch_size)
        batch = tuple(map(tf.constant, batch))
        model._towers.prepare(batch, lambda: None)
        return model._towers.program.trace(batch, microbatch_size).graph.as_graph_def()

    @staticmethod
    def assigns(graph) -> bool:
        return any(node.op.startswith("Assign") for node in graph.node)

    def test_is_the_same_for_any_number_of_towers(self):
        """A pass and an update: the names of tensors that they are given differ alone."""

        def programs(num_towers):
            graph = self.graph(toys.small_cifarnet(), toys.batch(8), num_towers)
            result = []
            for function in graph.library.function:
                if function.attr["_XlaMustCompile"].b:
                    text = "".join(map(str, function.node_def))
                    for number, given in enumerate(function.signature.input_arg):
                        text = text.replace(f'"{given.name}"', f"input {number}")
                    result.append(re.sub(r"[_-]\d+", "", text))
            return sorted(result)

        one = programs(1)
        assert len(one) == 2
        assert programs(3) == programs(4) == one

    def test_is_all_that_changes_variables(self):
        assert not self.assigns(self.graph(toys.small_resnet(), toys.batch(8)))

    def test_is_no_update_of_rows(self):
        """Keras's optimizers do not treat them as they do dense gradients."""
        model = keras.Sequential([keras.Input([2], dtype="int32"), layers.Embedding(9, 4)])
        model.add(layers.Flatten())
        batch = np.arange(8, dtype=np.int32).reshape(4, 2), np.arange(4)
        assert self.assigns(self.graph(model, batch))

    def test_is_no_update_of_variables_on_two_devices(self):
        with tf.device(toys.cpus(2)[1]):
            model = keras.Sequential([keras.Input([3]), layers.Dense(4)])
        assert self.assigns(self.graph(model, toys.batch(4, [3])))


class Calls(list):
    """The functions that are called while it is entered, in their order."""

    def _note(self, op_type, inputs, attrs, outputs, op_name=None, graph=None):
        if graph is None and op_type.startswith("__inference"):
            self.append((op_type, outputs[0].device[-5:]))

    def __enter__(self):
        op_callbacks.add_op_callback(self._note)
        return self

    def __exit__(self, *_):
        op_callbacks.remove_op_callback(self._note)


def test_with_xla_one_gpu_compiles_before_the_others(monkeypatch):
    """XLA chooses kernels by their time: one GPU's choices are for all."""
    monkeypatch.setattr(machine, "are_cpus", lambda places: False)
    places, (images, labels) = toys.cpus(3)[1:], toys.batch(7, [3])
    model = toys.classifier()
    model.compile("sgd", CROSSENTROPY, jit_compile=True)
    towers.distribute(model, places, microbatch_size=4)
    with Calls() as calls:
        model.train_on_batch(images, labels)
    passes = [(op, device) for op, device in calls if "_backward_" in op]
    assert [device for _, device in passes] == [places[0][1:]] * 2 and len(set(passes)) == 2
    assert calls[: len(passes)] == passes


def test_the_parameter_device_is_that_of_the_weights():
    with tf.device(toys.cpus(4)[3]):
        model = keras.Sequential([keras.Input([3]), layers.Dense(4)])
    assert step.parameter_device(model) == toys.cpus(4)[3]
    assert step.parameter_device(keras.Sequential()) == devices.HOST


@pytest.mark.parametrize("jit_compile", [False, True])
def test_steps_per_execution_is_one_call_with_xla_and_no_bit(jit_compile):
    """Without XLA a graph of several steps would be larger, and no faster."""
    images, labels = toys.batch(8 * 7 + 3, [3])  # the last batch is shorter than the one before
    result, shown = {}, []
    show = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: shown.append(logs))
    for steps in (1, 2):
        keras.utils.set_random_seed(0)
        model = toys.dropout_classifier()
        model.compile("sgd", CROSSENTROPY, jit_compile=jit_compile, steps_per_execution=steps)
        towers.distribute(model, 2, microbatch_size=4)
        fit = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
        history = model.fit(images, labels, **fit).history
        with Calls() as calls:
            model.fit(images[:48], labels[:48], callbacks=[show], **(fit | {"epochs": 1}))
        assert len(calls) == (6 / steps if jit_compile else 6) and len(set(calls)) == 1
        result[steps] = sha256(model), history, shown[-1]
    assert result[1] == result[2]
