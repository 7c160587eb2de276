"""What the processes of `benchmarks.gpu_day` compute.

    python -m benchmarks.peers.gpu_sides JSON

Each prints a JSON object per line. Inputs are random, from a fixed seed.
"""

import collections
import concurrent.futures
import functools
import itertools
import json
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import towers  # before Keras: it silences TensorFlow's notices
from benchmarks.peers import counter, keras_tasks, tasks
from towers import hashes, machine, operation_gradients

import keras  # isort: skip
import tensorflow as tf  # isort: skip

HOST = towers.devices.HOST
LEAD_IN_CALLS = 5  # of each turn


def say(**line) -> None:
    """Prints a JSON object."""
    print(json.dumps(line), flush=True)


def short(error: Exception) -> str:
    """What happened, without what TensorFlow adds, and without paths of a machine."""
    told = re.sub(r"[^\s(]*/", "", f"{type(error).__name__}: {error}")
    return told.splitlines()[0][:300]


def prepared(what: dict) -> tuple[str, ...]:
    """The towers' devices, after all that must be said before TensorFlow's runtime starts."""
    keras.utils.set_random_seed(0)
    if what.get("deterministic"):  # TF32 stays on: only the choice of kernels is to differ
        tf.config.experimental.enable_op_determinism()
    count, gpus = what.get("gpus", 1), tf.config.list_physical_devices("GPU")
    if len(gpus) == 1 and "megabytes" in what:  # several are taken as they are
        part = tf.config.LogicalDeviceConfiguration(memory_limit=what["megabytes"])
        tf.config.set_logical_device_configuration(gpus[0], [part] * count)
    return towers.devices.choose(count)


def on_towers(what: dict, tower_devices: tuple[str, ...], size: int) -> keras.Model:
    """The network on towers, in microbatches of so many examples, compiled with XLA."""
    model = tasks.build(what["task"], what["dtype"], tower_devices[0])
    towers.distribute(model, tower_devices, microbatch_size=size)
    with tf.device(tower_devices[0]):
        return keras_tasks.compiled(
            model, jit_compile=True, steps_per_execution=what.get("steps_per_execution", 1)
        )


def names(what: dict) -> None:
    """The machine, versions, and the libraries that are in memory once a network has trained."""
    prepared(what)
    layers = [keras.layers.Conv2D(8, 3), keras.layers.Flatten(), keras.layers.Dense(2)]
    model = keras.Sequential(layers)
    model.compile("sgd", "mse", jit_compile=False)
    model.train_on_batch(np.ones((4, 16, 16, 3), np.float32), np.ones((4, 2), np.float32))
    known = r"/lib((?:cudnn|cublas|cudart|cufft|cupti|nvrtc|nccl|cuda|nvJitLink|cusolver)\S*)"
    maps = Path("/proc/self/maps")
    found = set(re.findall(known, maps.read_text())) if maps.exists() else set()
    say(
        gpus=machine.gpu_names(), software=machine.gpu_software(), loaded=sorted(found),
        tensorflow=tf.__version__, keras=keras.__version__, python=platform.python_version(),
        processor=machine.processor(), cores=machine.available_cores(),
        built_for=dict(tf.sysconfig.get_build_info()),
        seconds=round(time.time() - what["begun"], 1),
    )  # fmt: skip


def flags(what: dict) -> None:
    """Compiles one program; an XLA flag that TensorFlow does not know aborts the process."""
    prepared(what)
    program = tf.function(lambda x: tf.tanh(x) @ x, jit_compile=True)
    say(sum=float(tf.reduce_sum(program(tf.ones([64, 64])))))


def states(what: dict) -> None:
    """The state's hash after some steps that XLA compiled."""
    tower_devices = prepared(what)
    model = on_towers(what, tower_devices, what["batch"] // what["microbatches"])
    rng, shape = np.random.default_rng(0), tasks.inputs(what["task"], what["batch"]).shape
    batches = [
        (rng.normal(size=shape).astype(np.float32), rng.integers(0, 10, shape[0], np.int32))
        for _ in range(4)
    ]
    seconds, found = [], []
    for step in range(what["steps"]):
        loss = model.train_on_batch(*batches[step % 4])
        seconds.append(time.time() - what["begun"])
        if step in (0, what["steps"] - 1):
            state = (*model.variables, *model.optimizer.variables)
            found.append(hashes.sha256(variable.numpy() for variable in state)[:16])
    say(
        sha256=found[-1], sha256_of_first_step=found[0], last_loss=float(loss),
        seconds_to_first_step=round(seconds[0], 1),
        seconds_of_others=round(seconds[-1] - seconds[0], 2),
    )  # fmt: skip


class OneProgram:
    """Forward and backward pass, check and update as one XLA program (S3), which waits for nothing.

    Once a loss or a gradient is not finite, the flag on the device falls and no variable changes.
    """

    def __init__(self, what: dict, device: str):
        self.device = device
        self.model = tasks.build(what["task"], what["dtype"], device)
        self.inputs_type = tf.as_dtype(what["dtype"])
        with tf.device(device):
            self.optimizer = keras_tasks.optimizer()
            self.optimizer.build(self.model.trainable_variables)
            self.is_fine = tf.Variable(1.0, trainable=False)
        own = [*self.model.variables, *self.optimizer.variables]
        self.variables = [variable.value for variable in own]
        self.step = tf.function(self._step, autograph=False, jit_compile=True)
        self.loop = tf.function(
            functools.partial(self._loop, self._step), autograph=False, jit_compile=True
        )
        self.loop_in_graph = tf.function(functools.partial(self._loop, self.step), autograph=False)

    def _step(self, inputs, labels) -> tf.Tensor:
        before = [tf.identity(variable) for variable in self.variables]
        weights = self.model.trainable_variables
        with tf.GradientTape() as tape:
            logits = tf.cast(self.model(inputs, training=True), tf.float32)
            of_each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(of_each)
        with operation_gradients.corrected(jit_compile=True):
            found = tape.gradient(loss, [weight.value for weight in weights])
        gradients = [tf.convert_to_tensor(gradient) for gradient in found]
        finite = [tf.reduce_all(tf.math.is_finite(value)) for value in (loss, *gradients)]
        is_fine = tf.reduce_all(tf.stack([self.is_fine > 0, *finite]))
        self.optimizer.apply(gradients, weights)
        for variable, old in zip(self.variables, before, strict=True):
            variable.assign(tf.where(is_fine, variable, old))
        self.is_fine.assign(tf.cast(is_fine, tf.float32))
        return loss

    def _loop(self, step: Callable, inputs, labels) -> tf.Tensor:
        count = inputs.shape[0]
        return tf.while_loop(
            lambda i, _: i < count,
            lambda i, _: (i + 1, step(inputs[i], labels[i])),
            (tf.constant(0), tf.constant(0.0)),
            maximum_iterations=count,
        )[1]


def fed(inputs, labels, device: str, dtype: tf.DType, way: str) -> Iterator[tuple]:
    """The batch, copied to the device again and again by a thread; `resident`: only once."""
    wanted = dtype if inputs.dtype == np.float32 else tf.as_dtype(inputs.dtype)
    with tf.device(HOST):
        given = tf.cast(tf.constant(inputs), wanted), tf.constant(labels, tf.int64)
    if "resident" in way:
        return itertools.repeat(copied(device, *given))
    return ahead(lambda: copied(device, *given))


def ahead(make: Callable) -> Iterator:
    """What `make` makes in a thread, two calls ahead."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = collections.deque(pool.submit(make) for _ in range(2))
        while True:
            waiting.append(pool.submit(make))
            yield waiting.popleft().result()


def copied(device: str, *given: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Copies what is on the host to the device.

    Each call copies: eager TensorFlow keeps the copy of a constant, so a new tensor is copied.
    """
    with tf.device(HOST):
        new = [tf.identity(one) for one in given]
    with tf.device(device):
        return tuple(map(tf.identity, new))


def of_towers(name: str, what: dict, tower_devices: tuple[str, ...]) -> Callable:
    """A step of `fit` on towers, without its loop: `m4` for as many microbatches."""
    model = on_towers(what, tower_devices, what["batch"] // int(name.removeprefix("m")))
    one = keras_tasks.one_batch(what["task"], what["batch"])
    batches = iter(tf.data.Dataset.from_tensors(one).cache().repeat())
    model.make_train_function()
    return lambda: model.train_function(batches)["loss"]


def of_one_program(name: str, program: OneProgram, what: dict) -> Callable:
    """S3: `s3`, `s3x16` in one program or a graph; each reads the result of the call before."""
    inputs, labels = keras_tasks.one_batch(what["task"], what["batch"])
    if "x16" in name:
        inputs, labels = (np.stack([one] * what["steps"]) for one in (inputs, labels))
    train = program.step
    if "x16" in name:
        train = program.loop_in_graph if "graph" in name else program.loop
    batches = fed(inputs, labels, program.device, program.inputs_type, name)
    before = []

    def call():
        with tf.device(program.device):
            before.append(train(*next(batches)))
        if len(before) > 1:
            before.pop(0).numpy()
        return before[-1]

    return call


def sides(what: dict) -> None:
    """Prepares ways to train one network, and trains by each for as long as it is told to."""
    tower_devices, calls, program, longest = prepared(what), {}, None, 0.0
    for name in what["sides"]:
        begun, uses_program_of_s3 = time.time(), "resident" in name
        if calls and begun + (5 if uses_program_of_s3 else longest) > what["until"]:
            say(side=name, lost="no time to prepare it")
            continue
        try:
            if name.startswith("s3"):
                program = program or OneProgram(what, tower_devices[0])
                call = of_one_program(name, program, what)
            else:
                call = of_towers(name, what, tower_devices)
            for _ in range(3):
                call().numpy()
            calls[name], seconds = call, time.time() - begun
            longest = max(longest, seconds)
            say(side=name, seconds_to_prepare=round(seconds, 1))
        except Exception as error:
            say(side=name, lost=short(error))
    say(ready=list(calls))
    for line in sys.stdin:
        turn = json.loads(line)
        call, steps = calls[turn["side"]], what["steps"] if "x16" in turn["side"] else 1
        for _ in range(2 if steps > 1 else LEAD_IN_CALLS):
            last = call()
        last.numpy()
        begun, count = time.perf_counter(), 0
        while count < 2 or time.perf_counter() - begun < turn["seconds"]:
            last, count = call(), count + 1
        last.numpy()
        seconds = time.perf_counter() - begun
        fine = {} if program is None else {"fine": bool(program.is_fine.numpy() > 0)}
        say(images=count * steps * what["batch"], seconds=seconds, **fine)


def in_fit(what: dict) -> None:
    """Keras's own loop, with or without `towers.distribute`."""
    turn, tower_devices, steps = counter.Counter(), prepared(what), what.get("steps", 1)
    if what.get("distribute"):
        own = what | {"steps_per_execution": steps}
        model = on_towers(own, tower_devices, what["batch"])
    else:
        model = tasks.with_keras_layers(tasks.build(what["task"], what["dtype"]))
        keras_tasks.compiled(model, jit_compile=True, steps_per_execution=steps)
    counts = keras_tasks.CountSteps(turn, what["batch"] * steps)
    ahead_on = tower_devices[0] if what.get("ahead") else None
    keras_tasks.fit(model, keras_tasks.one_batch(what["task"], what["batch"]), [counts], ahead_on)


def facts(what: dict) -> None:
    """Where a step's time goes, what XLA made, or errors of gradients."""
    (device,) = prepared(what)
    known = {part.__name__: part for part in (profiled, compiled_operations, bias_errors)}
    for name in what["parts"]:
        try:
            for line in known[name](what, device):
                say(what=name, **line)
        except Exception as error:
            say(what=name, lost=short(error))


def profiled(what: dict, device: str) -> Iterator[dict]:
    """Five steps on a tower: how long the GPU computes, where it waits, and its copies."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    call, steps = of_towers("m1", what, (device,)), 5
    for _ in range(10):
        call()
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        begun = time.perf_counter()
        for _ in range(steps):
            call()
        seconds = time.perf_counter() - begun
        tf.profiler.experimental.stop()
        (path,) = Path(folder).rglob("*.xplane.pb")
        space = xplane_pb2.XSpace.FromString(path.read_bytes())
    kernels, copied = [], []  # (begin, end, name) in microseconds
    lines = [
        (plane, line)
        for plane in space.planes
        for line in plane.lines
        if plane.name.startswith("/device:GPU") and line.name.startswith("Stream")
    ]
    for plane, line in lines:
        stats = {key: value.name for key, value in plane.stat_metadata.items()}
        for event in line.events:
            name, of_event = plane.event_metadata[event.metadata_id].name[:80], event.stats
            named = [stat for stat in of_event if stats.get(stat.metadata_id) == "memcpy_details"]
            details = [stat.str_value or stats.get(stat.ref_value, "") for stat in named]
            begin = line.timestamp_ns / 1e3 + event.offset_ps / 1e6
            is_copy = bool(details) or "memcpy" in name.lower()
            told = (begin, begin + event.duration_ps / 1e6, " ".join([name, *details]))
            (copied if is_copy else kernels).append(told)
    busy, gaps, by_name = 0.0, [], collections.Counter()
    until = min((begin for begin, _, _ in kernels), default=0.0)
    for begin, end, name in sorted(kernels):
        if begin > until:
            gaps.append((round(begin - until, 1), name))
        busy, until = busy + max(0.0, end - max(begin, until)), max(until, end)
        by_name[name] += (end - begin) / steps
    longest = sorted(((round(end - begin, 1), name) for begin, end, name in copied), reverse=True)
    yield {
        "steps": steps,
        "step_milliseconds": round(1e3 * seconds / steps, 3),
        "kernels": len(kernels),
        "share_computing": round(busy / 1e6 / seconds, 3),
        "largest_gaps_microseconds_and_what_follows": sorted(gaps, reverse=True)[:8],
        "microseconds_of_a_step_by_kernel": [
            (n, round(us, 1)) for n, us in by_name.most_common(12)
        ],
        "copies": len(copied),
        "longest_copies": longest[:12],
    }


def compiled_operations(what: dict, device: str) -> Iterator[dict]:
    """How many operations of each kind are in the program of S3, and whether one is a scatter."""
    program = OneProgram(what, device)
    inputs, labels = keras_tasks.one_batch(what["task"], what["batch"])
    batch = next(fed(inputs, labels, device, program.inputs_type, "resident"))
    with tf.device(device):
        lower = program.step.experimental_get_compiler_ir(*batch)
        text = lower(stage="optimized_hlo", device_name=tf.identity(tf.zeros([])).device)
    found = re.findall(r"= \S+(?: \S+)*? ([a-z][a-z0-9-]*)\(", text)
    scatters = sum("scatter" in kind for kind in found)
    operations = dict(collections.Counter(found).most_common(16))
    yield {"scatters": scatters, "operations": operations}


def bias_errors(what: dict, device: str) -> Iterator[dict]:
    """The error of TensorFlow's gradient of a bias in bfloat16, relative to sums in float64."""
    add = functools.partial(tf.raw_ops.BiasAddGrad, data_format="NHWC")
    for values in (1024, 4096, 16384):
        drawn = np.random.default_rng(values).normal(-1.0, 1.0, (values, 16))
        with tf.device(device):
            given = tf.cast(tf.constant(drawn, tf.float32), tf.bfloat16)
            exact = given.numpy().astype(np.float64).sum(0)
            for compiled in (False, True):
                way = tf.function(lambda x: add(out_backprop=x), jit_compile=compiled or None)
                error = way(given).numpy().astype(np.float64) - exact
                relative = float(np.linalg.norm(error) / np.linalg.norm(exact))
                yield {"values": values, "compiled": compiled, "relative_error": round(relative, 6)}


def main():
    """Does what the JSON object says."""
    what = json.loads(sys.argv[1])
    known = (names, flags, states, sides, in_fit, facts)
    {function.__name__: function for function in known}[what["do"]](what)
    os._exit(0)  # at once: a thread may still copy


if __name__ == "__main__":
    main()
