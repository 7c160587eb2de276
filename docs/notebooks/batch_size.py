# %% [markdown]
# # Try it: is a larger batch better?
# > Why does training not get faster beyond some batch size? Is a larger batch better?
#
# [The lesson](../lessons/batch_size.md) trains a network with batches from 16 to 4,096. Here you
# use a loss so simple that the noise of its gradient is known exactly, and find the best batch for
# a machine by calculation.
#
# ## Begin

# %%
import towers  # before TensorFlow: it sets it up

print(towers.__version__)

# %% [markdown]
# Each of 10,000 examples is a point with 100 coordinates, and the model is one such point,
# `weights`. The loss of an example is half the squared distance between the two. Its gradient is
# `weights - example`, so the gradient of a batch is `weights` minus the mean of the batch. The mean
# of all examples is 0, so the gradient over all of them is `weights`, of length 1. The squared
# distance of an example from the mean is 100 on average: this is the variance of one example's
# gradient. The noise scale is the variance divided by the squared length of the gradient: 100.

# %%
import numpy as np

rng = np.random.default_rng(0)
examples = rng.normal(size=(10_000, 100))
examples -= examples.mean(axis=0)
examples *= np.sqrt(100 / np.mean(np.sum(examples**2, axis=1)))
weights = np.zeros(100)
weights[0] = 1.0


def gradient(batch):
    """Over so many random examples."""
    return weights - examples[rng.integers(len(examples), size=batch)].mean(axis=0)


def squared(vector):
    """Its squared length."""
    return vector @ vector


# %% [markdown]
# ## Predict, then look
# A step with the exact gradient and rate 1 goes straight to the minimum; call this a perfect step.
# The progress of a step is how much it lowers the loss over all examples. A noisy gradient needs a
# lower rate. The cell uses the best rate for each batch, which here is `1 / (1 + 100 / batch)`.
# 1. The squared error of the gradient of a batch of 25 is 4 on average. What is it for a batch of
#    100: 2, 1 or 1/4?
# 2. How much of a perfect step's progress does a step with a batch of 100 make: a tenth, half, or
#    nearly all?
# 3. A batch of 10,000 has 100 times as many examples. Is the progress of its step 100 times that of
#    a batch of 100, 10 times, or less than twice?
#
# Write your answers down, then run the cell.

# %%
print(" batch  squared error  progress  examples for the progress of a perfect step")
for batch in 25, 100, 400, 10_000:
    rate = 1 / (1 + 100 / batch)
    errors, gains = [], []
    for _ in range(200):
        of_batch = gradient(batch)
        errors.append(squared(of_batch - weights))
        gains.append(squared(weights) - squared(weights - rate * of_batch))
    progress = np.mean(gains) / squared(weights)
    print(f"{batch:>6,}  {np.mean(errors):13.2f}  {progress:8.0%}  {batch / progress:8,.0f}")

# %% [markdown]
# <details><summary>Answers</summary>
#
# 1. It is 1: the squared error of a mean is the variance of one example divided by the batch, here
#    100/100. At the noise scale it is as large as the squared length of the gradient.
# 2. Half. With a batch of B, the share is `1 / (1 + noise scale / B)`.
# 3. Less than twice. A batch of 100 already makes half of a perfect step's progress, and no batch
#    can make more than all of it. The last column, batch divided by progress, is about the batch
#    plus 100: small batches need little more than 100 examples, and one of 10,000 wastes nearly all
#    of its examples.
#
# </details>
#
# ## Exercise 1: the best batch of a machine
# On this machine a step takes 4 ms, and 0.01 ms more for each example. The progress of a perfect
# step takes `1 + 100 / batch` steps, if the noise scale stays the same. Which batch takes the least
# time? On a faster machine, which needs only 0.0025 ms for each example, is the best batch smaller
# or larger? Find both, `best` and `best_of_faster`.


# %%
def milliseconds(batch, of_example):
    return (1 + 100 / batch) * (4 + of_example * batch)


best, best_of_faster = 10_000, 10_000  # change this
print(f"{milliseconds(best, 0.01):.2f} ms, {milliseconds(best_of_faster, 0.0025):.2f} ms")

# %% tags=["hide-cell"]
# A solution. Small batches pay the 4 ms too often, large ones waste examples. The least time is at
# the square root of noise scale * 4 ms / time of an example: the faster machine, which spends less
# on examples, should have a batch twice as large.
batches = np.arange(1, 10_001)
best, best_of_faster = (batches[np.argmin(milliseconds(batches, t))] for t in (0.01, 0.0025))
print(best, best_of_faster)
assert best == 200 and best_of_faster == 400
assert np.isclose(best, np.sqrt(100 * 4 / 0.01))
assert np.isclose(best_of_faster, np.sqrt(100 * 4 / 0.0025))

# %% [markdown]
# ## Exercise 2: the noise scale from gradients alone
# For a real network, nobody knows the variance or the exact gradient. But the squared length of a
# gradient over B examples is `signal + noise / B` on average. Here `signal` is the squared length
# of the exact gradient, and `noise` is the variance of one example's gradient. Two batch sizes give
# two equations. Write `noise_scale`, which solves them and returns `noise / signal`.


# %%
def noise_scale(of_small, of_large, small, large):
    """From mean squared lengths of gradients over `small` and over `large` examples."""
    return of_small / of_large  # change this


def mean_squared_length(batch):
    return np.mean([squared(gradient(batch)) for _ in range(400)])


lengths = mean_squared_length(50), mean_squared_length(800)
print(f"{noise_scale(*lengths, 50, 800):.0f}")


# %% tags=["hide-cell"]
# A solution. From the averages over 400 batches, it comes near 100. From the exact averages, it is
# exact: also for weights twice as far away, whose signal is 4.
def noise_scale(of_small, of_large, small, large):
    noise = (of_small - of_large) / (1 / small - 1 / large)
    signal = of_small - noise / small
    return noise / signal


print(f"{noise_scale(*lengths, 50, 800):.0f}")
assert np.isclose(noise_scale(1 + 100 / 50, 1 + 100 / 800, 50, 800), 100, rtol=1e-12)
assert np.isclose(noise_scale(4 + 100 / 50, 4 + 100 / 800, 50, 800), 25, rtol=1e-12)

# %% [markdown]
# ## The same for a network
# With rate 1, a step takes the gradient off the weights, and so shows it. The cell measures the
# gradients of one network over batches of several sizes: with the initial weights, on the same
# 4,096 images.

# %%
import keras

from input_pipeline import shapes

images, labels = shapes.make("train")
images, labels = images[:4_096].astype("float32") / 255, labels[:4_096]
keras.utils.set_random_seed(0)
model = keras.Sequential(
    [
        keras.Input((32, 32, 3)),
        keras.layers.Conv2D(8, 5, strides=2, activation="relu"),
        keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(10),
    ]
)
towers.distribute(model, 1)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(1.0), loss)
initial = model.get_weights()


def of_network(batch):
    """The mean squared length of gradients over so many images."""
    lengths = []
    for first in range(0, 4_096, batch):
        part = slice(first, first + batch)
        model.train_on_batch(images[part], labels[part])
        pairs = zip(initial, model.get_weights(), strict=True)
        lengths.append(sum(np.sum((before - after) ** 2) for before, after in pairs))
        model.set_weights(initial)
    return np.mean(lengths)


lengths = {batch: of_network(batch) for batch in (64, 256, 1_024)}
for small, large in (64, 256), (64, 1_024), (256, 1_024):
    scale = noise_scale(lengths[small], lengths[large], small, large)
    print(f"noise scale from {small} and {large:,}: {scale:.0f}")
# A large batch's gradient is the mean of small ones', and a mean is shorter where they differ.
assert lengths[64] > lengths[256] > lengths[1_024]

# %% [markdown]
# The three estimates are not the same: there are only four batches of 1,024. They agree on the
# order of magnitude.
