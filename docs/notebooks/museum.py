# %% [markdown]
# # Try it: what is off in the old example?
# > I copied an old example and something is off
#
# [The lesson](../lessons/museum.md) shows 16 faults, one at a time, with their names. Here you get
# two functions that pass a test, one on one tower and the other with one batch size. You find their
# faults with numbers that you can work out by hand, and repair them.
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
# This is the test bench of the lesson: a model with one weight w of 1, images of one pixel, and a
# loss that is the model's output. The loss of an image is then the image itself, and so is its
# gradient. The images 1, 2, 3 and 4 have a mean of 2.5. Weight decay with the coefficient 0.5 adds
# `0.5 * w² / 2` to the loss and `0.5 * w` to the gradient. By hand, the loss is 2.5 + 0.25 = 2.75,
# and the gradient is 2.5 + 0.5 = 3.
#
# Below is a step in the style of the old example. Each tower adds the terms of its loss to a
# collection, and its loss is the sum of the collection.

# %%
import tensorflow as tf

DECAY = 0.5
images = tf.constant([1.0, 2.0, 3.0, 4.0])


def old_step(images, num_towers):
    """The loss, and the mean of the towers' gradients."""
    weight, collection, losses = tf.Variable(1.0), [], []
    with tf.GradientTape(persistent=True) as tape:
        for part in tf.split(images, num_towers):
            collection.append(tf.reduce_mean(weight * part))
            collection.append(DECAY * tf.nn.l2_loss(weight))
            loss = tf.add_n(collection)
            losses.append(loss)
    gradients = [tape.gradient(loss, weight) for loss in losses]
    return float(loss), float(tf.add_n(gradients) / num_towers)


print("1 tower:  loss {}, gradient {}".format(*old_step(images, 1)))

# %% [markdown]
# On one tower, both numbers are the ones worked out by hand.
#
# The second function evaluates. Each batch is full, because the queue starts over when it has no
# more images. Of ten images, the model gets the first two wrong.

# %%
import itertools
import math

is_right = [False] * 2 + [True] * 8


def old_accuracy(is_right, batch_size):
    queue, batches = itertools.cycle(is_right), math.ceil(len(is_right) / batch_size)
    correct = sum(next(queue) for _ in range(batches * batch_size))
    return correct / (batches * batch_size)


print(f"batches of 5: {old_accuracy(is_right, 5):.1%}")

# %% [markdown]
# With batches of five, this is right, too.
#
# ## Predict, then look
# 1. Two towers get the images 1, 2 and 3, 4. Which loss does `old_step` return: 2.75, 3.75 or 5.5?
# 2. Which gradient does it return: 3, 4 or 6?
# 3. Which accuracy does `old_accuracy` return with batches of 4: 66.7 %, 75 % or 80 %?

# %%
print("2 towers: loss {}, gradient {}".format(*old_step(images, 2)))
print(f"batches of 4: {old_accuracy(is_right, 4):.1%}")

# %% [markdown]
# <details><summary>Answers</summary>
#
# 1. 5.5. When the second tower takes the sum, the collection still has the first tower's terms:
#    1.5 + 0.25 + 3.5 + 0.25. The function returns this sum.
# 2. 4. The gradient of the first tower is 1.5 + 0.5 = 2. That of the second tower is
#    2 + 3.5 + 0.5 = 6. Their mean is 4: 3.25 from the images instead of 2.5, and 0.75 from the
#    weight decay instead of 0.5.
# 3. 66.7 %. Three batches of 4 are 12 images, so the first two count twice, and both are wrong:
#    8 of 12 are right.
#
# Neither function stops with an error.
#
# </details>
#
# ## Exercise 1: repair the step
# Change `new_step` until it returns 2.75 and 3 on one, two and four towers. It has two faults, and
# the second one shows only when the first is repaired.


# %%
def new_step(images, num_towers):
    weight, collection, losses = tf.Variable(1.0), [], []
    with tf.GradientTape(persistent=True) as tape:
        for part in tf.split(images, num_towers):
            collection.append(tf.reduce_mean(weight * part))
            collection.append(DECAY * tf.nn.l2_loss(weight))
            loss = tf.add_n(collection)
            losses.append(loss)
    gradients = [tape.gradient(loss, weight) for loss in losses]
    return float(loss), float(tf.add_n(gradients) / num_towers)


for num_towers in (1, 2, 4):
    print(num_towers, *new_step(images, num_towers))


# %% tags=["hide-cell"]
# A solution. Each tower has terms of its own; and the loss is the mean over the towers, not that of
# the last tower, which would be 3.75 on two towers.
def new_step(images, num_towers):
    weight, losses = tf.Variable(1.0), []
    with tf.GradientTape(persistent=True) as tape:
        for part in tf.split(images, num_towers):
            losses.append(tf.reduce_mean(weight * part) + DECAY * tf.nn.l2_loss(weight))
    gradients = [tape.gradient(loss, weight) for loss in losses]
    return float(tf.add_n(losses) / num_towers), float(tf.add_n(gradients) / num_towers)


assert old_step(images, 2) == (5.5, 4.0)
for num_towers in (1, 2, 4):
    assert new_step(images, num_towers) == (2.75, 3.0)

# %% [markdown]
# ## Exercise 2: repair the evaluation
# Change `new_accuracy` so that it returns 80 % for every batch size, and still looks at the images
# batch by batch. With which batch sizes up to 10 was the old function right?


# %%
def new_accuracy(is_right, batch_size):
    return old_accuracy(is_right, batch_size)  # change this


for batch_size in range(1, 11):
    print(f"batches of {batch_size}: {new_accuracy(is_right, batch_size):.1%}")


# %% tags=["hide-cell"]
# A solution. The last batch may be smaller, so count images and divide once. The mean of the
# batches' accuracies would be wrong again: an image in a smaller batch would count more.
def new_accuracy(is_right, batch_size):
    correct = counted = 0
    for first in range(0, len(is_right), batch_size):
        batch = is_right[first : first + batch_size]
        correct += sum(batch)
        counted += len(batch)
    return correct / counted


sizes = range(1, 11)
assert all(new_accuracy(is_right, size) == 0.8 for size in sizes)
# The old function was right where the last batch was full.
assert [size for size in sizes if old_accuracy(is_right, size) == 0.8] == [1, 2, 5, 10]

# %% [markdown]
# ## The same with the package
# Here Keras's `train_on_batch` on towers is on the test bench. Its decay is Keras's, and a step
# with rate 1 takes the gradient off the weight.

# %%
import keras
import numpy as np


def on_bench(num_towers):
    decay = keras.regularizers.L2(DECAY / 2)
    layer = keras.layers.Dense(
        1, use_bias=False, kernel_initializer="ones", kernel_regularizer=decay
    )
    model = keras.Sequential([keras.Input([1]), layer])
    towers.distribute(model, devices[:num_towers], microbatch_size=4 // num_towers)
    model.compile(keras.optimizers.SGD(1.0), loss=lambda labels, outputs: outputs[:, 0])
    loss = model.train_on_batch(images[:, np.newaxis], np.zeros(4, np.float32))
    return float(loss), 1 - layer.kernel.numpy().item()


for num_towers in (1, 2, 4):
    assert on_bench(num_towers) == (2.75, 3.0)
print("1, 2 and 4 towers: loss 2.75, gradient 3.0")

# %% [markdown]
# Keras's `evaluate` on towers counts each image once: the last batch may be shorter, and so may the
# last microbatch of a batch.

# %%
layer = keras.layers.Dense(2, use_bias=False, kernel_initializer="identity")
model = keras.Sequential([keras.Input([2]), layer])
towers.distribute(model, devices[:2], microbatch_size=2)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(loss=loss, metrics=["accuracy"])
outputs = np.float32([[0, 1] if right else [1, 0] for right in is_right])
labels = np.ones(len(outputs), np.int32)
for batch_size in (3, 4, 5):
    _, accuracy = model.evaluate(outputs, labels, batch_size=batch_size, verbose=0)
    print(f"batches of {batch_size}: {accuracy:.1%}")
    assert np.isclose(accuracy, 0.8, rtol=1e-6)
