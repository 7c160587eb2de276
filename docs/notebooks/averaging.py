# %% [markdown]
# # Try it: is averaging gradients exact?
# > Is averaging the gradients of 2 GPUs the same as one GPU with twice the batch?
#
# [The lesson](../lessons/averaging.md) answers with trained networks. Here you take the average
# yourself, on a model of one layer.
#
# ## Begin
# On a CPU, each tower is a logical device. TensorFlow creates these only once, before its first
# computation. If the next cell prints a device twice, TensorFlow had started before: restart the
# kernel and run that cell first.

# %%
import towers  # before TensorFlow: it sets it up

devices = towers.devices.choose(2)
print(devices)

# %% [markdown]
# 128 images of the embedded data set, and a linear classifier in float64. Its numbers have about 16
# digits, so rounding is too small to be mistaken for anything else.

# %%
import numpy as np
import tensorflow as tf

from input_pipeline import shapes

images, labels = shapes.make("train")
images = images[:128].reshape(128, -1) / 255.0
labels = labels[:128]
weights = np.random.default_rng(0).normal(0, 0.01, (images.shape[1], 10))


def gradient(images, labels, weights):
    """Of the mean cross-entropy of these images."""
    weights = tf.constant(weights)
    with tf.GradientTape() as tape:
        tape.watch(weights)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, images @ weights)
        loss = tf.reduce_mean(losses)
    return tape.gradient(loss, weights).numpy()


def distance(one, other):
    """Between two gradients, divided by the length of the second."""
    return np.linalg.norm(one - other) / np.linalg.norm(other)


# %% [markdown]
# ## Predict, then look
# 1. Two towers have 64 images each, and the mean of their gradients is taken. How far is it from
#    the gradient of all 128: 0, about 1e-16, or about 1e-2?
# 2. Now the towers have 96 and 32 images. Is the mean of their gradients as close?
#
# Write your answers down, then run the cell.

# %%
whole = gradient(images, labels, weights)
halves = [gradient(images[part], labels[part], weights) for part in np.split(np.arange(128), 2)]
uneven = [gradient(images[part], labels[part], weights) for part in np.split(np.arange(128), [96])]
print(f"two halves:  {distance(np.mean(halves, axis=0), whole):.1e}")
print(f"96 and 32:   {distance(np.mean(uneven, axis=0), whole):.1e}")

# %% [markdown]
# <details><summary>Answers</summary>
#
# 1. About 1e-16. The loss of the batch is a mean, so its gradient is the mean of the halves'
#    gradients. What is left is rounding: the same numbers were added in another order.
# 2. No, it is farther off by many orders of magnitude. The mean of two means is the mean of all
#    only where both have the same number of examples. Here, an image among the 32 counts three
#    times as much as one among the 96.
#
# </details>
#
# ## Exercise 1: uneven parts, done right
# Average the two uneven gradients so that the result is the gradient of the whole batch. Change one
# line.

# %%
average = np.mean(uneven, axis=0)  # change this
print(f"{distance(average, whole):.1e}")

# %% tags=["hide-cell"]
# A solution: each gradient counts as often as it has examples.
average = np.average(uneven, axis=0, weights=[96, 32])
assert distance(average, whole) < 1e-12

# %% [markdown]
# ## Exercise 2: clip before or after?
# Clipping scales a gradient down to a bound if its norm is larger than that. Write `clipped`, then
# find out whether the mean of the clipped halves is the clipped gradient of the whole batch. Which
# of the two would you compute on two GPUs, and why?

# %%
bound = 0.5 * np.linalg.norm(whole)


def clipped(gradient, bound):
    return gradient  # change this


# %% tags=["hide-cell"]
# A solution. The halves have different norms from the whole, so clipping them is another rule,
# which even depends on the number of GPUs. Keras's `fit` on towers clips the average.
def clipped(gradient, bound):
    """Scaled down to a norm of at most `bound`."""
    return gradient * min(1.0, bound / np.linalg.norm(gradient))


after = clipped(whole, bound)
before = np.mean([clipped(half, bound) for half in halves], axis=0)
print(f"clipped before the mean: {distance(before, after):.1e} away")
assert np.isclose(np.linalg.norm(after), bound)
assert distance(before, after) > 1e-3

# %% [markdown]
# ## The same with the package
# Keras's `fit` on one tower and on two, with the same two microbatches. Their gradients are added
# in the same order, so the results do not differ even by rounding.

# %%
import keras


def trained(devices):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3072,)), keras.layers.Dense(10)])
    towers.distribute(model, devices, microbatch_size=64)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss)
    model.fit(images.astype("float32"), labels, batch_size=128, epochs=20, verbose=0)
    return model.get_weights()


one, two = trained(devices[:1]), trained(devices)
assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
print("1 and 2 towers: the same bits")
