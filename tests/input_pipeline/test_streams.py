"""Batches that somebody else makes: in order, resumed, filled up, shared, or refused."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from input_pipeline import streams

N, BATCH = 10, 4  # an epoch has 4, 4 and 2
X = np.arange(N, dtype=np.float32)[:, None]
Y = np.arange(N)


class Shuffled(keras.utils.PyDataset):
    """Another order in every epoch."""

    def __init__(self):
        super().__init__()
        self.rng, self.order = np.random.default_rng(0), np.arange(N)

    def __len__(self):
        return 3

    def __getitem__(self, index):
        own = self.order[index * BATCH : (index + 1) * BATCH]
        return X[own], Y[own]

    def on_epoch_end(self):
        self.order = self.rng.permutation(N)


class Counting(Shuffled):
    """Examples of its own in every epoch, which begins as Keras's `fit` begins it."""

    def __init__(self):
        super().__init__()
        self.calls, self.epoch = [], -1

    def __getitem__(self, index):
        own = self.order[index * BATCH : (index + 1) * BATCH]
        return X[own] + 100 * self.epoch, Y[own]

    def on_epoch_begin(self):
        self.calls.append("begin")
        self.epoch += 1

    def on_epoch_end(self):
        self.calls.append("end")
        super().on_epoch_end()


def dataset(shuffled=True):
    found = tf.data.Dataset.from_tensor_slices((X, Y))
    return (found.shuffle(N, seed=3) if shuffled else found).batch(BATCH)


def batch_at(step):
    first = step % 3 * BATCH
    return X[first : first + BATCH], Y[first : first + BATCH]


SOURCES = {
    "function": lambda: streams.of_function(batch_at, batches_per_epoch=3),
    "dataset": lambda: streams.of_dataset(dataset()),
    "dataset in order": lambda: streams.of_dataset(dataset(shuffled=False)),
    "pydataset": lambda: streams.of_pydataset(Shuffled()),
    "pydataset that counts": lambda: streams.of_pydataset(Counting()),
}


def taken(source, first_step=0, last_step=8, **shares):
    return list(source.batches(first_step, last_step, global_batch_size=BATCH, **shares))


def counted(batch):
    """The labels that count."""
    _, labels, *weight = batch
    return labels[weight[0] > 0] if weight else labels


@pytest.fixture(params=SOURCES)
def make(request):
    """A source as a program makes it, which has to be the same in every process."""

    def made():
        tf.random.set_seed(1)
        return SOURCES[request.param]()

    return made


def test_go_through_every_epoch_once(make):
    found = taken(make())
    for epoch in (found[:3], found[3:6]):
        assert sorted(np.concatenate([counted(batch) for batch in epoch])) == list(Y)


def test_of_a_step_are_the_same_wherever_reading_begins(make):
    whole = taken(make())
    for first_step in (1, 3, 5):
        later = taken(make(), first_step)
        assert len(later) == 8 - first_step
        for mine, other in zip(later, whole[first_step:], strict=True):
            tf.nest.map_structure(np.testing.assert_array_equal, mine, other)


def test_are_shared_by_workers(make):
    whole = taken(make())
    halves = [taken(make(), share=own) for own in (range(3), range(3, BATCH))]
    for first, second, both in zip(*halves, whole, strict=True):
        for parts in zip(first, second, both, strict=True):
            np.testing.assert_array_equal(np.concatenate(parts[:2]), parts[2])


def test_are_filled_up_with_examples_of_weight_0():
    last = taken(SOURCES["dataset in order"]())[2]
    np.testing.assert_array_equal(last[0][:, 0], [8, 9, 8, 9])
    np.testing.assert_array_equal(last[2], [1, 1, 0, 0])
    weighted = streams.of_function(lambda step: (X[: 4 - step], Y[: 4 - step], Y[: 4 - step] + 1))
    np.testing.assert_array_equal(taken(weighted, last_step=2)[1][2], [1, 2, 3, 0])


def test_know_their_epochs_where_they_can():
    assert {name: make().num_examples for name, make in SOURCES.items()} == dict.fromkeys(
        SOURCES, 12
    )
    assert streams.of_function(batch_at).num_examples is None
    endless = tf.data.Dataset.from_tensors((X[:4], Y[:4])).repeat()
    assert streams.of_dataset(endless).num_examples is None
    assert streams.of_dataset(endless, batches_per_epoch=2).num_examples == 8


def test_have_the_fingerprint_of_their_first_batch():
    others = [make().fingerprint for make in SOURCES.values()]
    assert others[0] == others[2] == others[3] != others[1]  # the first three begin in order
    words = streams.of_function(lambda step: (np.array(["a", "b"], object), Y[:2]))
    again = streams.of_function(lambda step: (np.array(["".join("a"), "b"], object), Y[:2]))
    assert words.fingerprint == again.fingerprint


def test_of_another_size_are_named():
    with pytest.raises(ValueError, match="its first batch has 4 examples, but a step takes .*=8"):
        next(SOURCES["dataset"]().batches(0, 3, global_batch_size=8))
    grows = streams.of_function(lambda step: (X[: 3 + step], Y[: 3 + step]))
    with pytest.raises(ValueError, match="of_function: a batch of 4 examples, but a step takes"):
        list(grows.batches(0, 3, global_batch_size=3))


DRAWN = itertools.count()


class Drawn(Shuffled):
    """Draws whenever it is asked."""

    def __getitem__(self, index):
        inputs, labels = super().__getitem__(index)
        return inputs + self.rng.normal(size=inputs.shape), labels


@pytest.mark.parametrize("name", ["dataset", "pydataset"])
def test_that_have_moved_on_are_not_read_from_again(name):
    source = SOURCES[name]()
    taken(source)
    with pytest.raises(ValueError, match="it was read from already, and would continue with othe"):
        taken(source)


class OfNoLength(keras.utils.PyDataset):
    def __getitem__(self, index):
        return X, Y


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: streams.of_function(3), "of_function: a int is not a function of a step"),
        (lambda: streams.of_function(lambda step: X), "a batch is a ndarray; must be .inputs, l"),
        (lambda: streams.of_function(lambda step: (X, Y[:2])), r"same number .*\[10, 1\], \[2\]"),
        (lambda: streams.of_function(lambda step: (X[:0], Y[:0])), "at least 1; they are"),
        (lambda: streams.of_function(batch_at, batches_per_epoch=0), "batches_per_epoch=0: must"),
        (lambda: streams.of_function(batch_at, batches_per_epoch=2.5), "=2.5: must be an integer"),
        (lambda: streams.of_pydataset(Drawn()), "its first batch differs when it is asked for aga"),
        (
            lambda: streams.of_function(lambda step: (X + next(DRAWN), Y)),
            "another batch for step 0 when it is called again",
        ),
        (lambda: streams.of_dataset([(X, Y)]), "of_dataset: a list is not a tf.data.Dataset"),
        (lambda: streams.of_dataset(dataset().take(0)), "of_dataset: the data set has no batch"),
        (lambda: streams.of_dataset(tf.data.Dataset.range(3)), "of_dataset: a batch is a Eager"),
        (lambda: streams.of_pydataset(X), "of_pydataset: a ndarray is not a keras.utils.PyDa"),
        (lambda: streams.of_pydataset(OfNoLength()), "its length is unknown; give it a __len__"),
    ],
)
def test_other_things_are_refused(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_a_pydataset_begins_and_ends_its_epochs_as_in_keras_fit():
    in_keras, here = Counting(), Counting()
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(in_keras, epochs=2, verbose=0)
    found = taken(streams.of_pydataset(here), last_step=7)
    assert here.calls == ["begin", "end", "begin", "end", "begin"]
    assert in_keras.calls == ["end", *here.calls[:-1]]  # which reads some to build the model first
    assert [int(inputs.max() // 100) for inputs, *_ in found] == [0, 0, 0, 1, 1, 1, 2]


def test_masked_arrays_are_refused():
    with pytest.raises(TypeError, match="a masked array"):
        streams.of_function(lambda step: (np.ma.masked_array(X[:4], X[:4] > 2), Y[:4]))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_batch_is_filled_up_with_each_of_its_examples_about_equally_often(size):
    """Batch norm, which sees the copies, would otherwise see mostly one of them."""
    [_, labels, *_] = streams._filled_up((X[:size], Y[:size]), 8, "test")
    counts = np.bincount(labels, minlength=size)
    assert counts.sum() == 8 and counts.max() - counts.min() <= 1
