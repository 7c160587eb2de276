# %% [markdown]
# # Try it: which model counts in elastic averaging?
# > What about elastic averaging? Each worker then has a model of its own: which one counts?
#
# [The lesson](../lessons/elastic_averaging.md) measures accuracies of trained networks, and these
# differ from seed to seed. Here you compute the error of each model exactly, on a parabola. Then
# you see on a curve with two minima when the mean of the models is worse than the models
# themselves.
#
# ## Begin

# %%
import towers  # before TensorFlow: it sets it up

print(f"towers {towers.__version__}")

# %% [markdown]
# Four workers minimize `x**2 / 2`. The gradient of worker i is its own x_i plus noise with a
# variance of 1. The workers take turns. In a turn, worker i makes a step with the rate η, and the
# spring pulls the worker and the centre c together:
#
# - x_i becomes x_i - η (x_i + noise) - α (x_i - c),
# - c becomes c + α (x_i - c), with the same old x_i.
#
# Without the noise, a turn multiplies the models by a matrix. With the noise, each turn changes the
# covariance of the models in a known way. So you need no random numbers: after many rounds, the
# covariance says how large the square of each model is on average, which is its squared distance
# from the minimum at 0.

# %%
import numpy as np

RATE, WORKERS = 0.1, 4


def turn(worker, alpha, workers=WORKERS, rate=RATE):
    """The matrix of a turn, [workers + 1, workers + 1]; the centre comes last."""
    matrix = np.eye(workers + 1)
    matrix[worker, worker] = 1 - rate - alpha
    matrix[worker, -1] = matrix[-1, worker] = alpha
    matrix[-1, -1] = 1 - alpha
    return matrix


def covariance_after(alpha, rounds=2000):
    """Of the workers and the centre, which all begin at 0."""
    covariance = np.zeros((WORKERS + 1, WORKERS + 1))
    for _ in range(rounds):
        for worker in range(WORKERS):
            matrix = turn(worker, alpha)
            covariance = matrix @ covariance @ matrix.T
            covariance[worker, worker] += RATE**2
    return covariance


# Each model as a weighted sum of the four workers and the centre.
models = {
    "a worker": np.array([1, 0, 0, 0, 0]),
    "the mean": np.array([1, 1, 1, 1, 0]) / 4,
    "the centre": np.array([0, 0, 0, 0, 1]),
}


def mean_squares(alpha):
    """The expected square of each model."""
    covariance = covariance_after(alpha)
    return {name: weights @ covariance @ weights for name, weights in models.items()}


# %% [markdown]
# ## Predict, then look
# 1. Without a spring, the workers train separately. How large is the mean square of the workers'
#    mean, compared with that of a worker: the same, a half, or a quarter?
# 2. With the authors' spring, α = 0.9 / 4 = 0.225, which model is the best on average: a worker,
#    the mean of the workers, or the centre?
# 3. With a spring of α = 0.9, is it still the same model?

# %%
for alpha in (0, 0.225, 0.9):
    of_models = mean_squares(alpha)
    print(f"α = {alpha:<5}", *(f" {name}: {square:.4f}" for name, square in of_models.items()))

# %% [markdown]
# <details><summary>Answers</summary>
#
# 1. A quarter: 0.0132 instead of 0.0526. The workers' errors are independent, so the variance of
#    the mean of four is a quarter of theirs. Without a spring the centre stays where it was, here
#    at the minimum, so its 0 says nothing.
# 2. The centre, with 0.0101. The mean of the workers, with 0.0108, is an average over four models
#    at one time. The centre is an average over past times as well.
# 3. No: the mean of the workers is the best, with 0.0118. In each turn, the centre goes 0.9 of the
#    way to one worker, so it has most of the error of the worker that it met last.
#
# In all three cases a single worker is the worst of the models that have been trained.
#
# </details>
#
# ## Exercise 1: a mean on a hill
# A parabola has one minimum. `(x**2 - 1)**2 / 4` has two, at -1 and 1, with a hill of height 0.25
# between them. Four workers begin on the hill, at 0, and take turns as before, in 1,000 runs with
# different noise. Without a spring, the mean of the workers has a much higher loss than the workers
# have. Why? Change α so that the mean is better than they are.


# %%
def in_two_minima(alpha, runs=1000, rounds=300):
    """The workers at the end, [runs, workers]."""
    random = np.random.default_rng(0)
    own, centre = np.zeros((runs, WORKERS)), np.zeros(runs)
    for _ in range(rounds):
        for worker in range(WORKERS):
            x = own[:, worker].copy()
            gradient = x**3 - x + random.standard_normal(runs)
            pulled = alpha * (x - centre)
            own[:, worker] = x - RATE * gradient - pulled
            centre = centre + pulled
    return own


def loss(x):
    return (x**2 - 1) ** 2 / 4


def parted(own):
    """Whether the workers of a run are on both sides of the hill, [runs]."""
    return (own > 0).any(axis=1) & (own < 0).any(axis=1)


alpha = 0.0  # change this
own = in_two_minima(alpha)
print(f"a worker {loss(own).mean():.3f}, the mean {loss(own.mean(axis=1)).mean():.3f}")
print(f"on both sides of the hill: {parted(own).mean():.1%} of the runs")

# %% tags=["hide-cell"]
# A solution. Without a spring, each worker falls to one side by chance; all four fall to the same
# side in one run of eight. Where they are on both sides, their mean is on the hill between.
# The authors' spring keeps the workers together, so all four fall to the same side.
apart, together = in_two_minima(0.0), in_two_minima(0.9 / WORKERS)
for own in (apart, together):
    print(f"a worker {loss(own).mean():.3f}, the mean {loss(own.mean(axis=1)).mean():.3f}", end="")
    print(f", on both sides of the hill: {parted(own).mean():.1%} of the runs")
assert loss(apart.mean(axis=1)).mean() > loss(apart).mean()
assert loss(together.mean(axis=1)).mean() < loss(together).mean()
assert not parted(together).any()

# %% [markdown]
# ## Exercise 2: how strong may the spring be?
# Back to the parabola, without noise. If the spring is too strong, the models swing farther with
# each round. The lesson finds the limit by running the rule with three workers. You need only the
# matrix of a whole round, the product of its turns: the models grow if it has an eigenvalue larger
# than 1 in absolute value. Write `growth`. Is the limit the paper's `(4 - 2η) / (4 - η)` for two,
# three and four workers?


# %%
def growth(alpha, workers, rate):
    """The largest absolute eigenvalue of a round."""
    return alpha  # change this


def limit(workers, rate):
    """The largest α that is stable, found by halving."""
    low, high = 0.0, 1.5
    for _ in range(50):
        middle = (low + high) / 2
        stable = growth(middle, workers, rate) < 1 + 1e-12  # room for rounding
        low, high = (middle, high) if stable else (low, middle)
    return low


for rate in (0.2, 1.0, 1.8):
    of_workers = [f"{limit(workers, rate):.4f}" for workers in (2, 3, 4)]
    print(f"η = {rate}: the paper {(4 - 2 * rate) / (4 - rate):.4f}, 2, 3, 4 workers", *of_workers)


# %% tags=["hide-cell"]
# A solution. With three workers the formula is exact; with two and four the limit is higher.
def growth(alpha, workers, rate):
    whole_round = np.eye(workers + 1)
    for worker in range(workers):
        whole_round = turn(worker, alpha, workers, rate) @ whole_round
    return abs(np.linalg.eigvals(whole_round)).max()


for rate in (0.2, 1.0, 1.8):
    paper = (4 - 2 * rate) / (4 - rate)
    two, three, four = (limit(workers, rate) for workers in (2, 3, 4))
    print(f"η = {rate}: the paper {paper:.4f}, 2, 3, 4 workers {two:.4f} {three:.4f} {four:.4f}")
    assert abs(three - paper) < 1e-10
    assert two > four > paper + 1e-4

# %% [markdown]
# ## The same by the laboratory
# The package trains synchronously, so its towers share one model. The rule itself is in [the
# laboratory](../laboratory.md), which is in the repository but is not installed with the package.
# Without noise, its workers do what your matrices do:

# %%
import sys
from pathlib import Path

sys.path.append(str(Path(towers.__file__).parents[1]))

from laboratory import data, findings, network, problems, race, rules, simulation, speeds


def run(alpha, problem, rate, until, **others):
    """EASGD with four equal workers: the workers' weights and the centre."""
    rule = rules.EASGD(rate, alpha, **others)
    of_workers = speeds.Speeds("constant", WORKERS)
    simulation.run("easgd", rule, problem, of_workers, until=until, measurements=1)
    return list(rule.cluster.holds.values()), rule.weights


ROUNDS = 20
held, centre = run(0.225, problems.Parabola(), RATE, until=ROUNDS, period=1)
of_matrices = np.ones(WORKERS + 1)
for _ in range(ROUNDS):
    for worker in range(WORKERS):
        of_matrices = turn(worker, 0.225) @ of_matrices
of_laboratory = np.concatenate([*held, centre])
assert np.allclose(of_laboratory, of_matrices, rtol=1e-12, atol=0)
print("after 20 rounds, the workers and the centre are the same, except for rounding")

# %% [markdown]
# And here are four workers that train a small network on `shapes`, without and with the spring,
# which pulls every 8 steps. Compare the mean with a worker: which of the two curves above does this
# resemble?

# %%
images = data.load(findings.Setup(shapes=True))
of_network = network.Network(race.network, images, batch=16, test_batches=2)
for alpha in (0.0, 0.225):
    held, centre = run(alpha, of_network, 0.2, until=160)
    of_workers = [of_network.evaluate(weights).accuracy for weights in held]
    of_mean = of_network.evaluate(rules.mean(held)).accuracy
    of_centre = of_network.evaluate(centre).accuracy
    print(f"α = {alpha:<5}  a worker: {np.mean(of_workers):.1%}  the mean: {of_mean:.1%}", end="")
    print(f"  the centre: {of_centre:.1%}")
