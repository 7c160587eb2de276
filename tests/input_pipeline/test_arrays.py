"""Your own arrays as a source of training batches."""

import sys
from typing import NamedTuple

import forked
import keras
import numpy as np
import pytest
import scripts
import tensorflow as tf

from input_pipeline import arrays
from input_pipeline import batches as by_step

N, BATCH = 10, 4
X = np.arange(N * 2, dtype=np.float32).reshape(N, 2)
Y = np.arange(N)


class Noise(NamedTuple):
    values: tf.Tensor


def taken(source, first_step=0, last_step=5, **shares):
    found = source.batches(first_step, last_step, global_batch_size=BATCH, **shares)
    return [tf.nest.map_structure(np.asarray, batch) for batch in found]


def test_come_in_the_order_of_the_seed():
    order = by_step.Order(N, BATCH, seed=3)
    found = taken(arrays.batches(X, Y, seed=3))
    assert len(found) == 5
    for step, (inputs, labels) in enumerate(found):
        ids, _ = order(tf.constant(step, tf.int64))
        np.testing.assert_array_equal(labels, ids)
        np.testing.assert_array_equal(inputs, X[ids])
    assert sorted(np.concatenate([labels for _, labels in found])) == sorted([*Y, *Y])  # 2 epochs


def test_come_in_their_own_order_without_shuffling():
    labels = np.concatenate([labels for _, labels in taken(arrays.batches(X, Y, shuffle=False))])
    np.testing.assert_array_equal(labels, [*Y, *Y])


@pytest.mark.pitfall(28)
def test_of_a_step_are_the_same_wherever_reading_begins():
    source = arrays.batches(X, Y)
    for mine, other in zip(taken(source, first_step=2), taken(source)[2:], strict=True):
        np.testing.assert_array_equal(mine[0], other[0])


def test_are_shared_by_workers():
    source = arrays.batches(X, Y)
    halves = [taken(source, share=own) for own in (range(3), range(3, BATCH))]
    for first, second, whole in zip(*halves, taken(source), strict=True):
        np.testing.assert_array_equal(np.concatenate([first[1], second[1]]), whole[1])


def test_of_structures_with_weights_stay_together():
    source = arrays.batches({"a": X, "b": [Y, 2 * Y]}, (Y, -Y), Y / 10)
    for inputs, labels, weight in taken(source):
        np.testing.assert_array_equal(inputs["a"][:, 0], 2 * labels[0])
        np.testing.assert_array_equal(inputs["b"][1], 2 * inputs["b"][0])
        np.testing.assert_array_equal(labels[0], -labels[1])
        np.testing.assert_allclose(weight, labels[0] / 10, rtol=1e-6)


def test_keep_their_types_but_for_float64():
    source = arrays.batches([X.astype(np.float64), X.astype(np.uint8), X.astype(np.float16)], Y > 3)
    inputs, labels = taken(source)[0]
    assert [part.dtype for part in inputs] == [np.float32, np.uint8, np.float16]
    assert labels.dtype == bool


def test_leave_a_users_arrays_as_they_are():
    mine = X.copy()
    taken(arrays.batches(mine, Y))
    mine[0, 0] = 5  # not read-only, as batches.as_tensor would make it


def test_read_no_more_of_a_file_than_they_need(tmp_path):
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    source = arrays.batches(mapped, Y)
    np.testing.assert_array_equal(taken(source)[0][0], taken(arrays.batches(X, Y))[0][0])


def test_are_augmented_by_draws_that_do_not_depend_on_workers():
    def noisy(inputs, draws):
        def draw(count):
            return Noise(tf.random.stateless_uniform([count, 2], draws.seed))

        return inputs + draws.for_share(draw, tf.shape(inputs)[0]).values

    source = arrays.batches(X, Y, augment=noisy)
    whole = taken(source)
    halves = [taken(source, share=own) for own in (range(3), range(3, BATCH))]
    for first, second, both in zip(*halves, whole, strict=True):
        np.testing.assert_array_equal(np.concatenate([first[0], second[0]]), both[0])
    plain = taken(arrays.batches(X, Y))
    for noisy_one, plain_one in zip(whole, plain, strict=True):
        assert (noisy_one[0] > plain_one[0]).any()


def test_have_a_fingerprint_of_their_values_and_order():
    others = [
        arrays.batches(X, Y),
        arrays.batches(X + 1, Y),
        arrays.batches(X, Y + 1),
        arrays.batches(X, Y, seed=1),
        arrays.batches(X, Y, shuffle=False),
        arrays.batches(X, Y, np.ones(N)),
        arrays.batches(X.astype(np.float64), Y),
        arrays.batches(X.reshape(N, 1, 2), Y),
    ]
    assert len({source.fingerprint for source in others}) == len(others)
    assert arrays.batches(X.copy(), Y).fingerprint == others[0].fingerprint


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((X, Y[:3]), "arrays must all have the same number of examples, at least 1; they .* 10, 3"),
        ((X[:0], Y[:0]), "at least 1; they have 0, 0"),
        ((X, np.array(["a"] * N)), r"arrays: <U1 .10.; must be numbers or booleans"),
        ((X, np.array([None] * N)), "arrays: object .10.; must be numbers"),
        ((3.0, Y), "arrays: float64 ..; must be numbers or booleans .n"),
        ((X, Y, Y[:2]), "they have 10, 10, 2"),
        ((X, Y, Y - 1), "sample_weight must be .n., every one finite and at least 0"),
        ((X, Y, Y[:, None]), "sample_weight must be .n."),
    ],
)
def test_of_something_else_are_refused(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        arrays.batches(*arguments)


STOPS_READING = """
import numpy as np
from input_pipeline import arrays

images = np.zeros((2000, 32, 32, 3), np.float32)
source = arrays.batches(images, np.zeros(2000, np.int32), seed=0)
reading = [iter(source.batches(0, 300, global_batch_size=128)) for _ in range(3)]
print([next(one)[0].shape[0] for one in reading])
{end}
"""


@pytest.mark.whole_program
@pytest.mark.parametrize(("end", "code"), [("", 0), ("raise ValueError('its own')", 1)])
def test_a_program_that_stops_reading_comes_to_its_end(end, code):
    """It hung: TensorFlow's threads, which read ahead, called Python while Python ended."""
    program = [sys.executable, "-c", STOPS_READING.format(end=end)]
    done = forked.run(program, cwd=scripts.ROOT, timeout=60)
    assert (done.returncode, done.stdout) == (code, "[128, 128, 128]\n"), done.stderr
    assert done.stderr.endswith("ValueError: its own\n" if code else "")


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "i4", "i8", "u2"])
def test_of_another_byte_order_are_the_same_numbers(kind, order):
    given = arrays.batches(X.astype(order + kind), Y.astype(f"{order}i4"), shuffle=False)
    [(inputs, labels), *_] = taken(given)
    assert inputs.dtype == ("f4" if kind == "f8" else kind) and inputs.dtype.isnative
    np.testing.assert_array_equal(inputs, X[:BATCH])
    np.testing.assert_array_equal(labels, Y[:BATCH])


@pytest.mark.parametrize("part", range(3))
def test_with_a_mask_are_refused(part):
    given = [X, Y, np.ones(N)]
    given[part] = np.ma.masked_array(given[part], mask=np.zeros_like(given[part], bool))
    with pytest.raises(TypeError, match="a masked array: training would see what is under its"):
        arrays.batches(*given)


class MapDataset:
    """What of a `grain.MapDataset` is read: other elements in each epoch, and no last one."""

    def __len__(self):
        return N

    def __getitem__(self, position):
        return {"x": X[position % N]}, position

    def to_iter_dataset(self):
        raise AssertionError("it would be read in order")


class Batched(keras.utils.PyDataset):
    """Batches of three, and a last one of one."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return X[3 * index :][:3], Y[3 * index :][:3]


def test_of_a_grain_data_set_are_its_elements_by_position():
    source = arrays.batches(MapDataset())
    assert source.num_examples == N
    for step, (inputs, labels) in enumerate(taken(source, 2, 5), 2):
        np.testing.assert_array_equal(labels, np.arange(step * BATCH, (step + 1) * BATCH))
        np.testing.assert_array_equal(inputs["x"], X[labels % N])
    [(_, labels)] = taken(source, 4, 5, share=range(1, 3))
    np.testing.assert_array_equal(labels, [17, 18])


def test_of_a_pydataset_are_its_examples_epoch_by_epoch():
    source = arrays.batches(Batched())
    assert source.num_examples == N
    found = taken(source, 1, 5)
    np.testing.assert_array_equal(np.concatenate([y for _, y in found]), [*Y[4:], *Y])
    np.testing.assert_array_equal(found[0][0], X[4:8])

    class Other(Batched):
        def __getitem__(self, index):
            return super().__getitem__(index)[0], -super().__getitem__(index)[1]

    assert source.fingerprint != arrays.batches(Other()).fingerprint


def test_of_a_data_set_that_is_not_of_examples_are_refused():
    class Nothing(MapDataset):
        def __len__(self):
            return 0

    class Bare(MapDataset):
        def __getitem__(self, position):
            return X[0]

    for dataset in (Nothing(), Bare()):
        with pytest.raises((TypeError, ValueError), match="must"):
            arrays.batches(dataset)
    with pytest.raises(ValueError, match="labels and sample_weight"):
        arrays.batches(MapDataset(), Y)
