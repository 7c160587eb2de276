# %% [markdown]
# # Try it: why not asynchronous SGD?
# > Why not asynchronous SGD? Nobody trains synchronously on tens of GPUs, do they?
#
# [The lesson](../lessons/synchronous_or_not.md) races the rules with a network. Here you count what
# four workers get done, and find the largest learning rate that stale gradients allow.
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
# [The laboratory](../laboratory.md) runs an update rule in virtual time, in which a usual gradient
# takes 1. It is in the repository, but is not installed with the package.
#
# The workers minimize the parabola `x**2 / 2` from x = 1. Its gradient is x, without noise, and a
# message takes no time.

# %%
import sys
from pathlib import Path

sys.path.append(str(Path(towers.__file__).parents[1]))

from laboratory import problems, rules, simulation, speeds


def run(rule, of_speeds, rate=0.1, problem=None, until=100):
    """Four workers with a rule, up to a virtual time."""
    return simulation.run(
        rule,
        rules.RULES[rule](rate),
        problem or problems.Parabola(),
        speeds.Speeds(of_speeds, workers=4),
        until=until,
        measurements=1,
    )


# %% [markdown]
# ## Predict, then look
# 1. The last of the four workers is a straggler, whose gradients take 4. How many gradients are in
#    the model at time 100: 100, 300, 325 or 400? Answer for `synchronous`, which waits for all
#    workers; for `backup_workers`, which waits for three of the four; and for `asynchronous`.
# 2. Now the workers are equal, and the rule is `asynchronous`. When a worker's gradient arrives,
#    how many updates has the model had since the worker read its weights: 0, 3 or 4?
# 3. The synchronous rule converges on this parabola with any rate below 2. With a rate of 0.5, does
#    the asynchronous rule converge?

# %%
print("one straggler")
for rule in ("synchronous", "backup_workers", "asynchronous"):
    done = run(rule, "straggler")
    print(f"  {rule:<15} {done.used} gradients in {done.updates} updates, {done.dropped} dropped")

print("equal workers, rate 0.5")
for rule in ("synchronous", "asynchronous"):
    done = run(rule, "constant", rate=0.5)
    staleness, count = done.staleness.most_common(1)[0]
    print(f"  {rule:<15} staleness {staleness} in {count} of {done.used} gradients,", end=" ")
    print(f"loss from 0.5 to {done.end.loss:.1e}")

# %% [markdown]
# <details><summary>Answers</summary>
#
# 1. `synchronous` 100, `backup_workers` 300, `asynchronous` 325. A synchronous step takes as long
#    as its slowest worker, so there are 25 steps of four gradients. With one backup worker a step
#    takes 1, and the straggler's 25 gradients come too late and are dropped. The asynchronous rule
#    uses these 25 as well.
# 2. 3. While a worker computes its gradient, each of the other three workers delivers one. Only the
#    first gradients of the run are less stale.
# 3. No, it diverges. A gradient of staleness 3 belongs to the model of three updates ago. When the
#    model has just passed the minimum, such gradients still push it farther away.
#
# </details>
#
# ## Exercise 1: which rate do stale gradients allow?
# With staleness s, the asynchronous rule is `x[t+1] = x[t] - rate * x[t-s]`. Such a sequence is a
# sum of powers `z**t`, where z are the roots of `z**(s+1) - z**s + rate`. It converges to 0 if all
# roots are smaller than 1 in absolute value. Write `largest_root`, then compare the limits with the
# formula `2 * sin(pi / (4 * s + 2))`. By which factor does the limit fall from s = 0 to s = 15, the
# staleness of 16 equal workers?

# %%
import numpy as np


def largest_root(rate, staleness):
    return abs(1 - rate)  # change this: it is right for staleness 0


def limit(staleness):
    """The largest rate that converges, found by halving."""
    low, high = 0.0, 3.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if largest_root(middle, staleness) < 1 else (low, middle)
    return low


for staleness in (0, 1, 3, 15):
    formula = 2 * np.sin(np.pi / (4 * staleness + 2))
    print(f"staleness {staleness:>2}: up to {limit(staleness):.4f}, formula {formula:.4f}")


# %% tags=["hide-cell"]
# A solution. At the limit, a root leaves the unit circle. From 2 to 0.1013 is a factor of 19.7.
def largest_root(rate, staleness):
    coefficients = np.zeros(staleness + 2)
    coefficients[0] = 1.0
    coefficients[1] -= 1.0
    coefficients[-1] += rate
    return abs(np.roots(coefficients)).max()


for staleness in (0, 1, 3, 15):
    formula = 2 * np.sin(np.pi / (4 * staleness + 2))
    print(f"staleness {staleness:>2}: up to {limit(staleness):.4f}, formula {formula:.4f}")
    assert abs(limit(staleness) - formula) < 1e-12

# Four workers in the laboratory have staleness 3, and the same limit.
below, above = (run("asynchronous", "constant", factor * limit(3)) for factor in (0.95, 1.05))
assert below.end.loss < 0.5 < above.end.loss

# %% [markdown]
# ## Exercise 2: how many backup workers?
# 16 workers have jitter: the time of each gradient is random, with a mean of 1. A step waits for
# the first 16 - b gradients, and uses them. In this sketch, all workers begin each step together.
# Change `step_times` so that it takes b into account. With which of these b do the most gradients
# get into the model in a unit of time? What does a larger b cost?

# %%
workers, steps = 16, 1000
jitter = speeds.Speeds("jitter", workers)
times = np.array(
    [[jitter.of_gradient(worker, step) for worker in range(workers)] for step in range(steps)]
)  # [steps, workers]


def step_times(times, backups):
    return times.max(axis=1)  # change this: it waits for all workers


def gradients_per_time(backups):
    return (workers - backups) * steps / step_times(times, backups).sum()


for backups in (0, 1, 2, 4, 8):
    print(f"{backups} backup workers: a step takes {step_times(times, backups).mean():.2f}", end="")
    print(f", {gradients_per_time(backups):.1f} gradients in a unit of time")


# %% tags=["hide-cell"]
# A solution: in each step, the time of the slowest of those that it waits for. Of these b, four
# gives the most gradients. With eight, steps are shorter still, but half of the gradients are
# dropped. And the mean of fewer gradients is noisier, which this count does not show.
def step_times(times, backups):
    in_order = np.sort(times, axis=1)
    return in_order[:, workers - 1 - backups]


for backups in (0, 1, 2, 4, 8):
    print(f"{backups} backup workers: a step takes {step_times(times, backups).mean():.2f}", end="")
    print(f", {gradients_per_time(backups):.1f} gradients in a unit of time")

assert np.array_equal(step_times(times, 0), times.max(axis=1))
of_backups = [step_times(times, backups).mean() for backups in range(workers)]
assert of_backups == sorted(of_backups, reverse=True)
assert max((0, 1, 2, 4, 8), key=gradients_per_time) == 4

# %% [markdown]
# ## The same with the package
# Keras's `fit` on towers makes the synchronous step. Here are 25 of them, with a small network and
# 16 images for each worker: in the laboratory with equal workers, in the laboratory with a
# straggler, and on four towers. A slow worker changes when a step ends, and nothing else.

# %%
import keras

from laboratory import data, findings, network, race

images = data.load(findings.Setup(shapes=True))  # `shapes`
of_network = network.Network(race.network, images, batch=16)
equal = run("synchronous", "constant", 0.1, of_network, until=25)
straggler = run("synchronous", "straggler", 0.1, of_network, until=100)
model = towers.distribute(race.network(), devices, microbatch_size=16)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.1), loss)
model.fit(images.training_batches(64, steps=25, distorted=False), shuffle=False, verbose=0)
trained = np.concatenate([v.numpy().ravel() for v in model.trainable_variables])

assert equal.updates == straggler.updates == 25
assert np.array_equal(equal.weights, straggler.weights)
assert np.array_equal(equal.weights, trained)
print("equal workers at time 25, a straggler at time 100, and four towers: the same bits")
