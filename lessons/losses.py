"""Every tower's loss, term by term, and what an old way of adding them up did."""

import towers  # noqa: F401  before Keras: it sets TensorFlow up
from laboratory import data, findings
from lessons import lesson
from towers import devices, weight_decay
from towers.networks import cifarnet

import keras  # isort: skip
import numpy as np  # isort: skip
import tensorflow as tf  # isort: skip

QUESTION = "Why is the loss combined? Is it the loss of all batches?"
TOWERS, PER_TOWER, WEIGHT_DECAY = 11, 16, 0.004
SHAPE, CLASSES = (24, 24, 3), 10


def run(setup: findings.Setup) -> findings.Finding:
    """One step of eleven towers' parts, with each term of each part."""
    model, source = network(), data.load(setup)
    (batch,) = source.training_batches(TOWERS * PER_TOWER, 1, distorted=False)
    terms, norms = terms_of_towers(model, *batch), gradient_norms(model, *batch)
    # Its eleven microbatches stand for eleven towers.
    _, shown = data.program(model, keras.optimizers.SGD(0.1))(batch, PER_TOWER)
    terms["total"] = shown.losses.numpy().astype(np.float64)
    decay = sum(values for name, values in terms.items() if name.startswith("weight_decay/"))
    collected = np.cumsum(terms["cross_entropy"] + decay)  # what cifar10.loss() gives for tower k
    rows = [
        [name, f"{of[0]:.4f}", f"{of[1]:.4f}", f"{of[-1]:.4f}", f"{of.mean():.4f}", norms[name]]
        for name, of in terms.items()
    ]
    rows.append(
        ["add_n(get_collection('losses'))"]
        + [f"{value:.4f}" for value in (collected[0], collected[1], collected[-1])]
        + [f"{collected.mean():.4f}", ""]
    )
    return findings.Finding(
        head=("term", "tower 0", "tower 1", "tower 10", "mean", "norm of its gradient"),
        rows=rows,
        answer=answer(decay, terms["total"]),
        numbers={
            "total": terms["total"].tolist(),
            "parts": (terms["cross_entropy"] + decay).tolist(),
            "decay": decay.tolist(),
            "collected": collected.tolist(),
        },
        draw=lambda figure: draw(figure, terms["cross_entropy"], decay, collected),
        data=source.name,
    )


def answer(decay: np.ndarray, total: np.ndarray) -> str:
    """In one sentence, from each tower's weight decay and total."""
    once = np.ptp(decay) == 0 and np.isclose(total.mean() - decay[0], (total - decay).mean())
    return (
        "Each tower adds the weight decay to the cross entropy of its part of the batch; the "
        "step's loss is the mean over the towers, so it is the loss of the whole batch, and the "
        f"decay counts {'once' if once else 'more than once'}."
    )


def network() -> keras.Model:
    """The tutorial's, with a quarter of its filters; its hidden dense layers decay."""
    with tf.device(devices.HOST):
        model = cifarnet.build(SHAPE, CLASSES, keras.DTypePolicy("float32"), 0, filters=16)
    weight_decay.regularize(weight_decay.hidden_dense_kernels(model), WEIGHT_DECAY)
    return model


def decays(model: keras.Model) -> dict[str, tf.Tensor]:
    """The terms that regularizers add to the loss, by name; `model.losses` is a list of them."""
    return {
        f"weight_decay/{weight.path}": weight.regularizer(weight)
        for weight in model.trainable_variables
        if weight.regularizer
    }


def terms_of_towers(model: keras.Model, images, labels) -> dict[str, np.ndarray]:
    """Each term of the loss in each tower, [TOWERS]."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images))
    of_towers = tf.reduce_mean(tf.reshape(losses, [TOWERS, PER_TOWER]), axis=1)
    terms = {"cross_entropy": of_towers} | decays(model)
    return {name: np.full(TOWERS, term, np.float64) for name, term in terms.items()}


def gradient_norms(model: keras.Model, images, labels) -> dict[str, str]:
    """The norm of the gradient of each term's mean over all towers."""
    weights = [variable.value for variable in model.trainable_variables]
    with tf.GradientTape(persistent=True) as tape:
        logits = model(images, training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        terms = {"cross_entropy": tf.reduce_mean(losses)} | decays(model)
        terms["total"] = tf.add_n(list(terms.values()))
    gradients = {
        name: [g for g in tape.gradient(term, weights) if g is not None]
        for name, term in terms.items()
    }
    return {name: f"{float(tf.linalg.global_norm(of)):.4f}" for name, of in gradients.items()}


def draw(figure, cross_entropy, decay, collected) -> None:
    """What differs: each tower's cross entropy from their mean; what a collection adds to each."""
    new, old = figure.subplots(1, 2)
    towers_axis = np.arange(len(decay))
    new.bar(towers_axis, cross_entropy - cross_entropy.mean(), color="#0072b2")
    new.axhline(0, color="black", linewidth=1)
    new.set(xlabel="tower", title="own cross entropy, minus the towers' mean")
    total = cross_entropy + decay
    old.bar(towers_axis, total, color="#0072b2", label="its own loss")
    old.bar(towers_axis, collected - total, bottom=total, color="#d55e00", label="others' losses")
    old.set(xlabel="tower", title="add_n(get_collection('losses'))")
    old.legend(loc="upper left")


LESSON = lesson.Lesson("losses", QUESTION, run)
