"""Where each operation would be on a machine with GPUs, asked of TensorFlow on one without.

The wheel for Linux has the kernels of GPUs, and its registry lists them. Which device an operation
gets that names none shows with logical CPU devices: it is the first, so the CPU of these tests is
the second, and the towers' are behind it.
"""

import collections
import itertools
import os
import re
import subprocess
import sys
import types
from unittest import mock

import forked
import keras
import numpy as np
import pretend_gpu
import pytest
import scripts
import tensorflow as tf
import toys
from tensorflow.python.eager import context
from tensorflow.python.framework import kernels, op_callbacks

import towers
from benchmarks import gpus
from towers import devices, networks, worker
from towers.networks import optimizers
from towers.runs import loop, resuming
from towers.support import machine
from towers_cli import build, launch, settings

ANOTHER_CPU, TOWERS = "/CPU:1", ("/CPU:2", "/CPU:3")
NETWORKS = {
    "cifarnet": toys.small_cifarnet,
    "resnet": toys.small_resnet,
    "fastnet": toys.small_fastnet,
}
OPTIMIZERS = ("sgd", "adamw", "lion", "muon")
# The others are long.
SIMPLE, MANY = ("cifarnet", "float32", "sgd"), ("fastnet", "float16", "muon")
FEW = {(SIMPLE, None), (MANY, "/GPU:0")}


def trainer(network, dtype, optimizer, towers_of_it, parameter_device=None, **options):
    parameter_device = parameter_device or devices.HOST
    with mock.patch.object(devices, "HOST", parameter_device):  # where toys are made
        model = NETWORKS[network](networks.DTYPE_POLICIES[dtype])
    momentum = 0.9 if optimizer in optimizers.WITH_MOMENTUM else 0.0
    return towers.Trainer(
        model,
        optimizers.make(
            optimizer,
            momentum=momentum,
            model=model,
            loss_scaling=dtype == "float16",
            parameter_device=parameter_device,
        ),
        parameter_device=parameter_device,
        towers=towers_of_it,
        global_batch_size=8,
        num_microbatches=2,
        moving_average_decay=0.9,
        weight_decay=1e-3,
        learning_rate=lambda _: 0.1,
        **options,
    )


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
    found = list(gpus.nodes_of(definition.node, functions))
    assert {kind for _, kind in found} == {None, "CPU", "GPU"}
    # Without a device: what the caller's device scope, the CPU, is for.
    assert {node.op for node, kind in found if kind is None} <= {
        "Placeholder", "ReadVariableOp", "Identity", "NoOp",
    }  # fmt: skip
    return {
        f"{kind} {node.op}"
        for node, kind in found
        if kind and node.op != "Placeholder" and not has_kernel(node, kind)
    }


@pytest.fixture
def cuda_build():
    if not tf.sysconfig.get_build_info()["is_cuda_build"]:
        pytest.skip("needs TensorFlow's wheel for Linux, which has the kernels of GPUs")


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(machine, "num_devices", lambda kind: 2)
    return "/GPU:0", "/GPU:1"


@pytest.mark.usefixtures("cuda_build")
@pytest.mark.parametrize(
    ("given", "parameter_device"),
    [
        pytest.param(
            case, device, marks=() if (case, device) in FEW else pytest.mark.long,
            id="-".join([*case, *(["parameters_on_gpu"] if device else [])]),
        )
        for case in itertools.product(NETWORKS, networks.DTYPE_POLICIES, OPTIMIZERS)
        for device in (None, "/GPU:0")
    ],
)  # fmt: skip
def test_every_operation_has_a_kernel_where_it_is(two_gpus, given, parameter_device):
    made = trainer(*given, two_gpus, parameter_device)
    images, labels = toys.batch(8)
    batch = tf.constant(images), tf.constant(labels, tf.int32)
    assert without_kernel(made.step_graph(*batch)) == set()
    evaluation = made._evaluator._batch_outputs.get_concrete_function(*batch)
    assert without_kernel(evaluation.graph) == set()


def test_rows_of_an_embedding_are_added_on_the_cpu(two_gpus):
    """In the order of their microbatches; a GPU has none."""
    model = keras.Sequential(
        [
            keras.Input([4], dtype="int32"),
            keras.layers.Embedding(9, 3),
            keras.layers.Flatten(),
            keras.layers.Dense(2),
        ]
    )
    made = towers.Trainer(
        model,
        keras.optimizers.SGD(0.1),
        towers=two_gpus,
        global_batch_size=8,
        num_microbatches=2,
        parameter_device="/GPU:0",
    )
    words, labels = tf.zeros([8, 4], tf.int32), tf.zeros([8], tf.int32)
    nodes = made.step_graph(words, labels).as_graph_def().node
    found = {node.op: node.device[-5:] for node in nodes if node.device}
    assert found["Unique"] == found["UnsortedSegmentSum"] == "CPU:0"
    assert found["ResourceScatterSub"] == "GPU:0"  # the update of the rows


@pytest.mark.usefixtures("cuda_build")
def test_an_operation_without_a_kernel_is_found():
    with tf.Graph().as_default() as graph:
        one = tf.raw_ops.RandomIndexShuffle(index=0, seed=[1, 2, 3], max_index=9, rounds=4)
        with tf.device("/CPU:0"):
            tf.identity(one)
        with tf.device("/GPU:0"):
            tf.raw_ops.RandomIndexShuffle(index=0, seed=[1, 2, 3], max_index=9, rounds=4)
            tf.split(tf.constant([1, 2]), 2)
    nodes = gpus.nodes_of(graph.as_graph_def().node, {})
    missing = {node.op for node, kind in nodes if kind == "GPU" and not has_kernel(node, kind)}
    assert missing == {"RandomIndexShuffle", "Split"}


@pytest.fixture
def on_another_cpu(monkeypatch):
    """The parameters' device is not the one that TensorFlow takes where none is named."""
    monkeypatch.setattr(devices, "HOST", ANOTHER_CPU)


def on_the_default_device(run) -> collections.Counter:
    """The operations with data, of the graphs that TensorFlow made of `run`, on device 0."""
    context.context().enable_run_metadata()
    context.context().export_run_metadata()  # Keras's TensorBoard may have had graphs kept before
    try:
        run()
        graphs = context.context().export_run_metadata().function_graphs
    finally:
        context.context().disable_run_metadata()
    nodes = [node for graph in graphs for part in graph.partition_graphs for node in part.node]
    assert len(nodes) > 100
    # Shapes and labels of 32 bits come in through the host's memory, as they do with a GPU.
    arguments = [node for node in nodes if node.op in ("_Arg", "_DeviceArg")]
    integers = {node.name for node in arguments if node.attr["T"].type == tf.int32}
    return collections.Counter(
        node.op
        for node in nodes
        if node.device.endswith("CPU:0")
        and node.name not in integers
        and not (node.op == "_Send" and node.input[0] in integers)
    )


@pytest.mark.parametrize(
    ("given", "parameter_device"),
    [
        pytest.param(MANY, ANOTHER_CPU, id="many"),
        pytest.param(SIMPLE, TOWERS[0], id="parameters_on_a_tower"),
        pytest.param(SIMPLE, ANOTHER_CPU, marks=pytest.mark.long, id="simple"),
        pytest.param(MANY, TOWERS[0], marks=pytest.mark.long, id="many_parameters_on_a_tower"),
        pytest.param(
            ("resnet", "bfloat16", "adamw"), ANOTHER_CPU, marks=pytest.mark.long, id="resnet"
        ),
    ],
)
@pytest.mark.parametrize(
    "jit_compile", [False, pytest.param(True, marks=pytest.mark.long)], ids=["", "compiled"]
)
def test_nothing_of_a_step_or_an_evaluation_is_on_the_first_gpu_for_want_of_a_device(
    on_another_cpu, given, parameter_device, jit_compile
):
    made = trainer(*given, TOWERS, parameter_device, jit_compile=jit_compile)
    with tf.device(ANOTHER_CPU):
        images, labels = map(tf.constant, toys.batch(8))
    assert not on_the_default_device(lambda: made.train_step(images, labels))
    assert not on_the_default_device(lambda: made.evaluate([(images, labels)]))
    for name, part in made.state.parts().items():
        of_tensorflow = [v.value if isinstance(v, keras.Variable) else v for v in part]
        expected = ANOTHER_CPU if name == "counters" else parameter_device
        assert {"/" + variable.device[-5:] for variable in of_tensorflow} <= {expected}, name


@pytest.mark.parametrize(("num_towers", "reduction"), [(1, "mean"), (2, "sum")])
def test_parameters_on_a_tower_s_device_give_the_same_bits(num_towers, reduction):
    """On CPUs, where every device computes alike; for GPUs there is tests/test_gpu.py."""
    images, labels = toys.batch(8)
    found = []
    for parameter_device in (devices.HOST, TOWERS[0]):
        with mock.patch.object(devices, "HOST", parameter_device):
            model = toys.normalized()
        with tf.device(parameter_device):
            optimizer = keras.optimizers.Adam(0.01, clipnorm=1.0)
        made = towers.Trainer(
            model,
            optimizer,
            towers=TOWERS[:num_towers],
            global_batch_size=8,
            num_microbatches=4,
            moving_average_decay=0.9,
            gradient_reduction=reduction,
            parameter_device=parameter_device,
        )
        made.fit([(images, labels)] * 3)
        found.append((made.state.sha256(), made.evaluate([(images, labels)]).loss))
    assert found[0] == found[1]


def test_several_workers_have_their_parameters_on_the_cpu():
    two = worker.SingleWorker()
    two.count = 2
    asked = types.SimpleNamespace(parameter_device="gpu")
    assert build.parameter_device(asked, ["/GPU:0"], worker.SingleWorker()) == "/GPU:0"
    with pytest.raises(settings.SettingsError, match="exchange their gradients on the CPU"):
        build.parameter_device(asked, ["/GPU:0"], two)


def test_the_command_refuses_a_gpu_that_is_not_there(tmp_path):
    done = scripts.train(tmp_path / "run", "--parameter_device=gpu")
    assert done.returncode == 2 and not (tmp_path / "run").exists()
    assert done.stderr == (
        "train.py: error: --parameter_device=gpu: this machine has no visible GPU; use cpu\n"
    )


def test_a_step_without_a_device_would_be_found(on_another_cpu):
    made = trainer("cifarnet", "float32", "sgd", TOWERS)
    batch = [tf.constant(values) for values in toys.batch(8)]
    found = on_the_default_device(lambda: made._train_step(tf.constant(0.1), *batch))
    assert found["Identity"] > 50


@pytest.fixture
def without_device():
    """Collects the operations that run one by one, outside of a graph, and name no device."""
    found = collections.Counter()

    def look(op_type, inputs, attrs, outputs, op_name=None, graph=None):
        if graph is None and not context.context().device_name:
            found[op_type] += 1

    op_callbacks.add_op_callback(look)
    yield found
    op_callbacks.remove_op_callback(look)


def test_a_program_names_the_device_of_all_it_does(without_device):
    with tf.device(devices.HOST):
        made = toys.trainer(
            toys.normalized(),
            keras.optimizers.Adam(0.01),
            global_batch_size=8,
            num_microbatches=4,
            moving_average_decay=0.9,
        )
    images, labels = toys.batch(26)
    made.fit([(images[:8], labels[:8]), (images[:8], labels[:8], np.ones(8))])
    made.evaluate([(images, labels, np.ones(26))])
    assert not without_device
    tf.constant(1.0) + tf.constant(1.0)
    assert without_device["AddV2"] == 1


def test_so_does_a_training_of_the_command(tmp_path, cache, without_device, monkeypatch):
    train = resuming.train

    def alone(*arguments):
        without_device.clear()
        outcome = train(*arguments)
        assert not without_device
        return outcome

    monkeypatch.setattr(resuming, "train", alone)
    flags = ["--checkpoint_every_steps=2", "--summary_every_steps=2", "--verify_every_steps=2"]
    done = scripts.train(tmp_path / "run", *flags, "--max_steps=3")
    assert done.returncode == 0, done.stderr


def test_choosing_a_gpu_does_not_start_tensorflow():
    program = """
import pretend_gpu
from tensorflow.python.eager import context
from towers import devices
from towers.support import machine
pretend_gpu.pretend()
print(devices.choose(), machine.kinds(("/GPU:0",)), context.context()._context_handle is None)
"""
    done = forked.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{program}"], timeout=60
    )
    assert done.stdout == "('/GPU:0',) no GPU at all True\n", done.stderr


def test_the_command_has_its_parameters_on_a_visible_gpu(tmp_path, cache, monkeypatch):
    pretend_gpu.pretend(monkeypatch.setattr)
    seen = []
    monkeypatch.setattr(
        resuming, "train", lambda made, *_: seen.append(made) or loop.Outcome(None, 0)
    )
    made = {}
    for owner, name in ((networks, "build"), (optimizers, "make")):
        whole = getattr(owner, name)
        monkeypatch.setattr(
            owner,
            name,
            lambda *a, name=name, whole=whole, **k: made.update({name: k}) or whole(*a, **k),
        )
    done = scripts.train(tmp_path / "run", "--parameter_device=gpu")
    assert done.returncode == 0, done.stderr
    assert re.search(r"weights on +/GPU:0\n", done.stdout)
    assert seen[0].program.parameter_device == "/GPU:0"
    assert {name: given["parameter_device"] for name, given in made.items()} == {
        "build": "/GPU:0",
        "make": "/GPU:0",
    }


def test_several_workers_train_where_a_gpu_is_visible(tmp_path, cache_home):
    addresses = ",".join(f"127.0.0.1:{port}" for port in launch.free_ports(2))
    environment = os.environ | {"XDG_CACHE_HOME": str(cache_home)}
    started = [
        forked.Popen(
            [
                sys.executable, pretend_gpu.__file__, f"--train_dir={tmp_path / 'run'}",
                "--dataset=shapes", "--global_batch_size=32", "--num_microbatches=4",
                "--max_steps=2", f"--workers={addresses}", f"--worker_index={index}",
            ],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]  # fmt: skip
    said = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    assert "1 on each worker, here on /GPU:0" in said[0][0]
