# %% [markdown]
# # Try it: where does the time of a step go?
# > 100 % CPU and 60 % GPU
#
# [The lesson](../lessons/where_time_goes.md) measures where the time goes. Here you compute it for
# two machines that both show these two numbers, for different reasons, and find out which tests
# tell them apart.
#
# ## Begin

# %%
import towers  # before TensorFlow: it sets it up

# %% [markdown]
# A step needs a batch, and it starts operations. The CPU starts one operation after the other, and
# the GPU runs each one as soon as it is started and the one before is done. In the meantime,
# another core makes the next batch.


# %%
def work(operations, start, compute):
    """Milliseconds of a step that has its batch.

    operations: how many the step has.
    start: milliseconds of the CPU to start one.
    compute: milliseconds of the GPU for all of them.
    """
    started = done = 0.0
    for _ in range(operations):
        started += start
        done = max(done, started) + compute / operations
    return done


def step(make, operations, start, compute):
    """Milliseconds of a step, where making a batch takes `make` and happens one batch ahead."""
    return max(make, work(operations, start, compute))


machines = {
    "A": {"make": 80, "operations": 40, "start": 0.02, "compute": 48},
    "B": {"make": 1, "operations": 4000, "start": 0.02, "compute": 48},
}
for name, machine in machines.items():
    milliseconds = step(**machine)
    cpu = (machine["make"] + machine["operations"] * machine["start"]) / milliseconds
    gpu = machine["compute"] / milliseconds
    print(f"{name}: a step takes {milliseconds:.0f} ms, CPU {cpu:.0%} of a core, GPU {gpu:.0%}")

# %% [markdown]
# From the outside, both machines look the same.
#
# ## Predict, then look
# 1. You run the step on one fixed batch, so that `make` is 0. Which machine's step gets shorter: A,
#    B, or both?
# 2. You double the batch. `make` and `compute` double, and the number of operations stays the same.
#    How long does a step of B take: 80, 96 or 160 ms?
# 3. You add a second GPU, whose operations another core starts. Each GPU gets half of the batch, so
#    `compute` halves. Which machine's step gets shorter: A, B, both, or neither?

# %%
tests = {
    "as it was": lambda machine: machine,
    "one fixed batch": lambda machine: machine | {"make": 0},
    "double batch": lambda machine: (
        machine | {"make": 2 * machine["make"], "compute": 2 * machine["compute"]}
    ),
    "two GPUs": lambda machine: machine | {"compute": machine["compute"] / 2},
}
for test, changed in tests.items():
    of = {name: step(**changed(machine)) for name, machine in machines.items()}
    print(f"{test:<16}" + "".join(f"  {name}: {ms:>3.0f} ms" for name, ms in of.items()))

# %% [markdown]
# <details><summary>Answers</summary>
#
# 1. A only: from 80 to 48 ms. A waits for its batch, and a fixed batch is always there. B had its
#    batch in time all along.
# 2. 96 ms: twice the images in 1.2 times the time. B spent 80 ms on starting 4,000 operations, and
#    this takes as long for any batch. Now each operation is so long that the GPU sets the pace. A
#    gains nothing: its step takes 160 ms, twice as long as before.
# 3. Neither. A still waits 80 ms for each batch, and in B each GPU still waits until its 4,000
#    operations are started. A second GPU divides only `compute`, which is not what they wait for.
#
# </details>
#
# ## Exercise 1: how many batches ahead?
# Machine C makes a batch in 10 ms, but every tenth batch takes 210 ms, because it is the first from
# another file. That is 30 ms on average, and the GPU needs 48 ms for a step; still, the GPU waits.
# The input begins a batch once fewer than `ahead` batches are ready, where `ahead` is at least 1.
# How large must it be, so that the GPU never waits after the first batch? Estimate it first, then
# change the number.

# %%
import math

make = [210 if batch % 10 == 9 else 10 for batch in range(200)]
compute = 48


def waits(ahead):
    """The milliseconds that the GPU waits for batches, after the first one."""
    ready, taken, end, waited = [], [], 0, 0
    for batch, milliseconds in enumerate(make):
        made_before = ready[-1] if batch else 0
        room = taken[batch - ahead] if batch >= ahead else 0
        ready.append(max(made_before, room) + milliseconds)
        taken.append(max(ready[-1], end))
        waited += taken[-1] - end if batch else 0
        end = taken[-1] + compute
    return waited


ahead = 1  # change this
print(f"{ahead} ahead: the GPU waits {waits(ahead)} ms in {len(make)} steps")

# %% tags=["hide-cell"]
# A solution. The slow batch is begun when the GPU takes the one that lies `ahead` places before it.
# Until the GPU needs the slow batch, it computes `ahead` steps. So 48 * ahead must be at least 210.
ahead = math.ceil(210 / compute)
print(f"{ahead} ahead: the GPU waits {waits(ahead)} ms")
assert ahead == 5
assert waits(5) == 0
assert waits(4) == 20 * (210 - 4 * 48)  # 20 slow batches

# %% [markdown]
# ## Exercise 2: fewer operations
# A recurrent network computes its time steps one after the other, because each state needs the one
# before. Count the matrix products of a forward and a backward pass: for T time steps there are 2 T
# forward and 3 T - 1 backward.

# %%
import tensorflow as tf

SEQUENCES, TIME_STEPS, FEATURES, UNITS = 32, 16, 8, 12
inputs, to_state, between_states = (
    0.3 * tf.random.stateless_normal(shape, seed=[0, number], dtype=tf.float64)
    for number, shape in enumerate(
        ([SEQUENCES, TIME_STEPS, FEATURES], [FEATURES, UNITS], [UNITS, UNITS])
    )
)


def recurrent(inputs, to_state, between_states):
    state = tf.zeros([inputs.shape[0], UNITS], tf.float64)
    for time_step in range(TIME_STEPS):
        state = tf.tanh(inputs[:, time_step] @ to_state + state @ between_states)
    return state


def gradients_of(network):
    """A function that computes the gradients, as a graph."""

    @tf.function(autograph=False)
    def gradients(inputs, to_state, between_states):
        with tf.GradientTape() as tape:
            tape.watch([to_state, between_states])
            loss = tf.reduce_sum(network(inputs, to_state, between_states) ** 2)
        return tape.gradient(loss, [to_state, between_states])

    return gradients


def products(network, inputs=inputs):
    """The matrix products in the graph."""
    graph = gradients_of(network).get_concrete_function(inputs, to_state, between_states).graph
    return sum("MatMul" in operation.type for operation in graph.get_operations())


print(f"{products(recurrent)} products, 5 T - 1 = {5 * TIME_STEPS - 1}")
twice = tf.concat([inputs, inputs], axis=0)
print(f"{products(recurrent, twice)} products for twice as many sequences")

# %% [markdown]
# The states need each other, but the inputs are all there from the beginning. Compute the same with
# fewer products: take `inputs @ to_state` out of the loop. (`tf.tensordot(a, b, 1)` multiplies the
# last axis of `a` by the first one of `b`, in one product.) How many products are left?


# %%
def faster(inputs, to_state, between_states):
    state = tf.zeros([inputs.shape[0], UNITS], tf.float64)
    for time_step in range(TIME_STEPS):
        state = tf.tanh(inputs[:, time_step] @ to_state + state @ between_states)  # change this
    return state


print(products(faster))


# %% tags=["hide-cell"]
# A solution. One product forward and one backward replace 2 T of them: 3 T + 1 are left. cuDNN's
# recurrent layers do this too.
def faster(inputs, to_state, between_states):
    state = tf.zeros([inputs.shape[0], UNITS], tf.float64)
    for from_input in tf.unstack(tf.tensordot(inputs, to_state, 1), axis=1):
        state = tf.tanh(from_input + state @ between_states)
    return state


print(f"{products(faster)} products")
assert products(recurrent) == products(recurrent, twice) == 5 * TIME_STEPS - 1
assert products(faster) == 3 * TIME_STEPS + 1
for ours, theirs in zip(
    gradients_of(faster)(inputs, to_state, between_states),
    gradients_of(recurrent)(inputs, to_state, between_states),
    strict=True,
):
    assert tf.norm(ours - theirs) < 1e-12 * tf.norm(theirs)  # the same, except for rounding

# %% [markdown]
# ## The same with the package
# Keras's `train_on_batch` on a tower gets its batches from an input that sleeps for 60 ms before
# each one. The cell measures the step on one fixed batch and computes the other two times from it,
# then measures these as well: with one batch ahead, the slower of the two sets the pace; with none
# ahead, the times add up. The measured times depend on your machine, and other programs make them
# longer.

# %%
import itertools
import time

import keras

from input_pipeline import shapes

images, labels = shapes.make("train")
batch = (tf.constant(images[:128] / 255.0, tf.float32), tf.constant(labels[:128]))
model = keras.Sequential(
    [
        keras.Input(images.shape[1:]),
        keras.layers.Conv2D(64, 5, strides=2, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(10),
    ]
)
towers.distribute(model, 1)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.01), loss)


def slow_input():
    while True:
        time.sleep(0.06)
        yield batch


def measured(batches, windows=4, steps=4):
    """Milliseconds of a step, on average over the fastest of some windows of steps."""
    batches, found = iter(batches), []
    for _ in range(windows):
        began = time.perf_counter()
        for _ in range(steps):
            model.train_on_batch(*next(batches))  # waits for its end
        found.append(1000 * (time.perf_counter() - began) / steps)
    return min(found)


signature = tuple(tf.TensorSpec(part.shape, part.dtype) for part in batch)
one_ahead = tf.data.Dataset.from_generator(slow_input, output_signature=signature).prefetch(1)
measured(itertools.repeat(batch), windows=1)  # builds the graph
fixed = measured(itertools.repeat(batch))
print(f"one fixed batch:  {fixed:.0f} ms measured")
print(f"one batch ahead:  {measured(one_ahead):.0f} ms measured, {max(60, fixed):.0f} ms computed")
print(f"none ahead:       {measured(slow_input()):.0f} ms measured, {60 + fixed:.0f} ms computed")
