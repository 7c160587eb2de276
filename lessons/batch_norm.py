"""One set of weights, k sets of batch-norm statistics: which one, if any, makes the model."""

from collections.abc import Iterable, Sequence

import towers  # before Keras: it sets TensorFlow up
from laboratory import data, findings, paired, race
from lessons import lesson
from towers import devices, microbatch, schedules, weight_decay

import keras  # isort: skip
import numpy as np  # isort: skip
import tensorflow as tf  # isort: skip

QUESTION = "After synchronous training my k models differ. Which is the final one?"
TOWERS, BATCH, RATE, MOMENTUM = 4, 64, 0.05, 0.9
EXAMPLES = 75_000
IMAGES_TO_ESTIMATE_FROM = 8_000
MEAN, REESTIMATED = "their mean", "re-estimated"
WIDER = "their mean, variances re-estimated"


def run(
    setup: findings.Setup, *, examples=EXAMPLES, to_estimate=IMAGES_TO_ESTIMATE_FROM
) -> findings.Finding:
    """Trains with a set of statistics for each tower; evaluates each set, their mean and others."""
    images = data.load(setup)
    model, sets = trained(images, examples // BATCH)
    named = {f"tower {tower}'s": of_tower for tower, of_tower in enumerate(sets)}
    named[MEAN] = numpy(model.non_trainable_variables)
    named[REESTIMATED] = estimated(model, images, to_estimate)
    # Of each layer, its mean and its variance.
    pairs = zip(named[MEAN][0::2], named[REESTIMATED][1::2], strict=True)
    named[WIDER] = [values for pair in pairs for values in pair]
    (batch,) = images.training_batches(BATCH, 1)
    equal = {
        "gradients": same_gradients(model, sets, batch),
        # Except for rounding: a mean of moving averages is a moving average of means.
        "mean": all(
            np.allclose(np.mean(of_sets, axis=0), kept, rtol=1e-5, atol=1e-6)
            for *of_sets, kept in zip(*sets, named[MEAN], strict=True)
        ),
    }
    right = {name: right_with(model, values, images) for name, values in named.items()}
    return finding(right, named, equal, images.name)


def trained(images: data.Images, steps: int) -> tuple[keras.Model, list[list[np.ndarray]]]:
    """A small residual network after so many steps, and the statistics that each tower would keep.

    Each tower has one microbatch. The model itself keeps the mean of their statistics.
    """
    model = data.small_resnet()
    weight_decay.regularize(weight_decay.kernels(model), 1e-4)
    data.compile_classifier(model, keras.optimizers.SGD(momentum=MOMENTUM))
    towers.distribute(model, devices.choose(TOWERS), microbatch_size=BATCH // TOWERS)
    rate = schedules.LearningRate(
        "linear", RATE, BATCH * steps, warmup_epochs=0.1, total_epochs=1.0
    )
    one_pass = microbatch.Microbatch(model, training=True, jit_compile=False)

    @tf.function(autograph=False)
    def after_step(sets, pixels):
        weights, parts = values(model.trainable_variables), tf.split(pixels, TOWERS)
        return [
            one_pass.forward(weights, of_tower, tf.constant(0), part).state
            for of_tower, part in zip(sets, parts, strict=True)
        ]

    sets = [values(model.non_trainable_variables)] * TOWERS
    for step, (pixels, labels) in enumerate(images.training_batches(BATCH, steps)):
        sets = after_step(sets, pixels)
        model.optimizer.learning_rate = np.float32(rate(step * BATCH))
        model.train_on_batch(pixels, labels)
    return model, [numpy(of_tower) for of_tower in sets]


def same_gradients(model: keras.Model, sets: Sequence[Sequence[np.ndarray]], batch) -> bool:
    """Whether gradients are the same, to the last bit, whichever statistics are kept."""
    backward = microbatch.Microbatch(model, training=True, jit_compile=False).backward
    weights, number = values(model.trainable_variables), tf.constant(0)
    of_sets = [backward(weights, of_tower, number, batch, None).gradients for of_tower in sets]
    return all(
        np.array_equal(one, other)
        for others in of_sets[1:]
        for one, other in zip(of_sets[0], others, strict=True)
    )


def estimated(model: keras.Model, images: data.Images, count: int) -> list[np.ndarray]:
    """Statistics of `count` training images under the final weights, in batches of 500.

    Wu and Johnson 2021 (arXiv:2105.07576, section 3.1) call this precise batch norm. Moving
    averages that start at 0 are (1 - momentum) times the batch's statistics after one call. The
    spread of the batches' means belongs to the variance too; with 500 images it is negligible.
    """
    layers = [x for x in model.layers if isinstance(x, keras.layers.BatchNormalization)]
    (momentum,) = {layer.momentum for layer in layers}

    @tf.function(autograph=False)
    def of_batch(pixels):
        zeros = [tf.zeros_like(v.value) for v in model.non_trainable_variables]
        _, after = model.stateless_call(
            values(model.trainable_variables), zeros, pixels, training=True
        )
        return [value / (1 - momentum) for value in after]

    batches = images.training_batches(500, count // 500, seed=1)
    sums = [tf.add_n(values) for values in zip(*(of_batch(x) for x, _ in batches), strict=True)]
    return [total.numpy() / (count // 500) for total in sums]


def right_with(
    model: keras.Model, statistics: Sequence[np.ndarray], images: data.Images
) -> np.ndarray:
    """Which test images the model gets right with these statistics, which it keeps."""
    for variable, value in zip(model.non_trainable_variables, statistics, strict=True):
        variable.assign(value)
    return race.right(model, images)


def values(variables: Iterable[keras.Variable]) -> list[tf.Tensor]:
    """What they are now."""
    return [tf.convert_to_tensor(variable.value) for variable in variables]


def numpy(tensors: Iterable) -> list[np.ndarray]:
    """Tensors or variables as arrays."""
    return [tensor.numpy() for tensor in tensors]


def finding(right: dict, named: dict, equal: dict, name: str) -> findings.Finding:
    """The table and the answer.

    Args:
      right: name of a set of statistics to which test images the model gets right with it.
      named: name to the set.
      equal: whether `gradients` are the same with all sets, and the model keeps their `mean`.
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
    return findings.Finding(
        head=(
            "statistics", "means off those re-estimated",
            "variances, relative to those re-estimated", "accuracy", "against their mean, points",
        ),
        rows=[
            [
                what,
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
            if equal["gradients"]
            else "This run cannot tell: the gradients differed."
        ),
        numbers={"accuracy": accuracy, "equal": equal, "off": off, "wide": wide},
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
