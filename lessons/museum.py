"""Old faults, each reproduced in a few lines: the number that it gives, and the right one."""

import argparse
import dataclasses
import math
import time
from collections.abc import Sequence

import towers  # noqa: F401  before Keras: it sets TensorFlow up
from input_pipeline import batches
from laboratory import data, findings
from lessons import learning_rate, lesson
from towers import devices, moving_averages, step

import keras  # isort: skip
import numpy as np  # isort: skip
import tensorflow as tf  # isort: skip
from absl import flags  # isort: skip

QUESTION = "I copied an old example and something is off"
RATE, WEIGHT_DECAY = 0.5, 0.5
IMAGES, BATCH = 1000, 100  # of an epoch, and of a step, where images are only counted


@dataclasses.dataclass(frozen=True)
class Exhibit:
    """One fault.

    Attributes:
      rows: of docs/pitfalls.md.
      did: what the old code did.
      symptom: what one notices.
      number: what is compared.
      wrong: the number, as the fault gives it.
      right: the number, as this package gives it.
    """

    rows: Sequence[int]
    did: str
    symptom: str
    number: str
    wrong: float | bool
    right: float | bool

    @property
    def ratio(self) -> float | None:
        """The wrong number, as a multiple of the right one; None where they are true and false."""
        return None if isinstance(self.right, bool) else self.wrong / self.right


def run(setup: findings.Setup) -> findings.Finding:
    """Reproduces every fault, and does the same correctly; the short version is the same."""
    found = {make.__name__: make() for make in EXHIBITS}
    rows = [
        [
            ", ".join(map(str, exhibit.rows)),
            exhibit.did,
            exhibit.symptom,
            exhibit.number,
            shown(exhibit.wrong),
            shown(exhibit.right),
        ]
        for exhibit in found.values()
    ]
    off = sum(exhibit.wrong != exhibit.right for exhibit in found.values())
    ratios = [exhibit.ratio for exhibit in found.values() if exhibit.ratio is not None]
    return findings.Finding(
        head=("row", "what the old code did", "what one notices", "the number", "wrong", "right"),
        rows=rows,
        answer=(
            f"Look for one of the {len(found)} faults below: each runs without an error, and makes "
            "one number wrong."
            if off
            else "Not one of the faults below: none of them shows here."
        ),
        claim=(
            f"None of the {len(found)} old ways stops with an error, and "
            f"{'all' if off == len(found) else off} give another number than this package. "
            f"{sum(r > 1 for r in ratios)} give one that is too "
            f"large, by up to {max(ratios):.0f} times, and {sum(r < 1 for r in ratios)} one that "
            f"is too small, down to {min(ratios):.0%} of the right one."
        ),
        numbers={name: (exhibit.wrong, exhibit.right) for name, exhibit in found.items()},
        draw=lambda figure: draw(figure, [e for e in found.values() if e.ratio is not None]),
        data="",
    )


def program_here(num_towers=2, layer=None, *, decay=None, clip=None) -> step.Program:
    """This package's own step, of a model of one layer: if none is given, a weight that is 1.

    The loss of an image is the model's output. With the weight, both the loss of an image and its
    gradient are the image itself, and everything can be worked out by hand.
    """
    layer = layer or keras.layers.Dense(
        1, use_bias=False, kernel_initializer="ones", kernel_regularizer=decay
    )
    with tf.device(devices.HOST):
        model = keras.Sequential([keras.Input([1]), layer])
    rate = RATE if clip is None else clip
    optimizer = keras.optimizers.SGD(rate, global_clipnorm=clip)
    return data.program(model, optimizer, num_towers, loss=lambda labels, outputs: outputs * labels)


def update(program: step.Program, images: tf.Tensor, size: int = 1) -> step.Watched:
    """Makes a step of microbatches of `size`; returns its losses and gradients."""
    _, shown = program((images, tf.ones_like(images)), size)
    return shown


def gradient_here(images: tf.Tensor, size: int = 1, num_towers: int = 4, **options) -> float:
    """Of the weight that is 1."""
    shown = update(program_here(num_towers, **options), images, size)
    return shown.gradients[0].numpy().item()


def column(*values: float) -> tf.Tensor:
    """Images of one pixel, [n, 1]."""
    return tf.constant(values, tf.float32, [len(values), 1])


def decay_by_steps() -> Exhibit:
    """The tutorial computes the steps to a decay from the batch of one tower."""
    batch = 4 * learning_rate.BATCH_PER_TOWER
    return Exhibit(
        rows=[1, 2],
        did="lets the rate decay by steps",
        symptom="on more GPUs the rate falls too late",
        number="epoch of the first decay, 4 towers",
        wrong=learning_rate.first_decay(learning_rate.rule_keyed_to_steps, batch),
        right=learning_rate.first_decay(learning_rate.rule_keyed_to_examples(), batch),
    )


def average_before_update() -> Exhibit:
    """Grouped with the update, the moving average may read the weight before or after the update.

    In the old graph this is a race; here the average always wins it.
    """
    weight, average, right = tf.Variable(1.0), tf.Variable(1.0), tf.Variable([[1.0]])
    moving_averages.update([average], [weight], 0.9999, tf.constant(0))
    weight.assign_sub(RATE * 1.0)  # the update, with the gradient 1
    program = program_here()
    update(program, column(1, 1))
    moving_averages.update([right], program.model.trainable_weights, 0.9999, tf.constant(0))
    return Exhibit(
        rows=[7],
        did="averages weights beside the update",
        symptom="the evaluation is a step behind, or not",
        number="average when a weight goes from 1 to 0.5",
        wrong=float(average),
        right=right.numpy().item(),
    )


def summary_of_next_batch() -> Exhibit:
    """After the step, the tutorial runs its summaries separately, so on another batch."""
    queue = iter([column(1, 2), column(3, 4)])
    program = program_here()
    shown = update(program, next(queue))
    return Exhibit(
        rows=[8],
        did="summarizes another batch",
        symptom="plot and log show different losses",
        number="loss of the step",
        wrong=float(tf.reduce_mean(program.model(next(queue)))),
        right=float(tf.reduce_mean(shown.losses)),
    )


def seconds_over_towers() -> Exhibit:
    """The tutorial divides the time of a step by the number of GPUs and calls it sec_per_batch.

    The `step_seconds` in this package's logs is the time itself, as here.
    """
    program = program_here(4)
    update(program, column(1, 2, 3, 4))  # builds the graph
    began = time.perf_counter()
    update(program, column(1, 2, 3, 4))
    seconds = time.perf_counter() - began
    return Exhibit(
        rows=[9],
        did="divides a step's time by the GPUs",
        symptom="more GPUs seem faster, even where none is",
        number="milliseconds of a step, 4 towers",
        wrong=1000 * seconds / 4,
        right=1000 * seconds,
    )


def queue_starts_over() -> Exhibit:
    """79 full batches of 128 from a queue that starts over: 112 images are scored twice.

    They are the first ones, and the only ones that the model gets wrong.
    """
    logits = np.repeat(np.array([[1, 0], [0, 1]], np.float32), [112, 9_888], axis=0)
    labels = np.ones(len(logits), np.int32)
    examples = tf.data.Dataset.from_tensor_slices((logits, labels))
    scored = list(examples.repeat().batch(128).take(math.ceil(len(labels) / 128)))
    correct = sum(int(np.sum(np.argmax(logits, 1) == labels)) for logits, labels in scored)
    model = keras.Sequential([keras.Input([2]), keras.layers.Identity()])
    data.compile_classifier(model, keras.optimizers.SGD())
    each_once = batches.each_once(len(labels), 128).map(
        lambda ids: (tf.gather(logits, ids), tf.gather(labels, ids))
    )
    return Exhibit(
        rows=[12],
        did="evaluates 79 x 128 of 10,000 images",
        symptom="accuracy depends on the batch size",
        number="accuracy, %",
        wrong=100 * (correct / (len(scored) * 128)),
        right=100 * model.evaluate(each_once, verbose=0, return_dict=True)["accuracy"],
    )


def flag_of_type_bool() -> Exhibit:
    """argparse passes the text to `bool`, and every text except the empty one is true."""
    parser, values = argparse.ArgumentParser(), flags.FlagValues()
    parser.add_argument("--use_fp16", type=bool)
    flags.DEFINE_boolean("use_fp16", True, "what train.py would have", flag_values=values)
    values(["train.py", "--use_fp16=False"])
    return Exhibit(
        rows=[18],
        did="declares a flag with type=bool",
        symptom="a flag cannot be switched off",
        number="--use_fp16=False",
        wrong=parser.parse_args(["--use_fp16=False"]).use_fp16,
        right=values.use_fp16,
    )


def losses_of_all_towers() -> Exhibit:
    """`cifar10.loss()` adds up a graph collection, in which all towers so far have their losses."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for loss in (1.0, 2.0, 3.0, 4.0):
            tf.compat.v1.add_to_collection("losses", tf.constant(loss))
            total = tf.add_n(tf.compat.v1.get_collection("losses"))
        wrong = session.run(total)
    shown = update(program_here(4), column(1, 2, 3, 4))
    return Exhibit(
        rows=[19],
        did="adds up a collection of losses",
        symptom="the loss grows from tower to tower",
        number="loss of the last of 4 towers",
        wrong=float(wrong),
        right=float(shown.losses[-1]),
    )


def decay_on_one_tower() -> Exhibit:
    """Only tower 0 adds the weight decay to its loss, and the mean over towers divides it."""
    weight = tf.Variable(1.0)
    with tf.GradientTape(persistent=True) as tape:
        of_towers = [0.0 * weight for _ in range(4)]  # instead of the cross entropy
        of_towers[0] += WEIGHT_DECAY * tf.nn.l2_loss(weight)
    return Exhibit(
        rows=[20],
        did="adds weight decay on one tower",
        symptom="more GPUs overfit more",
        number="decay in the mean gradient, 4 towers",
        wrong=mean_gradient(tape, of_towers, weight),
        right=decay_here(),
    )


def decay_added_again() -> Exhibit:
    """Every tower adds its weight decay to one collection, and takes all that is in it."""
    weight, collection, of_towers = tf.Variable(1.0), [], []
    with tf.GradientTape(persistent=True) as tape:
        for _ in range(4):
            collection.append(WEIGHT_DECAY * tf.nn.l2_loss(weight))
            of_towers.append(tf.add_n(collection))
    return Exhibit(
        rows=[20],
        did="adds weight decay again per tower",
        symptom="more GPUs underfit",
        number="decay in the mean gradient, 4 towers",
        wrong=mean_gradient(tape, of_towers, weight),
        right=decay_here(),
    )


def mean_gradient(tape: tf.GradientTape, of_towers: Sequence, weight: tf.Variable) -> float:
    """The mean of the gradients of the towers' losses."""
    return float(tf.reduce_mean([tape.gradient(loss, weight) for loss in of_towers]))


def decay_here() -> float:
    """The gradient of a weight of 1 for images that are 0: only the weight decay."""
    return gradient_here(column(0, 0, 0, 0), decay=keras.regularizers.L2(WEIGHT_DECAY / 2))


def rows_of_one_tower() -> Exhibit:
    """Tower 0 has looked up row 1 of an embedding, and tower 1 row 3.

    The old average takes the values of both, and the indices of the first.
    """
    table = tf.Variable(tf.ones([5, 1]))
    of_towers = []
    for row, factor in ((1, 1.0), (3, 3.0)):
        with tf.GradientTape() as tape:
            loss = factor * tf.reduce_sum(tf.gather(table, [row]))
        of_towers.append(tape.gradient(loss, table))  # IndexedSlices
    values = tf.reduce_mean([sparse.values for sparse in of_towers], axis=0)
    wrong = tf.IndexedSlices(values, of_towers[0].indices, of_towers[0].dense_shape)
    layer = keras.layers.Embedding(5, 1, embeddings_initializer="ones")
    _, shown = program_here(2, layer)((tf.constant([[1], [3]]), tf.constant([[[1.0]], [[3.0]]])), 1)
    return Exhibit(
        rows=[21],
        did="averages rows under tower 0's indices",
        symptom="rows learn what others have seen",
        number="gradient of tower 0's row",
        wrong=float(tf.convert_to_tensor(wrong)[1, 0]),
        right=float(tf.convert_to_tensor(shown.gradients[0])[1, 0]),
    )


def sum_for_mean() -> Exhibit:
    """The gradients of four towers, added up although the rate was chosen for their mean."""
    images = column(1, 2, 3, 6)  # and so are their gradients
    return Exhibit(
        rows=[22],
        did="adds gradients up",
        symptom="one GPU's rate makes four diverge",
        number="gradient, 4 towers",
        wrong=float(tf.reduce_sum(images)),
        right=gradient_here(images),
    )


def statistics_of_one_tower() -> Exhibit:
    """Batch norm of tower 0 alone updates the moving mean; MirroredStrategy shows replica 0's."""
    images = column(9, 11, 18, 22)
    old = keras.layers.BatchNormalization(momentum=0.0)
    old(images[:2], training=True)
    new = keras.layers.BatchNormalization(momentum=0.0)
    update(program_here(2, new), images, 2)
    return Exhibit(
        rows=[23, 32],
        did="keeps tower 0's batch-norm statistics",
        symptom="good in training, poor in evaluation",
        number="moving mean",
        wrong=float(old.moving_mean[0]),
        right=float(new.moving_mean[0]),
    )


def clipped_before_the_sum() -> Exhibit:
    """Keras under MirroredStrategy: each replica halves its loss, clips, and the sum is taken."""
    halves = [column(6) / 2, column(8) / 2]
    clipped = [tf.clip_by_global_norm([half], 1.0)[0][0] for half in halves]
    program = program_here(clip=1.0)
    update(program, column(6, 8))
    return Exhibit(
        rows=[25],
        did="clips before the reduction",
        symptom="steps are longer than the bound",
        number="length of a step clipped to 1",
        wrong=float(tf.norm(tf.add_n(clipped))),
        right=float(tf.norm(1.0 - program.model.trainable_variables[0])),
    )


def mean_of_uneven_means() -> Exhibit:
    """The last batch of an epoch has four images, and three of them go to tower 0."""
    images = column(0.5, 0.5, 0.5, 2.5)
    weight = tf.Variable(1.0)
    with tf.GradientTape(persistent=True) as tape:
        of_towers = [tf.reduce_mean(weight * part) for part in tf.split(images, [3, 1])]
    return Exhibit(
        rows=[26],
        did="takes the mean of uneven towers' means",
        symptom="the last step of an epoch is off",
        number="gradient",
        wrong=mean_gradient(tape, of_towers, weight),
        right=gradient_here(images, 3, 2),
    )


def data_from_the_top() -> Exhibit:
    """A run is stopped after 6 of an epoch's 10 steps; the next process makes a new reader."""
    stopped, resumed = list(old_reader().take(6)), list(old_reader().take(4))
    return Exhibit(
        rows=[28],
        did="starts the data from the top",
        symptom="the loss falls after each restart",
        number="images seen of an epoch's 1,000",
        wrong=different(stopped + resumed),
        right=different([*reader_here(range(6)), *reader_here(range(6, 10))]),
    )


def same_images_twice() -> Exhibit:
    """Two replicas make the same reader, and each takes its batches from its own."""
    replicas = [next(iter(old_reader())) for _ in range(2)]
    halves = (range(BATCH), range(BATCH, 2 * BATCH))
    shares = [reader_here(range(1), 2 * BATCH, half) for half in halves]
    return Exhibit(
        rows=[30],
        did="gives two replicas the same data",
        symptom="two GPUs learn no more than one",
        number="images in two batches of 100",
        wrong=different(replicas),
        right=different([part for share in shares for part in share]),
    )


def old_reader() -> tf.data.Dataset:
    """Batches of image numbers, in an order that only the seed decides."""
    return tf.data.Dataset.range(IMAGES).shuffle(IMAGES, seed=1).batch(BATCH)


def reader_here(steps: range, size: int = BATCH, share: range | None = None) -> list[tf.Tensor]:
    """This package's batches of image numbers."""
    order = batches.Order(IMAGES, size, seed=1, share=share)
    return [order(tf.constant(step, tf.int64))[0] for step in steps]


def different(parts: Sequence[tf.Tensor]) -> int:
    """How many different images there are."""
    return len(np.unique(np.concatenate(parts)))


EXHIBITS = (
    decay_by_steps,
    average_before_update,
    summary_of_next_batch,
    seconds_over_towers,
    queue_starts_over,
    flag_of_type_bool,
    losses_of_all_towers,
    decay_on_one_tower,
    decay_added_again,
    rows_of_one_tower,
    sum_for_mean,
    statistics_of_one_tower,
    clipped_before_the_sum,
    mean_of_uneven_means,
    data_from_the_top,
    same_images_twice,
)


def shown(value: float | bool) -> str:
    """A number as text for people."""
    return str(value).lower() if isinstance(value, bool) else f"{value:,.4g}"


def draw(figure, exhibits: Sequence[Exhibit]) -> None:
    """Each wrong number, in multiples of the right one."""
    axes = figure.subplots()
    exhibits = sorted(exhibits, key=lambda exhibit: exhibit.ratio)
    places = range(len(exhibits))
    ratios = [exhibit.ratio for exhibit in exhibits]
    axes.axvline(1, color="black", linewidth=1)
    axes.hlines(places, 1, ratios, color="#d55e00", linewidth=2)
    axes.plot(ratios, places, "o", color="#d55e00")
    for place, exhibit in zip(places, exhibits, strict=True):
        said = f"{shown(exhibit.wrong)} for {shown(exhibit.right)}"
        axes.annotate(
            said, (max(exhibit.ratio, 1), place), xytext=(7, 0), textcoords="offset points",
            verticalalignment="center", fontsize=8,
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks([1 / 4, 1 / 2, 1, 2, 4], ["1/4", "1/2", "1", "2", "4"])
    axes.set_xlim(0.2, 8)
    axes.set_yticks(places, [exhibit.did for exhibit in exhibits], fontsize=9)
    axes.invert_yaxis()
    axes.set_title("The wrong number, in multiples of the right one", fontsize=10)


LESSON = lesson.Lesson("museum", QUESTION, run)
