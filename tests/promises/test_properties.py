"""What holds for all sizes and settings, tried on drawn ones, against whole numbers and NumPy."""

import itertools
import tempfile
import types
from typing import NamedTuple

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


def chosen(global_batch_size: int, **others):
    """The settings that decide where a run ends and when it evaluates."""
    given = {"max_steps": None, "eval_every_epochs": 0} | others
    return types.SimpleNamespace(global_batch_size=global_batch_size, **given)


class TestLastStep:
    @hypothesis.settings(max_examples=length.examples(500))
    @given(MILLIONTHS, EXAMPLES_PER_EPOCH, BATCH_SIZES)
    def test_is_the_first_to_reach_the_epochs(self, millionths, per_epoch, batch):
        wanted = millionths * per_epoch  # examples, in millionths
        last = resolve.last_step(chosen(batch, train_epochs=millionths / MILLION), per_epoch)
        assert last * batch * MILLION >= wanted > (last - 1) * batch * MILLION


class TestEvaluations:
    @given(st.integers(0, 5), st.integers(1, 300), BATCH_SIZES, st.integers(1, 5000))
    def test_come_every_few_epochs_and_after_the_epoch_of_the_last_step(
        self, every, last_step, batch, per_epoch
    ):
        """A step belongs to the epoch in which it begins."""
        asked = chosen(batch, eval_every_epochs=every)
        epochs = resolve.evaluated_epochs(asked, last_step, per_epoch)
        of_steps = {step * batch // per_epoch + 1 for step in range(last_step)}
        assert epochs[-1] == max(of_steps)
        assert epochs[:-1] == [e for e in range(1, epochs[-1]) if every and e % every == 0]


SEEDS = st.integers(0, 2**31 - 1)


def draws_shown(images, draws) -> tf.Tensor:
    """What an image is distorted by, in place of pixels: int64 [batch, 4]."""
    seeds = tf.broadcast_to(draws.seed, [tf.shape(images)[0], 2])
    mirrored = tf.cast(draws.mirrored, tf.int64)[:, None]
    return tf.concat([tf.cast(images, tf.int64), seeds, mirrored], axis=1)


@pytest.mark.pitfall(30)
class TestTrainingBatches:
    """On images that are their own number, with labels that are another function of it."""

    @hypothesis.settings(max_examples=length.examples(36))
    @given(st.integers(1, 12), SEEDS, st.data())
    def test_hold_the_stream_wherever_it_is_entered(self, num_examples, seed, data):
        batch = data.draw(st.integers(1, 2 * num_examples + 3), label="global_batch_size")
        epochs = data.draw(st.integers(1, 4), label="epochs")
        last = -(-epochs * num_examples // batch)
        first = data.draw(st.integers(0, last), label="first_step")
        images = np.arange(num_examples)[:, None]
        labels = (np.arange(num_examples) * 7 + 3) % 11
        source = arrays.batches(images, labels, augment=draws_shown, seed=seed)
        from_start, resumed = (
            [
                (shown.numpy(), its_labels.numpy())
                for shown, its_labels in source.batches(step, last, global_batch_size=batch)
            ]
            for step in (0, first)
        )
        assert len(resumed) == last - first
        for (shown, its_labels), (again, their_labels) in zip(
            from_start[first:], resumed, strict=True
        ):
            assert shown.shape == (batch, 4)
            np.testing.assert_array_equal(shown, again)
            np.testing.assert_array_equal(its_labels, their_labels)

        shown, its_labels = (np.concatenate(parts) for parts in zip(*from_start, strict=True))
        ids, mirrored = shown[:, 0], shown[:, 3]
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


class Part(NamedTuple):
    """One microbatch's gradient of one weight."""

    given: gradients.Gradient
    dense: np.ndarray  # float64, [] or [ROWS, ...]


def part(kind: str, values: np.ndarray, rows: list[int], shape, dtype: tf.DType) -> Part:
    """Of values of `shape`, or of these rows."""
    dense = np.zeros(shape)
    if kind == "none":
        return Part(None, dense)
    tensor = tf.cast(tf.constant(np.float32(values)), dtype)
    exact = tf.cast(tensor, tf.float64).numpy()
    if kind == "dense":
        return Part(tensor, exact)
    np.add.at(dense, rows, exact)
    indices = tf.constant(rows, tf.int64, shape=[len(rows)])
    return Part(tf.IndexedSlices(tensor, indices, tf.constant(shape, tf.int64)), dense)


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
            parts.append(part(kind, scaled, rows, shape, dtype))
        weights.append(parts)
    return weights


def tower_sums(weights, edges: list[int]) -> list[gradients.Sums]:
    """Of towers whose microbatches run from one edge to the next."""
    by_part = [[part.given for part in parts] for parts in zip(*weights, strict=True)]
    return [
        gradients.sum_over_share(by_part[a:b], range(a, b), len(by_part))
        for a, b in itertools.pairwise(edges)
    ]


def check_sum(found: gradients.Gradient, parts: list[Part]) -> None:
    """That `found` is the sum of `parts`, of whole numbers, and of the kind that they are."""
    kinds = {type(part.given) for part in parts} - {type(None)}
    if not kinds:
        assert found is None
        return
    assert found.dtype == tf.float32
    total = np.sum([part.dense for part in parts], axis=0)
    assert isinstance(found, tf.IndexedSlices) == (kinds == {tf.IndexedSlices})
    if isinstance(found, tf.IndexedSlices):
        rows = [part.given.indices for part in parts if part.given is not None]
        np.testing.assert_array_equal(found.indices, np.concatenate(rows))  # in their order
        dense = np.zeros(total.shape)
        np.add.at(dense, found.indices.numpy(), found.values.numpy())
        found = dense
    np.testing.assert_array_equal(found, total)


def top_down(values: list[np.ndarray]) -> np.ndarray:
    """The sum along the pairwise tree, built from its root: the left side is the fullest one."""
    if len(values) == 1:
        return values[0]
    left = 2 ** ((len(values) - 1).bit_length() - 1)
    return top_down(values[:left]) + top_down(values[left:])


def bits(gradient: gradients.Gradient):
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return gradient.indices.numpy().tolist(), gradient.values.numpy().tobytes()
    return gradient.numpy().tobytes()


@st.composite
def edges_of_towers(draw, num_parts):
    """Where towers begin, and the end: any number of towers, of any shares."""
    inner = draw(st.sets(st.integers(1, num_parts - 1))) if num_parts > 1 else set()
    return [0, *sorted(inner), num_parts]


def total_of(sums, num_parts: int) -> list[gradients.Gradient]:
    """Of the towers' sums, the sum of all parts."""
    everything = {subtree: total for of_tower in sums for subtree, total in of_tower.items()}
    return gradients.add_up(everything, (0, num_parts), gradients.add_weight_by_weight)


@pytest.mark.pitfall(21, 33)
class TestReduction:
    @hypothesis.settings(max_examples=length.examples(160))
    @given(st.integers(1, 13), st.booleans(), st.data())
    def test_has_the_same_bits_in_any_split_into_towers(self, num_parts, whole, data):
        """And of whole numbers it is NumPy's."""
        weights = data.draw(parts_of_weights(num_parts, whole))
        edges = data.draw(edges_of_towers(num_parts), label="edges")
        split, at_once = (
            total_of(tower_sums(weights, some), num_parts) for some in (edges, [0, num_parts])
        )
        assert [bits(gradient) for gradient in split] == [bits(gradient) for gradient in at_once]
        for gradient, parts in zip(split if whole else [], weights if whole else [], strict=True):
            check_sum(gradient, parts)

    @given(st.integers(1, 40), SEEDS)
    def test_has_the_bits_of_float32_added_along_the_tree(self, num_parts, seed):
        values = np.random.default_rng(seed).normal(size=(num_parts, 5)).astype(np.float32)
        found = gradients.pairwise_tree([tf.constant(value) for value in values], tf.add)
        assert found.numpy().tobytes() == top_down(list(values)).tobytes()
