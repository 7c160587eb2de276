"""What a run writes for TensorBoard, read back from its event files."""

import io
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing import (
    data_provider,
    event_accumulator,
    plugin_event_multiplexer,
)
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups
from tensorboard.util import tensor_util

import towers
from input_pipeline import arrays
from towers.runs import callbacks, run_folder, summaries

CLASS_NAMES = ("ant", "bee", "cat", "dog")
BATCH, MICROBATCH, LAST_STEP, TOWERS = 8, 2, 6, 2
LOGGED, SHOWN, EVALUATED = [1, 2, 4, 6], [3, 6], [3, 6]
WEIGHTS = ["tiny/hidden/kernel", "tiny/hidden/bias", "tiny/logits/kernel", "tiny/logits/bias"]
SETTINGS = {"model": "tiny", "num_towers": TOWERS, "learning_rate": 0.1, "decay_epochs": []}
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(24, 4, 4, 3)).astype("float32"), RNG.integers(4, size=24)
SCALARS = {
    "loss", "weight_decay", "weight_decay/tiny/hidden/kernel", "towers/loss_spread", "accuracy",
    "learning_rate", "epoch", "examples_per_second", "step_seconds", "sparsity/hidden",
    "sparsity/logits", "gradient_norm",
    "by_examples_seen/loss", "by_examples_seen/accuracy", "by_examples_seen/learning_rate",
}  # fmt: skip


def tiny(accuracy: towers.metrics.Accuracy) -> keras.Model:
    layers = keras.layers
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((4, 4, 3)),
            layers.Flatten(),
            layers.Dense(
                5, activation="relu", name="hidden", kernel_regularizer=keras.regularizers.L2(0.01)
            ),
            layers.Dense(4, name="logits"),
        ],
        name="tiny",
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=[accuracy])
    return towers.distribute(model, ("/CPU:0", "/CPU:1"), microbatch_size=MICROBATCH)


class Note(callbacks.RunCallback):
    """Keeps what each step was made of."""

    def __init__(self):
        super().__init__()
        self._images, self._weights, self._watched = {}, {}, {}

    def on_train_batch_begin(self, batch, logs=None):
        at_step = self._at_step + 1
        self._images[at_step] = self.run.batch[0].numpy()
        self._weights[at_step] = [weight.numpy() for weight in self.model.trainable_variables]

    def on_train_batch_end(self, batch, logs=None):
        self._watched[self._at_step] = self.run.watched


def train(path, *, summary_every_steps: int) -> SimpleNamespace:
    """A run in `path`, with what each of its steps was made of."""
    accuracy = towers.metrics.Accuracy(4)
    model, note = tiny(accuracy), Note()
    chain = [note, callbacks.Log(2), callbacks.Confusion(accuracy, CLASS_NAMES)]
    if summary_every_steps:
        chain += [callbacks.Histograms(summary_every_steps), callbacks.Profile(4, 5)]
    run = towers.Run(path, model, settings=SETTINGS)
    run.fit(
        arrays.batches(X, Y), batch_size=BATCH, epochs=2, validation_data=(X[:16], Y[:16]),
        callbacks=chain, verbose=0,
    )  # fmt: skip
    return SimpleNamespace(
        folder=run.folder,
        images=note._images,
        weights=note._weights,
        watched=note._watched,
        state_sha256=run.state.sha256(),
        metrics=run_folder.read_lines(run.folder.metrics),
    )


class Events:
    """The event files of one folder."""

    def __init__(self, folder):
        everything = {kind: 0 for kind in event_accumulator.DEFAULT_SIZE_GUIDANCE}
        self.accumulator = event_accumulator.EventAccumulator(str(folder), everything)
        self.accumulator.Reload()

    def tags(self, plugin: str) -> set[str]:
        read = self.accumulator
        return {
            tag
            for tag in read.Tags()["tensors"]
            if read.SummaryMetadata(tag).plugin_data.plugin_name == plugin
        }

    def values(self, tag: str) -> dict[int, np.ndarray]:
        """Step to value."""
        return {
            event.step: tensor_util.make_ndarray(event.tensor_proto)
            for event in self.accumulator.Tensors(tag)
        }

    def images(self, tag: str) -> dict[int, np.ndarray]:
        """Step to uint8 [n, height, width, 3]."""
        return {
            step: np.stack([np.asarray(Image.open(io.BytesIO(png))) for png in value[2:]])
            for step, value in self.values(tag).items()
        }


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """One run of all that follows."""
    return train(tmp_path_factory.mktemp("runs") / "first", summary_every_steps=3)


@pytest.fixture(scope="module")
def train_events(done):
    return Events(done.folder.train_events)


@pytest.fixture(scope="module")
def eval_events(done):
    return Events(done.folder.eval_events)


def test_training_writes_these_tags(train_events):
    assert train_events.tags("scalars") == SCALARS | {"epoch_loss", "epoch_accuracy"}
    assert train_events.tags("histograms") == (
        {f"weights/{name}" for name in WEIGHTS}
        | {f"gradients/{name}" for name in WEIGHTS}
        | {"activations/hidden", "activations/logits"}
    )
    assert train_events.tags("images") == {"augmented_images"}
    assert train_events.tags("text") == {"settings", "resolved"}


def test_curves_of_training_and_evaluation_overlay(train_events, eval_events):
    of_eval = eval_events.tags("scalars")
    assert of_eval >= {f"accuracy_per_class/{name}" for name in CLASS_NAMES}
    both = train_events.tags("scalars") & of_eval
    assert both == {
        "loss", "accuracy", "epoch", "by_examples_seen/loss", "by_examples_seen/accuracy"
    }  # fmt: skip


def test_scalars_are_those_of_the_metrics_file(done, train_events, eval_events):
    """Also by the examples seen: runs of other batch sizes have other steps."""
    steps = [line for line in done.metrics if "step_seconds" in line]
    assert [line["step"] for line in steps] == LOGGED
    evaluations = [line for line in done.metrics if "val_loss" in line]
    assert [line["step"] for line in evaluations] == EVALUATED
    sides = [
        (train_events, steps, ("loss", "accuracy", "learning_rate"), ""),
        (eval_events, evaluations, ("loss", "accuracy"), "val_"),
    ]
    for events, lines, names, prefix in sides:
        for name in names:
            values = {line["step"]: np.float32(line[prefix + name]) for line in lines}
            assert events.values(name) == values
            seen = {step * BATCH: value for step, value in values.items()}
            assert events.values(f"by_examples_seen/{name}") == seen


@pytest.mark.pitfall(6)
def test_the_loss_is_the_mean_over_towers_and_their_spread_is_beside_it(done, train_events):
    for step in LOGGED:
        a, b, c, d = done.watched[step].losses.numpy()
        assert train_events.values("loss")[step] == pytest.approx((a + b + c + d) / 4, rel=1e-6)
        spread = train_events.values("towers/loss_spread")[step]
        assert spread == pytest.approx(abs((a + b) / 2 - (c + d) / 2), abs=1e-6)


@pytest.mark.pitfall(8)
def test_what_is_shown_is_the_steps_own(done, train_events):
    """No batch is drawn for summaries, and they show the weights and gradients of their step."""
    for step in SHOWN:
        gradients = [gradient.numpy() for gradient in done.watched[step].gradients]
        for name, gradient in zip(WEIGHTS, gradients, strict=True):
            check_histogram(train_events.values(f"gradients/{name}")[step], gradient)
        norm = np.sqrt(sum(np.square(gradient).sum() for gradient in gradients))
        assert train_events.values("gradient_norm")[step] == pytest.approx(norm, rel=1e-6)
        kernel, bias = done.weights[step][:2]
        hidden = np.maximum(done.images[step][:MICROBATCH].reshape(-1, 48) @ kernel + bias, 0.0)
        assert train_events.values("sparsity/hidden")[step] == np.float32((hidden == 0).mean())
        check_histogram(train_events.values("activations/hidden")[step], hidden)
    # Weights are shown as the update left them.
    for name, weight in zip(WEIGHTS, done.weights[4], strict=True):
        check_histogram(train_events.values(f"weights/{name}")[3], weight)


@pytest.mark.pitfall(8)
def test_summaries_leave_the_run_as_it_is(tmp_path, done):
    without = train(tmp_path / "without", summary_every_steps=0)
    assert without.state_sha256 == done.state_sha256
    assert not Events(without.folder.train_events).tags("histograms")


def check_histogram(shown: np.ndarray, values: np.ndarray) -> None:
    """`shown`: [buckets, 3], each bucket's left edge, right edge and count."""
    edges = np.append(shown[:, 0], shown[-1, 1])
    np.testing.assert_allclose(edges[[0, -1]], [values.min(), values.max()], rtol=1e-5, atol=1e-7)
    assert shown[:, 2].sum() == values.size
    # By rounding, a value on an edge may be counted on either side of it.
    below = [(values < edge).sum() for edge in edges[1:-1]]
    assert np.abs(np.cumsum(shown[:-1, 2]) - below).max() <= 1


def test_augmented_images_fill_the_range_from_black_to_white(done, train_events):
    shown = train_events.images("augmented_images")
    assert sorted(shown) == SHOWN
    for step, pictures in shown.items():
        images = done.images[step]
        low, high = (extreme(images, axis=(1, 2, 3), keepdims=True) for extreme in (np.min, np.max))
        assert pictures.shape == (summaries.MAX_IMAGES, 4, 4, 3)
        np.testing.assert_allclose(pictures, 255 * (images - low) / (high - low), atol=1.0)


def test_the_confusion_matrix_is_a_picture(eval_events):
    shown = eval_events.images("confusion_matrix")
    assert sorted(shown) == EVALUATED
    height, width, channels = shown[3][0].shape
    assert height == width > 44 * len(CLASS_NAMES) and channels == 3


def test_a_class_without_examples_has_no_accuracy(tmp_path):
    writer = summaries.file_writer(tmp_path)
    with summaries.events(writer, 5):
        summaries.write_confusion(np.array([[3, 1], [0, 0]]), ("cat", "dog"))
    writer.flush()
    events = Events(tmp_path)
    assert events.values("accuracy_per_class/cat") == {5: 0.75}
    assert "accuracy_per_class/dog" not in events.tags("scalars")


def test_the_graph_shows_towers_side_by_side(train_events):
    nodes = {node.name: node for node in train_events.accumulator.Graph().node}
    boxes = {name.split("/")[0] for name in nodes}
    # From 15 boxes on, TensorBoard puts the best connected ones among the "auxiliary nodes".
    assert len(boxes) < 15
    feeds = {box: set() for box in boxes}
    for name, node in nodes.items():
        for source in node.input:
            feeds[name.split("/")[0]].add(source.lstrip("^").split(":")[0].split("/")[0])
    for tower in ("tower_0", "tower_1"):
        assert feeds[tower] - {tower} == {"cut_batch", "weights"}
        assert tower in feeds["average_gradients"]
    assert "average_gradients" in feeds["apply"]


def test_a_towers_box_holds_its_backward_pass_on_its_device(train_events):
    for tower in range(TOWERS):
        backward = [
            node
            for node in train_events.accumulator.Graph().node
            if node.name.startswith(f"tower_{tower}/microbatch") and "gradient_tape" in node.name
        ]
        assert any(node.op == "ReluGrad" for node in backward)
        assert {node.device[-5:] for node in backward} == {f"CPU:{tower}"}


def test_settings_are_a_table_of_text(train_events):
    [text] = train_events.values("settings").values()
    assert text.item().decode().splitlines() == [
        "| name | value |",
        "| --- | --- |",
        '| model | "tiny" |',
        "| num_towers | 2 |",
        "| learning_rate | 0.1 |",
        "| decay_epochs | [] |",
    ]


@pytest.mark.parametrize("logdir", ["run", "folder of runs"])
def test_hparams_shows_settings_and_metrics_of_a_run(done, logdir):
    """As TensorBoard's own back end reads them, for `--logdir=runs/first` and `--logdir=runs`."""
    path = done.folder.path if logdir == "run" else done.folder.path.parent
    [group] = session_groups(path)
    values = {
        name: value.string_value or value.number_value for name, value in group.hparams.items()
    }
    assert values == SETTINGS | {"decay_epochs": "[]"}
    shown = {value.name.tag: value.value for value in group.metric_values}
    last = done.metrics[-1]
    assert shown["accuracy"] == np.float32(last["val_accuracy"])
    assert shown["loss"] == np.float32(last["val_loss"])


def session_groups(logdir) -> list:
    """The rows of the HParams page."""
    multiplexer = plugin_event_multiplexer.EventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(logdir))
    multiplexer.Reload()
    provider = data_provider.MultiplexerDataProvider(multiplexer, str(logdir))
    context = backend_context.Context(TBContext(data_provider=provider))
    request = api_pb2.ListSessionGroupsRequest(
        allowed_statuses=[api_pb2.STATUS_UNKNOWN, api_pb2.STATUS_RUNNING, api_pb2.STATUS_SUCCESS],
        start_index=0,
        slice_size=10,
    )
    handler = list_session_groups.Handler(RequestContext(), context, "", request)
    return list(handler.run().session_groups)


def test_a_profile_is_written_where_asked(done):
    [profile] = done.folder.train_events.glob("plugins/profile/*/*.xplane.pb")
    assert profile.stat().st_size > 0


def test_a_second_writer_never_has_the_name_of_a_file_that_is_there(tmp_path):
    """In the same second, with the same process number, as two starts in containers may have."""
    for number in range(7777):
        (tmp_path / f"events.out.tfevents.{number}").touch()
    before = set(tmp_path.iterdir())
    summaries.file_writer(tmp_path).flush()
    (written,) = set(tmp_path.iterdir()) - before
    assert written.name.endswith(".7777.v2")


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_file_in_the_place_of_a_folder_is_one_sentence(tmp_path, name):
    """TensorFlow's words for it are not the system's."""
    (tmp_path / "file").write_text("mine")
    with pytest.raises(run_folder.RunFolderError, match="TensorBoard's files cannot be written: "):
        summaries.file_writer(tmp_path / name).flush()
