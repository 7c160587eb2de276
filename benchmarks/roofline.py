"""How much of what a processor can multiply a step uses, on every kind of network.

    python -m benchmarks.roofline
    python -m benchmarks.roofline --task=lstm --compute_dtype=bfloat16

A step of towers (one tower, the default threads, the faster of the plain network and `fused`) and
products of large matrices take turns. The multiplications of a step are counted in the graph of the
forward pass: those of convolutions and of products of matrices, three times, because the gradients
of inputs and of kernels take as many each. A share is the median over rounds, its interval from the
smallest to the largest.
"""

import argparse
import statistics

import keras
import numpy as np
import tensorflow as tf

from benchmarks import networks, turns
from benchmarks.peers import task_sizes, tasks
from towers.support import shares

HEAD = """\
| network | type | microbatches | side | million multiplications of an example | examples/s \
| GFLOP/s | GFLOP/s of large products | share |
|---|---|---|---|---|---|---|---|---|"""
PASSES = 3  # forward, and the gradients of inputs and of kernels


def main():
    """Measures each row, and prints a table."""
    parser = turns.parser(__doc__, rounds=3)
    parser.add_argument("--task", action="append", choices=list(task_sizes.SHAPES))
    parser.add_argument("--compute_dtype", action="append", choices=networks.DTYPES)
    parser.add_argument("--num_microbatches", type=int, default=shares.MOST_BY_DEFAULT)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a turn")
    options = parser.parse_args()
    rows = (
        measure(task, compute_dtype, options)
        for task in options.task or task_sizes.SHAPES
        for compute_dtype in options.compute_dtype or networks.DTYPES
    )
    turns.report(HEAD, rows, as_row, options.output)


def measure(task: str, compute_dtype: str, options: argparse.Namespace) -> dict:
    """The figures of one row."""
    commands = networks.commands(
        task, compute_dtype, ("towers", "fused"), options.num_microbatches
    ) | {"products": ("benchmarks.peers.products", compute_dtype)}
    turn = {"seconds": options.seconds}
    sides = {name: turns.Side(command, turn) for name, command in commands.items()}
    measured = turns.measure(sides, options.rounds)
    products = measured.pop("products")
    best = max(measured, key=lambda name: measured[name].median_rate())
    of_step = PASSES * multiplications(tasks.build(task, "float32"), tasks.inputs(task, 1))
    found = [
        rate * of_step / (most * 1e6)
        for rate, most in zip(measured[best].rates, products.rates, strict=True)
    ]
    return {
        "task": task,
        "compute_dtype": compute_dtype,
        "num_microbatches": options.num_microbatches,
        "side": best,
        "million_multiplications": round(of_step / 1e6, 2),
        "examples_per_second": round(measured[best].median_rate(), 1),
        "gflops": round(2 * measured[best].median_rate() * of_step / 1e9, 1),
        "gflops_of_products": round(2 * products.median_rate() / 1e3, 1),
        "share": round(statistics.median(found), 3),
        "least_and_largest": [round(min(found), 3), round(max(found), 3)],
        "rounds": options.rounds,
    } | turns.conditions()


def multiplications(model: keras.Model, inputs: np.ndarray) -> int:
    """Those of the forward pass, in convolutions and in products of matrices."""

    def unrolled(layer):  # the steps of a loop would be counted once
        config = layer.get_config()
        return type(layer).from_config(config | {"unroll": True} if "unroll" in config else config)

    model = keras.models.clone_model(model, clone_function=unrolled)
    signature = tf.TensorSpec(inputs.shape, inputs.dtype)
    traced = tf.function(lambda x: model(x, training=True)).get_concrete_function(signature)
    return sum(map(of_operation, traced.graph.get_operations()))


def of_operation(operation: tf.Operation) -> int:
    """The multiplications of one operation: of the sums that it computes, times their terms.

    Raises:
      ValueError: it runs others, any number of times.
    """
    kind = operation.type
    if kind.endswith(("While", "If", "Case", "PartitionedCall")):
        raise ValueError(f"{operation.name} runs other operations")
    shapes = [tuple(tensor.shape) for tensor in operation.inputs]
    sums = int(np.prod(operation.outputs[0].shape)) if operation.outputs else 0
    if kind == "MatMul":
        return sums * shapes[0][0 if operation.get_attr("transpose_a") else 1]
    if kind == "BatchMatMulV2":
        return sums * shapes[0][-2 if operation.get_attr("adj_x") else -1]
    if kind == "Conv2D":
        return sums * int(np.prod(shapes[1][:3]))
    if kind == "DepthwiseConv2dNative":
        return sums * int(np.prod(shapes[1][:2]))
    if kind == "Einsum":
        terms = operation.get_attr("equation").decode().split("->")[0].split(",")
        sizes = {}
        for labels, shape in zip(terms, shapes, strict=True):
            sizes |= dict(zip(labels, shape, strict=True))
        return int(np.prod(list(sizes.values())))
    return 0


def as_row(row: dict) -> str:
    """One row of the table."""
    least, largest = row["least_and_largest"]
    return (
        f"| {row['task']} | {row['compute_dtype']} | {row['num_microbatches']} "
        f"| {'with `fused`' if row['side'] == 'fused' else ''} "
        f"| {row['million_multiplications']:,.1f} | {row['examples_per_second']:,.0f} "
        f"| {row['gflops']:,.0f} | {row['gflops_of_products']:,.0f} "
        f"| {row['share']:.2f} ({least:.2f}–{largest:.2f}) |"
    )


if __name__ == "__main__":
    main()
