"""What `towers.distribute` does beside Keras: batch norm, draws, microbatches, devices, losses."""

import gc
import subprocess
import sys
import time
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
import toys
from keras import layers, ops

import towers
from towers import distribution, machine, model_state, separable

rng = np.random.default_rng(0)
X = rng.normal(size=(54, 8)).astype("float32")
Y = X[:, :3].argmax(axis=1)
CROSSENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
FIT = {"batch_size": 54, "shuffle": False, "verbose": 0}


def made(*between, loss=CROSSENTROPY, optimizer=None, num_towers=2, size=16, joined=None, **more):
    model = keras.Sequential([keras.Input((8,)), *between, layers.Dense(3)])
    weights = np.random.default_rng(1)
    for variable in model.trainable_variables:
        variable.assign(weights.normal(0, 0.3, variable.shape))
    model.compile(optimizer or keras.optimizers.SGD(0.1), loss, **more)
    return towers.distribute(model, num_towers, microbatch_size=size, joined_loss=joined)


def noting(outputs):
    """A loss that keeps the outputs that it is given."""

    def loss(y_true, y_pred):
        tf.py_function(lambda given: outputs.append(given.numpy()), [y_pred], [])
        return ops.mean(ops.square(y_pred), axis=-1)

    return loss


class Draws(layers.Layer):
    """Its outputs are what it draws, as often as told, in evaluation too."""

    def __init__(self, times=1):
        super().__init__()
        self.generator, self.times = keras.random.SeedGenerator(3), times

    def call(self, x):
        drawn = [keras.random.normal(ops.shape(x), seed=self.generator) for _ in range(self.times)]
        return ops.concatenate([0 * x + one for one in drawn], axis=1)


# Batch norm and draws


@pytest.mark.pitfall(23, 32)
@pytest.mark.parametrize("joined", [False, True])
def test_batch_norm_equals_keras_on_microbatches(joined):
    """Each starts from the same state; all they bring back is averaged, weighted by examples."""
    model = made(layers.Dense(6), layers.BatchNormalization(momentum=0.7), joined=joined)
    keras.utils.set_random_seed(1)
    other = keras.models.clone_model(model)
    other.set_weights(model.get_weights())
    history = model.fit(X, Y, epochs=2, **FIT)
    losses = []
    for _ in range(2):
        start = [np.array(v) for v in other.non_trainable_variables]
        rows, counts = [], []
        for first in range(0, 54, 16):
            for variable, value in zip(other.non_trainable_variables, start, strict=True):
                variable.assign(value)
            with tf.GradientTape() as tape:
                outputs = other(X[first : first + 16], training=True)
                loss = CROSSENTROPY(Y[first : first + 16], outputs)
            of_weights = tape.gradient(loss, [v.value for v in other.trainable_variables])
            state = [np.array(v) for v in other.non_trainable_variables]
            rows.append([loss, *of_weights, *state])
            counts.append(len(outputs))
        assert counts == [16, 16, 16, 6]
        loss, *mean = (np.average(np.stack(parts), 0, counts) for parts in zip(*rows, strict=True))
        losses.append(loss)
        for variable, gradient in zip(other.trainable_variables, mean, strict=False):
            variable.assign_sub(0.1 * gradient)
        state = mean[len(other.trainable_variables) :]
        for variable, value in zip(other.non_trainable_variables, state, strict=True):
            variable.assign(value)
    np.testing.assert_allclose(history.history["loss"], losses, 1e-5)
    toys.assert_close(model.get_weights(), other.get_weights(), 1e-5, 1e-6)


def test_a_microbatch_s_draws_begin_65_536_counts_after_the_one_before():
    """A run of another version has the same draws."""
    model, counters = toys.dropout_classifier(), tf.constant([7, 5], tf.uint32)
    state = [counters if "seed" in v.path else v.value for v in model.non_trainable_variables]
    advanced = model_state.with_draw_index(model, state, tf.constant(3, tf.int64))
    (draws,) = [value.numpy() for value in advanced if value.dtype == tf.uint32]
    assert draws.tolist() == [7, 5 + 3 * 65_536]


def test_draws_differ_between_microbatches_steps_epochs_and_fits():
    drawn = {}
    for num_towers in (1, 3):
        seen = drawn[num_towers] = []
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((1,)), layers.Dense(1), Draws(2)])
        model.compile(keras.optimizers.SGD(0.1), noting(seen))
        towers.distribute(model, num_towers, microbatch_size=16)
        for _ in range(2):
            model.fit(X[:, :1], X[:, :1], epochs=2, **FIT | {"batch_size": 27})
        assert model.layers[1].generator.state.numpy().tolist() == [3, 16 * 65_536]
    assert [len(one) for one in drawn[1]] == [27] * 8
    assert len(np.unique(np.concatenate(drawn[1]))) > 0.99 * 2 * 27 * 8
    np.testing.assert_array_equal(drawn[1], drawn[3])


@pytest.mark.parametrize("evaluate", [False, True])
def test_a_layer_that_draws_in_evaluation_draws_for_each_example(evaluate):
    """keras-io#1836, a VAE's sampling: 400 examples had 2 draws."""
    model, seen = keras.Sequential([keras.Input((1,)), Draws()]), []
    model.compile(loss="mse", metrics=[noting(seen)])
    towers.distribute(model, 2)
    examples = np.zeros((400, 1), "float32")
    if evaluate:
        model.evaluate(examples, examples, verbose=0)
        drawn = np.concatenate(seen)
    else:
        drawn, function = model.predict(examples, verbose=0), model.predict_function
        model.predict(examples, verbose=0)
        assert model.predict_function is function
    assert drawn.shape == (400, 1) and len(np.unique(drawn)) > 395
    assert abs(drawn.mean()) < 0.15 and 0.8 < drawn.std() < 1.2


# Microbatches


def test_a_microbatch_is_an_eighth_of_the_batch_but_at_least_16():
    sizes = [distribution.default_size(n) for n in (1, 128, 129, 1024)]
    assert sizes == [16, 16, 17, 128]


def test_any_size_of_microbatches_is_the_same_to_rounding():
    weights = []
    for num_towers, size in ((1, 20), (8, 1), (1, 7), (8, 100), (8, None)):
        model = made(layers.Dense(6, "relu"), num_towers=num_towers, size=size)
        model.fit(X[:20], Y[:20], **FIT)
        model.fit(X[:1], Y[:1], **FIT)
        weights.append(model.get_weights())
    for result in weights[1:]:
        toys.assert_close(result, weights[0], 1e-5, 1e-6)


def test_sizes_are_those_of_each_call_s_first_batch():
    """Batch norm shows them: an evaluation before, and another batch size, leave no trace."""
    many = np.tile(X, (6, 1)), np.tile(Y, 6)
    fit, weights = {"batch_size": 324, "verbose": 0, "shuffle": False}, []
    for size in (None, distribution.default_size(324)):
        model = made(layers.Dense(6), layers.BatchNormalization(), size=size)
        if size is None:
            before = model.get_weights()
            model.fit(X[:8], Y[:8], **FIT | {"batch_size": 8})
            model.set_weights(before)
            model.evaluate(X, Y, batch_size=54, verbose=0)
        model.fit(*many, epochs=2, validation_data=(X, Y), validation_batch_size=9, **fit)
        weights.append(model.get_weights())
    np.testing.assert_equal(*weights)


def test_an_unbuilt_model_is_built_for_batches_of_any_size():
    """So that its file, or an export, takes them, too."""
    model = keras.Sequential([layers.Dense(3)])
    model.compile("sgd", CROSSENTROPY)
    towers.distribute(model).fit(X, Y, **FIT)
    assert model.input_shape == (None, 8)


def test_an_update_is_counted_once_where_the_number_of_batches_is_unknown():
    """Keras 3.15 counts one more at the end of each epoch, as it looks for another batch."""
    batches = [(X[:32], Y[:32]), (X[32:50], Y[32:50])]
    signature = (tf.TensorSpec((None, 8)), tf.TensorSpec((None,), tf.int64))
    data = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=signature)
    model = made()
    model.fit(data, epochs=3, verbose=0)
    assert int(model.optimizer.iterations) == 6


def test_a_model_that_keras_has_fitted_is_on_towers_from_then_on(capfd):
    model = keras.Sequential([keras.Input((8,)), layers.Dense(3)])
    model.compile("sgd", CROSSENTROPY)
    model.fit(X, Y, **FIT)
    towers.distribute(model).fit(X, Y, **FIT)
    assert "towers" in capfd.readouterr().out  # as it says at its first batch


def test_predicts_without_compile():
    """And where layers were frozen since, which a prediction does not depend on."""
    model = keras.Sequential([keras.Input((8,)), layers.Dense(3)])
    expected = model.predict(X, verbose=0)
    towers.distribute(model, 2)
    for count in (54, 7):
        outputs = model.predict(X[:count], verbose=0)
        np.testing.assert_allclose(outputs, expected[:count], 1e-5, 1e-6)
        model.trainable = False


def test_says_once_how_a_batch_is_computed(capfd):
    model = made(num_towers=3, size=40)
    model.fit(X, Y, **FIT)
    model.evaluate(X, Y, verbose=0)
    message = capfd.readouterr().out
    assert message.count("40") == 1 and "3" in message and "1 of" in message


# Devices and scopes


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("num_towers", [1, 3])
def test_the_work_is_done_on_the_towers_devices(num_towers, joined):
    model = made(layers.Dense(6, "relu"), num_towers=num_towers, joined=joined)
    nodes = toys.nodes_run(lambda: model.train_on_batch(X, Y))
    ran = {(node.name, node.device.rsplit("device:")[-1], node.op) for node in nodes}
    for tower in range(num_towers):
        of_tower = [(device, op) for name, device, op in ran if f"tower_{tower}/" in name]
        assert {device for device, op in of_tower if op.endswith("MatMul")} == {f"CPU:{tower}"}
    products = [name for name, _, op in ran if op.endswith("MatMul")]
    # Forward 2 layers, backward 2 kernels and 1 input or 2, in each of 4 microbatches.
    assert len(products) in (4 * 5, 4 * 6) and all("tower_" in name for name in products)
    assert not any(f"tower_{num_towers}/" in name for name, *_ in ran)


class Watched(layers.Layer):
    """Notes when a microbatch passes it, forward as +1 and backward as -1."""

    def __init__(self, append):
        super().__init__()
        self.append = append

    def call(self, x):
        def noting(number, value):
            def note(array):
                self.append(number)
                time.sleep(0.01)
                return array

            noted = tf.numpy_function(note, [value], value.dtype, stateful=False)
            return tf.ensure_shape(noted, value.shape)

        @tf.custom_gradient
        def both(value):
            return noting(1, value), lambda gradient: noting(-1, gradient)

        return both(x)


@pytest.mark.parametrize("accumulate", [True, False])
def test_the_activations_of_few_microbatches_are_in_memory_together(accumulate):
    notes = []
    model = keras.Sequential(
        [keras.Input((8,)), layers.Dense(4), Watched(notes.append), layers.Dense(3)]
    )
    model.compile("sgd", CROSSENTROPY)
    towers.distribute(model, 1, microbatch_size=6, accumulate_gradients=accumulate)
    model.fit(X, Y, **FIT)
    assert len(notes) == 2 * 9
    cores = machine.available_cores()
    assert max(np.cumsum(notes)) <= (1 if accumulate else cores)


# Whose loss is it


def why(loss, cls=keras.Model):
    inputs = keras.Input((8,))
    model = cls(inputs, layers.Dense(3)(inputs))
    model.compile("sgd", loss)
    y = np.zeros([1], "int64") if "sparse" in str(loss) else np.zeros([1, 3], "float32")
    model._compile_loss.build(y, model(X[:1]))
    return separable.why_joined(model)


def test_losses_by_name_that_may_be_cut():
    of_classes = "sparse_categorical_crossentropy", "binary_crossentropy", "kl_divergence"
    for loss in ("mse", "huber", "cosine_similarity", *of_classes):
        assert not why(loss)


@pytest.mark.parametrize(
    "loss",
    [
        *("dice", "tversky", "circle"),
        keras.losses.MeanSquaredError(reduction="sum"),
        keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"),
        keras.losses.SparseCategoricalCrossentropy(ignore_class=1),
        keras.losses.CategoricalCrossentropy(axis=0),
        lambda y_true, y_pred: ops.square(y_true - y_pred),
        type("Own", (keras.losses.MeanSquaredError,), {"call": lambda *_: 0.0})(),
        type("Own", (keras.losses.MeanSquaredError,), {"__call__": lambda *_: 0.0})(),
    ],
)
def test_losses_that_are_joined(loss):
    assert why(loss)


def test_a_loss_of_a_model_s_own_is_joined():
    own = {"compute_loss": lambda self, *args, **kwargs: 0.0}
    assert why("mse", type("Own", (keras.Model,), own))


def test_a_mask_or_a_single_axis_joins_the_loss():
    masked = tf.zeros([4, 3])
    separable.check_outputs(masked)
    masked._keras_mask = tf.ones([4], tf.bool)
    for outputs in (tf.zeros([4]), masked):
        with pytest.raises(separable.NotSeparable):
            separable.check_outputs(outputs)


# Saved files, graphs, weights


@pytest.mark.long
def test_saved_files_do_not_need_towers(tmp_path):
    model = made(layers.Dense(6, "relu"), layers.BatchNormalization(), layers.Dropout(0.2))
    model.fit(X, Y, **FIT)
    model.save(tmp_path / "model.keras")
    np.save(tmp_path / "x.npy", X)
    program = (
        "import sys; sys.modules['towers'] = None; import keras, numpy as np\n"
        "model = keras.models.load_model('model.keras'); x = np.load('x.npy')\n"
        "np.save('outputs.npy', model.predict(x, verbose=0)); model.fit(x, x[:, 0] > 0, verbose=0)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    ours = model.predict(X, verbose=0)
    np.testing.assert_allclose(np.load(tmp_path / "outputs.npy"), ours, 1e-5, 1e-6)


def test_texts_of_many_lengths_have_few_graphs():
    traced = []

    class Traces(keras.layers.Layer):
        def call(self, x):
            traced.append(x.shape)
            return ops.cast(x, "float32")

    lengths, weights = range(5, 17), []
    texts = [np.random.default_rng(n).integers(0, 9, (16, n)) for n in lengths]
    for num_towers in (1, 3):
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [keras.Input((None, 1)), Traces(), layers.GlobalAveragePooling1D(), layers.Dense(3)]
        )
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        towers.distribute(model, num_towers, microbatch_size=5)
        for text in texts:
            model.train_on_batch(text[..., None], text[:, 0] % 3)
        weights.append(model.get_weights())
    assert len(traced) < 2 * len(lengths)  # for two sizes of microbatch, and two numbers of towers
    np.testing.assert_equal(*weights)


def test_frozen_layers_keep_their_last_bit():
    """(x + x + x) / 3 is not x for every x."""
    frozen = layers.Dense(50, trainable=False)
    model = made(frozen, size=18)
    before = frozen.get_weights()
    model.fit(X, Y, **FIT)
    np.testing.assert_equal(frozen.get_weights(), before)


def test_models_made_in_a_loop_are_freed():
    """keras#17458."""
    alive = []
    for _ in range(3):
        model = made()
        model.fit(X, Y, **FIT)
        model.evaluate(X, Y, verbose=0)
        alive.append(weakref.ref(model))
        del model
    gc.collect()
    assert [one() for one in alive] == [None] * 3
