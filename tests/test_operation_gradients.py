"""Gradients of biases in bfloat16, which TensorFlow sums in bfloat16, and of max pooling."""

import concurrent.futures
import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
import toys

import towers
from towers import networks, operation_gradients, step
from towers.networks import layers

# More than 256 values to a bias, which bfloat16 cannot add up.
KINDS = {
    "dense": (lambda: keras.layers.Dense(4), (600, 3)),
    "convolution": (lambda: keras.layers.Conv2D(4, 3), (20, 20, 3)),
    "one pixel": (lambda: keras.layers.Conv2D(64, 1), (20, 20, 32)),
    "depthwise": (lambda: keras.layers.DepthwiseConv2D(3), (20, 20, 3)),
    "transposed": (lambda: keras.layers.Conv2DTranspose(4, 3), (20, 20, 3)),
    "bias and ReLU": (layers.BiasRelu, (20, 20, 3)),
    "in a loop": (lambda: keras.layers.TimeDistributed(keras.layers.Dense(4)), (30, 30, 3)),
}


IMAGES = np.random.default_rng(0).uniform(0.5, 1.0, (4, 20 * 20 * 32)).astype(np.float32)


def after_a_step(kind, dtype, images=IMAGES, **on_towers):
    """What one step adds to the weights of a layer; its loss is linear in the outputs."""
    keras.config.set_dtype_policy(dtype)
    keras.utils.set_random_seed(0)
    make, shape = KINDS[kind]
    model = keras.Sequential([keras.Input(shape), make()])
    if on_towers:
        towers.distribute(model, 2, microbatch_size=2, **on_towers)
    model.compile(
        keras.optimizers.SGD(1.0),
        lambda labels, outputs: tf.reduce_mean(tf.cast(outputs, tf.float32), axis=[1, 2]),
        jit_compile=False,
    )
    before = model.get_weights()
    images = images[:, : np.prod(shape)].reshape(-1, *shape)
    model.train_on_batch(images, np.zeros(len(images), np.int32))
    return [new - old for new, old in zip(model.get_weights(), before, strict=True)]


@pytest.fixture(autouse=True)
def policy():
    yield
    keras.config.set_dtype_policy("float32")


@pytest.mark.pitfall(34)
@pytest.mark.parametrize(("kind", "joined"), [*((kind, False) for kind in KINDS), ("dense", True)])
def test_towers_are_those_of_float32(kind, joined):
    """Biases; kernels are Keras's in bfloat16, which some processors add up in bfloat16.

    A joined loss's backward passes are built outside of the forward ones.
    """
    *_, bias = after_a_step(kind, "float32")
    *kernels, result = after_a_step(kind, "mixed_bfloat16", joined_loss=joined)
    assert bias.ndim == 1
    np.testing.assert_allclose(result, bias, rtol=0.01)
    halves = [after_a_step(kind, "mixed_bfloat16", half)[:-1] for half in np.split(IMAGES, 2)]
    for kernel, *parts in zip(kernels, *halves, strict=True):
        plain = np.mean(parts, axis=0)
        assert np.linalg.norm(kernel - plain) < 0.01 * np.linalg.norm(plain)


def gradient(upstream, **options):
    """Of a bias."""
    bias = tf.zeros([upstream.shape[1 if options else -1]], upstream.dtype)

    @tf.function(autograph=False)
    def computed(upstream):
        with tf.GradientTape() as tape:
            tape.watch(bias)
            outputs = tf.nn.bias_add(tf.zeros_like(upstream), bias, **options)
        return tape.gradient(outputs, bias, output_gradients=upstream)

    kinds = {op.type for op in computed.get_concrete_function(upstream).graph.get_operations()}
    return np.asarray(computed(upstream), np.float64), "BiasAddGrad" in kinds


def test_tensorflow_s_own_is_wrong():
    """When this fails, the gradient of a bias can go."""
    outcome, is_own = gradient(tf.ones([2048, 3], tf.bfloat16))
    assert is_own and np.all(outcome < 0.5 * 2048)


@pytest.mark.parametrize(
    "shape, options", [([4, 8, 64, 3], {}), ([4, 3, 8, 64], {"data_format": "NCHW"})]
)
def test_it_sums_over_all_but_the_channels(shape, options):
    with operation_gradients.corrected(False):
        outcome, is_own = gradient(tf.ones(shape, tf.bfloat16), **options)
    assert not is_own
    np.testing.assert_array_equal(outcome, [2048.0] * 3)


def test_other_threads_have_tensorflow_s():
    """As Keras's `fit`, also while a tower is traced."""
    upstream = tf.ones([8, 3], tf.bfloat16)
    with concurrent.futures.ThreadPoolExecutor(1) as other:
        with operation_gradients.corrected(False):
            assert other.submit(gradient, upstream).result()[1]
            entered = contextlib.ExitStack()
            other.submit(entered.enter_context, operation_gradients.corrected(False)).result()
        assert gradient(upstream)[1]
        assert not other.submit(gradient, upstream).result()[1]
        other.submit(entered.close).result()
        assert other.submit(gradient, upstream).result()[1]


class TestMaxPooling:
    @pytest.mark.parametrize(
        "size, window, stride, padding",
        [(8, 3, 2, "SAME"), (7, 3, 2, "VALID"), (6, 2, 2, "VALID"), (5, 3, 1, "SAME")],
    )
    @pytest.mark.parametrize("kind", ["drawn", "with ties", "without an end", "half"])
    def test_has_tensorflow_s_bits(self, size, window, stride, padding, kind):
        drawn = np.random.default_rng(0).normal(size=(2, size, size + 1, 3))
        images = tf.constant(np.round(drawn) if kind == "with ties" else drawn, tf.float32)
        if kind == "without an end":
            images = tf.where(images < 0, -np.inf, images)
        if kind == "half":
            images = tf.cast(images, tf.bfloat16)

        def gradient():
            with tf.GradientTape() as tape:
                tape.watch(images)
                pooled = tf.nn.max_pool2d(images, window, stride, padding)
            upstream = tf.reshape(tf.range(tf.size(pooled)), pooled.shape)
            return tape.gradient(pooled, images, output_gradients=tf.cast(upstream, images.dtype))

        with operation_gradients.corrected(True):
            outcome = gradient()
        np.testing.assert_array_equal(outcome, gradient())

    @pytest.mark.parametrize(
        "name",
        [
            pytest.param(name, marks=pytest.mark.long if name == "resnet50" else ())
            for name in networks.NETWORKS
        ],
    )
    def test_no_network_s_program_has_a_scatter(self, name):
        """Whose additions have no order on a GPU."""
        model = networks.build(name, (32, 32, 3), 4)
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(), jit_compile=True)
        pass_ = step.Program(model, ["/CPU:0"], training=True, joined=False).pass_
        both = model.trainable_variables, model.non_trainable_variables
        weights, state = ([tf.convert_to_tensor(v.value) for v in part] for part in both)
        batch = tf.zeros([2, 32, 32, 3]), tf.zeros([2], tf.int64)
        inputs = weights, state, tf.constant(0, tf.int64), batch, None
        with operation_gradients.corrected(True):
            text = pass_.backward.experimental_get_compiler_ir(*inputs)(stage="hlo")
        assert "convolution" in text and "scatter" not in text

    @pytest.mark.parametrize("jit_compile", [False, True])
    def test_is_tensorflow_s_in_a_step_that_xla_does_not_compile(self, jit_compile):
        model = toys.small_cifarnet()
        model.compile("sgd", "mse", jit_compile=jit_compile)
        images, _ = toys.batch(8, model.input_shape[1:])
        batch = tf.constant(images, tf.float32), tf.zeros([8, 4])
        program = step.Program(model, ["/CPU:0", "/CPU:1"], training=True, joined=False)
        library = program.trace(batch, 4).graph.as_graph_def().library.function
        kinds = {node.op for function in library for node in function.node_def}
        assert ("MaxPoolGrad" in kinds) != jit_compile
