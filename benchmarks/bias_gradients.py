"""How wrong the gradient of a bias is in bfloat16 on a CPU: in Keras's `fit`, and here.

    python -m benchmarks.bias_gradients

One step of SGD with a rate of 1, whose update is the gradient, of a dense layer over sequences and
of a depthwise convolution; 10 draws of each. The error is that of all biases together, relative to
a step in float32: |update - exact| / |exact|, with Euclidean norms.
"""

import statistics

import towers  # isort: skip  before Keras: it sets TensorFlow up
import keras
import numpy as np
import tensorflow as tf

from benchmarks import turns

POSITIONS = (64, 256, 1024, 4096, 16384)  # of one example; a bias has a value in each of them
CHANNELS = 16
LAYERS = {
    "Dense": (lambda: keras.layers.Dense(CHANNELS), lambda n: (n, 8)),
    "DepthwiseConv2D": (
        lambda: keras.layers.DepthwiseConv2D(3, padding="same"),
        lambda n: (round(n**0.5), round(n**0.5), CHANNELS),
    ),
}
HEAD = """\
| layer | values that are added up | Keras, % | towers, % |
|---|---|---|---|"""


def main():
    """Measures both layers, and prints a table."""
    parser = turns.parser(__doc__, rounds=10)
    options = parser.parse_args()
    rows = (measure(name, n, options.rounds) for name in LAYERS for n in POSITIONS)
    turns.report(HEAD, rows, as_row, options.output)


def measure(layer: str, positions: int, rounds: int) -> dict:
    """The error of each side: the median of all draws, the smallest and the largest."""
    errors = {"keras": [], "towers": []}
    for seed in range(rounds):
        exact = update_of_bias("keras", layer, positions, "float32", seed)
        for side, found in errors.items():
            update = update_of_bias(side, layer, positions, "mixed_bfloat16", seed)
            found.append(float(np.linalg.norm(update - exact) / np.linalg.norm(exact)))
    return {
        "layer": layer,
        "values": positions,
        **{
            f"error_of_{side}": [
                round(value, 5) for value in (statistics.median(found), min(found), max(found))
            ]
            for side, found in errors.items()
        },
        "rounds": rounds,
    } | turns.conditions()


def update_of_bias(side: str, layer: str, positions: int, dtype: str, seed: int) -> np.ndarray:
    """What a step on one example adds to a bias, [CHANNELS]."""
    make, shape = LAYERS[layer]
    keras.utils.set_random_seed(seed)
    keras.config.set_dtype_policy(dtype)
    with tf.device(towers.devices.HOST):
        model = keras.Sequential([keras.Input(shape(positions)), make()])
    keras.config.set_dtype_policy("float32")
    inputs = np.random.default_rng(seed).normal(size=(1, *model.input_shape[1:])).astype("float32")
    targets = np.ones((1, *model.output_shape[1:]), np.float32)
    bias = model.trainable_variables[-1]
    before = bias.numpy()
    if side == "towers":
        towers.distribute(model, ["/CPU:0"])
    else:  # `distribute` turns grappler off
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    model.compile(keras.optimizers.SGD(1.0), "mse", jit_compile=False)
    model.train_on_batch(inputs, targets)
    return bias.numpy() - before


def as_row(row: dict) -> str:
    """One row of the table."""
    keras_s, ours = (
        f"{100 * median:.1f} ({100 * least:.1f}–{100 * largest:.1f})"
        for median, least, largest in (row["error_of_keras"], row["error_of_towers"])
    )
    return f"| `{row['layer']}` | {row['values']:,} | {keras_s} | {ours} |"


if __name__ == "__main__":
    main()
