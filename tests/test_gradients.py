"""Gradients of several parts become one: order, None, IndexedSlices, mean and sum."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import toys

from towers import gradients, shares

ROWS = 5


def summed(parts):
    """One tower's sum of all microbatches, one gradient per weight."""
    ((_, total),) = gradients.sum_over_share(parts, range(len(parts)), len(parts)).items()
    return total


def total_of(tower_sums, num_parts):
    """The sum over the whole tree, from the towers' sums."""
    sums = {subtree: total for one in tower_sums for subtree, total in one.items()}
    return gradients.add_up(sums, (0, num_parts), gradients.add_weight_by_weight)


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
    (whole,), (found,) = summed(parts), total_of(of_towers, num_parts)
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
    total = summed([*parts, [None] * 3])
    assert total[0] is None
    assert [value.numpy() for value in total[1:]] == [2.0, 6.0]


@pytest.mark.pitfall(21)
def test_indexed_slices_keep_the_indices_of_every_part():
    parts = [[slices([1], [[1.0, 2.0]])], [slices([3, 1], [[5.0, 6.0], [7.0, 8.0]])], [None]]
    (total,) = summed(parts)
    assert isinstance(total, tf.IndexedSlices)
    np.testing.assert_array_equal(total.indices, [1, 3, 1])
    np.testing.assert_array_equal(total.values, [[1.0, 2.0], [5.0, 6.0], [7.0, 8.0]])


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


@pytest.mark.parametrize("narrow", [tf.bfloat16, tf.float16])
def test_narrow_types_are_added_as_float32(narrow):
    # In bfloat16 and float16, 4096 + 1 = 4096.
    values = [4096.0, 1.0, 1.0, 1.0]
    (total,) = summed([[tf.constant([value], narrow)] for value in values])
    assert total.dtype == tf.float32 and total.numpy() == 4099.0
    sparse = [[tf.cast(tf.constant([[value] * 2]), narrow)] for value in values]
    parts = [[tf.IndexedSlices(v, tf.constant([2]), tf.constant([ROWS, 2]))] for (v,) in sparse]
    np.testing.assert_array_equal(tf.reduce_sum(summed(parts)[0].values, axis=0), [4099.0] * 2)
    assert summed([[tf.constant(1.0, tf.float64)]])[0].dtype == tf.float64


def test_a_factor_is_not_rounded_to_the_type_of_a_narrow_gradient():
    # 257 is 256 in bfloat16.
    one = tf.constant([[1.0]], tf.bfloat16)
    rows = tf.IndexedSlices(one, tf.constant([0]), tf.constant([1, 1]))
    dense, sparse = gradients.scale([one, rows], tf.constant(257.0))
    assert (dense.dtype, dense.numpy()) == (tf.float32, 257.0)
    assert (sparse.values.dtype, sparse.values.numpy()) == (tf.float32, 257.0)


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
def test_weights_of_mixed_types_train_as_keras_trains_them(num_towers):
    model, keras_s = toys.on_cpu(mixed_model), toys.on_cpu(mixed_model)
    start = [np.asarray(tf.cast(w, tf.float64)) for w in model.trainable_variables]
    images, labels = toys.batch(8, [3])
    result = toys.Step(model, num_towers=num_towers, microbatch=2)(images, labels)
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


@pytest.mark.pitfall(21)
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_weight_that_the_loss_does_not_depend_on_stays():
    images = keras.Input([1])
    used = keras.layers.Dense(1, kernel_initializer="ones", use_bias=False, name="used")
    unused = keras.layers.Dense(1, kernel_initializer="ones", use_bias=False, name="unused")
    outputs = keras.layers.Concatenate()([used(images), unused(images)])
    step = toys.Step(
        toys.on_cpu(lambda: keras.Model(images, outputs)),
        num_towers=2,
        loss=lambda labels, outputs: tf.stop_gradient(outputs[:, 1]) + outputs[:, 0],
    )
    result = step(toys.column(1.0, 3.0), [0, 0])
    assert used.kernel.numpy() == 1.0 - 0.5 * 2.0
    assert unused.kernel.numpy() == 1.0
    assert result.gradients[0].numpy() == 2.0
