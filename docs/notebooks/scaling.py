# %% [markdown]
# # Try it: which rate goes with more GPUs?
# > How do I change the rate with the number of GPUs?
#
# [The lesson](../lessons/scaling.md) trains a network with each rule until it reaches an accuracy.
# Here you look at single updates: one large step against the small steps that it replaces.
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
# 128 images of the embedded data set, and a linear classifier whose weights begin at 0. One GPU
# takes 4 steps of 32 images each. Four GPUs with 32 images each take one step, with the gradient of
# all 128: the batch grows with the GPUs. (Where it stays the same, so does the rate:
# [averaging](../lessons/averaging.md).)

# %%
import numpy as np

from input_pipeline import shapes

images, labels = shapes.make("train")
images = images[:128].reshape(128, -1) / 255.0
shares = np.eye(10)[labels[:128]]  # of each class in an image's label: 1 or 0
start = np.zeros((images.shape[1], 10))
everything, parts = np.arange(128), np.split(np.arange(128), 4)


def probabilities(part, weights):
    exponentials = np.exp(images[part] @ weights)
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def loss(weights):
    """The mean cross entropy of all 128 images."""
    return -np.mean(np.log(np.sum(probabilities(everything, weights) * shares, axis=1)))


def gradient(part, weights):
    """Of the mean cross entropy of some images."""
    return images[part].T @ (probabilities(part, weights) - shares[part]) / len(part)


def small_steps(rate):
    weights = start
    for part in parts:
        weights = weights - rate * gradient(part, weights)
    return weights


def large_step(rate):
    return start - rate * gradient(everything, start)


def distance(weights, target):
    """Of weights from where they should be, divided by the way from the start to there."""
    return np.linalg.norm(weights - target) / np.linalg.norm(target - start)


# %% [markdown]
# ## Predict, then look
# The small steps use a rate of 0.0001.
# 1. The large step uses the same rate. How far does it get: a quarter of the way, half of it, or
#    all of it?
# 2. The square-root rule doubles the rate, the linear rule makes it 4 times as large. Which of the
#    two large steps ends nearer to where the small ones do?
# 3. Now the small steps use 0.001. Is the linear rule's distance from them the same as before,
#    about 10 times or about 100 times as large? And at 0.01, does its step still lower the loss?
#
# Write your answers down, then run the cell.

# %%
print(f"loss at the start: {loss(start):.3f}")
for rate in 0.0001, 0.001, 0.01:
    target = small_steps(rate)
    print(f"\nfour small steps with rate {rate}: loss {loss(target):.3f}")
    for name, factor in ("fixed", 1), ("sqrt", 2), ("linear", 4):
        weights = large_step(factor * rate)
        print(f"  {name:<6} {distance(weights, target):6.1%} away, loss {loss(weights):.3f}")

# %% [markdown]
# <details><summary>Answers</summary>
#
# 1. A quarter of the way: it is 75% away. The gradient is about the same, but it is applied once,
#    and in the small steps four times.
# 2. That of the linear rule, 1.5% away. The weights hardly change between the small steps, so the
#    gradients of these are nearly those at the start, and the sum of the four is 4 times the
#    gradient of all images.
# 3. About 10 times: 15.1%. What the rule leaves out, the change of the gradient during the small
#    steps, grows with the rate. At 0.01 the rule fails: the loss rises from 2.303 to 2.621. Even
#    the small steps are too long then, and end at 2.328.
#
# </details>
#
# ## Exercise 1: a sum in place of the mean
# A program adds up the gradients of its four towers, and nobody has noticed. The rate of one tower
# is 0.0001, so that of the linear rule is 0.0004. With which rate does this program make the same
# update as the linear rule? Change `rate`.


# %%
def step_with_sum(rate):
    return start - rate * np.sum([gradient(part, start) for part in parts], axis=0)


rate = 0.0004  # change this
print(f"{distance(step_with_sum(rate), large_step(0.0004)):.1e}")

# %% tags=["hide-cell"]
# A solution. The sum is 4 times the mean. With the unchanged rate of one tower, this program
# follows the linear rule, though nobody has chosen it.
rate = 0.0001
assert distance(step_with_sum(rate), large_step(0.0004)) < 1e-12

# %% [markdown]
# ## Exercise 2: the rule for Adam
# Adam divides a gradient by its size: roughly, the root of its mean square. Take one weight. The
# gradient of a batch has the mean `signal` and noise of variance `1 / batch`. `adam_moves` says how
# far this weight moves in an epoch. By which factor must the rate grow with a batch 16 times as
# large, so that the weight moves as far? Change `factor`: it should be right where nearly all of
# the gradient is noise (signal 0.001), and where nearly all is signal (10).


# %%
def adam_moves(rate, batch, signal):
    """How far a weight comes in an epoch of 5,120 examples, on average."""
    size = np.sqrt(signal**2 + 1 / batch)
    return 5_120 / batch * rate * signal / size


def factor(signal):
    return 16  # change this


for signal in 0.001, 10:
    moved = adam_moves(0.001 * factor(signal), 16 * 32, signal) / adam_moves(0.001, 32, signal)
    print(f"signal {signal}: {factor(signal):.2f} times the rate moves {moved:.2f} times as far")


# %% tags=["hide-cell"]
# A solution. The distance is proportional to the rate, so the factor is the quotient of the two
# distances at one rate. The larger batch makes a 16th of the updates. Where nearly all is noise,
# its gradient has a quarter of the size. Adam divides by that, so each update is 4 times as long,
# and a factor of 4 is left: the square root. Where nearly all is signal, the size stays, and the
# factor is 16.
def factor(signal):
    return adam_moves(0.001, 32, signal) / adam_moves(0.001, 16 * 32, signal)


print(f"nearly all noise: {factor(0.001):.4f}, nearly all signal: {factor(10):.4f}")
assert 4 < factor(0.001) < 4.001
assert 15.9 < factor(10) < 16

# %% [markdown]
# ## The same with the package
# The rules ask for the batch, not for the number of towers: with the same batch and microbatches,
# one tower and four end with the same weights, to the last bit.

# %%
import keras

rates = {"none": 0.0001, "linear": 0.0001 * 128 / 32}
print(rates)


def trained(devices):
    keras.utils.set_random_seed(0)  # of the order of the images
    layer = keras.layers.Dense(10, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((3072,)), layer])
    towers.distribute(model, devices, microbatch_size=32)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(rates["linear"]), loss)
    model.fit(images.astype("float32"), labels[:128], batch_size=128, epochs=20, verbose=0)
    return model.get_weights()


one, four = trained(devices[:1]), trained(devices)
assert all(np.array_equal(a, b) for a, b in zip(one, four, strict=True))
print("1 and 4 towers with the linear rule: the same bits")
