"""Old faults, each reproduced in a few lines: the number that it gives, and the right one."""

import argparse
import dataclasses
import math
import time
from collections.abc import Callable, Sequence

import towers  # noqa: F401  before Keras: it sets TensorFlow up
from input_pipeline import batches
from laboratory import data, findings
from lessons import learning_rate, lesson
from towers import devices, moving_averages, step, updating

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


EXHIBITS: dict[str, Callable[[], Exhibit]] = {}  # by the names of the functions below
Numbers = tuple[float | bool, float | bool]  # wrong and right


def exhibit(rows: Sequence[int], did: str, symptom: str, number: str) -> Callable:
    """Makes an exhibit of a function that gives the wrong and the right number."""

    def add(numbers: Callable[[], Numbers]) -> Callable[[], Numbers]:
        EXHIBITS[numbers.__name__] = lambda: Exhibit(rows, did, symptom, number, *numbers())
        return numbers

    return add


def run(setup: findings.Setup) -> findings.Finding:
    """Reproduces every fault, and does the same correctly."""
    exhibits = {name: make() for name, make in EXHIBITS.items()}
    rows = [
        [
            ", ".join(map(str, exhibit.rows)),
            exhibit.did,
            exhibit.symptom,
            exhibit.number,
            shown(exhibit.wrong),
            shown(exhibit.right),
        ]
        for exhibit in exhibits.values()
    ]
    off = sum(exhibit.wrong != exhibit.right for exhibit in exhibits.values())
    return findings.Finding(
        head=("row", "what the old code did", "what one notices", "the number", "wrong", "right"),
        rows=rows,
        answer=(
            f"Look for one of the {len(exhibits)} faults below: each runs without an error, and "
            "makes one number wrong."
            if off
            else "Not one of the faults below: none of them shows here."
        ),
        numbers={name: (exhibit.wrong, exhibit.right) for name, exhibit in exhibits.items()},
        draw=lambda figure: draw(figure, [e for e in exhibits.values() if e.ratio is not None]),
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


def update(program: step.Program, images: tf.Tensor, size: int = 1) -> updating.Watched:
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


@exhibit(
    [1, 2],
    "lets the rate decay by steps",
    "on more GPUs the rate falls too late",
    "epoch of the first decay, 4 towers",
)
def decay_by_steps() -> Numbers:
    """The tutorial computes the steps to a decay from the batch of one tower."""
    batch = 4 * learning_rate.BATCH_PER_TOWER
    rules = learning_rate.rule_keyed_to_steps, learning_rate.rule_keyed_to_examples()
    wrong, right = (learning_rate.first_decay(rule, batch) for rule in rules)
    return wrong, right


@exhibit(
    [7],
    "averages weights beside the update",
    "the evaluation is a step behind, or not",
    "average when a weight goes from 1 to 0.5",
)
def average_before_update() -> Numbers:
    """Grouped with the update, the moving average may read the weight before or after the update.

    In the old graph this is a race; here the average always wins it.
    """
    weight, average, right = tf.Variable(1.0), tf.Variable(1.0), tf.Variable([[1.0]])
    moving_averages.update([average], [weight], 0.9999, tf.constant(0))
    weight.assign_sub(RATE * 1.0)  # the update, with the gradient 1
    program = program_here()
    update(program, column(1, 1))
    moving_averages.update([right], program.model.trainable_weights, 0.9999, tf.constant(0))
    return float(average), right.numpy().item()


@exhibit([8], "summarizes another batch", "plot and log show different losses", "loss of the step")
def summary_of_next_batch() -> Numbers:
    """After the step, the tutorial runs its summaries separately, so on another batch."""
    queue = iter([column(1, 2), column(3, 4)])
    program = program_here()
    shown = update(program, next(queue))
    return float(tf.reduce_mean(program.model(next(queue)))), float(tf.reduce_mean(shown.losses))


@exhibit(
    [9],
    "divides a step's time by the GPUs",
    "more GPUs seem faster, even where none is",
    "milliseconds of a step, 4 towers",
)
def seconds_over_towers() -> Numbers:
    """The tutorial divides the time of a step by the number of GPUs and calls it sec_per_batch.

    The `step_seconds` in this package's logs is the time itself, as here.
    """
    program = program_here(4)
    update(program, column(1, 2, 3, 4))  # builds the graph
    began = time.perf_counter()
    update(program, column(1, 2, 3, 4))
    seconds = time.perf_counter() - began
    return 1000 * seconds / 4, 1000 * seconds


@exhibit(
    [12], "evaluates 79 x 128 of 10,000 images", "accuracy depends on the batch size", "accuracy, %"
)
def queue_starts_over() -> Numbers:
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
    right = 100 * model.evaluate(each_once, verbose=0, return_dict=True)["accuracy"]
    return 100 * (correct / (len(scored) * 128)), right


@exhibit(
    [18], "declares a flag with type=bool", "a flag cannot be switched off", "--use_fp16=False"
)
def flag_of_type_bool() -> Numbers:
    """argparse passes the text to `bool`, and every text except the empty one is true."""
    parser, values = argparse.ArgumentParser(), flags.FlagValues()
    parser.add_argument("--use_fp16", type=bool)
    flags.DEFINE_boolean("use_fp16", True, "what train.py would have", flag_values=values)
    values(["train.py", "--use_fp16=False"])
    return parser.parse_args(["--use_fp16=False"]).use_fp16, values.use_fp16


@exhibit(
    [19],
    "adds up a collection of losses",
    "the loss grows from tower to tower",
    "loss of the last of 4 towers",
)
def losses_of_all_towers() -> Numbers:
    """`cifar10.loss()` adds up a graph collection, in which all towers so far have their losses."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for loss in (1.0, 2.0, 3.0, 4.0):
            tf.compat.v1.add_to_collection("losses", tf.constant(loss))
            total = tf.add_n(tf.compat.v1.get_collection("losses"))
        wrong = session.run(total)
    shown = update(program_here(4), column(1, 2, 3, 4))
    return float(wrong), float(shown.losses[-1])


@exhibit(
    [20],
    "adds weight decay on one tower",
    "more GPUs overfit more",
    "decay in the mean gradient, 4 towers",
)
def decay_on_one_tower() -> Numbers:
    """Only tower 0 adds the weight decay to its loss, and the mean over towers divides it."""
    weight = tf.Variable(1.0)
    with tf.GradientTape(persistent=True) as tape:
        of_towers = [0.0 * weight for _ in range(4)]  # instead of the cross entropy
        of_towers[0] += WEIGHT_DECAY * tf.nn.l2_loss(weight)
    return mean_gradient(tape, of_towers, weight), decay_here()


@exhibit(
    [20],
    "adds weight decay again per tower",
    "more GPUs underfit",
    "decay in the mean gradient, 4 towers",
)
def decay_added_again() -> Numbers:
    """Every tower adds its weight decay to one collection, and takes all that is in it."""
    weight, collection, of_towers = tf.Variable(1.0), [], []
    with tf.GradientTape(persistent=True) as tape:
        for _ in range(4):
            collection.append(WEIGHT_DECAY * tf.nn.l2_loss(weight))
            of_towers.append(tf.add_n(collection))
    return mean_gradient(tape, of_towers, weight), decay_here()


def mean_gradient(tape: tf.GradientTape, of_towers: Sequence, weight: tf.Variable) -> float:
    """The mean of the gradients of the towers' losses."""
    return float(tf.reduce_mean([tape.gradient(loss, weight) for loss in of_towers]))


def decay_here() -> float:
    """The gradient of a weight of 1 for images that are 0: only the weight decay."""
    return gradient_here(column(0, 0, 0, 0), decay=keras.regularizers.L2(WEIGHT_DECAY / 2))


@exhibit(
    [21],
    "averages rows under tower 0's indices",
    "rows learn what others have seen",
    "gradient of tower 0's row",
)
def rows_of_one_tower() -> Numbers:
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
    right = float(tf.convert_to_tensor(shown.gradients[0])[1, 0])
    return float(tf.convert_to_tensor(wrong)[1, 0]), right


@exhibit([22], "adds gradients up", "one GPU's rate makes four diverge", "gradient, 4 towers")
def sum_for_mean() -> Numbers:
    """The gradients of four towers, added up although the rate was chosen for their mean."""
    images = column(1, 2, 3, 6)  # and so are their gradients
    return float(tf.reduce_sum(images)), gradient_here(images)


@exhibit(
    [23, 32],
    "keeps tower 0's batch-norm statistics",
    "good in training, poor in evaluation",
    "moving mean",
)
def statistics_of_one_tower() -> Numbers:
    """Batch norm of tower 0 alone updates the moving mean; MirroredStrategy shows replica 0's."""
    images = column(9, 11, 18, 22)
    old = keras.layers.BatchNormalization(momentum=0.0)
    old(images[:2], training=True)
    new = keras.layers.BatchNormalization(momentum=0.0)
    update(program_here(2, new), images, 2)
    return float(old.moving_mean[0]), float(new.moving_mean[0])


@exhibit(
    [25],
    "clips before the reduction",
    "steps are longer than the bound",
    "length of a step clipped to 1",
)
def clipped_before_the_sum() -> Numbers:
    """Keras under MirroredStrategy: each replica halves its loss, clips, and the sum is taken."""
    halves = [column(6) / 2, column(8) / 2]
    clipped = [tf.clip_by_global_norm([half], 1.0)[0][0] for half in halves]
    program = program_here(clip=1.0)
    update(program, column(6, 8))
    right = float(tf.norm(1.0 - program.model.trainable_variables[0]))
    return float(tf.norm(tf.add_n(clipped))), right


@exhibit(
    [26], "takes the mean of uneven towers' means", "the last step of an epoch is off", "gradient"
)
def mean_of_uneven_means() -> Numbers:
    """The last batch of an epoch has four images, and three of them go to tower 0."""
    images = column(0.5, 0.5, 0.5, 2.5)
    weight = tf.Variable(1.0)
    with tf.GradientTape(persistent=True) as tape:
        of_towers = [tf.reduce_mean(weight * part) for part in tf.split(images, [3, 1])]
    return mean_gradient(tape, of_towers, weight), gradient_here(images, 3, 2)


@exhibit(
    [28],
    "starts the data from the top",
    "the loss falls after each restart",
    "images seen of an epoch's 1,000",
)
def data_from_the_top() -> Numbers:
    """A run is stopped after 6 of an epoch's 10 steps; the next process makes a new reader."""
    stopped, resumed = list(old_reader().take(6)), list(old_reader().take(4))
    right = different([*reader_here(range(6)), *reader_here(range(6, 10))])
    return different(stopped + resumed), right


@exhibit(
    [30],
    "gives two replicas the same data",
    "two GPUs learn no more than one",
    "images in two batches of 100",
)
def same_images_twice() -> Numbers:
    """Two replicas make the same reader, and each takes its batches from its own."""
    replicas = [next(iter(old_reader())) for _ in range(2)]
    return different(replicas), different(reader_here(range(1), 2 * BATCH))


def old_reader() -> tf.data.Dataset:
    """Batches of image numbers, in an order that only the seed decides."""
    return tf.data.Dataset.range(IMAGES).shuffle(IMAGES, seed=1).batch(BATCH)


def reader_here(steps: range, size: int = BATCH) -> list[tf.Tensor]:
    """This package's batches of image numbers."""
    order = batches.Order(IMAGES, size, seed=1)
    return [order(tf.constant(step, tf.int64))[0] for step in steps]


def different(parts: Sequence[tf.Tensor]) -> int:
    """How many different images there are."""
    return len(np.unique(np.concatenate(parts)))


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
        text = f"{shown(exhibit.wrong)} for {shown(exhibit.right)}"
        axes.annotate(
            text, (max(exhibit.ratio, 1), place), xytext=(7, 0), textcoords="offset points",
            verticalalignment="center", fontsize=8,
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks([1 / 4, 1 / 2, 1, 2, 4], ["1/4", "1/2", "1", "2", "4"])
    axes.set_xlim(0.2, 8)
    axes.set_yticks(places, [exhibit.did for exhibit in exhibits], fontsize=9)
    axes.invert_yaxis()
    axes.set_title("The wrong number, in multiples of the right one", fontsize=10)


LESSON = lesson.Lesson("museum", QUESTION, run)
