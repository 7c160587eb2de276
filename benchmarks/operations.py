"""The forms that single layers can take, timed side by side: forward pass and gradient.

    python -m benchmarks.operations

One process and one thread, a microbatch of 32; the forms take turns, and the least time counts.
docs/speed.md says which form the networks have, and why.
"""

import time
from collections.abc import Callable
from functools import partial

import towers  # noqa: F401  before Keras: it sets TensorFlow up
from benchmarks import turns
from towers import devices
from towers.networks import layers

import keras  # isort: skip
import tensorflow as tf  # isort: skip

HEAD = """\
| what | form | type | ms |
|---|---|---|---|"""
BATCH = 32
LRN = {"depth_radius": 4, "bias": 1.0, "alpha": 0.001 / 9.0, "beta": 0.75}
NORMALIZATION = "local response normalization"
FIRST_LAYERS = "convolution, bias, ReLU, pool"
BATCH_NORM = "batch norm"
ACTIVATION = "activation"


def main():
    """Times every form in every type."""
    options = turns.parser(__doc__, rounds=30).parse_args()
    devices.use_intra_op_threads(1)
    devices.run_graphs_as_written()
    rows = [row for dtype in (tf.float32, tf.bfloat16) for row in measure(dtype, options.rounds)]
    turns.report(HEAD, rows, as_row, options.output)


def measure(dtype: tf.DType, rounds: int) -> list[dict]:
    """One object for each form."""

    def normal(*shape):
        return tf.cast(tf.random.stateless_normal(shape, seed=[0, len(shape)]), dtype)

    pooled, images = normal(BATCH, 12, 12, 64), normal(BATCH, 24, 24, 3)
    kernel, bias = normal(5, 5, 3, 64), normal(64)
    timed = {}
    for what, form, function in (
        (NORMALIZATION, "`tf.nn.lrn`", lambda x: tf.nn.lrn(x, **LRN)),
        (NORMALIZATION, "band, `tf.pow`", band_and_pow),
        (NORMALIZATION, "band, square roots", normalized),
    ):
        if dtype != tf.bfloat16 or form != "`tf.nn.lrn`":  # which has no such kernel on a CPU
            timed[what, form] = with_gradients(function, [pooled])
    for form, function in (("textbook", relu_then_pool), ("pool first", pool_then_relu)):
        timed[FIRST_LAYERS, form] = with_gradients(function, [images, kernel, bias], [kernel, bias])
    block = normal(BATCH, 15, 15, 64)  # the first of fastnet's
    for form, layer in (
        ("Keras's layer", keras.layers.BatchNormalization),
        ("one fused operation", layers.FusedBatchNormalization),
    ):
        norm = layer(dtype="mixed_bfloat16" if dtype == tf.bfloat16 else dtype.name)
        norm.build(block.shape)
        timed[BATCH_NORM, form] = with_gradients(partial(norm, training=True), [block])
    for form in ("gelu", "elu", "relu"):
        timed[ACTIVATION, form] = with_gradients(getattr(tf.nn, form), [block])
    seconds = {key: [] for key in timed}
    for run in timed.values():
        run()  # traces
    for _ in range(rounds):
        for key, run in timed.items():
            begun = time.perf_counter()
            run()
            seconds[key].append(time.perf_counter() - begun)
    return [
        {"what": what, "form": form, "dtype": dtype.name, "rounds": rounds}
        | {"milliseconds": round(1000 * min(seconds[what, form]), 3)}
        | turns.conditions()
        for what, form in timed
    ]


def normalized(x: tf.Tensor) -> tf.Tensor:
    """What the networks have."""
    return layers.local_response_normalization(x, **LRN)


def band_and_pow(x: tf.Tensor) -> tf.Tensor:
    """A product with a banded matrix, a power, and the tape's gradient of them."""
    band = tf.linalg.band_part(tf.ones([64, 64], x.dtype), LRN["depth_radius"], LRN["depth_radius"])
    rows = tf.reshape(tf.square(x), [-1, 64])
    sums = tf.reshape(tf.matmul(rows, band), tf.shape(x))
    return x * (LRN["bias"] + LRN["alpha"] * sums) ** -LRN["beta"]


def relu_then_pool(images: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """As in the textbook."""
    x = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(images, kernel, 1, "SAME"), bias))
    return tf.nn.max_pool2d(x, 3, 2, "SAME")


def pool_then_relu(images: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """As in `cifarnet`."""
    x = tf.nn.max_pool2d(tf.nn.conv2d(images, kernel, 1, "SAME"), 3, 2, "SAME")
    return tf.nn.relu(tf.nn.bias_add(x, bias))


def with_gradients(function: Callable, arguments: list, wanted: list | None = None) -> Callable:
    """Runs the function and its gradients, with respect to all arguments or to those wanted."""
    places = [
        place
        for place, argument in enumerate(arguments)
        if wanted is None or any(argument is one for one in wanted)
    ]

    @tf.function(autograph=False)
    def both(*values):
        with tf.GradientTape() as tape:
            tape.watch(values)
            outputs = function(*values)
        return outputs, tape.gradient(outputs, [values[place] for place in places])

    return lambda: both(*arguments)


def as_row(row: dict) -> str:
    """One row of the table."""
    return f"| {row['what']} | {row['form']} | {row['dtype']} | {row['milliseconds']:.2f} |"


if __name__ == "__main__":
    main()
