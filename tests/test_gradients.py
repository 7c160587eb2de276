"""Gradients of several parts become one: order, None, IndexedSlices, mean and sum."""

import combinations
import keras
import numpy as np
import pytest
import tensorflow as tf
import toys

from towers import gradients
from towers.support import shares

ROWS = 5


def summed(parts):
    """One tower's sum of all microbatches, one gradient per weight."""
    ((_, total),) = gradients.sum_over_share(parts, range(len(parts)), len(parts)).items()
    return total


def leaves(parts):
    """The sums of towers of one microbatch each."""
    return [{(m, m + 1): part} for m, part in enumerate(parts)]


def slices(indices, values):
    """IndexedSlices of a [ROWS, 2] weight."""
    return tf.IndexedSlices(
        tf.constant(values, tf.float32), tf.constant(indices, tf.int64), tf.constant([ROWS, 2])
    )


@pytest.mark.parametrize(
    "parts, tree",
    [
        ("a", "a"),
        ("ab", "(ab)"),
        ("abc", "((ab)c)"),
        ("abcd", "((ab)(cd))"),
        ("abcde", "(((ab)(cd))e)"),
        ("abcdef", "(((ab)(cd))(ef))"),
        ("abcdefg", "(((ab)(cd))((ef)g))"),
        ("abcdefgh", "(((ab)(cd))((ef)(gh)))"),
    ],
)
def test_neighbours_are_added_first(parts, tree):
    assert gradients.pairwise_tree(list(parts), lambda a, b: f"({a}{b})") == tree


def test_nothing_to_add_is_refused():
    with pytest.raises(ValueError, match="nothing to add"):
        gradients.pairwise_tree([], max)


def test_float32_sum_is_the_one_of_the_pairwise_order():
    # Pairwise: (1 + 1e8) + (-1e8 + 1) = 1e8 - 1e8. One after the other it would be 1.
    parts = [[tf.constant(value)] for value in (1.0, 1e8, -1e8, 1.0)]
    assert summed(parts)[0].numpy() == 0.0


@pytest.mark.parametrize(
    ("own", "num_leaves", "expected"),
    [
        (range(0, 8), 8, [(0, 8)]),
        (range(0, 3), 8, [(0, 2), (2, 3)]),
        (range(3, 6), 8, [(3, 4), (4, 6)]),
        (range(1, 8), 8, [(1, 2), (2, 4), (4, 8)]),
        (range(4, 6), 6, [(4, 6)]),
        (range(2, 7), 7, [(2, 4), (4, 7)]),  # the last three are a subtree, for there are no more
        (range(2, 7), 8, [(2, 4), (4, 6), (6, 7)]),
        (range(5, 6), 8, [(5, 6)]),
    ],
)
def test_a_share_consists_of_the_largest_subtrees_in_it(own, num_leaves, expected):
    assert gradients.subtrees(own, num_leaves) == expected


def test_a_leaf_that_nobody_has_is_an_error():
    with pytest.raises(KeyError):
        gradients.add_up({(0, 1): 1, (2, 4): 1}, (0, 4), max)


@pytest.mark.parametrize("num_towers", range(1, 9))
@pytest.mark.parametrize("num_parts", [7, 8, 12])
def test_any_number_of_towers_has_the_bits_of_one(num_parts, num_towers):
    if num_towers > num_parts:
        return
    values = np.random.default_rng(0).normal(size=(num_parts, 100)).astype(np.float32)
    parts = [[tf.constant(value)] for value in values]
    of_towers = [
        gradients.sum_over_share([parts[m] for m in own], own, num_parts)
        for own in shares.evenly(num_parts, num_towers)
    ]
    (whole,) = gradients.reduce_towers([{(0, num_parts): summed(parts)}], num_parts, "sum")
    (found,) = gradients.reduce_towers(of_towers, num_parts, "sum")
    np.testing.assert_array_equal(found, whole)
    assert np.any(whole != np.add.accumulate(values)[-1])  # the order shows in the last bits


@pytest.mark.parametrize("num_parts", [1, 3, 5])
def test_sum_of_an_odd_number_of_parts(num_parts):
    parts = [[tf.constant([1.0, 10.0]) * part] for part in range(1, num_parts + 1)]
    total = num_parts * (num_parts + 1) / 2
    np.testing.assert_array_equal(summed(parts)[0], [total, 10 * total])


@pytest.mark.pitfall(21)
def test_none_counts_as_zero_and_stays_none_where_no_part_has_a_gradient():
    parts = [[None, tf.constant(2.0), None], [None, None, None], [None, None, tf.constant(6.0)]]
    reduced = gradients.reduce_towers(leaves([*parts, [None] * 3]), 4, "mean")
    assert reduced[0] is None
    # Divided by the number of microbatches, not by how many of them have a gradient.
    assert [value.numpy() for value in reduced[1:]] == [0.5, 1.5]


@pytest.mark.pitfall(21)
def test_indexed_slices_keep_the_indices_of_every_part():
    parts = [[slices([1], [[1.0, 2.0]])], [slices([3], [[5.0, 6.0]])], [None], [None]]
    (reduced,) = gradients.reduce_towers(leaves(parts), 4, "mean")
    assert isinstance(reduced, tf.IndexedSlices)
    expected = np.zeros([ROWS, 2])
    expected[1], expected[3] = [0.25, 0.5], [1.25, 1.5]
    np.testing.assert_array_equal(tf.convert_to_tensor(reduced), expected)


@pytest.mark.pitfall(21)
def test_rows_that_come_twice_are_added_up():
    parts = [[slices([4, 1], [[1.0, 2.0], [3.0, 4.0]])], [slices([1, 1], [[5.0, 6.0], [7.0, 8.0]])]]
    (reduced,) = gradients.reduce_towers(leaves(parts), 2, "sum")
    np.testing.assert_array_equal(reduced.indices, [4, 1])
    np.testing.assert_array_equal(reduced.values, [[1.0, 2.0], [15.0, 18.0]])


def test_indexed_slices_and_a_dense_gradient_add_up_to_a_dense_one():
    dense = tf.ones([ROWS, 2])
    (total,) = summed([[slices([2, 2], [[1.0, 2.0], [3.0, 4.0]])], [dense]])
    expected = np.ones([ROWS, 2])
    expected[2] = [5.0, 7.0]
    np.testing.assert_array_equal(total, expected)


@pytest.mark.pitfall(33)
def test_gradients_stay_in_the_order_of_the_weights():
    parts = [[tf.constant([1.0]), tf.constant(2.0)], [tf.constant([10.0]), tf.constant(20.0)]]
    first, second = summed(parts)
    np.testing.assert_array_equal(first, [11.0])
    np.testing.assert_array_equal(second, 22.0)


def test_parts_with_different_numbers_of_gradients_are_refused():
    parts = [[tf.constant(1.0)], [tf.constant(1.0), tf.constant(2.0)]]
    with pytest.raises(ValueError, match=r"different numbers of gradients: \[1, 2\]"):
        summed(parts)


def test_mean_divides_by_the_microbatches_and_sum_does_not():
    towers_sums = [{(0, 4): [tf.constant([6.0, 2.0])]}, {(4, 8): [tf.constant([2.0, 4.0])]}]
    np.testing.assert_array_equal(gradients.reduce_towers(towers_sums, 8, "mean")[0], [1.0, 0.75])
    np.testing.assert_array_equal(gradients.reduce_towers(towers_sums, 8, "sum")[0], [8.0, 6.0])


def test_weighted_parts_are_divided_by_their_weight():
    # Two microbatches of weight 3 and 1 with gradients 2 and 6: (3 * 2 + 1 * 6) / 4 = 3.
    sums = leaves([[tf.constant([6.0])], [tf.constant([6.0])]])
    weight = tf.constant(4.0)
    assert gradients.reduce_towers(sums, 2, "mean", weight)[0].numpy() == 3.0
    assert gradients.reduce_towers(sums, 2, "sum", weight)[0].numpy() == 6.0


@pytest.mark.pitfall(26)
@pytest.mark.parametrize("reduction", gradients.REDUCTIONS)
def test_parts_without_weight_leave_a_gradient_of_zero(reduction):
    sums = leaves([[tf.constant([0.0]), slices([1], [[0.0, 0.0]])]] * 2)
    dense, sparse = gradients.reduce_towers(sums, 2, reduction, tf.constant(0.0))
    assert dense.numpy() == 0.0
    np.testing.assert_array_equal(sparse.values, [[0.0, 0.0]])


@pytest.mark.parametrize("narrow", [tf.bfloat16, tf.float16])
def test_narrow_types_are_added_as_float32(narrow):
    # In bfloat16 and float16, 4096 + 1 = 4096.
    values = [4096.0, 1.0, 1.0, 1.0]
    (total,) = summed([[tf.constant([value], narrow)] for value in values])
    assert total.dtype == tf.float32 and total.numpy() == 4099.0
    sparse = [[tf.cast(tf.constant([[value] * 2]), narrow)] for value in values]
    parts = [[tf.IndexedSlices(v, tf.constant([2]), tf.constant([ROWS, 2]))] for (v,) in sparse]
    (reduced,) = gradients.reduce_towers([{(0, 4): summed(parts)}], 4, "sum")
    np.testing.assert_array_equal(reduced.values, [[4099.0, 4099.0]])
    assert summed([[tf.constant(1.0, tf.float64)]])[0].dtype == tf.float64


def test_a_factor_is_not_rounded_to_the_type_of_a_narrow_gradient():
    # 257 is 256 in bfloat16.
    one = tf.constant([[1.0]], tf.bfloat16)
    rows = tf.IndexedSlices(one, tf.constant([0]), tf.constant([1, 1]))
    dense, sparse = gradients.scale([one, rows], tf.constant(257.0))
    assert (dense.dtype, dense.numpy()) == (tf.float32, 257.0)
    assert (sparse.values.dtype, sparse.values.numpy()) == (tf.float32, 257.0)


def test_unknown_reduction_is_refused():
    with pytest.raises(ValueError, match="reduction='max': must be one of mean, sum"):
        gradients.reduce_towers(leaves([[tf.constant(1.0)]]), 1, "max")


def test_scaling_keeps_kind_and_dtype():
    kinds = [None, slices([1], [[2.0, 4.0]]), tf.constant(8.0, tf.float64)]
    none, sparse, dense = gradients.scale(kinds, 0.25)
    assert none is None
    np.testing.assert_array_equal(sparse.values, [[0.5, 1.0]])
    np.testing.assert_array_equal(sparse.indices, [1])
    assert dense.dtype == tf.float64 and dense.numpy() == 2.0


def test_global_norm_is_of_all_gradients_together():
    repeated = slices([0, 0], [[5.0, 0.0], [7.0, 0.0]])  # a row of 12
    norm = gradients.global_norm([tf.constant([3.0]), None, tf.constant([[4.0]]), repeated])
    assert norm.numpy() == 13.0


@pytest.mark.pitfall(22)
def test_sum_at_a_rate_is_mean_at_the_rate_times_the_microbatches():
    weights = {}
    for reduction, rate in [("sum", 0.125), ("mean", 0.5)]:
        run = toys.trainer(
            toys.classifier(),
            keras.optimizers.SGD(rate, momentum=0.5),
            num_towers=2,
            global_batch_size=8,
            num_microbatches=4,
            gradient_reduction=reduction,
        )
        for seed in range(3):
            run.train_step(*toys.batch(8, [3], seed=seed))
        weights[reduction] = run.state.model.get_weights()
    # Powers of two: equal to the last bit.
    for of_sum, of_mean in zip(weights["sum"], weights["mean"], strict=True):
        np.testing.assert_array_equal(of_sum, of_mean)
    assert np.any(weights["sum"][0] != toys.classifier().get_weights()[0])


def adam_weights(reduction, epsilon):
    run = toys.trainer(
        toys.classifier(),
        keras.optimizers.Adam(0.01, epsilon=epsilon),
        num_towers=2,
        global_batch_size=8,
        num_microbatches=4,
        gradient_reduction=reduction,
    )
    run.fit(toys.batch(8, [3], seed=seed) for seed in range(5))
    return np.concatenate([values.ravel() for values in run.state.model.get_weights()])


@pytest.mark.pitfall(22)
@pytest.mark.long
def test_adam_nearly_cancels_the_factor_of_sum():
    start = np.concatenate([values.ravel() for values in toys.classifier().get_weights()])
    moved = np.abs(adam_weights("mean", 1e-7) - start).max()
    assert moved > 0.01
    # Adam divides by the gradient's own size plus epsilon, and 4 is a power of two: without
    # epsilon the factor is gone but for the rounding of a square root; Keras's leaves a trace.
    apart = [
        np.abs(adam_weights("sum", epsilon) - adam_weights("mean", epsilon)).max()
        for epsilon in (1e-30, 1e-7, 1e-2)
    ]
    assert apart[0] < 1e-7 < apart[1] < 1e-4 < apart[2]


def mixed_model():
    """A layer each of float64, pure bfloat16, bfloat16 with float32 weights, and float32."""
    kinds = ["float64", "bfloat16", "mixed_bfloat16", "float32"]
    images = x = keras.Input([3], dtype="float64")
    for seed, kind in enumerate(kinds):
        x = keras.layers.Dense(
            toys.CLASSES,
            kernel_initializer=keras.initializers.GlorotUniform(seed=seed),
            dtype=keras.DTypePolicy(kind),
            name=kind,
        )(x)
    return keras.Model(images, x)


@pytest.mark.parametrize("num_towers", [1, 4])
@pytest.mark.parametrize("reduction", gradients.REDUCTIONS)
def test_weights_of_mixed_types_train_as_keras_trains_them(num_towers, reduction):
    model, keras_s = toys.on_cpu(mixed_model), toys.on_cpu(mixed_model)
    types = ["float64", "bfloat16", "float32", "float32"]
    assert [w.dtype for w in model.trainable_variables] == [t for t in types for _ in range(2)]
    start = [np.asarray(tf.cast(w, tf.float64)) for w in model.trainable_variables]
    images, labels = toys.batch(8, [3])
    run = toys.trainer(
        model,
        keras.optimizers.SGD(0.5 if reduction == "mean" else 0.125),
        num_towers=num_towers,
        global_batch_size=8,
        num_microbatches=4,
        gradient_reduction=reduction,
    )
    result = run.train_step(images, labels)
    assert [g.dtype for g in result.gradients[2:4]] == [tf.float32] * 2  # of bfloat16 weights
    keras_s.compile(
        keras.optimizers.SGD(0.5), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    keras_s.train_on_batch(images, labels)
    for mine, theirs, then in zip(
        model.trainable_variables, keras_s.trainable_variables, start, strict=True
    ):
        mine, theirs = (np.asarray(tf.cast(values, tf.float64)) for values in (mine, theirs))
        assert np.abs(theirs - then).max() > 1e-3
        # Two bfloat16 layers stand between every weight and the loss: 8 bits of mantissa.
        np.testing.assert_allclose(mine, theirs, rtol=2e-2, atol=2e-2 * np.abs(theirs - then).max())


WORDS = ROWS


def embedding_model(one_hot):
    """Two words to logits: the word vectors by look-up, or as a product with one-hot rows."""
    vectors = keras.initializers.RandomNormal(seed=1)
    if one_hot:
        words = keras.Input([2, WORDS])
        x = keras.layers.Dense(4, use_bias=False, kernel_initializer=vectors)(words)
    else:
        words = keras.Input([2], dtype="int32")
        x = keras.layers.Embedding(WORDS, 4, embeddings_initializer=vectors)(words)
    x = keras.layers.Flatten()(x)
    kernel = keras.initializers.GlorotUniform(seed=2)
    return keras.Model(words, keras.layers.Dense(toys.CLASSES, kernel_initializer=kernel)(x))


OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(0.5, momentum=0.5),
    "clipped": lambda: keras.optimizers.SGD(0.5, global_clipnorm=0.05),
    "adam": lambda: keras.optimizers.Adam(0.0625),
}


@pytest.mark.pitfall(21)
@pytest.mark.parametrize(
    ("optimizer", "weight", "num_towers"),
    combinations.crossed(
        OPTIMIZERS,
        [None, (1, 2, 0, 1, 3, 1, 0, 0)],
        [1, 4],
        often=[
            ("momentum", (1, 2, 0, 1, 3, 1, 0, 0), 4),
            ("clipped", None, 4),
            ("clipped", (1, 2, 0, 1, 3, 1, 0, 0), 1),
            ("adam", (1, 2, 0, 1, 3, 1, 0, 0), 4),
        ],
    ),
)
def test_embedding_trains_as_the_same_model_with_dense_gradients(optimizer, weight, num_towers):
    words = np.array([[1, 1], [1, 2], [0, 1], [1, 1], [2, 2], [3, 0], [1, 0], [2, 1]], np.int32)
    labels = np.arange(8) % toys.CLASSES
    weights = {}
    for one_hot in (False, True):
        model = toys.on_cpu(lambda one_hot=one_hot: embedding_model(one_hot))
        run = toys.trainer(
            model,
            OPTIMIZERS[optimizer](),
            num_towers=num_towers,
            global_batch_size=8,
            num_microbatches=4,
        )
        images = np.eye(WORDS, dtype=np.float32)[words] if one_hot else words
        for _ in range(2):
            result = run.train_step(images, labels, weight)
        assert isinstance(result.gradients[0], tf.Tensor if one_hot else tf.IndexedSlices)
        weights[one_hot] = model.get_weights()
    for sparse, dense in zip(weights[False], weights[True], strict=True):
        np.testing.assert_allclose(sparse, dense, rtol=1e-5, atol=1e-6)
    assert np.all(weights[False][0][4] == embedding_model(False).get_weights()[0][4])  # no word 4


@pytest.mark.pitfall(21)
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_weight_that_the_loss_does_not_depend_on_stays():
    images = keras.Input([1])
    used = keras.layers.Dense(1, kernel_initializer="ones", use_bias=False, name="used")
    unused = keras.layers.Dense(1, kernel_initializer="ones", use_bias=False, name="unused")
    outputs = keras.layers.Concatenate()([used(images), unused(images)])
    run = toys.trainer(
        toys.on_cpu(lambda: keras.Model(images, outputs)),
        num_towers=2,
        global_batch_size=2,
        loss=lambda labels, outputs: tf.stop_gradient(outputs[:, 1]) + outputs[:, 0],
    )
    result = run.train_step(toys.column(1.0, 3.0), [0, 0])
    assert used.kernel.numpy() == 1.0 - 0.5 * 2.0
    assert unused.kernel.numpy() == 1.0
    assert result.gradients[0].numpy() == 2.0
