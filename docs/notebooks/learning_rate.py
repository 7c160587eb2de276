# %% [markdown]
# # Try it: is the learning rate the same in the n-th epoch?
# > Is the learning rate the same in the n-th epoch for 1 and 2 GPUs?
#
# [The lesson](../lessons/learning_rate.md) computes two rules for the tutorial's run. Here you fix
# the old rule, move a run from 1 tower to 4, and read the rate while two networks train.
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
# Take a training set of 5,000 images. One tower uses 100 of them in each step, and the rate falls
# to a tenth every 30 epochs. The rule below counts steps, as the tutorial's did until late 2018: it
# converts 30 epochs to steps with the batch of one tower.

# %%
import itertools

EXAMPLES, BATCH, EPOCHS_PER_DECAY, INITIAL = 5_000, 100, 30, 0.1


def old_rule(step):
    """The rate of the update that follows so many steps."""
    decay_steps = EXAMPLES // BATCH * EPOCHS_PER_DECAY
    return INITIAL * 0.1 ** (step // decay_steps)


def first_decay(rule, global_batch):
    """The epoch at which the rate falls for the first time."""
    step = next(step for step in itertools.count() if rule(step) < INITIAL)
    return step * global_batch / EXAMPLES


def rate_after(rule, epochs, global_batch):
    """The rate when so many epochs are done."""
    return rule(epochs * EXAMPLES // global_batch)


# %% [markdown]
# ## Predict, then look
# 1. Each tower has 100 images in a step. On one tower the rate falls at epoch 30. At which epoch
#    does it fall on 4 towers: 7.5, 30 or 120?
# 2. A run ends after 100 epochs. How often has the rate fallen by then, on 1 tower and on 4: 3 and
#    3 times, 3 and 0 times, or 3 and 12 times?
# 3. Now 4 towers share a global batch of 100 images, 25 each. At which epoch does the rate fall?
#
# Write your answers down, then run the cell.

# %%
for num_towers in 1, 2, 4:
    batch = num_towers * BATCH
    print(
        f"{num_towers} × {BATCH} images: first decay at epoch {first_decay(old_rule, batch):3g}, "
        f"rate after 100 epochs {rate_after(old_rule, 100, batch):g}"
    )
print(f"4 ×  25 images: first decay at epoch {first_decay(old_rule, BATCH):3g}")

# %% [markdown]
# <details><summary>Answers</summary>
#
# 1. At epoch 120. The rule waits for 1,500 steps, and a step of 4 towers has 400 images, so these
#    steps use 600,000 images, which are 120 epochs.
# 2. 3 and 0 times. On one tower it fell at epochs 30, 60 and 90. The run on 4 towers ends before
#    its first decay.
# 3. At epoch 30. The rule knows only steps, and a step has 100 images again. What matters is the
#    global batch, not the number of towers.
#
# </details>
#
# ## Exercise 1: count steps, but the right number
# In November 2018 the tutorial was repaired: since then it divides the number of steps between two
# decays by the number of GPUs. Change `repaired_rule` likewise, so that the rate falls at epoch 30
# on 1, 2 and 4 towers.


# %%
def repaired_rule(step, num_towers):
    decay_steps = EXAMPLES // BATCH * EPOCHS_PER_DECAY  # change this
    return INITIAL * 0.1 ** (step // decay_steps)


for num_towers in 1, 2, 4:
    epoch = first_decay(lambda step, k=num_towers: repaired_rule(step, k), num_towers * BATCH)
    print(f"towers: {num_towers}, first decay at epoch {epoch:g}")


# %% tags=["hide-cell"]
# A solution: k towers need 1/k of the steps for the same images.
def repaired_rule(step, num_towers):
    decay_steps = EXAMPLES // BATCH * EPOCHS_PER_DECAY // num_towers
    return INITIAL * 0.1 ** (step // decay_steps)


for num_towers in 1, 2, 4:
    epoch = first_decay(lambda step, k=num_towers: repaired_rule(step, k), num_towers * BATCH)
    assert epoch == 30

# %% [markdown]
# ## Exercise 2: a run that changes its towers
# After 20 epochs on one tower, a run is stopped. It resumes on 4 towers, with 100 images each, from
# a checkpoint that says: 1,000 steps, 100,000 examples seen. Which rate does the repaired rule give
# for the next update, and which is right? Write `rate`, which counts examples, so that the rate
# falls at epochs 30, 60, 90 and so on, however many towers have made the steps.

# %%
print(f"by steps: {repaired_rule(1_000, num_towers=4):g}")


def rate(examples_seen):
    return INITIAL  # change this


for epoch in 20, 30, 60:
    print(f"by examples, after {epoch} epochs: {rate(epoch * EXAMPLES):g}")


# %% tags=["hide-cell"]
# A solution. By steps, the next update has a hundredth of the rate: 1,000 steps of 4 towers would
# be 80 epochs, past two decays. The step count does not say how many images each step had. The
# number of examples needs no such knowledge.
def rate(examples_seen):
    return INITIAL * 0.1 ** (examples_seen // (EPOCHS_PER_DECAY * EXAMPLES))


assert repaired_rule(1_000, num_towers=4) == INITIAL * 0.1**2
assert rate(100_000) == INITIAL
assert rate(30 * EXAMPLES - 1) == INITIAL
assert rate(30 * EXAMPLES) == INITIAL * 0.1
assert rate(60 * EXAMPLES) == INITIAL * 0.1**2

# %% [markdown]
# ## The same with the package
# A `schedules.LearningRate` is such a function of the examples seen, and a callback sets the rate
# of each step by it. Two runs get the same schedule: one has one tower with 100 images in a step,
# and the other has two towers with 100 images each. They train for 5 epochs of 1,000 images, and
# the rate halves every 2 epochs. The log of a run has the rate of each step.

# %%
import json
import tempfile

import keras

from input_pipeline import arrays, shapes

images, labels = shapes.make("train")
images = images[:1_000].reshape(1_000, -1).astype("float32") / 255
labels = labels[:1_000]
schedule = towers.schedules.LearningRate(
    "exponential", 0.001, examples_per_epoch=1_000, epochs_per_decay=2, decay_factor=0.5
)


def rates(devices):
    """Examples seen before an update, to its rate."""
    batch = 100 * len(devices)
    model = keras.Sequential([keras.Input((3072,)), keras.layers.Dense(10)])
    towers.distribute(model, devices)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(), loss)
    callbacks = [towers.callbacks.LearningRate(schedule), towers.callbacks.Log(steps=1)]
    with tempfile.TemporaryDirectory() as folder:
        run = towers.Run(folder, model)
        data = arrays.batches(images, labels)
        run.fit(data, batch_size=batch, epochs=5, callbacks=callbacks, verbose=0)
        lines = map(json.loads, run.folder.metrics.read_text().splitlines())
        steps = [line for line in lines if "learning_rate" in line]
    return {line["examples_seen"] - batch: line["learning_rate"] for line in steps}


one, two = rates(devices[:1]), rates(devices)
for epoch in range(5):
    print(f"after {epoch} epochs: {one[1_000 * epoch]:g} and {two[1_000 * epoch]:g}")
assert len(one) == 50 and len(two) == 25
assert all(one[seen] == two[seen] for seen in two)
