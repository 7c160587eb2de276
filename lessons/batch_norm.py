"""One set of weights, k sets of batch-norm statistics: which one, if any, makes the model."""

from collections.abc import Iterable, Sequence

import towers  # before Keras: it sets TensorFlow up
from laboratory import data, findings, paired, race
from lessons import lesson
from towers import devices, model_state, schedules
from towers.runs import divergence

import keras  # isort: skip
import numpy as np  # isort: skip
import tensorflow as tf  # isort: skip

QUESTION = "After synchronous training my k models differ. Which is the final one?"
TOWERS, BATCH, RATE, MOMENTUM = 4, 64, 0.05, 0.9
EXAMPLES = 75_000
IMAGES_TO_ESTIMATE_FROM = 8_000
IN_SHORT = {"examples": 6_000, "images_to_estimate_from": 1_000}
STEPS_TO_COMPARE = 5
MEAN, REESTIMATED = "their mean", "re-estimated"
WIDER = "their mean, variances re-estimated"


def run(setup: findings.Setup) -> findings.Finding:
    """Trains with a set of statistics for each tower; evaluates each set, their mean and others."""
    images = data.load(setup)
    examples = IN_SHORT["examples"] if setup.short else EXAMPLES
    to_estimate = IN_SHORT["images_to_estimate_from"] if setup.short else IMAGES_TO_ESTIMATE_FROM
    equal = of_policies(images)
    trainer = trained("each", images, examples // BATCH)
    model = trainer.state.model
    sets = list(zip(*numpy(trainer.state.statistics_of_each), strict=True))
    named = {f"tower {tower}'s": of_tower for tower, of_tower in enumerate(sets)}
    named[MEAN] = statistics(model)
    named[REESTIMATED] = estimated(model, images, to_estimate)
    # Of each layer, its mean and its variance.
    pairs = zip(named[MEAN][0::2], named[REESTIMATED][1::2], strict=True)
    named[WIDER] = [values for pair in pairs for values in pair]
    apart = max(
        layer["moving_mean"]
        for layer in divergence.divergence(model, trainer.state.statistics_of_each).values()
    )
    right = {name: right_with(trainer, values, images) for name, values in named.items()}
    return finding(right, named, apart, equal, images.name)


def trained(policy: str, images: data.Images, steps: int) -> towers.Trainer:
    """A small residual network after so many steps, one microbatch for each tower."""
    rate = schedules.LearningRate(
        "linear", RATE, BATCH * steps, warmup_epochs=0.1, total_epochs=1.0
    )
    trainer = towers.Trainer(
        data.small_resnet(),
        keras.optimizers.SGD(momentum=MOMENTUM),
        towers=devices.choose(TOWERS),
        global_batch_size=BATCH,
        num_microbatches=TOWERS,
        learning_rate=rate,
        weight_decay=1e-4,
        batch_norm_statistics=policy,
    )
    trainer.fit(images.training_batches(BATCH, steps))
    return trainer


def of_policies(images: data.Images) -> dict[str, bool]:
    """Compares what the policies keep with what `each` keeps, after the same few steps.

    Returns:
      `weights`: whether all policies have the same weights; `first` and `last`: whether they keep
      what `each` has for that tower; `mean`: whether it is the mean of `each`, except for rounding:
      a mean of moving averages is a moving average of means.
    """
    of = {
        policy: trained(policy, images, STEPS_TO_COMPARE).state for policy in model_state.POLICIES
    }
    weights = [numpy(state.model.trainable_variables) for state in of.values()]
    sets = list(zip(*numpy(of["each"].statistics_of_each), strict=True))
    kept = {policy: statistics(state.model) for policy, state in of.items()}
    pairs = zip(kept["mean"], kept["each"], strict=True)
    return {
        "weights": all(same(weights[0], others) for others in weights),
        "first": same(kept["first"], sets[0]),
        "last": same(kept["last"], sets[-1]),
        "mean": all(np.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in pairs),
    }


def estimated(model: keras.Model, images: data.Images, count: int) -> list[np.ndarray]:
    """Statistics of `count` training images under the final weights, in batches of 500.

    Wu and Johnson 2021 (arXiv:2105.07576, section 3.1) call this precise batch norm. Moving
    averages that start at 0 are (1 - momentum) times the batch's statistics after one call. The
    spread of the batches' means belongs to the variance too; with 500 images it is negligible.
    """
    kept = model_state.kept_apart(model)
    of_layer = {
        id(variable): layer.momentum
        for layer in model.layers
        if isinstance(layer, keras.layers.BatchNormalization)
        for variable in layer.non_trainable_variables
    }
    momentum = [of_layer[id(model.non_trainable_variables[index])] for index in kept]

    @tf.function(autograph=False)
    def of_batch(pixels):
        weights = [v.value for v in model.trainable_variables]
        zeros = [tf.zeros_like(v.value) for v in model.non_trainable_variables]
        _, after = model.stateless_call(weights, zeros, pixels, training=True)
        return [after[index] / (1 - m) for index, m in zip(kept, momentum, strict=True)]

    batches = images.training_batches(500, count // 500, seed=1)
    sums = [tf.add_n(values) for values in zip(*(of_batch(x) for x, _ in batches), strict=True)]
    return [total.numpy() / (count // 500) for total in sums]


def right_with(
    trainer: towers.Trainer, values: Sequence[np.ndarray], images: data.Images
) -> np.ndarray:
    """Which test images the model gets right with these statistics, which it keeps."""
    model = trainer.state.model
    for index, value in zip(model_state.kept_apart(model), values, strict=True):
        model.non_trainable_variables[index].assign(value)
    return race.right(trainer, images)


def statistics(model: keras.Model) -> list[np.ndarray]:
    """What batch norm keeps."""
    return numpy(model.non_trainable_variables[index] for index in model_state.kept_apart(model))


def numpy(variables: Iterable) -> list[np.ndarray]:
    """The variables' values."""
    return [variable.numpy() for variable in variables]


def same(some: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> bool:
    """Whether they are equal, to the last bit."""
    return all(np.array_equal(a, b) for a, b in zip(some, others, strict=True))


def finding(right: dict, named: dict, apart: float, equal: dict, name: str) -> findings.Finding:
    """The table and the claim.

    Args:
      right: name of a set of statistics to which test images the model gets right with it.
      named: name to the set.
      apart: the largest distance between the towers' moving means, in standard deviations.
      equal: as `of_policies`.
      name: of the images.
    """
    off = {what: distance(values, named[REESTIMATED]) for what, values in named.items()}
    wide = {what: variances(values, named[REESTIMATED]) for what, values in named.items()}
    accuracy = {what: float(of_set.mean()) for what, of_set in right.items()}
    against = {
        what: paired.difference([of_set], [right[MEAN]])
        for what, of_set in right.items()
        if what != MEAN
    }
    of_towers = [what for what in right if what.startswith("tower ")]
    told_apart = [what for what in of_towers if against[what].verdict]
    policy = {"tower 0's": "first", f"tower {TOWERS - 1}'s": "last", MEAN: "mean, each"}
    shares = [accuracy[what] for what in of_towers]
    return findings.Finding(
        head=(
            "statistics", "policy", "means off those re-estimated",
            "variances, relative to those re-estimated", "accuracy", "against their mean, points",
        ),
        rows=[
            [
                what,
                policy.get(what, ""),
                f"{off[what]:.1%}",
                f"{wide[what]:.3f}",
                f"{accuracy[what]:.2%}",
                str(against[what]) if what in against else "",
            ]
            for what in named
        ],
        answer=(
            "Only the batch-norm statistics differ, not the weights: the final model is the one "
            "set of weights with the mean of the statistics, or with statistics re-estimated."
            if equal["weights"]
            else "This run cannot tell: the weights differed."
        ),
        claim=(
            f"The weights are {'the same, to the last bit,' if equal['weights'] else 'different'} "
            "whichever statistics are kept, because training uses those of the batch. The towers' "
            f"statistics are up to {apart:.1%} of a standard deviation apart, and give accuracies "
            f"of {min(shares):.2%} to {max(shares):.2%} on {len(right[MEAN]):,} images; on these "
            f"same images {len(told_apart) or 'none'} of the {TOWERS} can be told apart from "
            f"their mean, which gives {accuracy[MEAN]:.2%}. The mean of the towers' variances is "
            f"{wide[MEAN]:.3f} times the variance re-estimated; using the latter instead changes "
            f"the accuracy by {against[WIDER]} points."
        ),
        numbers={
            "accuracy": accuracy, "equal": equal, "apart": apart, "off": off, "wide": wide,
            "against": against,
        },
        draw=lambda figure: draw(figure, accuracy, against, off),
        data=name,
    )  # fmt: skip


def variances(values: Sequence[np.ndarray], true: Sequence[np.ndarray]) -> float:
    """The ratio of the moving variances to those of `true`, as a geometric mean over features."""
    logs = [np.log(of / other) for of, other in zip(values[1::2], true[1::2], strict=True)]
    return float(np.exp(np.mean(np.concatenate(logs))))


def distance(values: Sequence[np.ndarray], true: Sequence[np.ndarray]) -> float:
    """How far moving means are off, in standard deviations, as a root mean square over features."""
    # Keras keeps a layer's variance next to its mean.
    pairs = zip(values[0::2], true[0::2], true[1::2], strict=True)
    squares = [(mean - true_mean) ** 2 / variance for mean, true_mean, variance in pairs]
    return float(np.sqrt(np.mean(np.concatenate(squares))))


def draw(figure, accuracy: dict, against: dict, off: dict) -> None:
    """How far each set is off, and its difference from the mean set on the same images."""
    left, right = figure.subplots(1, 2, sharey=True)
    names = list(reversed(accuracy))
    for place, name in enumerate(names):
        colour = "#0072b2" if name == MEAN else "#d55e00" if name.startswith("tower ") else "black"
        left.plot(100 * off[name], place, "o", color=colour)
        if name == MEAN:
            continue
        one = against[name]
        bars = [[100 * (one.mean - one.low)], [100 * (one.high - one.mean)]]
        right.errorbar(100 * one.mean, place, xerr=bars, fmt="o", color=colour, capsize=3)
    right.axvline(0, color="#0072b2", linewidth=1)
    left.set_yticks(range(len(names)), [name.replace(", ", ",\n") for name in names])
    left.set(title="moving means off those re-estimated", xlabel="% of a standard deviation")
    right.set(title="test accuracy against their mean's", xlabel="points, with 95 % intervals")


LESSON = lesson.Lesson("batch_norm", QUESTION, run)
