"""The LSTM that is fast, beside Keras's own."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import toys

from towers import devices, networks
from towers.networks import recurrent
from towers.support import machine

BATCH, TIME, FEATURES, UNITS = 3, 7, 5, 4
KINDS = {
    "last output": {},
    "sequence": {"return_sequences": True},
    "states, backwards": {"return_sequences": True, "return_state": True, "go_backwards": True},
    "no bias": {"use_bias": False},
    "stateful": {"stateful": True},
    "dropout": {"dropout": 0.5},
    "other activation": {"activation": "relu"},
}


def both(shape=(BATCH, TIME, FEATURES), **arguments):
    """Keras's layer and this one with the same weights."""
    made = []
    for kind in (keras.layers.LSTM, recurrent.FusedLSTM):
        layer = toys.on_cpu(lambda kind=kind: kind(UNITS, name="lstm", **arguments))
        layer.build(shape)
        for number, weight in enumerate(layer.trainable_variables):
            weight.assign(np.random.default_rng(number).normal(0.0, 0.5, weight.shape))
        made.append(layer)
    return made


def found(layer, x, training=False, **options):
    """Outputs and states, and the gradients of inputs and weights."""
    weights = [weight.value for weight in layer.trainable_variables]
    given = [x, *tf.nest.flatten(options)]

    @tf.function
    def computed():
        with tf.GradientTape() as tape:
            tape.watch([*given, *weights])
            outputs = tf.nest.flatten(layer(x, training=training, **options))
            values = [(1 + k) * tf.reduce_sum(tf.sin(out)) for k, out in enumerate(outputs)]
            total = tf.add_n(values)
        return outputs, tape.gradient(total, [x, *weights])

    return tf.nest.flatten(computed())


def gradients(layer, jit_compile=False):
    """A function of inputs: the gradients of the weights."""
    weights = [weight.value for weight in layer.trainable_variables]

    @tf.function(jit_compile=jit_compile)
    def computed(x):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            total = tf.reduce_sum(tf.cast(layer(x), tf.float32))
        return tape.gradient(total, weights)

    return computed


def loops(layer, jit_compile=False):
    """What its loops over time do, each as the definition of a function."""
    graph = gradients(layer, jit_compile).get_concrete_function(inputs()).graph.as_graph_def()
    return [f for f in graph.library.function if "while" in f.signature.name]


def inputs(seed=0):
    rng = np.random.default_rng(seed)
    return tf.constant(rng.normal(size=(BATCH, TIME, FEATURES)), tf.float32)


def assert_same(layers, *arguments, **options):
    theirs, mine = (found(layer, *arguments, **options) for layer in layers)
    assert len(theirs) == len(mine) > 2
    for one, other in zip(theirs, mine, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_keras_s_function_with_its_gradients(kind):
    layers = both(**KINDS[kind])
    assert_same(layers, inputs())
    if kind == "stateful":  # goes on from where it was
        assert_same(layers, inputs(1))


@pytest.mark.long
def test_gradients_of_its_gradients_are_keras_s():
    def of_the_square(layer, x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                total = tf.reduce_sum(tf.sin(layer(x)))
            square = tf.reduce_sum(tf.square(inner.gradient(total, x)))
        return outer.gradient(square, x)

    theirs, mine = (tf.function(of_the_square)(layer, inputs()) for layer in both())
    assert np.abs(theirs).max() > 0.01
    np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)


def test_it_begins_with_the_states_that_are_given():
    states = [tf.constant(np.random.default_rng(k).normal(size=(BATCH, UNITS)), tf.float32)
              for k in (1, 2)]  # fmt: skip
    layers = both(return_state=True)
    assert_same(layers, inputs(), initial_state=states)
    first, second = (found(layers[1], inputs(), initial_state=s)[0] for s in (states, states[::-1]))
    assert np.abs(first - second).max() > 0.01


def test_a_mask_is_kept():
    mask = tf.constant([[True] * 4 + [False] * 3, [True] * TIME, [True, False] * 3 + [True]])
    layers = both()
    assert_same(layers, inputs(), mask=mask)
    assert np.abs(layers[1](inputs()) - layers[1](inputs(), mask=mask)).max() > 0.01


def test_dropout_in_training_is_keras_s():
    """With one seed, the same values are dropped."""
    theirs, mine = both(dropout=0.5, seed=3)
    np.testing.assert_array_equal(mine(inputs(), training=True), theirs(inputs(), training=True))
    assert np.abs(mine(inputs(), training=True) - mine(inputs())).max() > 0.01


NARROW = [("bfloat16", True), ("bfloat16", False), ("float16", True)]


@pytest.mark.parametrize("dtype, multiplies_bfloat16", NARROW)
def test_narrow_types_are_closer_to_float32_than_keras_s(dtype, multiplies_bfloat16, monkeypatch):
    """Outputs, and the gradients of inputs and weights."""
    monkeypatch.setattr(machine, "multiplies_bfloat16", lambda: multiplies_bfloat16)
    exact = found(both()[0], inputs())
    theirs, mine = (found(layer, inputs()) for layer in both(dtype=f"mixed_{dtype}"))
    assert mine[0].dtype == dtype and len(exact) == len(theirs) == len(mine) == 5

    def error(values):
        pairs = zip(values, exact, strict=True)
        return [np.linalg.norm(tf.cast(a, tf.float32) - b) / np.linalg.norm(b) for a, b in pairs]

    assert sum(error(mine)) < 0.9 * sum(error(theirs)) and max(error(mine)) < 0.02
    assert all(one > 0 for one in error(mine))


@pytest.mark.parametrize("by_xla", [False, True])
@pytest.mark.parametrize("dtype, multiplies_bfloat16", NARROW)
def test_matrices_are_multiplied_in_bfloat16_where_that_is_fast(
    dtype, multiplies_bfloat16, by_xla, monkeypatch
):
    flags = "avx512f amx_bf16" if multiplies_bfloat16 else "avx512f"
    monkeypatch.setattr(machine, "_of_cpuinfo", lambda name: flags)
    bodies = loops(both(dtype=f"mixed_{dtype}")[1], jit_compile=by_xla)
    products = [node for body in bodies for node in body.node_def if node.op == "MatMul"]
    fast = dtype == "bfloat16" and multiplies_bfloat16 and not by_xla
    expected = tf.bfloat16 if fast else tf.float32
    assert products and {node.attr["T"].type for node in products} == {expected.as_datatype_enum}


@pytest.mark.parametrize("return_sequences", [False, True])
def test_steps_are_read_from_tensors_not_from_copies_of_them(return_sequences):
    """A TensorArray that is made from a tensor copies all of it."""
    layer = both(return_sequences=return_sequences)[1]
    graph = gradients(layer).get_concrete_function(inputs()).graph.as_graph_def()
    nodes = [node for f in graph.library.function for node in f.node_def] + list(graph.node)
    kinds = {node.op for node in nodes}
    assert "TensorListReserve" in kinds and "TensorListFromTensor" not in kinds


@pytest.mark.parametrize(
    "steps, known",
    [(1, True), (9, True), (9, False), pytest.param(16, True, marks=pytest.mark.long)],
)
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_steps_in_one_iteration_do_not_show_in_the_bits(steps, known, dtype, monkeypatch):
    """Nor do the zeros that fill up the last iteration."""
    devices.run_graphs_as_written()  # as a Trainer does
    random = np.random.default_rng(steps)
    shapes = {
        "inputs": [steps, 4, FEATURES],
        "kernel": [4 * UNITS, FEATURES],
        "recurrent": [4 * UNITS, UNITS],
        "bias": [4 * UNITS],
        "h": [UNITS, 4],
        "c": [UNITS, 4],
    }
    types = [tf.float32 if name in ("bias", "c") else dtype for name in shapes]
    values = (random.normal(size=shape) for shape in shapes.values())
    given = [tf.cast(value, kind) for value, kind in zip(values, types, strict=True)]
    to_h, to_c = (tf.cast(random.normal(size=[steps, UNITS, 4]), tf.float32) for _ in range(2))
    signature = [tf.TensorSpec(value.shape, value.dtype) for value in given]
    if not known:
        signature[0] = tf.TensorSpec([None, None, FEATURES], dtype)
    found = []
    for at_once in (1, 4):
        monkeypatch.setattr(recurrent, "AT_ONCE", at_once)

        @tf.function(input_signature=signature)
        def computed(*given):
            with tf.GradientTape() as tape:
                tape.watch(given)
                h, c = recurrent.lstm_loop(*given)
                total = tf.reduce_sum(tf.cast(h, tf.float32) * to_h) + tf.reduce_sum(c * to_c)
            return h, c, *tape.gradient(total, given)

        found.append(computed(*given))
    for one, four in zip(*found, strict=True):
        np.testing.assert_array_equal(one, four)


def test_its_loop_has_one_product_for_a_step_each_way(monkeypatch):
    """What makes it fast: of three products forward, two are outside; backward, three."""
    monkeypatch.setattr(recurrent, "AT_ONCE", 1)

    def products(layer):
        return [sum(node.op == "MatMul" for node in body.node_def) for body in loops(layer)]

    theirs, mine = (products(layer) for layer in both())
    assert max(mine) == 1 and sum(mine) == 2
    assert sum(theirs) > 2


def tokens_model():
    x = keras.Input([TIME], dtype="int32")
    y = keras.layers.Embedding(9, FEATURES, mask_zero=True)(x)
    y = keras.layers.Bidirectional(
        keras.layers.LSTM(UNITS, return_sequences=True, name="one"), name="both"
    )(y)
    y = keras.layers.LSTM(UNITS, name="two", dropout=0.1)(y)
    return keras.Model(x, keras.layers.Dense(toys.CLASSES)(y))


def test_fused_puts_it_in_its_place():
    model = toys.on_cpu(tokens_model)
    made = networks.fused(model)
    paths = [[v.path for v in one.trainable_variables] for one in (model, made)]
    assert paths[0] == paths[1]
    ways = made.get_layer("both")
    kinds = [type(layer) for layer in (ways.forward_layer, ways.backward_layer)]
    assert [*kinds, type(made.get_layer("two"))] == [recurrent.FusedLSTM] * 3
    assert (ways.forward_layer.go_backwards, ways.backward_layer.go_backwards) == (False, True)
    tokens = np.random.default_rng(0).integers(0, 9, (BATCH, TIME))
    np.testing.assert_allclose(made(tokens), model(tokens), rtol=1e-5, atol=1e-6)
    tokens = np.random.default_rng(0).integers(1, 9, (BATCH, TIME))  # no mask
    np.testing.assert_allclose(made(tokens), model(tokens), rtol=1e-5, atol=1e-6)


def test_it_is_saved_and_loaded(tmp_path):
    made = networks.fused(toys.on_cpu(tokens_model))
    made.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.get_layer("two")) is recurrent.FusedLSTM
    tokens = np.random.default_rng(0).integers(0, 9, (BATCH, TIME))
    np.testing.assert_array_equal(loaded(tokens), made(tokens))


@pytest.mark.parametrize("num_towers", [pytest.param(1, marks=pytest.mark.long), 3])
def test_it_trains_as_keras_s_does(num_towers):
    """And on any number of towers to the same bits."""
    tokens = np.random.default_rng(0).integers(1, 9, (6, TIME)).astype(np.int32)
    labels = np.arange(6) % toys.CLASSES
    ends = []
    for change, towers in ((lambda m: m, 1), (networks.fused, 1), (networks.fused, num_towers)):
        keras.utils.set_random_seed(0)
        plain = keras.Sequential(
            [
                keras.Input([TIME], dtype="int32"),
                keras.layers.Embedding(9, FEATURES),
                keras.layers.LSTM(UNITS),
                keras.layers.Dense(toys.CLASSES),
            ]
        )
        model = toys.on_cpu(lambda plain=plain, change=change: change(plain))
        run = toys.trainer(
            model, keras.optimizers.SGD(0.5), num_towers=towers, global_batch_size=6,
            num_microbatches=3,
        )  # fmt: skip
        losses = run.fit([(tokens, labels)] * 3)
        ends.append((losses, [v.numpy() for v in model.trainable_variables], run.state.sha256()))
    assert ends[1][2] == ends[2][2]
    for one, other in zip(ends[0][1], ends[1][1], strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(ends[1][0], ends[0][0], rtol=1e-5)
    assert ends[0][0][0] > ends[0][0][-1]


@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=pytest.mark.long)])
def test_the_length_may_differ_from_batch_to_batch(jit_compile):
    theirs, mine = (
        tf.function(
            layer,
            input_signature=[tf.TensorSpec([None, None, FEATURES])],
            jit_compile=jit_compile or None,
        )
        for layer in both((None, None, FEATURES), use_cudnn=False)
    )
    for time in (TIME, 2, 1):
        x = inputs()[:2, :time]
        np.testing.assert_allclose(mine(x), theirs(x), rtol=1e-5, atol=1e-6)
