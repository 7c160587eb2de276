"""Gradients of convolution kernels in bfloat16: TensorFlow's operation, and products of matrices.

    python -m benchmarks.kernel_gradients

One thread; the best of 30 calls, in turns. Shapes from ResNet-50, MobileNetV2 and `fastnet`. In
rows with a *, `networks.layers.Conv2D` keeps TensorFlow's operation.
"""

import time

import towers  # noqa: F401  before TensorFlow: it turns oneDNN on
from benchmarks import turns
from towers import devices
from towers.networks import layers

import tensorflow as tf  # isort: skip

BATCHES = (4, 16, 64)
SHAPES = (  # size of the kernel, pixels of a side of the image, channels, filters
    (1, 56, 64, 256),
    (1, 28, 512, 128),
    (1, 14, 96, 576),
    (1, 14, 256, 1024),
    (1, 7, 512, 2048),
    (1, 3, 320, 1280),
    (3, 7, 256, 256),
    (3, 7, 512, 512),
    (3, 4, 512, 512),
    (3, 3, 256, 256),
    (3, 14, 256, 256),
    (3, 14, 64, 256),
    (1, 28, 16, 16),
)
HEAD = """\
| kernel | image | channels, filters | batch | TensorFlow's, ms | products, ms | ratio |
|---|---|---|---|---|---|---|"""


def main():
    """Measures all shapes, and prints a table."""
    options = turns.parser(__doc__, rounds=30).parse_args()
    devices.use_intra_op_threads(1)
    devices.run_graphs_as_written()  # as in a Trainer
    rows = (measure(*shape, n, options.rounds) for shape in SHAPES for n in BATCHES)
    turns.report(HEAD, rows, as_row, options.output)


def measure(size: int, pixels: int, channels: int, filters: int, n: int, rounds: int) -> dict:
    """Milliseconds of both forms for a batch of `n`."""
    inputs, upstream = (
        tf.cast(tf.random.stateless_normal([n, pixels, pixels, depth], [0, depth]), tf.bfloat16)
        for depth in (channels, filters)
    )
    shape = tf.TensorShape([size, size, channels, filters])
    forms = {
        "tensorflow_s": lambda x, dy: tf.raw_ops.Conv2DBackpropFilter(
            input=x, filter_sizes=shape, out_backprop=dy, strides=[1] * 4, padding="SAME"
        ),
        "products": lambda x, dy: layers.gradient_of_kernel(x, dy, shape, "SAME"),
    }
    graphs = {name: tf.function(form, autograph=False) for name, form in forms.items()}
    best = {name: float("inf") for name in forms}
    for _ in range(rounds + 1):
        for name, graph in graphs.items():
            began = time.perf_counter()
            graph(inputs, upstream)
            best[name] = min(best[name], time.perf_counter() - began)
    layer = layers.Conv2D(filters, size, padding="same", dtype="bfloat16")
    return (
        {"size": size, "pixels": pixels, "channels": channels, "filters": filters, "batch": n}
        | {"is_of_products": layer.has_slow_gradient(inputs.shape)}
        | {f"milliseconds_of_{name}": round(1000 * seconds, 2) for name, seconds in best.items()}
        | {"ratio": round(best["tensorflow_s"] / best["products"], 2)}
        | turns.conditions()
    )


def as_row(row: dict) -> str:
    """One row of the table."""
    theirs, ours = (row[f"milliseconds_of_{name}"] for name in ("tensorflow_s", "products"))
    mark = "" if row["is_of_products"] else " *"
    return (
        f"| {row['size']} × {row['size']} | {row['pixels']} × {row['pixels']} "
        f"| {row['channels']}, {row['filters']} | {row['batch']} | {theirs:.2f} | {ours:.2f} "
        f"| {row['ratio']:.2f}{mark} |"
    )


if __name__ == "__main__":
    main()
