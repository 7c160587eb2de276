"""What holds for all sizes and settings, tried on drawn ones, against whole numbers and NumPy."""

import fractions
import itertools
import json
import math
import tempfile
import types
from pathlib import Path
from typing import NamedTuple

import hypothesis
import length
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st

from input_pipeline import arrays, batches, cifar10_binary, decoded
from towers import gradients, one_gradient, schedules
from towers.multi_worker import cluster
from towers_cli import launch, resolve, tally

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


class Recipe(NamedTuple):
    """A schedule, its epochs in millionths."""

    kind: str
    initial: float
    examples_per_epoch: int
    period: int
    factor: float
    boundaries: tuple[int, ...]
    warmup: int
    total: int

    def learning_rate(self) -> schedules.LearningRate:
        return schedules.LearningRate(
            self.kind,
            self.initial,
            self.examples_per_epoch,
            epochs_per_decay=self.period / MILLION,
            decay_factor=self.factor,
            decay_epochs=tuple(boundary / MILLION for boundary in self.boundaries),
            warmup_epochs=self.warmup / MILLION,
            total_epochs=self.total / MILLION,
        )

    def position(self, examples_seen: int) -> fractions.Fraction:
        """Millionths of an epoch, exactly."""
        return fractions.Fraction(examples_seen * MILLION, self.examples_per_epoch)

    def first_example(self, millionths: int) -> int:
        """The least number of examples seen at that epoch or later."""
        return -(-millionths * self.examples_per_epoch // MILLION)


@st.composite
def recipes(draw, kind, examples_per_epoch=EXAMPLES_PER_EPOCH):
    warmup = draw(st.one_of(st.just(0), MILLIONTHS))
    return Recipe(
        kind=kind,
        initial=draw(st.floats(1e-6, 100.0)),
        examples_per_epoch=draw(examples_per_epoch),
        period=draw(MILLIONTHS),
        factor=draw(st.floats(0.01, 1.0)),
        boundaries=tuple(sorted(draw(st.sets(MILLIONTHS, min_size=1, max_size=4)))),
        warmup=warmup,
        total=warmup + draw(MILLIONTHS),
    )


@st.composite
def examples_seen(draw, recipe):
    """Numbers of examples, in order: those where the rate has a step or a bend, and others."""
    of_kind = {
        "exponential": [k * recipe.period for k in range(1, 8)],
        "piecewise": recipe.boundaries,
    }
    bends = [recipe.warmup, recipe.total, *of_kind.get(recipe.kind, ())]
    firsts = [recipe.first_example(bend) for bend in bends]
    others = draw(st.lists(st.integers(0, 3 * max(firsts)), max_size=8))
    before = [first - 1 for first in firsts if first]
    return sorted({*before, *firsts, *others})


def exact_rate(recipe: Recipe, examples_seen: int) -> float:
    """The formula of `LearningRate`, rounded only where it is no fraction."""
    at = recipe.position(examples_seen)
    warm_up = min(1, at / recipe.warmup) if recipe.warmup else 1
    decays = {
        "exponential": at // recipe.period,
        "piecewise": sum(boundary <= at for boundary in recipe.boundaries),
    }
    progress = float(min(1, max(0, (at - recipe.warmup) / (recipe.total - recipe.warmup))))
    decay = {
        "constant": 1.0,
        "linear": 1.0 - progress,
        "cosine": 0.5 + 0.5 * math.cos(math.pi * progress),
    }
    of_kind = recipe.factor ** decays[recipe.kind] if recipe.kind in decays else decay[recipe.kind]
    return recipe.initial * float(warm_up) * of_kind


def rounding_of(recipe: Recipe) -> float:
    """A bound on what float64 may do to a rate.

    Progress takes 8 roundings, of numbers of epochs up to `total`, which are divided by
    `total - warmup`; the cosine's slope is at most pi / 2. All else takes no more than 16
    roundings of numbers up to 1, with those of `exact_rate`.
    """
    span = recipe.total / (recipe.total - recipe.warmup)
    return recipe.initial * 2.0**-53 * (8 * math.pi / 2 * span + 16)


@pytest.mark.parametrize("kind", schedules.SCHEDULES)
class TestLearningRate:
    @given(st.data())
    def test_is_the_formula_with_decays_counted_in_whole_numbers(self, kind, data):
        recipe = data.draw(recipes(kind))
        for seen in data.draw(examples_seen(recipe)):
            rate = recipe.learning_rate()(seen)
            assert abs(rate - exact_rate(recipe, seen)) <= rounding_of(recipe)

    @given(st.data())
    def test_rises_while_it_warms_up_and_never_after(self, kind, data):
        recipe = data.draw(recipes(kind))
        learning_rate, seen = recipe.learning_rate(), data.draw(examples_seen(recipe))
        after = [learning_rate(s) for s in seen if recipe.position(s) >= recipe.warmup]
        assert all(earlier >= later for earlier, later in itertools.pairwise(after))
        assert all(0 <= learning_rate(s) <= recipe.initial for s in seen)
        if kind in ("cosine", "linear", "constant"):  # the others may decay in the warm-up
            warming = [learning_rate(s) for s in seen if recipe.position(s) < recipe.warmup]
            assert all(earlier < later for earlier, later in itertools.pairwise(warming))


def chosen(global_batch_size: int, **others):
    """The settings that decide where a run ends and when it evaluates."""
    given = {"max_steps": None, "profile_steps": None, "eval_every_epochs": 0} | others
    return types.SimpleNamespace(global_batch_size=global_batch_size, **given)


class TestLastStep:
    @hypothesis.settings(max_examples=length.examples(500))
    @given(MILLIONTHS, EXAMPLES_PER_EPOCH, BATCH_SIZES)
    def test_is_the_first_to_reach_the_epochs(self, millionths, per_epoch, batch):
        wanted = millionths * per_epoch  # examples, in millionths
        last = resolve.last_step(chosen(batch, train_epochs=millionths / MILLION), per_epoch)
        assert last * batch * MILLION >= wanted > (last - 1) * batch * MILLION

    @given(MILLIONTHS, EXAMPLES_PER_EPOCH, BATCH_SIZES, st.integers(1, 10_000))
    def test_is_never_after_max_steps(self, millionths, per_epoch, batch, max_steps):
        epochs = millionths / MILLION
        free = resolve.last_step(chosen(batch, train_epochs=epochs), per_epoch)
        limited = chosen(batch, train_epochs=epochs, max_steps=max_steps)
        assert resolve.last_step(limited, per_epoch) == min(free, max_steps)


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


ADDRESSES = st.sampled_from(["a:1", "b:1", "c:1", "a", "", "a:0", "a:1\n", "a:1" * 99])
ANY_JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-1, 3),
        st.sampled_from([10**300, -(10**4000), math.nan, math.inf, 0.0, "chief", "worker"]),
        st.text(max_size=5),
        ADDRESSES,
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


def mostly(good: st.SearchStrategy) -> st.SearchStrategy:
    return st.integers(0, 7).flatmap(lambda drawn: good if drawn else ANY_JSON)


JOB = mostly(st.lists(mostly(ADDRESSES), max_size=3))
TASK = mostly(
    st.fixed_dictionaries(
        {},
        optional={
            "type": mostly(st.sampled_from(["chief", "worker", "ps"])),
            "index": mostly(st.integers(0, 2)),
        },
    )
)
CLUSTER = mostly(st.fixed_dictionaries({}, optional={"chief": JOB, "worker": JOB, "ps": JOB}))


@st.composite
def tf_configs(draw) -> str:
    """What the variable may hold: a cluster, something like one, or any text."""
    pairs = draw(st.lists(st.tuples(st.just("cluster"), CLUSTER), max_size=2))
    pairs += draw(st.lists(st.tuples(st.just("task"), TASK), max_size=2))
    objects = ", ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in pairs)
    deep = draw(st.sampled_from([1, 900, 5000]))
    text = draw(
        st.sampled_from([f"{{{objects}}}"] * 9)
        | st.just(f'{{{objects}, "task": {"[" * deep}{"]" * deep}}}')
        | st.just(f'{{{objects}, "cluster": {"[" * deep}')
        | ANY_JSON.map(json.dumps)
        | st.text()
    )
    return text if draw(st.integers(0, 9)) else text[: draw(st.integers(0, len(text)))]


class TestTfConfig:
    @hypothesis.settings(max_examples=length.examples(250))
    @given(tf_configs())
    def test_is_workers_or_none_or_one_sentence(self, text):
        try:
            members = cluster.from_tf_config(text)
        except ValueError as error:
            assert type(error) is ValueError
            assert 0 < len(str(error)) < 1000 and str(error).isprintable()
            return
        if members is not None:
            assert len(set(members.addresses)) == len(members.addresses) > 1
            cluster.check(members.addresses, members.index)
            assert (
                cluster.from_tf_config(launch.tf_config(members.addresses, members.index))
                == members
            )


def ids_at(first, count, *, num_examples, global_batch_size, seed) -> np.ndarray:
    """The ids at positions `first` to `first + count - 1` of the stream, read from its batches."""
    steps = range(first // global_batch_size, (first + count - 1) // global_batch_size + 1)
    read = [
        batches.example_ids(
            step, num_examples=num_examples, global_batch_size=global_batch_size, seed=seed
        ).numpy()
        for step in steps
    ]
    skipped = first - steps[0] * global_batch_size
    return np.concatenate(read)[skipped : skipped + count]


SEEDS = st.integers(0, 2**31 - 1)
NUM_EXAMPLES = st.integers(1, 30)
SMALL_BATCHES = st.integers(1, 40)


class TestPositions:
    @hypothesis.settings(max_examples=length.examples(40))
    @given(NUM_EXAMPLES, SMALL_BATCHES, SEEDS, st.integers(0, 2**33))
    def test_every_epoch_holds_every_example_once(self, num_examples, batch, seed, epoch):
        ids = ids_at(
            epoch * num_examples,
            num_examples,
            num_examples=num_examples,
            global_batch_size=batch,
            seed=seed,
        )
        assert sorted(ids) == list(range(num_examples))

    @hypothesis.settings(max_examples=length.examples(25))
    @given(NUM_EXAMPLES, SMALL_BATCHES, SMALL_BATCHES, SEEDS, st.integers(0, 2**36))
    def test_the_stream_is_the_same_in_batches_of_any_size(
        self, num_examples, one_batch, other_batch, seed, first
    ):
        one, other = (
            ids_at(first, 25, num_examples=num_examples, global_batch_size=batch, seed=seed)
            for batch in (one_batch, other_batch)
        )
        np.testing.assert_array_equal(one, other)


def draws_shown(images, draws) -> tf.Tensor:
    """What an image is distorted by, in place of pixels: int64 [batch, 4]."""
    seeds = tf.broadcast_to(draws.seed, [tf.shape(images)[0], 2])
    mirrored = tf.cast(draws.mirrored, tf.int64)[:, None]
    return tf.concat([tf.cast(images, tf.int64), seeds, mirrored], axis=1)


class TestTrainingBatches:
    """On images that are their own number, with labels that are another function of it."""

    @hypothesis.settings(max_examples=length.examples(12))
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
# float32 for the sum under test, and float64 for NumPy's beside it.
UNIT_ROUNDOFF = 2.0**-24 + 2.0**-53


class Part(NamedTuple):
    """One microbatch's gradient of one weight."""

    given: gradients.Gradient
    dense: np.ndarray  # float64, [] or [ROWS, ...]
    sizes: np.ndarray  # the sum of the terms' absolute values in each place
    counts: np.ndarray  # the number of terms in each place


def dense_part(values: np.ndarray, dtype: tf.DType) -> Part:
    tensor = tf.cast(tf.constant(values), dtype)
    exact = tf.cast(tensor, tf.float64).numpy()
    return Part(tensor, exact, np.abs(exact), np.ones(exact.shape))


def sparse_part(rows: list[int], values: np.ndarray, shape, dtype: tf.DType) -> Part:
    tensor = tf.cast(tf.constant(values), dtype)
    exact = tf.cast(tensor, tf.float64).numpy()
    sums = [np.zeros(shape) for _ in range(3)]
    for total, terms in zip(sums, (exact, np.abs(exact), np.ones(exact.shape)), strict=True):
        np.add.at(total, rows, terms)
    indices = tf.constant(rows, tf.int64, shape=[len(rows)])
    return Part(tf.IndexedSlices(tensor, indices, tf.constant(shape, tf.int64)), *sums)


def none_part(shape) -> Part:
    return Part(None, *[np.zeros(shape)] * 3)


KINDS = ("dense", "sparse", "none")


@st.composite
def parts_of_weights(draw, num_parts, factors=None):
    """`parts[w][p]` of up to three weights; each part's gradient times its factor."""
    factors = factors or [1] * num_parts
    weights = []
    for _ in range(draw(st.integers(1, 3), label="weights")):
        dtype = draw(st.sampled_from([tf.float32, tf.float32, tf.bfloat16, tf.float16]))
        kinds = draw(st.sampled_from([["dense"], ["sparse"], ["dense", "none"], ["none"], KINDS]))
        scalar = draw(st.booleans()) and "sparse" not in kinds
        shape = () if scalar else (ROWS, *draw(st.lists(st.integers(1, 3), max_size=2)))
        values = np.random.default_rng(draw(SEEDS))
        parts = []
        for factor in factors:
            kind = draw(st.sampled_from(kinds))
            # Sizes far apart, so that the order of a sum shows in its last bits.
            scale = 2.0 ** draw(st.integers(-4, 8)) * factor
            if kind == "none":
                parts.append(none_part(shape))
            elif kind == "dense":
                dense = np.float32(values.normal(size=shape) * scale)
                parts.append(dense_part(dense, dtype))
            else:
                rows = draw(st.lists(st.integers(0, ROWS - 1), max_size=4))
                sparse = np.float32(values.normal(size=(len(rows), *shape[1:])) * scale)
                parts.append(sparse_part(rows, sparse, shape, dtype))
        weights.append(parts)
    return weights


def tower_sums(weights, edges: list[int]) -> list[gradients.Sums]:
    """Of towers whose microbatches run from one edge to the next."""
    by_part = [[part.given for part in parts] for parts in zip(*weights, strict=True)]
    return [
        gradients.sum_over_share(by_part[a:b], range(a, b), len(by_part))
        for a, b in itertools.pairwise(edges)
    ]


def check_is_near(found: gradients.Gradient, parts: list[Part], *, over=1) -> None:
    """That `found` is the sum of `parts` over a number, and of the kind that they are.

    A sum of n terms, in whatever order, rounds each term at most n - 1 times, so it is off by at
    most g * sum(|term|), where g = k * u / (1 - k * u) for k = n - 1 (Higham 2002, Accuracy and
    Stability of Numerical Algorithms, section 4.2). A division adds 1 to k.
    """
    kinds = {type(part.given) for part in parts} - {type(None)}
    if not kinds:
        assert found is None
        return
    sparse = kinds == {tf.IndexedSlices}
    assert isinstance(found, tf.IndexedSlices) == sparse
    assert found.dtype == tf.float32
    sums, sizes, counts = (np.sum([part[field] for part in parts], axis=0) for field in (1, 2, 3))
    roundings = np.maximum(counts - 1, 0) + (over != 1)
    growth = roundings * UNIT_ROUNDOFF / (1 - roundings * UNIT_ROUNDOFF)
    if sparse:
        dense = np.zeros(sums.shape)
        np.add.at(dense, found.indices.numpy(), found.values.numpy().astype(np.float64))
    else:
        dense = found.numpy().astype(np.float64)
    assert dense.shape == sums.shape
    assert np.all(np.abs(dense - sums / over) <= growth * sizes / over)


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


def mean_of(sums, num_parts: int) -> list[gradients.Gradient]:
    """Of the towers' sums, the mean over all parts."""
    everything = {subtree: total for of_tower in sums for subtree, total in of_tower.items()}
    total = gradients.add_up(everything, (0, num_parts), gradients.add_weight_by_weight)
    return [one_gradient.over(gradient, num_parts) for gradient in total]


class TestReduction:
    @hypothesis.settings(max_examples=length.examples(60))
    @given(st.integers(1, 13), st.data())
    def test_is_numpy_s_in_any_split_into_towers(self, num_parts, data):
        weights = data.draw(parts_of_weights(num_parts))
        sums = tower_sums(weights, data.draw(edges_of_towers(num_parts), label="edges"))
        for gradient, parts in zip(mean_of(sums, num_parts), weights, strict=True):
            check_is_near(gradient, parts, over=num_parts)

    @hypothesis.settings(max_examples=length.examples(100))
    @given(st.integers(1, 13), st.data())
    def test_has_the_same_bits_in_any_split_into_towers(self, num_parts, data):
        weights = data.draw(parts_of_weights(num_parts))
        edges = data.draw(edges_of_towers(num_parts), label="edges")
        split, whole = (
            mean_of(tower_sums(weights, some), num_parts) for some in (edges, [0, num_parts])
        )
        assert [bits(gradient) for gradient in split] == [bits(gradient) for gradient in whole]

    @given(st.integers(1, 40), st.data())
    def test_a_share_is_handed_over_in_few_sums(self, num_parts, data):
        first = data.draw(st.integers(0, num_parts - 1))
        own = range(first, data.draw(st.integers(first + 1, num_parts)))
        found = gradients.subtrees(own, num_parts)
        assert [m for a, b in found for m in range(a, b)] == list(own)
        assert len(found) <= max(1, 2 * (num_parts - 1).bit_length() - 2)

    @given(st.integers(1, 40), SEEDS)
    def test_has_the_bits_of_float32_added_along_the_tree(self, num_parts, seed):
        values = np.random.default_rng(seed).normal(size=(num_parts, 5)).astype(np.float32)
        found = gradients.pairwise_tree([tf.constant(value) for value in values], tf.add)
        assert found.numpy().tobytes() == top_down(list(values)).tobytes()


@st.composite
def splits(draw, max_size=20):
    """Logits, whole numbers with ties among them, and labels."""
    classes = draw(st.sampled_from([2, 7]))
    count = draw(st.integers(1, max_size))
    rng = np.random.default_rng(draw(SEEDS))
    logits = rng.integers(-4, 5, size=(count, classes)).astype(np.float32)
    return logits, rng.integers(classes, size=count)


class TestEvaluation:
    @hypothesis.settings(max_examples=length.examples(30))
    @given(splits(), st.integers(1, 25))
    def test_every_example_counts_once_in_batches_of_any_size(self, split, batch):
        """Images are logits; each figure is NumPy's, over all the examples at once."""
        logits, labels = split
        numbers = batches.each_once(len(labels), batch).as_numpy_iterator()
        result = tally.evaluate(Unchanged(), [(logits[ids], labels[ids]) for ids in numbers])
        of_label = logits[np.arange(len(labels)), labels]
        losses = np.log(np.exp(logits.astype(np.float64)).sum(axis=1)) - of_label
        predicted = logits.argmax(axis=1)
        pairs = np.bincount(labels * logits.shape[1] + predicted, minlength=logits.shape[1] ** 2)
        assert result.as_metrics() == {
            "count": len(labels),
            "accuracy": (predicted == labels).mean(),
            "top5_accuracy": ((logits > of_label[:, None]).sum(axis=1) < 5).mean(),
            "cross_entropy": pytest.approx(losses.mean(), rel=1e-12),
        }
        np.testing.assert_array_equal(result.confusion.ravel(), pairs)


class Unchanged:
    """In place of a model: gives logits as they are."""

    @staticmethod
    def predict_on_batch(images):
        return images


RECORD = 3073
DAMAGES = ("none", "none", "none", "missing", "random", "cut", "longer", "label")


@st.composite
def files_of_records(draw):
    """The content of a `.bin` file, good or not; None for no file."""
    damage = draw(st.sampled_from(DAMAGES))
    if damage == "missing":
        return None
    if damage == "random":
        return draw(st.binary(max_size=20))
    labels = st.sampled_from([9, 10, 11, 255]) if damage == "label" else st.integers(0, 9)
    pixels = np.random.default_rng(draw(SEEDS))
    content = b"".join(
        bytes([label]) + pixels.bytes(RECORD - 1)
        for label in draw(st.lists(labels, min_size=1, max_size=3))
    )
    if damage == "cut":
        return content[: draw(st.integers(0, len(content)))]
    return content + (draw(st.binary(max_size=20)) if damage == "longer" else b"")


def is_good(content: bytes | None) -> bool:
    return bool(content) and len(content) % RECORD == 0 and max(content[::RECORD]) <= 9


PADDED = st.text(" \tab", max_size=5).filter(str.strip).map(str.encode)
LINES = st.one_of(PADDED, st.text(max_size=5).map(str.encode), st.binary(max_size=4))


class TestBinaryFiles:
    @given(st.sampled_from(list(cifar10_binary.SPLIT_FILES)), st.data())
    def test_are_read_as_numpy_reads_them_or_named(self, split, data):
        file_names = cifar10_binary.SPLIT_FILES[split]
        contents = {name: data.draw(files_of_records(), label=name) for name in file_names}
        wrong = [name for name, content in contents.items() if not is_good(content)]
        found = read(split, contents)
        if isinstance(found, str):
            assert wrong and found.startswith(f"FOLDER/{wrong[0]}")
            return
        assert not wrong
        content = b"".join(contents.values())
        records = [content[first : first + RECORD] for first in range(0, len(content), RECORD)]
        colours = (slice(1, 1025), slice(1025, 2049), slice(2049, 3073))
        images = [
            np.dstack([np.frombuffer(record[c], np.uint8).reshape(32, 32) for c in colours])
            for record in records
        ]
        np.testing.assert_array_equal(found.images, np.stack(images), strict=True)
        labels = np.array([record[0] for record in records], np.int32)
        np.testing.assert_array_equal(found.labels, labels, strict=True)


def read(split: str, contents: dict[str, bytes | None]) -> decoded.Decoded | str:
    """What the reader makes of a folder of such files: the split, or one line of complaint."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in contents.items():
            if content is not None:
                Path(folder, name).write_bytes(content)
        try:
            return cifar10_binary.read(Path(folder), split)
        except decoded.DataError as error:
            (line,) = str(error).splitlines()
            return line.replace(folder, "FOLDER")
