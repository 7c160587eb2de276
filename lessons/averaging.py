"""Averaging the gradients of k towers equals one large batch; other changes do not."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import towers  # before Keras: it sets TensorFlow up
from laboratory import data, findings, paired, race
from lessons import lesson
from towers import devices, weight_decay

import keras  # isort: skip
import numpy as np  # isort: skip
import tensorflow as tf  # isort: skip

QUESTION = (
    "Is averaging the gradients of 2 GPUs the same as one GPU with twice the batch? Then why is my "
    "multi-GPU model less accurate?"
)
BATCH, RATE, WEIGHT_DECAY, CLIP_NORM = 128, 0.05, 0.004, 0.1
ADAM_RATE, BETA_1, BETA_2, EPSILON = 0.001, 0.9, 0.999, 1e-7  # Kingma & Ba 2015; Keras's own
STEPS = 100
# Runs at equal epochs: the batch and the rate of one GPU; name to (GPUs, factor of the rate).
PER_GPU, RATE_OF_ONE, EPOCHS, SEEDS, EXAMPLES = 32, 0.05, 4, (0, 1, 2), 10_000
AT_EQUAL_EPOCHS = {
    "1 GPU": (1, 1),
    "2 GPUs, the same rate": (2, 1),
    "2 GPUs, twice the rate": (2, 2),
    "4 GPUs, the same rate": (4, 1),
    "4 GPUs, 4 times the rate": (4, 4),
}
RIGHT, WHOLE = "mean of two equal halves", "the whole batch at once"
ROUNDING = 1e-10  # of the way: in float64, after so few steps, only rounding is below it


class Way(NamedTuple):
    """One way to train for some steps.

    make_model: () -> a model; from the same weights each time.
    gradients: (model, weights, images, labels) -> the gradients to update with; each gives a step
      of its own, and the mean of these steps is applied.
    right: the way that it is compared with; None for a right way itself.
    adam: with Adam's rule; otherwise plain SGD.
    """

    make_model: Callable
    gradients: Callable
    right: str | None = None
    adam: bool = False


def run(
    setup: findings.Setup, *, steps=STEPS, epochs=EPOCHS, examples=EXAMPLES, seeds=SEEDS
) -> findings.Finding:
    """Trains in right and in wrong ways; measures how far apart they end, and accuracies."""
    images = data.load(setup)
    batches = list(images.training_batches(BATCH, steps))
    on_towers = {k: train_on_towers(k, batches) for k in (1, 2, 4)}
    same = all(np.array_equal(on_towers[1], others) for others in on_towers.values())
    paths = {name: train(way, batches) for name, way in ways().items()}
    gaps = {
        name: gap(paths[name], paths[way.right])
        for name, way in ways().items()
        if way.right is not None
    }
    right = at_equal_epochs(images, epochs, examples, seeds)
    return finding(same, gaps, right, images.name)


def finding(same: bool, gaps: dict, right: dict, name: str) -> findings.Finding:
    """The tables and the answer.

    Args:
      same: whether 1, 2 and 4 towers had the same weights after every step.
      gaps: way to how far it is from the right one after each step, as `gap`.
      right: way to whether each test image is right, seed by seed, as `at_equal_epochs`.
      name: of the images.
    """
    steps = len(next(iter(gaps.values())))
    accuracy = {way: [float(np.mean(of_seed)) for of_seed in right[way]] for way in right}
    one = next(iter(right))
    apart = {way: paired.difference(right[way], right[one]) for way in right if way != one}
    rows = [["1, 2 and 4 towers of this package", "each other", *(["0" if same else "not 0"] * 2)]]
    rows += [
        [way, ways()[way].right, f"{path[0]:.2g}", f"{path[-1]:.2g}"] for way, path in gaps.items()
    ]
    return findings.Finding(
        head=(f"what is done for {steps} steps", "compared with", "first step", f"step {steps}"),
        rows=rows,
        more=[accuracies(accuracy, apart)],
        answer=answer(same, gaps, apart),
        numbers={
            "same": same,
            "first": {way: path[0] for way, path in gaps.items()},
            "gaps": {way: path[-1] for way, path in gaps.items()},
        },
        draw=lambda figure: draw(figure, gaps, accuracy),
        data=name,
        runs=f"accuracies of {len(right[one])} seeds, the rest of one run",
    )


def ways() -> dict[str, Way]:
    """Each way by its name, a right one before those that are compared with it."""
    small, resnet = data.small_cifarnet, data.small_resnet
    float64, whole = functools.partial(small, "float64"), halves(mean, cuts=[BATCH])
    after, of_batch = "clipped after the mean", "batch norm over the whole batch"
    adam_right = "Adam, mean of two halves"
    return {
        RIGHT: Way(small, halves(mean)),
        f"{RIGHT}, float64": Way(float64, halves(mean)),
        f"{WHOLE}, float64": Way(float64, whole, f"{RIGHT}, float64"),
        f"{WHOLE}, float32": Way(small, whole, RIGHT),
        "weight decay on one tower only": Way(small, halves(mean, decays=[1, 0]), RIGHT),
        "sum instead of mean": Way(small, halves(total), RIGHT),
        "uneven parts, 96 and 32": Way(small, halves(mean, cuts=[96, 32]), RIGHT),
        after: Way(small, halves(mean, clip_after=True)),
        "clipped before the mean": Way(small, halves(mean, clip_before=True), after),
        of_batch: Way(resnet, whole),
        "batch norm per tower": Way(resnet, halves(mean), of_batch),
        adam_right: Way(small, halves(mean), adam=True),
        "Adam, sum instead of mean": Way(small, halves(total), adam_right, adam=True),
        "Adam, mean of the halves' own steps": Way(small, halves(None), adam_right, adam=True),
    }


def halves(reduce, cuts=(64, 64), decays=(1, 1), clip_before=False, clip_after=False):
    """The gradient of a batch, cut into parts that are differentiated one by one."""

    def gradients(model, weights, images, labels):
        parts = zip(tf.split(images, cuts), tf.split(labels, cuts), decays, strict=False)
        of_parts = [gradient_of_part(model, weights, *part) for part in parts]
        if reduce is None:
            return of_parts
        if clip_before:
            of_parts = [tf.clip_by_global_norm(part, CLIP_NORM)[0] for part in of_parts]
        reduced = [reduce(of_weight) for of_weight in zip(*of_parts, strict=True)]
        return [tf.clip_by_global_norm(reduced, CLIP_NORM)[0] if clip_after else reduced]

    return gradients


def gradient_of_part(model, weights, images, labels, decay):
    """What one tower computes: its own cross entropy and, as it should, its own weight decay."""
    with tf.GradientTape() as tape:
        tape.watch(weights)
        state = [variable.value for variable in model.non_trainable_variables]
        images = tf.cast(images, weights[0].dtype)
        logits, _ = model.stateless_call(weights, state, images, training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        loss = tf.reduce_mean(losses)
        for weight in weights:
            if len(weight.shape) > 1:  # kernels
                loss += decay * WEIGHT_DECAY * tf.nn.l2_loss(weight)
    return tape.gradient(loss, weights)


def mean(values):
    """The parts' gradients, averaged."""
    return tf.add_n(values) / len(values)


def total(values):
    """The parts' gradients, added up."""
    return tf.add_n(values)


def sgd(state, gradient):
    """A step of plain SGD: linear in the gradient, so the mean of steps is the step of the mean."""
    return state, [RATE * g for g in gradient]


def adam(state, gradient):
    """A step of Adam (Kingma & Ba 2015): the gradient is divided by its own recent size."""
    count, ms, vs = state
    count += 1
    ms = [BETA_1 * m + (1 - BETA_1) * g for m, g in zip(ms, gradient, strict=True)]
    vs = [BETA_2 * v + (1 - BETA_2) * g * g for v, g in zip(vs, gradient, strict=True)]
    rate = ADAM_RATE * tf.sqrt(1 - BETA_2**count) / (1 - BETA_1**count)
    steps = [rate * m / (tf.sqrt(v) + EPSILON) for m, v in zip(ms, vs, strict=True)]
    return (count, ms, vs), steps


def train(way: Way, batches) -> list[np.ndarray]:
    """The weights before the first step and after each; each flat."""
    model = way.make_model()
    rule = adam if way.adam else sgd

    @tf.function(autograph=False)
    def step(weights, states, images, labels):
        gradients = way.gradients(model, weights, images, labels)
        updates = [rule(*pair) for pair in zip(states, gradients, strict=False)]
        states = [state for state, _ in updates]
        changes = [mean(of_weight) for of_weight in zip(*(s for _, s in updates), strict=True)]
        return [w - change for w, change in zip(weights, changes, strict=True)], states

    weights = [tf.identity(variable.value) for variable in model.trainable_variables]
    zeros = [tf.zeros_like(weight) for weight in weights]
    states = [(tf.constant(0.0), zeros, zeros)] * (2 if way.adam else 1)
    path = [flat(weights)]
    for images, labels in batches:
        weights, new = step(weights, states, images, labels)
        states = [*new, *states[len(new) :]]
        path.append(flat(weights))
    return path


def train_on_towers(num_towers: int, batches) -> np.ndarray:
    """The package's own towers: the weights after each step, [steps, weights]."""
    model = data.small_cifarnet()
    weight_decay.regularize(weight_decay.kernels(model), WEIGHT_DECAY)
    data.compile_classifier(model, keras.optimizers.SGD(RATE))
    towers.distribute(model, devices.choose(num_towers), microbatch_size=BATCH // 4)
    path = []
    for images, labels in batches:
        model.train_on_batch(images, labels)
        path.append(flat(v.value for v in model.trainable_variables))
    return np.stack(path)


def gap(path, right) -> list[float]:
    """How far apart two runs are after each step, as a share of how far the right one has gone."""
    return [
        float(np.linalg.norm(here - there) / np.linalg.norm(there - right[0]))
        for here, there in zip(path[1:], right[1:], strict=True)
    ]


def flat(weights) -> np.ndarray:
    """All weights in one row."""
    return np.concatenate([np.ravel(weight) for weight in weights])


def at_equal_epochs(
    images: data.Images, epochs: int, examples: int, seeds: Sequence[int]
) -> dict[str, list[np.ndarray]]:
    """Which test images each way of `AT_EQUAL_EPOCHS` gets right at the end, seed by seed."""
    images = images.first(examples, len(images.test.images))
    keys = [(name, seed) for name in AT_EQUAL_EPOCHS for seed in seeds]
    runs = race.side_by_side(
        [functools.partial(train_epochs, images, epochs, *AT_EQUAL_EPOCHS[n], s) for n, s in keys]
    )
    return {
        name: [right for (way, _), right in zip(keys, runs, strict=True) if way == name]
        for name in AT_EQUAL_EPOCHS
    }


def train_epochs(images: data.Images, epochs: int, gpus: int, times: int, seed: int) -> np.ndarray:
    """One run: each GPU has PER_GPU images of a step, so more GPUs make fewer updates."""
    batch, count = gpus * PER_GPU, len(images.train.images)
    model = race.model(race.Entry(batch, times * RATE_OF_ONE, seed=seed))
    towers.distribute(model, 1, microbatch_size=PER_GPU)  # each stands for a GPU
    steps = epochs * count // batch
    batches = images.training_batches(batch, steps, seed=seed, distorted=False)
    model.fit(batches, shuffle=False, verbose=0)
    return race.right(model, images)


def accuracies(accuracy: dict, apart: dict):
    """The table of the runs at equal epochs."""
    rows = []
    for name, of_seeds in accuracy.items():
        gpus, times = AT_EQUAL_EPOCHS[name]
        spread = f"{np.mean(of_seeds):.1%} ({min(of_seeds):.1%} to {max(of_seeds):.1%})"
        rows.append([name, f"{gpus * PER_GPU}", f"{times * RATE_OF_ONE:g}", spread])
        rows[-1].append(str(apart[name]) if name in apart else "")
    return ("equal epochs", "batch", "rate", "test accuracy", "against 1 GPU, points"), rows


def rounding_alone(gaps: dict) -> bool:
    """Whether the difference of halves and whole all but vanishes in float64, as rounding does."""
    wide, narrow = gaps[f"{WHOLE}, float64"][-1], gaps[f"{WHOLE}, float32"][-1]
    return wide < ROUNDING and wide < narrow / 1e4


def answer(same: bool, gaps: dict, apart: dict) -> str:
    """In one sentence."""
    if not (same and rounding_alone(gaps)):
        return "Not here: the average of two halves was not the whole batch."
    worse = [name for name, one in apart.items() if one.verdict < 0]
    fewer = any(AT_EQUAL_EPOCHS[name][1] == 1 for name in worse)
    return (
        "Yes, averaging is exact; a model that is less accurate on more GPUs "
        f"{'made fewer updates, or has' if fewer else 'has'} one of the faults below."
    )


def draw(figure, gaps: dict, accuracy: dict) -> None:
    """Every way's distance from its right way, step by step; accuracies at equal epochs."""
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for name, path in gaps.items():
        style = {"color": "#8a8a8a"} if WHOLE in name else {}
        left.semilogy(range(1, len(path) + 1), path, label=name, **style)
    left.set(xlabel="step", title="distance from the right weights")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    for place, of_seeds in enumerate(reversed(accuracy.values())):
        right.plot([100 * one for one in of_seeds], [place] * len(of_seeds), "o", color="#0072b2")
    right.set_yticks(range(len(accuracy)), list(reversed(accuracy)))
    right.set(xlabel="test accuracy, %; a dot is a seed", title="equal epochs", ylim=(-0.5, None))


LESSON = lesson.Lesson("averaging", QUESTION, run)
