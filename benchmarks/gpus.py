"""What a step copies to and from GPUs and launches there; its time and bits, if there are GPUs.

    python -m benchmarks.gpus
    python -m benchmarks.gpus --model=cifarnet --steps=10 --output=gpus.jsonl

The step of each network is traced for two towers on GPUs, whether or not there are any, and its
graph shows what crosses from one device to another. Then 1, 2, 4 and 8 towers, as many as there are
GPUs (without one: 1 and 2 on the CPU), train a few deterministic steps, each number in a process of
its own. One hash for all of them is the promise of this package, never checked on several GPUs so
far: send the file back.
"""

import argparse
import dataclasses
import functools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import towers  # before Keras: it sets TensorFlow up
from benchmarks import turns
from benchmarks.peers import step
from towers import networks
from towers.support import machine

import tensorflow as tf  # isort: skip

HEAD = """\
| network | type | microbatches | copies to the GPUs | MB | copies back | MB | \
weights, MB | launches a tower | update on the CPU, ms |
|---|---|---|---|---|---|---|---|---|---|"""
MEASURED_HEAD = """\
| network | type | device | towers | images/s | peak on a device, MB | hash of the state |
|---|---|---|---|---|---|---|"""
# These run nothing on a GPU: they pass on what is there, or are known before the step.
NO_LAUNCH = {
    "BroadcastGradientArgs", "Const", "ExpandDims", "Identity", "IdentityN", "NoOp", "Placeholder",
    "PreventGradient", "Rank", "Reshape", "Shape", "ShapeN", "Size", "Squeeze", "StopGradient",
}  # fmt: skip


def main():
    """Counts, measures, and prints two tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", action="append", choices=list(networks.NETWORKS))
    parser.add_argument("--compute_dtype", action="append", choices=list(networks.DTYPE_POLICIES))
    parser.add_argument("--global_batch_size", type=int, default=128)
    parser.add_argument("--num_microbatches", type=int, default=8)
    parser.add_argument("--num_gpus", type=int, default=2, help="of the step that is counted")
    parser.add_argument("--parameter_device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--jit_compile", action="store_true", help="of the step that is counted")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--output", help="appends JSON lines")
    parser.add_argument("--towers", type=int, help=argparse.SUPPRESS)  # a process of its own
    options = parser.parse_args()
    cases = [
        (model, compute_dtype)
        for model in options.model or ("cifarnet", "resnet", "fastnet")
        for compute_dtype in options.compute_dtype or ("float32", "bfloat16")
    ]
    if options.towers:
        print(json.dumps(measured(*cases[0], options)))
        return
    turns.report(HEAD, (counted(*case, options) for case in cases), as_row, options.output)
    rows = []

    def kept() -> Iterator[dict]:
        for case in cases:
            for row in measured_by_itself(*case, options):
                rows.append(row)
                yield row

    turns.report(MEASURED_HEAD, kept(), as_measured_row, options.output)
    if others := that_differ(rows):
        raise SystemExit(f"not the same bits on all numbers of towers: {', '.join(others)}")


def counted(model: str, compute_dtype: str, options: argparse.Namespace) -> dict:
    """What a step copies and launches."""
    run, images, labels = step.trainer_and_batch(
        model,
        compute_dtype,
        options.global_batch_size,
        (towers.devices.HOST,) * options.num_gpus,  # others are named below
        options.num_microbatches,
    )
    # Only the Trainer checks that its devices exist.
    gpus = tuple(f"/GPU:{tower}" for tower in range(options.num_gpus))
    on = {"cpu": towers.devices.HOST, "gpu": gpus[0]}[options.parameter_device]
    compiled = options.jit_compile
    compiles_update = compiled and options.parameter_device == "gpu"
    program = dataclasses.replace(
        run.program,
        tower_program=dataclasses.replace(
            run.program.tower_program, jit_compile=compiled, compiles_sums=compiles_update
        ),
        tower_devices=gpus,
        parameter_device=on,
        compiles_update=compiles_update,
    )
    traced = tf.function(functools.partial(towers.step.train_step, program), autograph=False)
    graph = traced.get_concrete_function(images, tf.cast(labels, tf.int32), None).graph
    to, back = traffic(graph, on)
    weights = run.state.model.trainable_variables
    return {
        "model": model,
        "compute_dtype": compute_dtype,
        "global_batch_size": options.global_batch_size,
        "num_microbatches": options.num_microbatches,
        "num_gpus": options.num_gpus,
        "parameter_device": options.parameter_device,
        "jit_compile": compiled,
        "copies_to_gpus": len(to),
        "bytes_to_gpus": sum(to.values()),
        "copies_back": len(back),
        "bytes_back": sum(back.values()),
        "bytes_of_weights": sum(weight.shape.num_elements() * 4 for weight in weights),
        "launches_of_a_tower": launches(graph) // len(gpus),
        "update_ms": round(update_ms(run), 2),
    }


def update_ms(run: towers.Trainer, turns_of_it: int = 7) -> float:
    """What averaging two towers' gradients and the optimizer's update take, the median."""
    weights = run.state.model.trainable_variables
    gradients = [[tf.ones_like(weight.value) for weight in weights] for _ in range(2)]

    @tf.function(autograph=False)
    def update(one, other):
        """One update of the weights."""
        mean = [(a + b) / 2 for a, b in zip(one, other, strict=True)]
        run.state.optimizer.apply(mean, weights)

    with tf.device(towers.devices.HOST):
        update(*gradients)
        seconds = []
        for _ in range(turns_of_it):
            begun = time.monotonic()
            update(*gradients)
            seconds.append(time.monotonic() - begun)
    return 1000 * statistics.median(seconds)


def that_differ(rows: list[dict]) -> list[str]:
    """The networks and types whose state is not the same on all numbers of towers."""
    found = {}
    for row in rows:
        found.setdefault(f"{row['model']} {row['compute_dtype']}", set()).add(row["sha256"])
    return [name for name, hashes in found.items() if len(hashes) > 1]


def traffic(graph: tf.Graph, parameter_device: str = "/CPU:0") -> tuple[dict, dict]:
    """(copies to GPUs, copies from them to the CPU): (tensor, device it goes to) to its bytes.

    A tensor goes to a device once, however often it is used there. What has no device is on that
    of the parameters, where the Trainer calls its step; but what the step is given is on the CPU.
    """
    to, back = {}, {}
    for operation in graph.get_operations():
        goes_to = _gpu(operation, parameter_device)
        for tensor in operation.inputs:
            comes_from = _gpu(tensor.op, parameter_device)
            if goes_to != comes_from and tensor.dtype != tf.resource:
                copies = to if goes_to else back
                copies[tensor.name, goes_to] = tensor.shape.num_elements() * tensor.dtype.size
    return to, back


def launches(graph: tf.Graph) -> int:
    """How many operations of all towers run a kernel on a GPU."""
    definition = graph.as_graph_def()
    functions = {function.signature.name: function for function in definition.library.function}
    return sum(
        kind == "GPU" and node.op not in NO_LAUNCH and not _of_one(node)
        for node, kind in nodes_of(definition.node, functions)
    )


def _of_one(node) -> bool:
    """Whether a node stacks or takes apart one tensor, which TensorFlow does without a kernel."""
    return (node.op == "Pack" and node.attr["N"].i == 1) or (
        node.op == "Unpack" and node.attr["num"].i == 1
    )


def nodes_of(nodes, functions, inherited: str | None = None) -> Iterator[tuple]:
    """Each node with the kind of its device; one in a function's body may have its caller's."""
    for node in nodes:
        kind = tf.DeviceSpec.from_string(node.device).device_type or inherited
        called = [attr.func.name for attr in node.attr.values() if attr.HasField("func")]
        called += [node.op] if node.op in functions else []
        if any(functions[name].attr["_XlaMustCompile"].b for name in called):
            called = []  # one program
        for name in called:
            yield from nodes_of(functions[name].node_def, functions, kind)
        if not called:
            yield node, kind


def _gpu(operation: tf.Operation, parameter_device: str) -> str | None:
    is_given = operation.type == "Placeholder"
    spec = tf.DeviceSpec.from_string(operation.device or ("" if is_given else parameter_device))
    return f"/GPU:{spec.device_index}" if spec.device_type == "GPU" else None


def measured_by_itself(
    model: str, compute_dtype: str, options: argparse.Namespace
) -> Iterator[dict]:
    """A row for each number of towers, which is a process each."""
    most = machine.num_devices("GPU") or 2
    for num_towers in (n for n in (1, 2, 4, 8) if n <= most):
        done = subprocess.run(
            [
                sys.executable, "-m", "benchmarks.gpus", f"--towers={num_towers}",
                f"--model={model}", f"--compute_dtype={compute_dtype}", f"--steps={options.steps}",
                f"--global_batch_size={options.global_batch_size}",
                f"--num_microbatches={options.num_microbatches}",
                f"--parameter_device={options.parameter_device}",
            ],
            stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
        yield json.loads(done.stdout.splitlines()[-1])


def measured(model: str, compute_dtype: str, options: argparse.Namespace) -> dict:
    """Some deterministic steps on so many towers: their time, after the first, and their bits."""
    towers.devices.run_deterministically()
    tower_devices = towers.devices.choose(options.towers)
    on_tower = options.parameter_device == "gpu"
    run, images, labels = step.trainer_and_batch(
        model,
        compute_dtype,
        options.global_batch_size,
        tower_devices,
        options.num_microbatches,
        parameter_device=tower_devices[0] if on_tower else towers.devices.HOST,
    )
    begun = time.monotonic()
    run.train_step(images, labels).losses["total"].numpy()
    first, begun = time.monotonic() - begun, time.monotonic()
    for _ in range(options.steps):
        run.train_step(images, labels).losses["total"].numpy()
    seconds = time.monotonic() - begun
    return {
        "model": model,
        "compute_dtype": compute_dtype,
        "device": machine.kinds(tower_devices),
        "parameter_device": options.parameter_device,
        "num_towers": options.towers,
        "steps": options.steps,
        "first_step_seconds": round(first, 2),
        "images_per_second": round(options.steps * options.global_batch_size / seconds, 1),
        "peak_bytes_of_device": _peak(tower_devices),
        "sha256": run.state.sha256(),
    } | turns.conditions()


def _peak(tower_devices: tuple[str, ...]) -> int | None:
    if machine.are_cpus(tower_devices):
        return None
    info = tf.config.experimental.get_memory_info
    return max(info(device.removeprefix("/"))["peak"] for device in tower_devices)


def as_row(row: dict) -> str:
    """One row of the table of what is counted."""
    megabytes = [row[name] / 1e6 for name in ("bytes_to_gpus", "bytes_back", "bytes_of_weights")]
    return (
        f"| `{row['model']}` | {row['compute_dtype']} | {row['num_microbatches']} | "
        f"{row['copies_to_gpus']} | {megabytes[0]:.1f} | {row['copies_back']} | "
        f"{megabytes[1]:.1f} | {megabytes[2]:.1f} | {row['launches_of_a_tower']:,} | "
        f"{row['update_ms']:.1f} |"
    )


def as_measured_row(row: dict) -> str:
    """One row of the table of what is measured."""
    peak = row["peak_bytes_of_device"]
    return (
        f"| `{row['model']}` | {row['compute_dtype']} | {row['device']} | {row['num_towers']} | "
        f"{row['images_per_second']:,.0f} | {'' if peak is None else f'{peak / 1e6:,.0f}'} | "
        f"{row['sha256'][:16]} |"
    )


if __name__ == "__main__":
    main()
