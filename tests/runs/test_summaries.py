"""What a run writes for TensorBoard, read back from its event files."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.util import tensor_util

import towers
from input_pipeline import arrays
from towers.runs import callbacks, run_folder, summaries

BATCH, MICROBATCH = 8, 2
LOGGED, SHOWN, EVALUATED = [1, 3, 6], [3, 6], [3, 6]
WEIGHTS = ["tiny/hidden/kernel", "tiny/hidden/bias", "tiny/logits/kernel", "tiny/logits/bias"]
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(24, 4, 4, 3)).astype("float32"), RNG.integers(4, size=24)
SCALARS = {
    "loss", "weight_decay", "weight_decay/tiny/hidden/kernel", "towers/loss_spread", "accuracy",
    "learning_rate", "epoch", "examples_per_second", "step_seconds", "sparsity/hidden",
    "sparsity/logits", "gradient_norm", "epoch_loss", "epoch_accuracy",
    "by_examples_seen/loss", "by_examples_seen/accuracy", "by_examples_seen/learning_rate",
}  # fmt: skip


class Note(callbacks.RunCallback):
    """Keeps what each step was made of."""

    def __init__(self):
        super().__init__()
        self.images, self.weights, self.watched = {}, {}, {}

    def on_train_batch_begin(self, batch, logs=None):
        at_step = self.run.state.step + 1
        self.images[at_step] = self.run.batch[0].numpy()
        self.weights[at_step] = [weight.numpy() for weight in self.model.trainable_variables]

    def on_train_batch_end(self, batch, logs=None):
        self.watched[self.run.state.step] = self.run.watched


class Events:
    """The event files of one folder."""

    def __init__(self, folder):
        everything = {kind: 0 for kind in event_accumulator.DEFAULT_SIZE_GUIDANCE}
        self.read = event_accumulator.EventAccumulator(str(folder), everything).Reload()

    def tags(self, plugin: str) -> set[str]:
        return {
            tag
            for tag in self.read.Tags()["tensors"]
            if self.read.SummaryMetadata(tag).plugin_data.plugin_name == plugin
        }

    def values(self, tag: str) -> dict[int, np.ndarray]:
        """Step to value."""
        events = self.read.Tensors(tag)
        return {event.step: tensor_util.make_ndarray(event.tensor_proto) for event in events}


def run_in(path, *, summary_every_steps: int) -> SimpleNamespace:
    """A run in `path`, with what each of its steps was made of."""
    keras.utils.set_random_seed(1)
    decay = keras.regularizers.L2(0.01)
    layers = [
        keras.layers.Flatten(),
        keras.layers.Dense(5, activation="relu", name="hidden", kernel_regularizer=decay),
        keras.layers.Dense(4, name="logits"),
    ]
    model = keras.Sequential([keras.Input((4, 4, 3)), *layers], name="tiny")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    note = Note()
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])
    towers.distribute(model, ("/CPU:0", "/CPU:1"), microbatch_size=MICROBATCH)
    chain = [note, callbacks.Log(3)]
    if summary_every_steps:
        chain.append(callbacks.Histograms(summary_every_steps))
    run = towers.Run(path, model)
    run.fit(
        arrays.batches(X, Y), batch_size=BATCH, epochs=2, validation_data=(X[:16], Y[:16]),
        callbacks=chain, verbose=0,
    )  # fmt: skip
    return SimpleNamespace(
        note=note,
        state_sha256=run.state.sha256(),
        metrics=run_folder.read_lines(run.folder.metrics),
        train=Events(path / "train"),
        eval=Events(path / "eval"),
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """One run of all that follows."""
    return run_in(tmp_path_factory.mktemp("runs") / "first", summary_every_steps=3)


def test_training_writes_these_tags(done):
    assert done.train.tags("scalars") == SCALARS
    shown = {f"{what}/{name}" for what in ("weights", "gradients") for name in WEIGHTS}
    shown |= {"activations/hidden", "activations/logits"}
    assert done.train.tags("histograms") == shown
    assert done.train.tags("images") == {"augmented_images"}


def test_scalars_are_those_of_the_metrics_file(done):
    """Also by the examples seen: runs of other batch sizes have other steps."""
    steps = [line for line in done.metrics if "step_seconds" in line]
    assert [line["step"] for line in steps] == LOGGED
    evaluations = [line for line in done.metrics if "val_loss" in line]
    assert [line["step"] for line in evaluations] == EVALUATED
    for events, lines, names, prefix in (
        (done.train, steps, ("loss", "accuracy", "learning_rate"), ""),
        (done.eval, evaluations, ("loss", "accuracy"), "val_"),
    ):
        for name in names:
            values = {line["step"]: np.float32(line[prefix + name]) for line in lines}
            assert events.values(name) == values
            seen = {step * BATCH: value for step, value in values.items()}
            assert events.values(f"by_examples_seen/{name}") == seen


@pytest.mark.pitfall(6)
def test_the_loss_is_the_mean_over_towers_and_their_spread_is_beside_it(done):
    for step in LOGGED:
        a, b, c, d = done.note.watched[step].losses.numpy()
        assert done.train.values("loss")[step] == pytest.approx((a + b + c + d) / 4, rel=1e-6)
        spread = done.train.values("towers/loss_spread")[step]
        assert spread == pytest.approx(abs((a + b) / 2 - (c + d) / 2), abs=1e-6)
        decay = 0.01 * np.square(done.note.weights[step][0]).sum()  # of the weights before it
        assert done.train.values("weight_decay")[step] == pytest.approx(decay, rel=1e-5)


@pytest.mark.pitfall(8, 14)
def test_what_is_shown_is_the_steps_own(tmp_path, done):
    """No batch is drawn for summaries, and they show the weights and gradients of their step."""
    for step in SHOWN:
        gradients = [gradient.numpy() for gradient in done.note.watched[step].gradients]
        for name, gradient in zip(WEIGHTS, gradients, strict=True):
            check_histogram(done.train.values(f"gradients/{name}")[step], gradient)
        norm = np.sqrt(sum(np.square(gradient).sum() for gradient in gradients))
        assert done.train.values("gradient_norm")[step] == pytest.approx(norm, rel=1e-6)
        kernel, bias = done.note.weights[step][:2]
        first = done.note.images[step][:MICROBATCH].reshape(-1, 48)
        hidden = np.maximum(first @ kernel + bias, 0.0)
        assert done.train.values("sparsity/hidden")[step] == np.float32((hidden == 0).mean())
        check_histogram(done.train.values("activations/hidden")[step], hidden)
    # Weights are shown as the update left them.
    for name, weight in zip(WEIGHTS, done.note.weights[4], strict=True):
        check_histogram(done.train.values(f"weights/{name}")[3], weight)
    without = run_in(tmp_path / "without", summary_every_steps=0)
    assert without.state_sha256 == done.state_sha256
    assert not without.train.tags("histograms")


def check_histogram(shown: np.ndarray, values: np.ndarray) -> None:
    """`shown`: [buckets, 3], each bucket's left edge, right edge and count."""
    edges = np.append(shown[:, 0], shown[-1, 1])
    np.testing.assert_allclose(edges[[0, -1]], [values.min(), values.max()], rtol=1e-5, atol=1e-7)
    assert shown[:, 2].sum() == values.size
    # By rounding, a value on an edge may be counted on either side of it.
    below = [(values < edge).sum() for edge in edges[1:-1]]
    assert np.abs(np.cumsum(shown[:-1, 2]) - below).max() <= 1


def test_the_graph_shows_towers_side_by_side_each_with_its_backward_pass(done):
    nodes = {node.name: node for node in done.train.read.Graph().node}
    boxes = {name.split("/")[0] for name in nodes}
    assert {nodes[box].op for box in boxes & set(nodes)}.isdisjoint({"Identity", "NoOp"})
    # From 15 boxes on, TensorBoard puts the best connected ones among the "auxiliary nodes".
    assert len(boxes) < 15
    feeds = {box: set() for box in boxes}
    for name, node in nodes.items():
        for source in node.input:
            feeds[name.split("/")[0]].add(source.lstrip("^").split(":")[0].split("/")[0])
    for index, tower in enumerate(("tower_0", "tower_1")):
        assert feeds[tower] - {tower} == {"cut_batch", "weights"}
        assert tower in feeds["average_gradients"]
        own = [node for name, node in nodes.items() if name.startswith(f"{tower}/microbatch")]
        backward = [node for node in own if "gradient_tape" in node.name]
        assert any(node.op == "ReluGrad" for node in backward)
        assert {node.device[-5:] for node in backward} == {f"CPU:{index}"}
    assert "average_gradients" in feeds["apply"]


def test_a_line_ends_with_the_time_that_is_left(capsys):
    line = {"step": 4, "epoch": 1.0, "loss": 0.5, "accuracy": 0.5, "learning_rate": 0.1}
    callbacks.printer(10, "test")(line | {"examples_per_second": 9, "step_seconds": 30.0})
    assert capsys.readouterr().out.split()[-1] == "03:00"


def test_an_image_is_stretched_from_its_least_to_its_largest_value():
    result = summaries.stretched(3 * X[:2] + 5)
    np.testing.assert_allclose(result.min(axis=(1, 2, 3)), 0, atol=1e-6)
    np.testing.assert_allclose(result.max(axis=(1, 2, 3)), 1, atol=1e-6)
