"""Programs of people's public reports, where nothing else tests their kind: Keras is the oracle."""

import gc
import threading
import weakref

import keras
import numpy as np
import pytest
from keras import layers

import towers

X = np.random.default_rng(0).normal(size=(40, 8)).astype("float32")
Y = X[:, :3].argmax(axis=1)
CROSSENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
FIT = {"batch_size": 20, "verbose": 0, "shuffle": False}


def network(seed=0):
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.Input((8,)), layers.Dense(6, "relu"), layers.Dense(3)])


def made(seed=0, optimizer="sgd", on_towers=True, **compiled):
    model = network(seed)
    model.compile(optimizer, CROSSENTROPY, **compiled)
    return towers.distribute(model, 2, microbatch_size=8) if on_towers else model


def assert_same(models, rtol=1e-5, atol=1e-6):
    for ours, right in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_allclose(ours, right, rtol, atol)


class ScheduleFree(keras.optimizers.Optimizer):
    """Trains copies of the weights, which it makes in `build`, as ScheduleFreeAdamW does."""

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self.copies = [self.add_variable_from_reference(v, "z", v) for v in variables]

    def update_step(self, gradient, variable, learning_rate):
        copy = self.copies[self._get_variable_index(variable)]
        self.assign_sub(copy, gradient * learning_rate)
        self.assign(variable, copy)


@pytest.mark.filterwarnings("ignore:Skipping variable loading")  # of its optimizer
def test_a_schedule_free_optimizer_trains_the_weights_from_a_file(tmp_path):
    """schedule_free#15: it had copied the random ones, when its variables were made too early."""
    source, file = network(), tmp_path / "source.weights.h5"
    source.save_weights(file)  # it is not compiled: no learning rate is in its file
    model = made(seed=5, optimizer=ScheduleFree(1e-8))
    model.load_weights(file)
    model.fit(X, Y, **FIT)
    assert int(model.optimizer.iterations) == 2
    assert_same([model, source], 0, 1e-4)


@pytest.mark.parametrize("way", ["fit", "a run"])
def test_accuracy_is_what_keras_takes_it_for(way, tmp_path):
    """A forum: "Accuracy" was exact equality of labels and outputs."""
    model, plain = (made(metrics=["Accuracy"], on_towers=o) for o in (True, False))
    right = plain.fit(X, Y, epochs=2, **FIT).history
    if way == "fit":
        found = model.fit(X, Y, epochs=2, **FIT).history
    else:
        found = towers.Run(tmp_path / "run", model).fit(X, Y, epochs=2, **FIT)
        found = found.history
    assert found.keys() == right.keys() and any("ccuracy" in name for name in right)
    for name, values in right.items():
        np.testing.assert_allclose(found[name], values, 1e-5)


class Flow(keras.utils.PyDataset):
    """20 examples, as ImageDataGenerator(...).flow gives them: its iterator never ends."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return X[:20][8 * index : 8 * index + 8], Y[:20][8 * index : 8 * index + 8]

    def __iter__(self):
        while True:
            yield from (self[index] for index in range(3))


def test_an_iterator_that_never_ends_is_evaluated_by_its_length(tmp_path):
    """A forum: generators that know their length were read for ever."""
    model, plain = made(metrics=["accuracy"]), made(metrics=["accuracy"], on_towers=False)
    right = plain.evaluate(X[:20], Y[:20], verbose=0)
    np.testing.assert_allclose(model.evaluate(Flow(), verbose=0), right, 1e-5)
    run = towers.Run(tmp_path / "run", model)
    done = run.fit(X, Y, batch_size=20, verbose=0, validation_data=Flow())
    right = model.evaluate(X[:20], Y[:20], verbose=0)
    np.testing.assert_allclose([done.history[f"val_{n}"][0] for n in ("loss", "accuracy")], right)


@pytest.mark.parametrize("way", ["fit", "a run"])
def test_early_stopping_by_the_accuracy_stops(way, tmp_path):
    """keras#18798: it did not find its metric after the first epoch."""
    model = made(metrics=["accuracy"], optimizer=keras.optimizers.SGD(0.0))
    stop = keras.callbacks.EarlyStopping("val_accuracy", patience=2)
    told = {"epochs": 9, "callbacks": [stop], "validation_data": (X, Y)}
    if way == "fit":
        history = model.fit(X, Y, **FIT | told).history
    else:
        run = towers.Run(tmp_path / "run", model)
        history = run.fit(X, Y, batch_size=20, verbose=0, **told).history
    assert len(history["val_accuracy"]) == 3


def test_models_made_in_a_loop_are_freed():
    """keras#17458."""
    alive = []
    for seed in range(3):
        model = made(seed)
        model.fit(X, Y, **FIT)
        model.evaluate(X, Y, verbose=0)
        alive.append(weakref.ref(model))
        del model
    gc.collect()
    assert [one() for one in alive] == [None] * 3


def test_trainings_in_threads_equal_those_one_after_the_other():
    def trained(at_once):
        models = [made(seed, keras.optimizers.Adam(0.01)) for seed in range(3)]
        threads = [
            threading.Thread(target=model.fit, args=(X, Y), kwargs=FIT | {"epochs": 2})
            for model in models
        ]
        for thread in threads:
            thread.start()
            if not at_once:
                thread.join()
        for thread in threads:
            thread.join()
        return models

    for pair in zip(trained(True), trained(False), strict=True):
        assert int(pair[0].optimizer.iterations) == 4
        assert_same(pair, 0, 0)
