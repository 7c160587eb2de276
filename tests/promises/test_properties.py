"""What holds for all sizes and settings, tried on drawn ones, against whole numbers and NumPy."""

import itertools
import tempfile
import types

import hypothesis
import length
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st

from input_pipeline import arrays
from towers import gradients
from towers_cli import resolve

# Drawn from no clock and no chance, on slow machines too; no draw is kept for the next run.
hypothesis.settings.register_profile(
    "the_same_everywhere",
    max_examples=length.examples(100),
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate, Phase.shrink],  # Phase.explain traces each line, for minutes
    suppress_health_check=[HealthCheck.too_slow],
)
hypothesis.settings.load_profile("the_same_everywhere")
# What it keeps all the same, from when tests are collected on, goes when Python does.
_TABLES = tempfile.TemporaryDirectory(prefix="hypothesis-")
hypothesis.configuration.set_hypothesis_home_dir(_TABLES.name)

MILLION = 1_000_000
# Round numbers among them, whose products are whole examples.
EXAMPLES_PER_EPOCH = st.one_of(
    st.integers(1, 1_300_000), st.integers(1, 50).map(lambda thousands: thousands * 1000)
)
BATCH_SIZES = st.one_of(st.integers(1, 5000), st.sampled_from([1, 2, 4, 5, 8, 10, 16, 100, 128]))
# Numbers of epochs are drawn as whole millionths: what is exact here is a float for the package.
MILLIONTHS = st.one_of(
    st.integers(1, 400 * MILLION),
    st.integers(1, 4000).map(lambda thousandths: thousandths * 1000),
    st.integers(1, 100).map(lambda tenths: tenths * 100_000),
)


@hypothesis.settings(max_examples=length.examples(500))
@given(MILLIONTHS, EXAMPLES_PER_EPOCH, BATCH_SIZES)
def test_the_last_step_is_the_first_to_reach_the_epochs(millionths, per_epoch, batch):
    wanted = millionths * per_epoch  # examples, in millionths
    asked = {"train_epochs": millionths / MILLION, "global_batch_size": batch, "max_steps": None}
    last = resolve.last_step(types.SimpleNamespace(**asked), per_epoch)
    assert last * batch * MILLION >= wanted > (last - 1) * batch * MILLION


@given(st.integers(0, 5), st.integers(1, 300), BATCH_SIZES, st.integers(1, 5000))
def test_evaluations_come_every_few_epochs_and_after_the_last(every, last_step, batch, per_epoch):
    """A step belongs to the epoch in which it begins."""
    asked = types.SimpleNamespace(global_batch_size=batch, eval_every_epochs=every)
    epochs = resolve.evaluated_epochs(asked, last_step, per_epoch)
    assert epochs[-1] == (last_step - 1) * batch // per_epoch + 1
    assert epochs[:-1] == [e for e in range(1, epochs[-1]) if every and e % every == 0]


SEEDS = st.integers(0, 2**31 - 1)


def draws_shown(images, draws) -> tf.Tensor:
    """What an image is distorted by, in place of pixels: int64 [batch, 4]."""
    seeds = tf.broadcast_to(draws.seed, [tf.shape(images)[0], 2])
    mirrored = tf.cast(draws.mirrored, tf.int64)[:, None]
    return tf.concat([tf.cast(images, tf.int64), seeds, mirrored], axis=1)


@pytest.mark.pitfall(30)
@hypothesis.settings(max_examples=length.examples(36))
@given(st.integers(1, 12), SEEDS, st.data())
def test_training_batches_hold_the_stream_wherever_it_is_entered(num_examples, seed, data):
    """On images that are their own number, with labels that are another function of it."""
    batch = data.draw(st.integers(1, 2 * num_examples + 3), label="global_batch_size")
    epochs = data.draw(st.integers(1, 4), label="epochs")
    last = -(-epochs * num_examples // batch)
    first = data.draw(st.integers(0, last), label="first_step")
    images = np.arange(num_examples)[:, None]
    labels = (np.arange(num_examples) * 7 + 3) % 11
    source = arrays.batches(images, labels, augment=draws_shown, seed=seed)
    from_start, resumed = (
        [np.column_stack(one) for one in source.batches(begin, last, global_batch_size=batch)]
        for begin in (0, first)
    )
    assert len(resumed) == last - first
    for one, again in zip(from_start[first:], resumed, strict=True):
        assert one.shape == (batch, 5)
        np.testing.assert_array_equal(one, again)

    ids, _, _, mirrored, its_labels = np.concatenate(from_start).T
    np.testing.assert_array_equal(its_labels, labels[ids])
    of_epoch = []
    for epoch in range(epochs):
        window = slice(epoch * num_examples, (epoch + 1) * num_examples)
        assert sorted(ids[window]) == list(range(num_examples))
        of_epoch.append(mirrored[window][ids[window].argsort()])
    for one, next_one in itertools.pairwise(of_epoch):
        np.testing.assert_array_equal(one, 1 - next_one)


ROWS = 3
KINDS = ("dense", "sparse", "none")


@st.composite
def parts_of_weights(draw, num_parts, whole):
    """`parts[w][p]` of up to three weights: whole numbers, or some whose sums are rounded."""
    weights = []
    for _ in range(draw(st.integers(1, 3), label="weights")):
        dtype = draw(st.sampled_from([tf.float32, tf.float32, tf.bfloat16, tf.float16]))
        kinds = draw(st.sampled_from([["dense"], ["sparse"], ["dense", "none"], ["none"], KINDS]))
        scalar = draw(st.booleans()) and "sparse" not in kinds
        shape = () if scalar else (ROWS, *draw(st.lists(st.integers(1, 3), max_size=2)))
        rng = np.random.default_rng(draw(SEEDS))
        parts = []
        for _ in range(num_parts):
            kind = draw(st.sampled_from(kinds))
            rows = draw(st.lists(st.integers(0, ROWS - 1), max_size=4)) if kind == "sparse" else []
            size = (len(rows), *shape[1:]) if kind == "sparse" else shape
            values = rng.integers(-99, 100, size=size) if whole else rng.normal(size=size)
            # Sizes far apart, so that the order of a sum shows in its last bits.
            scaled = values * 2.0 ** draw(st.integers(0, 8))
            gradient = tf.cast(tf.constant(np.float32(scaled)), dtype)
            if kind == "sparse":
                indices = tf.constant(rows, tf.int64, shape=[len(rows)])
                gradient = tf.IndexedSlices(gradient, indices, tf.constant(shape, tf.int64))
            parts.append(None if kind == "none" else gradient)
        weights.append(parts)
    return weights


def added_up(weights, edges: list[int]) -> list[gradients.Gradient]:
    """The sum of all parts, by towers whose microbatches run from one edge to the next."""
    by_part, everything = [*zip(*weights, strict=True)], {}
    for a, b in itertools.pairwise(edges):
        everything |= gradients.sum_over_share(by_part[a:b], range(a, b), len(by_part))
    return gradients.add_up(everything, (0, len(by_part)), gradients.add_weight_by_weight)


def dense(gradient: gradients.Gradient) -> np.ndarray:
    """In float64, with all rows."""
    if not isinstance(gradient, tf.IndexedSlices):
        return tf.cast(gradient, tf.float64).numpy()
    total = np.zeros(gradient.shape)
    np.add.at(total, gradient.indices.numpy(), tf.cast(gradient.values, tf.float64).numpy())
    return total


def check_sum(result: gradients.Gradient, parts: list[gradients.Gradient]) -> None:
    """That `found` is the sum of `parts`, of whole numbers, and of the kind that they are."""
    there = [part for part in parts if part is not None]
    if not there:
        assert result is None
        return
    assert result.dtype == tf.float32
    is_sparse = all(isinstance(part, tf.IndexedSlices) for part in there)
    assert isinstance(result, tf.IndexedSlices) == is_sparse
    if is_sparse:
        rows = np.concatenate([part.indices for part in there])  # in their order
        np.testing.assert_array_equal(result.indices, rows)
    np.testing.assert_array_equal(dense(result), np.sum([dense(part) for part in there], axis=0))


def top_down(values: list[np.ndarray]) -> np.ndarray:
    """The sum along the pairwise tree, built from its root: the left side is the fullest one."""
    if len(values) == 1:
        return values[0]
    left = 2 ** ((len(values) - 1).bit_length() - 1)
    return top_down(values[:left]) + top_down(values[left:])


def bits(of_weights: list[gradients.Gradient]) -> list[bytes | None]:
    tensors = tf.nest.flatten(of_weights, expand_composites=True)  # slices are several
    return [tensor if tensor is None else tensor.numpy().tobytes() for tensor in tensors]


@pytest.mark.pitfall(21, 33)
class TestReduction:
    @hypothesis.settings(max_examples=length.examples(160))
    @given(st.integers(1, 13), st.booleans(), st.data())
    def test_has_the_same_bits_in_any_split_into_towers(self, num_parts, whole, data):
        """And of whole numbers it is NumPy's."""
        weights = data.draw(parts_of_weights(num_parts, whole))
        # Any number of towers, of any shares.
        begins = data.draw(st.sets(st.integers(0, num_parts)), label="begins")
        split = added_up(weights, sorted({0, *begins, num_parts}))
        assert bits(split) == bits(added_up(weights, [0, num_parts]))
        for gradient, parts in zip(split if whole else [], weights if whole else [], strict=True):
            check_sum(gradient, parts)

    @given(st.integers(1, 40), SEEDS)
    def test_has_the_bits_of_float32_added_along_the_tree(self, num_parts, seed):
        values = np.random.default_rng(seed).normal(size=(num_parts, 5)).astype(np.float32)
        result = gradients.pairwise_tree([tf.constant(value) for value in values], tf.add)
        assert result.numpy().tobytes() == top_down(list(values)).tobytes()
