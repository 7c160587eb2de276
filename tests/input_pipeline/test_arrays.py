"""Your own arrays, and data sets with random access, as a source of training batches."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from input_pipeline import arrays
from input_pipeline import batches as by_step

N, BATCH = 10, 4
X = np.arange(N * 2, dtype=np.float32).reshape(N, 2)
Y = np.arange(N)


def taken(source, first_step=0, last_step=5):
    result = source.batches(first_step, last_step, global_batch_size=BATCH)
    return [tf.nest.map_structure(np.asarray, batch) for batch in result]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.pitfall(28)
def test_come_in_the_order_of_the_seed_wherever_reading_begins(shuffle):
    source = arrays.batches(X, Y, seed=3, shuffle=shuffle)
    order = by_step.Order(N, BATCH, seed=3, shuffle=shuffle)
    whole = taken(source)
    for step, (inputs, labels) in enumerate(whole):
        np.testing.assert_array_equal(labels, order(tf.constant(step, tf.int64))[0])
        np.testing.assert_array_equal(inputs, X[labels])
    epochs = np.concatenate([labels for _, labels in whole]).reshape(2, N)
    np.testing.assert_array_equal(np.sort(epochs) if shuffle else epochs, [Y, Y])
    np.testing.assert_array_equal(taken(source, first_step=2)[0][1], whole[2][1])


def test_keep_their_structure_types_and_weights(tmp_path):
    np.save(tmp_path / "x.npy", X.astype(np.float64))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    mine = X.astype(np.float16)
    source = arrays.batches({"a": mapped, "b": [Y.astype(np.uint8), mine]}, (Y > 3, -Y), Y / 10)
    mine[0, 0] = 0  # still the user's
    for inputs, labels, weight in taken(source):
        np.testing.assert_array_equal(inputs["a"][:, 0], -2 * labels[1])
        np.testing.assert_array_equal(inputs["b"][0], -labels[1])
        np.testing.assert_array_equal(labels[0], labels[1] < -3)
        np.testing.assert_allclose(weight, -labels[1] / 10, rtol=1e-6)
    kinds = [part.dtype for part in (inputs["a"], *inputs["b"], labels[0], weight)]
    assert kinds == [np.float32, np.uint8, np.float16, bool, np.float32]


def test_may_have_no_labels():
    [(inputs,), *_] = taken(arrays.batches(X, augment=lambda x, draws: -x, shuffle=False))
    np.testing.assert_array_equal(inputs, -X[:BATCH])
    for name, given in {"sample_weight": Y, "mix": lambda x, y, draws: (x, y)}.items():
        with pytest.raises(ValueError, match=name):
            arrays.batches(X, **{name: given})


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "i4", "i8", "u2"])
def test_of_another_byte_order_are_the_same_numbers(kind, order):
    source = arrays.batches(X.astype(order + kind), Y.astype(f"{order}i4"), shuffle=False)
    [(inputs, labels), *_] = taken(source)
    assert inputs.dtype == ("f4" if kind == "f8" else kind) and inputs.dtype.isnative
    np.testing.assert_array_equal(inputs, X[:BATCH])
    np.testing.assert_array_equal(labels, Y[:BATCH])


def test_have_a_fingerprint_of_their_values_and_order():
    others = [
        *(((X, Y), given) for given in ({}, {"seed": 1}, {"shuffle": False}, {"mix": max})),
        *((each, {}) for each in ((X + 1, Y), (X, Y + 1), (X, Y, np.ones(N)))),
        *(((x, Y), {}) for x in (X.astype(np.float64), X.reshape(N, 1, 2))),
    ]
    result = {arrays.batches(*each, **options).fingerprint for each, options in others}
    assert len(result) == len(others)
    assert arrays.batches(X.copy(), Y).fingerprint in result


class MapDataset:
    """What of a `grain.MapDataset` is read: other elements in each epoch, and no last one."""

    weights = ()

    def __len__(self):
        return N

    def __getitem__(self, position):
        return {"x": X[position % N]}, position, *self.weights

    def to_iter_dataset(self):
        raise AssertionError("it would be read in order")


class Batched(keras.utils.PyDataset):
    """A batch of six, and a last one of four."""

    sign = 1

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return X[6 * index :][:6], self.sign * Y[6 * index :][:6]


@pytest.mark.parametrize("weights", [(), (0.5,)])
def test_of_a_grain_data_set_are_its_elements_by_position(monkeypatch, weights):
    monkeypatch.setattr(MapDataset, "weights", weights)
    source = arrays.batches(MapDataset())
    assert source.num_examples == N
    for step, (inputs, labels, *more) in enumerate(taken(source, 2, 5), 2):
        assert [set(values) for values in more] == [{weight} for weight in weights]
        np.testing.assert_array_equal(labels, np.arange(step * BATCH, (step + 1) * BATCH))
        np.testing.assert_array_equal(inputs["x"], X[labels % N])


def test_of_a_pydataset_are_its_examples_epoch_by_epoch():
    source = arrays.batches(Batched())
    assert source.num_examples == N
    result = taken(source, 1, 5)
    np.testing.assert_array_equal(np.concatenate([y for _, y in result]), [*Y[4:], *Y])
    np.testing.assert_array_equal(result[0][0], X[4:8])
    other = Batched()
    other.sign = -1
    assert source.fingerprint != arrays.batches(other).fingerprint


class Ragged(Batched):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return tuple(part[: 2 if index == 1 else 3] for part in (X, Y))


class Listed(list):
    to_iter_dataset = None  # as a `grain.MapDataset` has it


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((X, Y[:3]), "10, 3"), ((X[:0], Y[:0]), "at least 1"), ((X, np.array(["a"] * N)), "<U1"),
        ((X, np.array([None] * N)), "object"), ((3.0, Y), "float64"), ((X, Y, Y[:2]), "10, 10, 2"),
        ((X, Y, Y - 1), "sample_weight"), ((X, Y, Y[:, None]), "sample_weight"),
        ((np.ma.array(X), Y), "masked"), ((X, np.ma.array(Y)), "masked"),
        ((X, Y, np.ma.array(Y)), "masked"), ((Listed(),), "must have"),
        ((Listed(X),), "must have"), ((MapDataset(), Y), "must be"), ((Ragged(),), "must have"),
    ],
)  # fmt: skip
def test_of_something_else_are_refused(arguments, names):
    with pytest.raises((TypeError, ValueError), match=names):
        arrays.batches(*arguments)
