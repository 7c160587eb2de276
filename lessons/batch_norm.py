"""One set of weights, k sets of batch-norm statistics: which of them, or none, makes the model."""

from collections.abc import Iterable, Sequence

import towers  # before Keras: it silences TensorFlow's notices
from laboratory import data, findings
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
MEAN, ANEW = "their mean", "estimated anew"


def run(setup: findings.Setup) -> findings.Finding:
    """Trains with a set of statistics for each tower, and evaluates every choice of one."""
    images = data.load(setup)
    examples = IN_SHORT["examples"] if setup.short else EXAMPLES
    to_estimate = IN_SHORT["images_to_estimate_from"] if setup.short else IMAGES_TO_ESTIMATE_FROM
    equal = of_policies(images)
    trainer = trained("each", images, examples // BATCH)
    model = trainer.state.model
    sets = list(zip(*numpy(trainer.state.statistics_of_each), strict=True))
    named = {f"tower {tower}'s": of_tower for tower, of_tower in enumerate(sets)}
    named[MEAN] = statistics(model)
    named[ANEW] = estimated(model, images, to_estimate)
    apart = max(
        layer["moving_mean"]
        for layer in divergence.divergence(model, trainer.state.statistics_of_each).values()
    )
    test = list(images.test_batches())
    accuracy = {name: accuracy_with(trainer, values, test) for name, values in named.items()}
    return finding(accuracy, named, apart, equal, images)


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
    """What the other policies keep, beside what `each` keeps, after the same few steps.

    Returns:
      `weights`, whether all have the same weights; for `first` and `last` whether they keep what
      `each` has for that tower; for `mean` whether it is that of `each`, but for rounding: a mean
      of moving averages is a moving average of means.
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

    Wu and Johnson 2021 (arXiv:2105.07576, section 3.1) call that precise batch norm. A layer that
    starts at 0 has moved by 1 - momentum of the batch's statistics after one call. How far the
    batches' means are apart belongs to the variance, too; with 500 images it is next to nothing.
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


def accuracy_with(trainer: towers.Trainer, values: Sequence[np.ndarray], test: Iterable) -> float:
    """The test accuracy of the weights with these statistics, which the model then keeps."""
    model = trainer.state.model
    for index, value in zip(model_state.kept_apart(model), values, strict=True):
        model.non_trainable_variables[index].assign(value)
    return trainer.evaluate(test).accuracy


def statistics(model: keras.Model) -> list[np.ndarray]:
    """What batch norm keeps."""
    return numpy(model.non_trainable_variables[index] for index in model_state.kept_apart(model))


def numpy(variables: Iterable) -> list[np.ndarray]:
    """The variables' values."""
    return [variable.numpy() for variable in variables]


def same(some: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> bool:
    """Whether they are equal, to the last bit."""
    return all(np.array_equal(a, b) for a, b in zip(some, others, strict=True))


def finding(accuracy: dict, named: dict, apart: float, equal: dict, images: data.Images):
    """The table and the claim."""
    count = len(images.test.images)
    off = {name: distance(values, named[ANEW]) for name, values in named.items()}
    of_towers = [share for name, share in accuracy.items() if name not in (MEAN, ANEW)]
    policy = {"tower 0's": "first", f"tower {TOWERS - 1}'s": "last", MEAN: "mean, each"}
    return findings.Finding(
        head=("statistics", "policy", "means off those estimated anew", "accuracy"),
        rows=[
            [name, policy.get(name, ""), f"{off[name]:.1%}", f"{accuracy[name]:.2%}"]
            for name in named
        ],
        claim=(
            f"There is one set of weights and there are {TOWERS} sets of statistics. The weights "
            f"are {'the same, to the last bit,' if equal['weights'] else 'not the same'} whichever "
            "statistics are kept, for training uses those of the batch. The statistics are up to "
            f"{apart:.1%} of a standard deviation apart, which makes accuracies of "
            f"{min(of_towers):.2%} to {max(of_towers):.2%} on {count:,} images. The mean of the "
            f"statistics gives {accuracy[MEAN]:.2%}, and statistics estimated anew after training "
            f"{accuracy[ANEW]:.2%}. The final model is the weights with one of these two."
        ),
        numbers={"accuracy": accuracy, "equal": equal, "apart": apart, "off": off},
        draw=lambda figure: draw(figure, accuracy, off, count),
        data=images.name,
    )


def distance(values: Sequence[np.ndarray], true: Sequence[np.ndarray]) -> float:
    """How far moving means are off, in standard deviations, as a root mean square over features."""
    # Keras keeps a layer's variance next to its mean.
    pairs = zip(values[0::2], true[0::2], true[1::2], strict=True)
    squares = [(mean - true_mean) ** 2 / variance for mean, true_mean, variance in pairs]
    return float(np.sqrt(np.mean(np.concatenate(squares))))


def draw(figure, accuracy: dict, off: dict, count: int) -> None:
    """Accuracy against how far the statistics are off."""
    axes = figure.subplots()
    for name, share in accuracy.items():
        error = (share * (1 - share) / count) ** 0.5
        colour = {MEAN: "#0072b2", ANEW: "black"}.get(name, "#d55e00")
        place = (100 * off[name], 100 * share)
        axes.errorbar(*place, 100 * error, fmt="o", color=colour, capsize=3)
        axes.annotate(name, place, (8, -3), textcoords="offset points", fontsize=9)
    axes.set(
        xlabel="moving means off those estimated anew, % of a standard deviation",
        ylabel="test accuracy, %",
        title="One set of weights with each set of statistics (bars: one standard error)",
    )
    axes.margins(x=0.12)


LESSON = lesson.Lesson("batch_norm", QUESTION, run)
