"""Towers on GPUs, on machines that have one: `python -m pytest tests/test_gpu.py`.

One GPU is enough: it is split into logical ones. All other tests hide the GPUs, so this one looks
for them, and works, in processes of its own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import scripts

PROGRAM = """
import json, sys
import towers
import keras
import tensorflow as tf
from towers import networks

num_towers, model, compute_dtype = json.loads(sys.argv[1])
gpus = tf.config.list_physical_devices("GPU")
tf.config.experimental.enable_op_determinism()  # what --deterministic does
if len(gpus) < num_towers:
    part = tf.config.LogicalDeviceConfiguration(memory_limit=2048)
    tf.config.set_logical_device_configuration(gpus[0], [part] * num_towers)
devices = towers.devices.choose(num_towers)
trainer = towers.Trainer(
    networks.build(model, (24, 24, 3), 10, compute_dtype=compute_dtype),
    keras.optimizers.SGD(0.05, momentum=0.9),
    towers=devices,
    global_batch_size=64,
    num_microbatches=4,
    weight_decay=0.004,
    moving_average_decay=0.9,
)
draw = tf.random.stateless_normal, tf.random.stateless_uniform
losses = trainer.fit(
    (draw[0]([64, 24, 24, 3], [0, step]), draw[1]([64], [1, step], 0, 10, tf.int64))
    for step in range(50)
)
assert trainer.state.model.trainable_variables[0].value.device.endswith("CPU:0")
print(json.dumps([devices, trainer.state.sha256(), losses]))
"""


def printed_by(program, *arguments):
    """The JSON that a process prints which sees the GPUs."""
    environment = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(arguments)],
        cwd=scripts.ROOT, env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def a_gpu():
    # Without it there is none that TensorFlow could use; to ask TensorFlow takes a process.
    if not any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/dxg")):
        pytest.skip("needs a GPU, and this machine has none")
    count = 'import towers, tensorflow as tf; print(len(tf.config.list_physical_devices("GPU")))'
    if not printed_by(count):
        pytest.skip("needs a GPU, and this machine has none")


@pytest.mark.usefixtures("a_gpu")
@pytest.mark.parametrize("compute_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", ["cifarnet", "resnet"])
def test_deterministic_towers_on_gpus_are_the_same_to_the_last_bit(model, compute_dtype):
    runs = [printed_by(PROGRAM, num_towers, model, compute_dtype) for num_towers in (1, 2, 4)]
    assert [run[0] for run in runs] == [[f"/GPU:{t}" for t in range(n)] for n in (1, 2, 4)]
    assert runs[1][1:] == runs[0][1:]
    assert runs[2][1:] == runs[0][1:]
    again = printed_by(PROGRAM, 2, model, compute_dtype)
    assert again[1:] == runs[0][1:]
