"""Averaging the gradients of k towers is one large batch; five ways in which it is not."""

import towers  # before Keras: it silences TensorFlow's notices
from laboratory import data, findings
from lessons import lesson
from towers import devices, losses

import keras  # isort: skip
import numpy as np  # isort: skip
import tensorflow as tf  # isort: skip

QUESTION = (
    "Is averaging the gradients of 2 GPUs the same as one GPU with twice the batch? Then why is my "
    "multi-GPU model less accurate?"
)
BATCH, RATE, WEIGHT_DECAY, CLIP_NORM = 128, 0.05, 0.004, 0.1
STEPS, IN_SHORT = 100, {"steps": 6}
RIGHT = "mean of two equal halves"


def run(setup: findings.Setup) -> findings.Finding:
    """Trains the right way on 1, 2 and 4 towers, then every wrong way; looks how far they part."""
    steps = IN_SHORT["steps"] if setup.short else STEPS
    images = data.load(setup)
    batches = list(images.training_batches(BATCH, steps))
    on_towers = {k: train_on_towers(k, batches) for k in (1, 2, 4)}
    same = all(np.array_equal(on_towers[1], others) for others in on_towers.values())
    paths = {name: train(*way, batches) for name, way in ways().items()}
    gaps = {
        name: gap(paths[name], paths[right])
        for name, (_, _, right) in ways().items()
        if right is not None
    }
    rows = [["1, 2 and 4 towers of this package", "each other", "0" if same else "not 0"]]
    rows += [[name, ways()[name][2], f"{path[-1]:.2g}"] for name, path in gaps.items()]
    worst = max(gaps, key=lambda name: gaps[name][-1])
    return findings.Finding(
        head=(f"what is done for {steps} steps", "compared with", "distance"),
        rows=rows,
        claim=(
            f"Averaging is exact: 1, 2 and 4 towers had {'the same' if same else 'other'} weights "
            f"after each of {steps} steps, to the last bit, and the whole batch at once differs "
            f"from two halves by rounding alone ({gaps[WHOLE][-1]:.0e} of the way that the weights "
            "went). "
            f"What is done around the average is not exact: the farthest, {worst!r}, ended "
            f"{gaps[worst][-1]:.0%} of that way off."
        ),
        numbers={"same": same, "gaps": {name: path[-1] for name, path in gaps.items()}},
        draw=lambda figure: draw(figure, gaps),
        data=images.name,
    )


WHOLE = "the whole batch at once"


def ways() -> dict:
    """Name to (model, gradient of a batch, the right way it is compared with)."""
    return {
        RIGHT: (data.small_cifarnet, halves(mean), None),
        WHOLE: (data.small_cifarnet, halves(mean, cuts=[BATCH]), RIGHT),
        "weight decay on one tower only": (data.small_cifarnet, halves(mean, decays=[1, 0]), RIGHT),
        "sum instead of mean": (data.small_cifarnet, halves(total), RIGHT),
        "uneven parts, 96 and 32": (data.small_cifarnet, halves(mean, cuts=[96, 32]), RIGHT),
        "clipped after the mean": (data.small_cifarnet, halves(mean, clip_after=True), None),
        "clipped before the mean": (
            data.small_cifarnet,
            halves(mean, clip_before=True),
            "clipped after the mean",
        ),
        "batch norm over the whole batch": (data.small_resnet, halves(mean, cuts=[BATCH]), None),
        "batch norm per tower": (
            data.small_resnet,
            halves(mean),
            "batch norm over the whole batch",
        ),
    }


def halves(reduce, cuts=(64, 64), decays=(1, 1), clip_before=False, clip_after=False):
    """The gradient of a batch, cut into parts that are differentiated one by one."""

    def gradient(model, weights, images, labels):
        parts = zip(tf.split(images, cuts), tf.split(labels, cuts), decays, strict=False)
        of_parts = [gradient_of_part(model, weights, *part) for part in parts]
        if clip_before:
            of_parts = [tf.clip_by_global_norm(part, CLIP_NORM)[0] for part in of_parts]
        reduced = [reduce(of_weight) for of_weight in zip(*of_parts, strict=True)]
        return tf.clip_by_global_norm(reduced, CLIP_NORM)[0] if clip_after else reduced

    return gradient


def gradient_of_part(model, weights, images, labels, decay):
    """What one tower computes: its own cross entropy and, as it should, its own weight decay."""
    with tf.GradientTape() as tape:
        tape.watch(weights)
        state = [variable.value for variable in model.non_trainable_variables]
        logits, _ = model.stateless_call(weights, state, images, training=True)
        loss = tf.reduce_mean(losses.cross_entropy(labels, logits))
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


def train(make_model, gradient, _, batches) -> list[np.ndarray]:
    """The weights before the first step and after each, by plain SGD; each flat."""
    model = make_model()

    @tf.function(autograph=False)
    def step(weights, images, labels):
        reduced = gradient(model, weights, images, labels)
        return [weight - RATE * g for weight, g in zip(weights, reduced, strict=True)]

    weights = [tf.identity(variable.value) for variable in model.trainable_variables]
    path = [flat(weights)]
    for images, labels in batches:
        weights = step(weights, images, labels)
        path.append(flat(weights))
    return path


def train_on_towers(num_towers: int, batches) -> np.ndarray:
    """The package's own towers: the weights after each step, [steps, weights]."""
    trainer = towers.Trainer(
        data.small_cifarnet(),
        keras.optimizers.SGD(RATE),
        towers=devices.choose(num_towers),
        global_batch_size=BATCH,
        num_microbatches=4,
        weight_decay=WEIGHT_DECAY,
    )
    path = []
    for images, labels in batches:
        trainer.train_step(images, labels)
        path.append(flat(v.value for v in trainer.state.model.trainable_variables))
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


def draw(figure, gaps: dict) -> None:
    """Every wrong way's distance from its right way, step by step."""
    axes = figure.subplots()
    for name, path in gaps.items():
        colour = "#9a9a9a" if name == WHOLE else None
        axes.semilogy(range(1, len(path) + 1), path, label=name, color=colour)
    axes.set(
        xlabel="step", title="Distance from the right weights, as a share of the way they went"
    )
    axes.title.set(fontsize=10)
    figure.legend(loc="outside right center", frameon=False, fontsize=9)


LESSON = lesson.Lesson("averaging", QUESTION, run)
