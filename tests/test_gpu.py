"""Towers on GPUs, on machines that have one: `python -m pytest tests/test_gpu.py`.

One GPU is enough: it is split into logical ones. All other tests hide the GPUs, so this one looks
for them, and works, in processes of its own.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import scripts

TIMEOUT_SECONDS = 2400  # TensorFlow compiles its kernels for a new kind of GPU
PROGRAM = """
import json, sys
import towers
import keras
import tensorflow as tf
from towers import hashes, networks, weight_decay
from towers.networks import optimizers

num_towers, steps, model, compute_dtype, optimizer, *more = json.loads(sys.argv[1])
gpus = tf.config.list_physical_devices("GPU")
towers.devices.run_deterministically()
if gpus and len(gpus) < num_towers:
    part = tf.config.LogicalDeviceConfiguration(memory_limit=1536)
    tf.config.set_logical_device_configuration(gpus[0], [part] * num_towers)
devices = towers.devices.choose(num_towers)
draw = tf.random.stateless_normal, tf.random.stateless_uniform
with tf.device("/CPU:0"):
    batches = [
        (draw[0]([64, 24, 24, 3], [0, step]), draw[1]([64], [1, step], 0, 10, tf.int32))
        for step in range(steps)
    ]
place = devices[0] if "on a tower" in more else "/CPU:0"
built = networks.build(model, (24, 24, 3), 10, compute_dtype=compute_dtype, parameter_device=place)
if networks.NETWORKS[model].adapt is not None:
    networks.NETWORKS[model].adapt(built, batches[0][0].numpy())
weight_decay.regularize(weight_decay.kernels(built), 0.004)
made = optimizers.make(
    optimizer,
    momentum=0.9 if optimizer in optimizers.WITH_MOMENTUM else 0.0,
    model=built,
    loss_scaling=compute_dtype == "float16",
    parameter_device=place,
)
with tf.device(place):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    built.compile(made, loss, jit_compile="compiled" in more)
made.learning_rate.assign(0.01)
towers.distribute(built, devices, microbatch_size=16)
losses = [float(built.train_on_batch(*batch)) for batch in batches]
evaluated = built.evaluate(*batches[0], verbose=0)
variables = [*built.variables, *made.variables]
places = {v.value.device[-5:] for v in built.variables}
state = hashes.sha256(v.numpy() for v in variables)
print(json.dumps([devices, sorted(places), state, losses, evaluated]))
"""


def seeing_gpus() -> dict[str, str]:
    """The environment of a process that does."""
    return {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}


def printed_by(program, *arguments):
    """The JSON that a process prints which sees the GPUs."""
    command = [sys.executable, "-c", program, json.dumps(arguments)]
    options = {"cwd": scripts.ROOT, "env": seeing_gpus(), "timeout": TIMEOUT_SECONDS}
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module", autouse=True)
def a_gpu():
    count = 'import towers, tensorflow as tf; print(len(tf.config.list_physical_devices("GPU")))'
    # Without it there is none that TensorFlow could use; to ask TensorFlow takes a process.
    driver = any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/dxg"))
    if not driver or not printed_by(count):
        pytest.skip("needs a GPU, and this machine has none")


@pytest.mark.parametrize(
    "kind",
    [
        ("cifarnet", "float32", "sgd"),
        ("cifarnet", "bfloat16", "adamw"),
        ("resnet", "float32", "sgd"),
        ("resnet", "float16", "adamw"),
        ("fastnet", "bfloat16", "muon"),
        ("resnet", "float32", "sgd", "on a tower"),
        ("fastnet", "bfloat16", "muon", "on a tower"),
        ("resnet", "float32", "sgd", "compiled"),
        ("resnet", "bfloat16", "adamw", "compiled", "on a tower"),
    ],
    ids="-".join,
)
def test_towers_on_gpus_are_the_same_to_the_last_bit(kind):
    """Deterministic ones; with their parameters on the CPU or the first GPU; compiled by XLA."""
    runs = [printed_by(PROGRAM, num_towers, 50, *kind) for num_towers in (1, 2, 4)]
    assert [run[0] for run in runs] == [[f"/GPU:{t}" for t in range(n)] for n in (1, 2, 4)]
    assert [run[1] for run in runs] == [["GPU:0" if "on a tower" in kind else "CPU:0"]] * 3
    assert runs[1][2:] == runs[0][2:]
    assert runs[2][2:] == runs[0][2:]
    if len(kind) == 3:
        assert printed_by(PROGRAM, 2, 50, *kind)[2:] == runs[0][2:]


FLAGS = (
    "--recipe=shapes", "--deterministic", "--microbatch_size=16", "--intra_op_threads=1",
    "--max_steps=40", "--checkpoint_every_steps=20", "--verify_every_steps=20",
)  # fmt: skip


def training(folder, *command, flags=()):
    """A process of `train.py`."""
    script = str(scripts.ROOT / "train.py")
    return subprocess.Popen(
        [sys.executable, *command, script, f"--train_dir={folder}", *FLAGS, *flags],
        env=seeing_gpus(),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def trained(folder, *arguments, **options):
    """What a run of `train.py` prints, and its hashes."""
    with training(folder, *arguments, **options) as process:
        stdout, stderr = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 0, stderr
    return stdout, scripts.hash_lines(folder)


def test_train_py_on_a_gpu_is_one_run_for_one_process_and_two(tmp_path):
    message, one = trained(tmp_path / "one")
    assert "/GPU:0" in message
    launched = "-m", "towers_cli.launch", "--workers=2", "--"
    _, two = trained(tmp_path / "two", *launched)
    assert one == two != []


def test_train_py_on_a_gpu_resumes_with_the_bits_of_a_run_that_was_never_killed(tmp_path):
    flags = "--max_steps=200", "--verify_every_steps=50"
    _, expected = trained(tmp_path / "whole", flags=flags)
    first = tmp_path / "killed/checkpoints/step-20"
    with training(tmp_path / "killed", flags=flags) as process:
        ends = time.monotonic() + TIMEOUT_SECONDS
        while not first.exists() and process.poll() is None and time.monotonic() < ends:
            time.sleep(0.01)
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    message, resumed = trained(tmp_path / "killed", flags=flags)
    assert "continuing at step" in message
    assert resumed == expected
    assert {line["step"] for line in expected} >= {0, 50, 100, 150, 200}
