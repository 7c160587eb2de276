# %% [markdown]
# # Try it: whose loss is it?
# > Why is the loss combined? Is it the loss of all batches?
#
# [The lesson](../lessons/losses.md) shows the loss of each tower, term by term. Here you add the
# terms up yourself, make the tutorial's list of losses, and work out what it does to the gradient.
#
# ## Begin
# On a CPU, each tower is a logical device. TensorFlow creates these only once, before its first
# computation. If the next cell prints a device twice, TensorFlow had started before: restart the
# kernel and run that cell first.

# %%
import towers  # before TensorFlow: it sets it up

devices = towers.devices.choose(4)
print(devices)

# %% [markdown]
# 128 images of the embedded data set in four parts, one for each tower, and a linear classifier in
# float64. A tower's loss has two terms: the mean cross entropy of its own images, and the weight
# decay, for which it needs no images.

# %%
import numpy as np
import tensorflow as tf

from input_pipeline import shapes

WEIGHT_DECAY = 0.1
images, labels = shapes.make("train")
images = images[:128].reshape(128, -1) / 255.0
labels = labels[:128]
parts = np.split(np.arange(128), 4)
weights = tf.constant(np.random.default_rng(0).normal(0, 0.02, (images.shape[1], 10)))


def cross_entropy(part, weights):
    """The mean over some of the images."""
    logits = images[part] @ weights
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels[part], logits))


def decay(weights):
    return WEIGHT_DECAY * tf.nn.l2_loss(weights)


# %% [markdown]
# The loop over towers, in a `tf.function`. For comparison, it also does what the tutorial's
# `cifar10.loss()` does: every tower appends its terms to one list that outlives it, and adds up the
# whole list.

# %%
collection = []


@tf.function(autograph=False)
def step(weights):
    own, collected = [], []
    for part in parts:
        terms = [cross_entropy(part, weights), decay(weights)]
        own.append(tf.add_n(terms))
        collection.extend(terms)
        collected.append(tf.add_n(collection))
    return own, collected


# %% [markdown]
# ## Predict, then look
# 1. Take the mean of the four towers' own losses. How does it compare to the cross entropy of all
#    128 images plus the weight decay: the same, larger by three weight decays, or four times as
#    large?
# 2. The last tower adds up the whole list. How many weight decays are in its sum: 1, 4 or 10?
# 3. The step is called a second time. Is the last tower's sum of the list now the same, or twice as
#    large?
#
# Write your answers down, then run the cell.

# %%
own, collected = np.array(step(weights))
_, again = np.array(step(weights))
whole = cross_entropy(np.arange(128), weights).numpy() + decay(weights).numpy()
print("weight decay:                   ", decay(weights).numpy().round(4))
print("own losses:                     ", own.round(4))
print("their mean:                     ", own.mean().round(4))
print("all images, and the decay once: ", whole.round(4))
print("sums of the list:               ", collected.round(4))
print("the same in the second call:    ", again.round(4))

# %% [markdown]
# <details><summary>Answers</summary>
#
# 1. The same. The parts are of equal size, so the mean of their cross entropies is the mean over
#    all images. The mean of four equal weight decays is that weight decay, so it counts once.
# 2. 4, and also the cross entropies of all 4 towers: the list still has the terms of the earlier
#    towers.
# 3. The same. Appending to a list is Python: it happens while the graph is built, once. The second
#    call runs the same graph again. So a step's loss is the loss of its own batch, not of all
#    batches so far.
#
# </details>
#
# ## Exercise 1: only a tower's own terms
# The tutorial's multi-GPU script takes from the list only the terms in the tower's name scope.
# Below, the list has pairs of a scope and a term. Change `tower_loss` so that each tower gets its
# own loss.


# %%
def tower_loss(collection, scope):
    return sum(term for _, term in collection)  # change this


def losses_of_towers(tower_loss):
    collection, found = [], []
    for tower, part in enumerate(parts):
        scope = f"tower_{tower}/"
        collection.append((scope, cross_entropy(part, weights).numpy()))
        collection.append((scope, decay(weights).numpy()))
        found.append(tower_loss(collection, scope))
    return np.array(found)


print(losses_of_towers(tower_loss).round(4))


# %% tags=["hide-cell"]
# A solution. The list still grows, but a tower leaves out what others put there.
def tower_loss(collection, scope):
    return sum(term for of, term in collection if of == scope)


np.testing.assert_allclose(losses_of_towers(tower_loss), own, rtol=1e-12)

# %% [markdown]
# ## Exercise 2: what the list does to the gradient
# Without the scope, each tower takes the gradient of its sum of the list, and these four gradients
# are averaged. The average has the gradients of the four cross entropies, each with a factor, and
# that of the weight decay with another. With the right losses all factors are 1. What are they
# here? Change them so that the distance is zero, up to rounding.


# %%
def gradient(loss):
    """Of a function of the weights."""
    with tf.GradientTape() as tape:
        tape.watch(weights)
        value = loss(weights)
    return tape.gradient(value, weights).numpy()


of_parts = [gradient(lambda w, part=part: cross_entropy(part, w)) for part in parts]
of_decay = gradient(decay)
averaged = np.mean([gradient(lambda w, k=k: step(w)[1][k]) for k in range(4)], axis=0)


def distance(factors, decay_factor):
    """From the averaged gradient, divided by its length."""
    rebuilt = np.tensordot(factors, of_parts, axes=1) / 4 + decay_factor * of_decay
    return np.linalg.norm(rebuilt - averaged) / np.linalg.norm(averaged)


factors, decay_factor = [1, 1, 1, 1], 1  # change this
print(f"{distance(factors, decay_factor):.1e}")

# %% tags=["hide-cell"]
# A solution. The cross entropy of tower 0 is in all four sums, that of tower 3 in one. The sums
# have 1, 2, 3 and 4 weight decays, 2.5 on average.
factors, decay_factor = [4, 3, 2, 1], 2.5
assert distance(factors, decay_factor) < 1e-12
assert distance([1, 1, 1, 1], 1) > 0.1

# %% [markdown]
# ## The same with the package
# Keras's `train_on_batch` on four towers with the same weights, images and weight decay. There is
# no list: the loss that it returns is the mean of the towers' cross entropies and the decay, once.
# It computes in float32, so it agrees with the numbers above to about six digits.

# %%
import keras

decay_of_keras = keras.regularizers.L2(WEIGHT_DECAY / 2)
linear = keras.layers.Dense(10, use_bias=False, kernel_regularizer=decay_of_keras)
model = keras.Sequential([keras.Input((3072,)), linear])
model.set_weights([weights])
towers.distribute(model, devices, microbatch_size=32)  # one for each tower
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.001), loss)
of_step = model.train_on_batch(images.astype("float32"), labels)
print(f"loss of the step: {of_step:.4f}")
np.testing.assert_allclose(of_step, own.mean(), rtol=1e-6)
