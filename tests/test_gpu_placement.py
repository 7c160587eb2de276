"""Where each operation would be on a machine with GPUs, asked of TensorFlow on one without.

The wheel for Linux has the kernels of GPUs, and its registry lists them. Which device an operation
gets that names none shows with logical CPU devices: it is the first, so the CPU of these tests is
the second, and the towers' are behind it.
"""

import collections
import sys
import types
from unittest import mock

import forked
import keras
import pytest
import scripts
import tensorflow as tf
import toys
from tensorflow.python.framework import kernels

import towers
from towers import devices, hashes, machine, networks, step, weight_decay
from towers.networks import optimizers
from towers.runs import callbacks, fit_state

ANOTHER_CPU, TOWERS = "/CPU:1", ("/CPU:2", "/CPU:3")
NETWORKS = {
    "cifarnet": toys.small_cifarnet,
    "resnet": toys.small_resnet,
    "fastnet": toys.small_fastnet,
}


def program(network, dtype, optimizer, places, parameter_device=None, joined_loss=None, **options):
    """The step of a network whose averages are kept, and a batch for it."""
    parameter_device = parameter_device or devices.HOST
    with mock.patch.object(devices, "HOST", parameter_device):  # where toys are made
        model = NETWORKS[network](networks.DTYPE_POLICIES[dtype])
    weight_decay.regularize(weight_decay.kernels(model), 1e-3)
    made = optimizers.make(
        optimizer,
        momentum=0.9 if optimizer in optimizers.WITH_MOMENTUM else 0.0,
        model=model,
        loss_scaling=dtype == "float16",
        parameter_device=parameter_device,
    )
    with tf.device(parameter_device):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        accuracy = keras.metrics.SparseCategoricalAccuracy()
        model.compile(made, loss, metrics=[accuracy], **options)
    towers.distribute(model, places, microbatch_size=4, joined_loss=joined_loss)
    images, labels = toys.batch(8)
    with tf.device(devices.HOST):
        averages = callbacks.MovingAverages(model, 0.9)
        averages.run = types.SimpleNamespace(model=model, state=fit_state.FitState(model))
        batch = tf.constant(images), tf.constant(labels, tf.int32)
        model._towers.prepare(batch, lambda: None, [averages.in_step])
    return model, batch


def nodes_of(nodes, functions, inherited: str | None = None):
    """Each node with the kind of its device; one in a function's body may have its caller's."""
    for node in nodes:
        kind = tf.DeviceSpec.from_string(node.device).device_type or inherited
        called = [attr.func.name for attr in node.attr.values() if attr.HasField("func")]
        called += [node.op] if node.op in functions else []
        for name in called:
            if not functions[name].attr["_XlaMustCompile"].b:
                yield from nodes_of(functions[name].node_def, functions, kind)
        if not called:
            yield node, kind


def has_kernel(node, kind) -> bool:
    """Whether TensorFlow has a kernel of the node's types; as `FindKernelDef` looks for one."""

    def types(name):
        return set(node.attr[name].list.type) or {node.attr[name].type}

    return any(
        kernel.device_type in (kind, "DEFAULT")
        and not kernel.label
        and all(types(of.name) <= set(of.allowed_values.list.type) for of in kernel.constraint)
        for kernel in kernels.get_registered_kernels_for_op(node.op).kernel
    )


def without_kernel(graph) -> set[str]:
    definition = graph.as_graph_def()
    functions = {function.signature.name: function for function in definition.library.function}
    result = list(nodes_of(definition.node, functions))
    assert {kind for _, kind in result} == {None, "CPU", "GPU"}
    # Without a device: what the caller's device scope, the CPU, is for.
    assert {node.op for node, kind in result if kind is None} <= {
        "Placeholder", "ReadVariableOp", "Identity", "NoOp",
    }  # fmt: skip
    return {
        f"{kind} {node.op}"
        for node, kind in result
        if kind and node.op != "Placeholder" and not has_kernel(node, kind)
    }


@pytest.mark.skipif(
    not tf.sysconfig.get_build_info()["is_cuda_build"],
    reason="needs TensorFlow's wheel for Linux, which has the kernels of GPUs",
)
@pytest.mark.parametrize(
    ("kind", "parameter_device", "jit_compile"),
    [
        (("cifarnet", "float32", "sgd"), None, False),
        (("fastnet", "float16", "muon"), "/GPU:0", False),
        (("cifarnet", "bfloat16", "adamw"), "/GPU:0", True),
        pytest.param(("resnet", "bfloat16", "adamw"), "/GPU:0", False, marks=pytest.mark.long),
        pytest.param(("resnet", "float16", "lion"), None, False, marks=pytest.mark.long),
    ],
)
def test_every_operation_has_a_kernel_where_it_is(monkeypatch, kind, parameter_device, jit_compile):
    monkeypatch.setattr(machine, "num_devices", lambda kind: 2)
    if parameter_device:  # where the weights would be
        monkeypatch.setattr(step, "parameter_device", lambda model: parameter_device)
    model, batch = program(*kind, ("/GPU:0", "/GPU:1"), parameter_device, jit_compile=jit_compile)
    assert without_kernel(model._towers.program.trace(batch, 4).graph) == set()


@pytest.mark.pitfall(15)
def test_the_average_and_the_update_are_where_the_weights_are(num_towers=2):
    """And the towers on their devices; here of CPUs."""
    model, batch = program("cifarnet", "float32", "sgd", TOWERS[:num_towers], ANOTHER_CPU)
    places = collections.defaultdict(set)
    for node in model._towers.program.trace(batch, 4).graph.as_graph_def().node:
        if node.device and node.op not in ("Placeholder", "ReadVariableOp"):
            places[node.name.split("/")[0]].add("/" + node.device[-5:])
    for part in ("average_gradients", "apply", "moving_averages"):
        assert places[part] == {ANOTHER_CPU}
    for tower in range(num_towers):
        assert places[f"tower_{tower}"] == {TOWERS[tower]}


def copies(model, batch) -> collections.Counter:
    """How many tensors a step's graph sends from each device to each other one."""
    nodes = toys.nodes_run(lambda: model._towers.program(batch, 4))
    ends = "send_device", "recv_device"
    return collections.Counter(
        tuple(f"/{node.attr[end].s.decode()[-5:]}" for end in ends)
        for node in nodes
        if node.op == "_Send"
    )


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize(
    "network",
    ["fastnet", *(pytest.param(n, marks=pytest.mark.long) for n in ("cifarnet", "resnet"))],
)
def test_a_further_gpu_costs_one_copy_each_way(network, joined, monkeypatch):
    """With a joined loss two: outputs and their gradients travel too. The bits are the same."""
    towers_of_it, result = (ANOTHER_CPU, TOWERS[1]), []
    for are_cpus in (True, False):
        with monkeypatch.context() as patch:
            patch.setattr(machine, "are_cpus", lambda places, are_cpus=are_cpus: are_cpus)
            model, batch = program(network, "float32", "sgd", towers_of_it, ANOTHER_CPU, joined)
            count = copies(model, batch)
            result.append(hashes.sha256(variable.numpy() for variable in model.variables))
    assert count[towers_of_it] == count[towers_of_it[::-1]] == 1 + joined
    assert result[0] == result[1]


@pytest.mark.parametrize("prefetched", [False, True])
def test_a_batch_is_copied_to_its_tower_as_a_whole(prefetched):
    """Inputs and labels once; not at all, and not back, after `prefetch_to_device`."""
    model, (images, labels) = program("cifarnet", "float32", "sgd", TOWERS[:1], ANOTHER_CPU)
    batch = images, tf.cast(labels, tf.int64)  # TensorFlow keeps int32 on the host
    if prefetched:
        to_tower = tf.data.experimental.prefetch_to_device(TOWERS[0])
        (batch,) = tf.data.Dataset.from_tensors(batch).apply(to_tower)
    count = copies(model, batch)
    assert count[devices.HOST, TOWERS[0]] == (0 if prefetched else len(batch))
    assert count[TOWERS[0], devices.HOST] == 0


def test_the_command_refuses_a_gpu_that_is_not_there(tmp_path):
    done = scripts.train(tmp_path / "run", "--parameter_device=gpu")
    assert done.returncode == 2 and not (tmp_path / "run").exists()
    assert done.stderr.startswith("train.py: error: --parameter_device=gpu: ")


def test_choosing_a_gpu_does_not_start_tensorflow():
    program = """
import pretend_gpu
from tensorflow.python.eager import context
from towers import devices
from towers import machine
pretend_gpu.pretend()
print(devices.choose(), machine.kinds(("/GPU:0",)), context.context()._context_handle is None)
"""
    done = forked.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{program}"], timeout=60
    )
    assert done.stdout == "('/GPU:0',) no GPU at all True\n", done.stderr
