"""What training keeps in memory and evaluation does not, and what a mean of it would lose."""

import collections
import concurrent.futures
import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import towers  # noqa: F401  before Keras: it sets TensorFlow up
from benchmarks import turns
from laboratory import data, findings
from lessons import graph, lesson
from towers import devices, networks

import keras  # isort: skip
import numpy as np  # isort: skip
import tensorflow as tf  # isort: skip

QUESTION = (
    "Why does training need so much more memory than evaluation? Why not use the mean activation?"
)
SHAPE, CLASSES = (24, 24, 3), 10
BATCHES = (256, 512, 1024)
STEPS = 200
BLOCKS = (("conv1", "norm1"), ("conv2", "pool2"), ("flatten", "softmax_linear"))  # first, last
EVALUATION, TRAINING = "evaluation", "training"
BFLOAT16, AGAIN = "training, bfloat16", "training, each block computed again"
POINTS = [(way, batch) for way in (EVALUATION, TRAINING) for batch in BATCHES]
POINTS += [(way, BATCHES[-1]) for way in (BFLOAT16, AGAIN)]
RUNS = 3  # of a pass whose memory is measured
BATCH, MANY_BATCHES, RATE = 128, 16, 1e-3  # for the gradient at the mean activations
GRADIENT, AT_MEAN = "by the gradient", "by the one at the mean activations"
LAST = 10  # steps whose mean loss is the loss at the end
GUESS = np.log(CLASSES)  # the loss if all classes are given the same probability
MB = 2**20


def run(setup: findings.Setup, *, steps=STEPS, processes=True) -> findings.Finding:
    """Counts and measures passes; trains with the gradient and that of the mean activations."""
    counted = {point: count(make_pass(*point)) for point in POINTS}
    measured = measure(POINTS) if processes else dict.fromkeys(POINTS, NOT_MEASURED)
    images = data.load(setup)
    batches = list(images.training_batches(BATCH, steps, distorted=False))
    agreement = {n * BATCH: cosines(batches[:n]) for n in (1, MANY_BATCHES)}
    curves = {
        GRADIENT: train(lambda both: both.gradient, batches),
        AT_MEAN: train(lambda both: both.at_mean, batches),
    }
    return finding(counted, measured, agreement, curves, images.name)


def finding(
    counted: Mapping, measured: Mapping, agreement: Mapping, curves: Mapping, name: str
) -> findings.Finding:
    """The table, the answer and the claim."""
    return findings.Finding(
        head=(
            "pass",
            "batch",
            "counted: kept for the backward pass",
            "counted: most alive at once",
            "measured: handed out",
            "measured: resident",
        ),
        rows=[
            [way, f"{batch:,}", *map(as_cell, counted[way, batch] + measured[way, batch])]
            for way, batch in POINTS
        ],
        answer=answer(counted, agreement),
        claim=of_the_mean(agreement, curves),
        numbers={"curves": curves},
        draw=lambda figure: draw(figure, counted, measured, curves),
        data=name,
    )


def make_pass(way: str, batch: int):
    """One pass of `cifarnet` over a batch as a concrete function: the loss, and the gradient."""
    model = networks.build(
        "cifarnet", SHAPE, CLASSES, compute_dtype="bfloat16" if way == BFLOAT16 else "float32"
    )

    @tf.function(autograph=False)
    def one_pass(images, labels):
        weights = [tf.convert_to_tensor(weight.value) for weight in model.trainable_variables]
        with tf.GradientTape() as tape:
            tape.watch(weights)
            logits = forward(model, weights, images, again=way == AGAIN)
            loss = mean_loss(labels, logits)
        return loss, [] if way == EVALUATION else tape.gradient(loss, weights)

    return one_pass.get_concrete_function(
        tf.TensorSpec([batch, *SHAPE]), tf.TensorSpec([batch], tf.int64)
    )


def forward(model: keras.Model, weights, images, again: bool) -> tf.Tensor:
    """The logits, block by block; `again` keeps only a block's input for the backward pass."""
    x, weights = images, list(weights)
    for first, last in BLOCKS:
        block = keras.Model(model.get_layer(first).input, model.get_layer(last).output)
        values = [weights.pop(0) for _ in block.trainable_variables]
        call = functools.partial(call_block, block)
        x = (tf.recompute_grad(call) if again else call)(x, *values)
    return x


def call_block(block: keras.Model, x, *weights) -> tf.Tensor:
    """A part of the network, as a function of its input and its weights."""
    outputs, _ = block.stateless_call(weights, [], x)
    return outputs


def mean_loss(labels, logits) -> tf.Tensor:
    """The mean cross entropy."""
    logits = tf.cast(logits, tf.float32)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


class Count(NamedTuple):
    """What a graph says about the memory of its pass, in bytes.

    kept: what the forward pass computes from the images and the backward pass reads.
    alive: the most at any one time, if operations run in the order in which they were built and
      nothing is kept longer than it is needed.
    """

    kept: int
    alive: int


def count(one_pass) -> Count:
    """Counts the bytes of a pass's tensors."""
    images, (loss, *gradients) = one_pass.inputs[0], one_pass.outputs
    forward_pass = graph.needed_for([loss.op])
    backward_pass = graph.needed_for(tensor.op for tensor in gradients) - forward_pass
    built = one_pass.graph.get_operations()  # each after those that it reads
    of_images = {images.op}
    for operation in built:
        if any(tensor.op in of_images for tensor in operation.inputs):
            of_images.add(operation)
    of_images.remove(images.op)  # every pass has the batch in memory, and the weights
    read = {buffer(tensor).ref() for operation in backward_pass for tensor in operation.inputs}
    kept = {ref for ref in read if ref.deref().op in forward_pass & of_images}
    order = [operation for operation in built if operation in forward_pass | backward_pass]
    return Count(sum(size(ref.deref()) for ref in kept), most_alive(order, one_pass.outputs))


def buffer(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor whose memory this one shows: a reshape or an identity has none of its own."""
    while tensor.op.type in ("Reshape", "Identity", "IdentityN"):
        tensor = tensor.op.inputs[tensor.value_index if tensor.op.type == "IdentityN" else 0]
    return tensor


def size(tensor: tf.Tensor) -> int:
    """In bytes."""
    return tensor.shape.num_elements() * tensor.dtype.size


def most_alive(order: Sequence[tf.Operation], outputs: Sequence[tf.Tensor]) -> int:
    """The most bytes that are computed and still have to be read, over operations in order."""
    last_use = {}
    for place, operation in enumerate(order):
        last_use |= {buffer(tensor).ref(): place for tensor in operation.inputs}
    last_use |= {buffer(tensor).ref(): len(order) for tensor in outputs}
    freed = collections.Counter()  # bytes, by place
    alive = most = 0
    for place, operation in enumerate(order):
        # What reads nothing is the batch or a constant; what reads a variable shows its memory.
        if operation.inputs and operation.type != "ReadVariableOp":
            for tensor in operation.outputs:
                if buffer(tensor) is tensor and tensor.ref() in last_use:
                    alive += size(tensor)
                    freed[last_use[tensor.ref()]] += size(tensor)
        most = max(most, alive)
        alive -= freed[place]
    return most


class Measured(NamedTuple):
    """How many bytes the peak of a process rises from a batch of 1 to one of this size.

    handed_out: by TensorFlow's allocator to operations; None if it does not report this.
    resident: of the whole process; None if there is no /proc.
    """

    handed_out: int | None
    resident: float | None


NOT_MEASURED = Measured(None, None)


def measure(points: Sequence[tuple[str, int]]) -> dict[tuple[str, int], Measured]:
    """Runs each pass in a process of its own, two at a time."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return dict(zip(points, pool.map(in_new_process, points), strict=True))


def in_new_process(point: tuple[str, int]) -> Measured:
    """What `print_peaks` finds."""
    done = subprocess.run(
        [sys.executable, "-c", f"from lessons import memory; memory.print_peaks{point}"],
        stdout=subprocess.PIPE, text=True, check=True, cwd=lesson.ROOT,
    )  # fmt: skip
    return Measured(*json.loads(done.stdout))


def print_peaks(way: str, batch: int) -> None:
    """Runs the pass on one image and on a batch, and prints the fields of `Measured` as JSON."""
    findings.start_runtime()
    devices.run_graphs_as_written()
    before, after = (peaks_of(make_pass(way, images)) for images in (1, batch))
    pairs = zip(before, after, strict=True)
    print(json.dumps([None if None in pair else pair[1] - pair[0] for pair in pairs]))


def peaks_of(one_pass) -> Measured:
    """The peaks of this process so far, after some runs of the pass."""
    inputs = [tf.ones(tensor.shape, tensor.dtype) for tensor in one_pass.inputs[:2]]
    for _ in range(RUNS):
        one_pass(*inputs)
    try:
        handed_out = tf.config.experimental.get_memory_info("CPU:0")["peak"]
    except ValueError:  # not all of TensorFlow's allocators for CPUs keep count
        handed_out = None
    resident = turns.peak_megabytes(os.getpid())
    return Measured(handed_out, resident and resident * MB)


class BothGradients(NamedTuple):
    """The loss of a batch, its gradient, and the one of a backward pass at the mean activations."""

    loss: tf.Tensor
    gradient: list[tf.Tensor]
    at_mean: list[tf.Tensor]


def both_gradients(model: keras.Model, images, labels) -> BothGradients:
    """Runs the backward pass over all examples, and over their mean.

    The second keeps the mean over the batch of each layer's input, and the mean derivative of the
    loss by the logits, and runs backward once, as if there were only this one example.
    """
    inputs = [images]
    with tf.GradientTape() as tape:
        for layer in model.layers[1:]:
            inputs.append(layer(inputs[-1]))
        logits = inputs.pop()
        loss = mean_loss(labels, logits)
    errors = tf.nn.softmax(logits) - tf.one_hot(labels, logits.shape[-1])
    error = tf.reduce_mean(errors, axis=0, keepdims=True)
    at_mean = []
    for layer, x in zip(reversed(model.layers[1:]), reversed(inputs), strict=True):
        mean = tf.reduce_mean(x, axis=0, keepdims=True)
        values = [weight.value for weight in layer.trainable_variables]
        with tf.GradientTape() as layer_tape:
            layer_tape.watch(mean)
            output = layer(mean)
        *gradients, error = layer_tape.gradient(output, [*values, mean], error)
        at_mean = gradients + at_mean
    weights = [weight.value for weight in model.trainable_variables]
    return BothGradients(loss, tape.gradient(loss, weights), at_mean)


def cosines(batches) -> dict[str, float]:
    """Layer to the cosine of its kernel's two gradients, over all these batches as one."""
    model = data.small_cifarnet()
    images, labels = (tf.concat(parts, axis=0) for parts in zip(*batches, strict=True))
    both = both_gradients(model, images, labels)
    result = {}
    for weight, *pair in zip(model.trainable_variables, both.gradient, both.at_mean, strict=True):
        if len(weight.shape) > 1:
            a, b = (np.ravel(gradient).astype(np.float64) for gradient in pair)
            result[weight.path] = float(a @ b / np.sqrt((a @ a) * (b @ b)))
    return result


def train(chosen: Callable[[BothGradients], list[tf.Tensor]], batches) -> list[float]:
    """The loss before each step, training with one of the two gradients.

    Adam's steps are as large for a small gradient, which gives the second one a fair chance.
    """
    model, optimizer = data.small_cifarnet(), keras.optimizers.Adam(RATE)
    optimizer.build(model.trainable_variables)

    @tf.function(autograph=False)
    def step(images, labels):
        both = both_gradients(model, images, labels)
        optimizer.apply(chosen(both), model.trainable_variables)
        return both.loss

    return [float(step(*batch)) for batch in batches]


def answer(counted: Mapping, agreement: Mapping) -> str:
    """In one sentence, for both questions."""
    kept = [counted[way, BATCHES[-1]].kept for way in (TRAINING, EVALUATION)]
    lowest = min(min(of_layers.values()) for of_layers in agreement.values())
    gives = "gives a different gradient" if lowest < 0.9 else "came near the gradient here"
    return (
        "The backward pass reads nearly every activation of the forward pass, so training has to "
        f"keep one copy for each image{'' if kept[0] > kept[1] else ' (not here)'}; a mean "
        f"activation {gives}, because it loses which image had which error."
    )


def as_cell(size: float | None) -> str:
    """Megabytes."""
    return "" if size is None else f"{size / MB:.0f}"


def of_the_mean(agreement: Mapping, curves: Mapping) -> str:
    """What the numbers say of the gradient at the mean activations."""
    ranges = " and ".join(
        f"{min(layers.values()):.2f} to {max(layers.values()):.2f} on {images:,} images"
        for images, layers in agreement.items()
    )
    ends = {name: np.mean(curve[-LAST:]) for name, curve in curves.items()}
    return (
        "One backward pass at the mean activations gives a different gradient: its cosine to the "
        f"true one is, layer by layer, {ranges}. After {len(curves[AT_MEAN])} steps with it the "
        f"loss was {ends[AT_MEAN]:.2f}, with the true one {ends[GRADIENT]:.2f}; guessing gives "
        f"{GUESS:.2f}."
    )


def draw(figure, counted: Mapping, measured: Mapping, curves: Mapping) -> None:
    """Memory against the batch, and the loss by either gradient."""
    memory, training = figure.subplots(1, 2)
    for way, colour in ((TRAINING, "#0072b2"), (EVALUATION, "#d55e00")):
        alive = [counted[way, batch].alive / MB for batch in BATCHES]
        memory.plot(BATCHES, alive, "--", color=colour, label=f"{way}, counted")
        resident = [measured[way, batch].resident for batch in BATCHES]
        if None not in resident:
            peaks = [size / MB for size in resident]
            memory.plot(BATCHES, peaks, "o-", color=colour, label=f"{way}, measured")
    memory.set(xlabel="batch", ylabel="MB", title="Most memory at once", xticks=BATCHES)
    memory.set_ylim(bottom=0)
    for (name, curve), colour in zip(curves.items(), ("#0072b2", "#9a9a9a"), strict=True):
        training.plot(range(1, len(curve) + 1), curve, color=colour, label=name)
    training.set(xlabel="step", title="Loss of each step's batch")
    for axes in (memory, training):
        axes.legend()


LESSON = lesson.Lesson("memory", QUESTION, run)
