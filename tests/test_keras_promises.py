"""Promises to models and optimizers that no program of `keras_programs` has."""

import keras
import numpy as np
import pytest

import towers

WORDS = np.array([["a b"], ["b c"], ["c c"], ["a a"]] * 8)
VALUES = np.random.default_rng(0).normal(3, 2, size=(32, 3)).astype("float32")


def words_become_numbers_within_the_model():
    """After a lookup TensorFlow no longer knows how many examples there are."""
    vectors = keras.layers.TextVectorization(output_sequence_length=2)
    vectors.adapt(WORDS.ravel())
    between = [vectors, keras.layers.Embedding(8, 3), keras.layers.Flatten()]
    return keras.Input((1,), dtype="string"), between, keras.optimizers.SGD(0.5), WORDS


def a_layer_has_learned_from_the_data():
    """Normalization keeps what it learned as variables and as constants."""
    normalization = keras.layers.Normalization()
    normalization.adapt(VALUES)
    return keras.Input((3,)), [normalization], keras.optimizers.SGD(0.5), VALUES


def two_optimizers():
    """One for kernels, one for all else."""
    of_kernels, of_others = keras.optimizers.SGD(0.1), keras.optimizers.Adam(0.01)
    both = keras.optimizers.MultiOptimizer(
        lambda variable: of_kernels if variable.name == "kernel" else of_others
    )
    return keras.Input((3,)), [keras.layers.Dense(4, activation="relu")], both, VALUES


def trained(build, num_towers):
    """The losses of two epochs and the weights; of no towers by plain Keras."""
    keras.utils.set_random_seed(1)
    given, between, optimizer, x = build()
    model = keras.Sequential([given, *between, keras.layers.Dense(2)])
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    if num_towers:
        towers.distribute(model, num_towers, microbatch_size=4)
    data = keras.ops.convert_to_tensor(x), np.arange(32) % 2
    losses = model.fit(*data, batch_size=16, epochs=2, shuffle=False, verbose=0).history["loss"]
    return [losses, *(weight.numpy() for weight in model.trainable_weights)]


@pytest.mark.parametrize(
    "build",
    [words_become_numbers_within_the_model, a_layer_has_learned_from_the_data, two_optimizers],
)
def test_equals_keras_on_any_number_of_towers(build):
    theirs, on_one, on_three = (trained(build, num_towers) for num_towers in (0, 1, 3))
    for expected, found, other in zip(theirs, on_one, on_three, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(found, other)
