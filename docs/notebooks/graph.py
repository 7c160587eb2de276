# %% [markdown]
# # Try it: is the loop over towers serial?
# > The loop over GPUs looks serial. Is it?
#
# [The lesson](../lessons/graph.md) looks into the graph of a network and at its time line. Here you
# run a loop over three towers, trace what waits for what, and fix a loop whose towers do wait for
# each other.
#
# ## Begin
# On a CPU, each tower is a logical device. TensorFlow creates these only once, before its first
# computation. If the next cell prints a device twice, TensorFlow had started before: restart the
# kernel and run that cell first.

# %%
import towers  # before TensorFlow: it sets it up

devices = towers.devices.choose(3)
print(devices)

# %% [markdown]
# 120 images of the embedded data set, and a linear classifier. `step` gives each tower a third of
# the images and averages the towers' gradients. `built` is a Python list: a tower's number is
# appended each time that Python runs the body of the loop.

# %%
import numpy as np
import tensorflow as tf

from input_pipeline import arrays, shapes

images, labels = shapes.make("train")
images = tf.constant(images[:120].reshape(120, -1) / 255.0)
labels = tf.constant(labels[:120])
weights = tf.zeros((3072, 10), tf.float64)


def gradient(weights, images, labels):
    """Of the mean cross entropy of a tower's images."""
    with tf.GradientTape() as tape:
        tape.watch(weights)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, images @ weights)
        loss = tf.reduce_mean(losses)
    return tape.gradient(loss, weights)


built = []


@tf.function(autograph=False)
def step(weights, images, labels):
    gradients = []
    parts = zip(tf.split(images, 3), tf.split(labels, 3), strict=True)
    for k, part in enumerate(parts):
        built.append(k)
        with tf.device(devices[k]), tf.name_scope(f"tower_{k}"):
            gradients.append(gradient(weights, *part))
    with tf.name_scope("average"):
        return tf.add_n(gradients) / 3


# %% [markdown]
# ## Predict, then look
# 1. The step is called 20 times with 120 images. How often does the body of the loop run: 3, 20 or
#    60 times?
# 2. Then comes a last batch of only 60 images. How often does the body run for it: never, or 3
#    times?
#
# Write your answers down, then run the cell.

# %%
for _ in range(20):
    step(weights, images, labels)
print("after 20 steps:       ", built)
step(weights, images[:60], labels[:60])
print("after a smaller batch:", built)

# %% [markdown]
# <details><summary>Answers</summary>
#
# 1. 3 times, once for each tower. The first call runs the Python code, which builds the graph. The
#    other calls run only the graph.
# 2. 3 times. A graph is built for one signature, and 60 images have another shape than 120, so
#    TensorFlow runs the Python code again and builds a second graph.
#
# </details>
#
# ## What waits for what
# An operation waits for its inputs, for its control inputs (operations that have to run before it,
# though it does not read their results), and for everything that these wait for. The name of an
# operation contains the scopes in which it was created, so it tells which tower the operation
# belongs to.


# %%
def needed_for(operation):
    """The operation itself, and all that it waits for."""
    found, to_visit = set(), [operation]
    while to_visit:
        operation = to_visit.pop()
        if operation not in found:
            found.add(operation)
            to_visit += [tensor.op for tensor in operation.inputs] + operation.control_inputs
    return found


def operations(graph, scope):
    """Those made in a scope."""
    return {o for o in graph.get_operations() if scope in o.name.split("/")[:-1]}


def waiting(graph):
    """How many operations of each tower wait for an operation of another tower."""
    of_towers = [operations(graph, f"tower_{k}") for k in range(3)]
    counts = []
    for own in of_towers:
        others = set.union(*of_towers) - own
        counts.append(sum(bool(needed_for(o) & others) for o in own))
    return counts


# %% [markdown]
# ## Predict, then look again
# 1. The loop comes to tower 2 last. How many of its operations wait for one of tower 0 or 1: none,
#    the first one, or all?
# 2. For how many towers does the average wait: 1 or 3?

# %%
graph = step.get_concrete_function(weights, images, labels).graph
of_towers = [operations(graph, f"tower_{k}") for k in range(3)]
average = set.union(*map(needed_for, operations(graph, "average")))
print("operations of each tower:    ", [len(own) for own in of_towers])
print("that wait for another tower: ", waiting(graph))
print("towers that the average needs:", sum(bool(own & average) for own in of_towers))

# %% [markdown]
# <details><summary>Answers</summary>
#
# 1. None. No input of tower 2 is a result of another tower. The graph records what an operation
#    needs, not the order in which Python asked for it.
# 2. For 3: it adds up the gradients of all of them.
#
# </details>
#
# ## Exercise 1: a counter makes towers wait
# This step adds noise to the images. Each draw of noise needs a different number, and a variable
# counts the draws: 1, 2 and 3 in the first step, 4, 5 and 6 in the second. Now operations of towers
# 1 and 2 wait for another tower. Why? Change the step so that none does, and the draws stay the
# same.

# %%
draws = tf.Variable(0, dtype=tf.int64)


@tf.function(autograph=False)
def noisy_step(weights, images, labels):
    gradients = []
    parts = zip(tf.split(images, 3), tf.split(labels, 3), strict=True)
    for k, (own_images, own_labels) in enumerate(parts):
        with tf.device(devices[k]), tf.name_scope(f"tower_{k}"):
            draw = draws.assign_add(1).read_value()  # change where draws is read and written
            noise = tf.random.stateless_normal(own_images.shape, [0, draw], dtype=tf.float64)
            gradients.append(gradient(weights, own_images + noise, own_labels))
    return tf.add_n(gradients) / 3


with_counter = [noisy_step(weights, images, labels) for _ in range(2)]
print(waiting(noisy_step.get_concrete_function(weights, images, labels).graph))

# %% tags=["hide-cell"]
# A solution. `tf.function` keeps the order in which a function reads and writes a variable, so
# tower 1 cannot count before tower 0 has. Here the variable is read once, before the loop, and
# written once, after it. In between, a draw's number follows from the number of the tower.
draws = tf.Variable(0, dtype=tf.int64)


@tf.function(autograph=False)
def noisy_step(weights, images, labels):
    gradients = []
    parts = zip(tf.split(images, 3), tf.split(labels, 3), strict=True)
    before = draws.read_value()
    for k, (own_images, own_labels) in enumerate(parts):
        with tf.device(devices[k]), tf.name_scope(f"tower_{k}"):
            draw = before + k + 1
            noise = tf.random.stateless_normal(own_images.shape, [0, draw], dtype=tf.float64)
            gradients.append(gradient(weights, own_images + noise, own_labels))
    draws.assign_add(3)
    return tf.add_n(gradients) / 3


without = [noisy_step(weights, images, labels) for _ in range(2)]
assert waiting(noisy_step.get_concrete_function(weights, images, labels).graph) == [0, 0, 0]
assert draws.numpy() == 6
np.testing.assert_allclose(without, with_counter, rtol=0, atol=1e-12)

# %% [markdown]
# ## Exercise 2: a graph for each rate
# This update takes a rate that falls with every step. How many graphs does TensorFlow build for
# three updates? Change the call so that it builds only one.

# %%
trained = tf.Variable(weights)
graphs_built = []


@tf.function(autograph=False)
def update(images, labels, rate):
    graphs_built.append(rate)
    trained.assign_sub(rate * step(trained.read_value(), images, labels))


for number in range(3):
    rate = 0.001 / (1 + number)
    update(images, labels, rate)  # change this
print("graphs built:", len(graphs_built))

# %% tags=["hide-cell"]
# A solution. The value of a Python number is part of the signature, so each new rate takes another
# graph. Of a tensor only its type and shape are part of it: the value is an input of the graph.
graphs_built.clear()
for number in range(3):
    rate = 0.001 / (1 + number)
    update(images, labels, tf.constant(rate, tf.float64))
assert len(graphs_built) == 1

# %% [markdown]
# ## The same with the package
# A `towers.Run` on three towers, whose graph can be looked at. A layer counts how often Python
# calls it: while the graph is built, and in no later step.

# %%
import tempfile

import keras

calls = []


class Counted(keras.layers.Dense):
    def call(self, inputs, training=None):
        calls.append(training)
        return super().call(inputs)


class CallsByStep(keras.callbacks.Callback):
    found = []

    def on_train_batch_end(self, batch, logs=None):
        self.found.append(len(calls))


model = keras.Sequential([keras.Input((3072,)), Counted(10)])
towers.distribute(model, devices, microbatch_size=40)  # one for each tower
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.001), loss)
batch = images.numpy().astype("float32"), labels.numpy()
with tempfile.TemporaryDirectory() as folder:
    run = towers.Run(folder, model)
    data = arrays.batches(*batch)
    run.fit(data, batch_size=120, epochs=20, callbacks=[CallsByStep()], verbose=0)
    graph = run.step_function().graph
print("calls after the first and the last of 20 steps:", *CallsByStep.found[::19])
print("operations that wait for another tower:", waiting(graph))
assert len(set(CallsByStep.found)) == 1
assert all(operations(graph, f"tower_{k}") for k in range(3))
assert waiting(graph) == [0, 0, 0]
