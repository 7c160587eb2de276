"""What a run writes for TensorBoard, read back from its event files."""

import io
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
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

from towers import losses, trainer
from towers.runs import activations, loop, run_folder, run_plan, summaries
from towers.support import tally

CLASS_NAMES = ("ant", "bee", "cat", "dog")
BATCH, LAST_STEP, TOWERS, MICROBATCHES = 8, 6, 2, 4
LOGGED, SHOWN, EVALUATED = [1, 2, 4, 6], [3, 6], [3, 6]
WEIGHTS = ["tiny/hidden/kernel", "tiny/hidden/bias", "tiny/logits/kernel", "tiny/logits/bias"]
CONFIG = {
    "settings": {
        "train_dir": "/a/folder",
        "model": "tiny",
        "num_towers": TOWERS,
        "learning_rate": 0.1,
        "decay_epochs": [],
        "train_epochs": None,
    },
    "resolved": {"class_names": list(CLASS_NAMES)},
}
SCALARS = {
    "loss/total", "loss/cross_entropy", "loss/weight_decay/hidden", "loss/weight_decay/logits",
    "towers/loss_spread", "accuracy", "learning_rate", "epoch", "examples_per_second",
    "sparsity/hidden", "sparsity/logits", "gradient_norm",
    "by_examples_seen/loss", "by_examples_seen/accuracy", "by_examples_seen/learning_rate",
}  # fmt: skip


def tiny_trainer() -> trainer.Trainer:
    with tf.device("/CPU:0"):
        model = keras.Sequential(
            [
                keras.Input((4, 4, 3)),
                keras.layers.Flatten(),
                keras.layers.Dense(
                    5,
                    activation="relu",
                    kernel_initializer=keras.initializers.GlorotUniform(seed=1),
                    name="hidden",
                ),
                keras.layers.Dropout(0.5, seed=2),
                keras.layers.Dense(
                    4, kernel_initializer=keras.initializers.GlorotUniform(seed=3), name="logits"
                ),
            ],
            name="tiny",
        )
    return trainer.Trainer(
        model,
        keras.optimizers.SGD(momentum=0.9),
        towers=("/CPU:0", "/CPU:1"),
        global_batch_size=BATCH,
        num_microbatches=MICROBATCHES,
        learning_rate=lambda examples_seen: 0.1 / (1 + examples_seen),
        weight_decay=0.01,
    )


def random_batches(count: int) -> list:
    rng = np.random.default_rng(0)
    return [
        (
            tf.constant(rng.normal(size=(BATCH, 4, 4, 3)), tf.float32),
            tf.constant(rng.integers(4, size=BATCH)),
        )
        for _ in range(count)
    ]


class Named:
    """What the loop asks of a definition."""

    def sha256(self):
        return "of this run"


def train(path, *, summary_every_steps: int, profile_steps=None) -> SimpleNamespace:
    """A run in `path`, with what each of its steps was given and gave back, by step."""
    made, folder = tiny_trainer(), run_folder.RunFolder(str(path))
    folder.create(CONFIG)
    drawn, before, results = {}, {}, {}

    def batches(first_step, last_step):
        for at_step, batch in enumerate(random_batches(last_step), start=1):
            drawn[at_step] = batch[0].numpy()
            yield batch

    def step(images, labels, **_):
        before[len(before) + 1] = [w.numpy() for w in made.state.model.trainable_variables]
        results[len(before)] = trainer.Trainer.train_step(made, images, labels)
        return results[len(before)]

    made.train_step = step
    plan = run_plan.Plan(
        last_step=LAST_STEP,
        examples_per_epoch=24,
        class_names=CLASS_NAMES,
        log_every_steps=2,
        summary_every_steps=summary_every_steps,
        verify_every_steps=0,
        checkpoint_every_steps=100,
        checkpoints_to_keep=1,
        eval_every_epochs=1.0,
        profile_steps=profile_steps,
    )
    data = run_plan.Data(batches, list(random_batches(2)), evaluation_count=2 * BATCH)
    run = loop.Loop(made, folder, plan, data, Named())
    with run.lock.held():
        run.train(CONFIG)
    return SimpleNamespace(
        folder=folder,
        drawn=drawn,
        before=before,
        results=results,
        state_sha256=made.state.sha256(),
        metrics=run_folder.read_lines(folder.metrics),
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
    runs = tmp_path_factory.mktemp("runs")
    return train(runs / "first", summary_every_steps=3, profile_steps=(4, 5))


@pytest.fixture(scope="module")
def train_events(done):
    return Events(done.folder.train_events)


@pytest.fixture(scope="module")
def eval_events(done):
    return Events(done.folder.eval_events)


def test_training_writes_these_tags(train_events):
    assert train_events.tags("scalars") == SCALARS
    assert train_events.tags("histograms") == (
        {f"weights/{name}" for name in WEIGHTS}
        | {f"gradients/{name}" for name in WEIGHTS}
        | {"activations/hidden", "activations/logits"}
    )
    assert train_events.tags("images") == {"augmented_images"}
    assert train_events.tags("text") == {"settings", "resolved"}


def test_curves_of_training_and_evaluation_overlay(train_events, eval_events):
    assert eval_events.tags("scalars") == (
        {"accuracy", "top5_accuracy", "loss/cross_entropy"}
        | {"by_examples_seen/loss", "by_examples_seen/accuracy"}
        | {f"accuracy_per_class/{name}" for name in CLASS_NAMES}
    )
    both = train_events.tags("scalars") & eval_events.tags("scalars")
    assert both == {
        "accuracy", "loss/cross_entropy", "by_examples_seen/loss", "by_examples_seen/accuracy"
    }  # fmt: skip


def test_scalars_are_those_of_the_metrics_file(done, train_events):
    lines = [line for line in done.metrics if "split" not in line]
    assert [line["step"] for line in lines] == LOGGED
    names = {"loss": "loss/total", "cross_entropy": "loss/cross_entropy"}
    for key in ("loss", "cross_entropy", "accuracy", "learning_rate", "epoch",
                "examples_per_second"):  # fmt: skip
        written = train_events.values(names.get(key, key))
        assert written == {line["step"]: np.float32(line[key]) for line in lines}
    terms = [train_events.values(f"loss/weight_decay/{layer}") for layer in ("hidden", "logits")]
    for line in lines:
        decay = sum(term[line["step"]] for term in terms)
        assert decay == pytest.approx(line["weight_decay"], rel=1e-6)


def test_evaluations_are_those_of_the_metrics_file(done, eval_events):
    lines = [line for line in done.metrics if "split" in line]
    assert [line["step"] for line in lines] == EVALUATED
    names = {"loss": "loss/cross_entropy"}
    for key in ("loss", "accuracy", "top5_accuracy"):
        written = eval_events.values(names.get(key, key))
        assert written == {line["step"]: np.float32(line[key]) for line in lines}


def test_curves_by_examples_seen_are_those_by_steps(done, train_events, eval_events):
    """Runs of other batch sizes have other steps, and may be laid on each other by these."""
    logged = {line["step"]: line for line in done.metrics if "split" not in line}
    assert len(logged) > 2
    for tag, name in (("loss/total", "loss"), ("accuracy",) * 2, ("learning_rate",) * 2):
        by_step = train_events.values(tag)
        moved = {logged[step]["examples_seen"]: value for step, value in by_step.items()}
        assert train_events.values(f"by_examples_seen/{name}") == moved
    batch = logged[LOGGED[0]]["examples_seen"] // LOGGED[0]
    for tag, name in (("loss/cross_entropy", "loss"), ("accuracy",) * 2):
        moved = {step * batch: value for step, value in eval_events.values(tag).items()}
        assert eval_events.values(f"by_examples_seen/{name}") == moved


@pytest.mark.pitfall(6)
def test_the_loss_is_the_mean_over_towers_and_their_spread_is_beside_it(tmp_path):
    folder = run_folder.RunFolder(str(tmp_path))
    written = summaries.Summaries(folder)
    metrics = dict.fromkeys(("accuracy", "learning_rate", "epoch", "examples_per_second"), 0)
    metrics |= {"step": 3, "examples_seen": 24}
    # Tower 0 has the microbatches of 1 and 2, tower 1 those of 5 and 8: means 1.5 and 6.5.
    losses = {"total": np.array([1.0, 2.0, 5.0, 8.0])}
    written.scalars(metrics, losses, num_towers=2, divergence={"norm": {"moving_mean": 0.5}})
    written.flush()
    events = Events(folder.train_events)
    assert events.values("loss/total") == {3: 4.0}
    assert events.values("by_examples_seen/loss") == {24: 4.0}
    assert events.values("towers/loss_spread") == {3: 5.0}
    assert events.values("batch_norm_divergence/norm_moving_mean") == {3: 0.5}


def test_the_spread_of_a_run_is_that_of_its_steps(done, train_events):
    for step, value in train_events.values("towers/loss_spread").items():
        a, b, c, d = done.results[step].losses["total"].numpy()
        assert value == pytest.approx(abs((a + b) / 2 - (c + d) / 2), abs=1e-6)


@pytest.mark.pitfall(8)
def test_what_is_shown_is_the_steps_own(done, train_events):
    """No batch is drawn for summaries, and they show the weights and gradients of their step."""
    assert sorted(done.drawn) == list(range(1, LAST_STEP + 1))
    for step in LOGGED:
        shown = train_events.values("loss/total")[step]
        assert shown == pytest.approx(done.results[step].losses["total"].numpy().mean(), rel=1e-6)
    for step in SHOWN:
        for name, gradient in zip(WEIGHTS, done.results[step].gradients, strict=True):
            check_histogram(train_events.values(f"gradients/{name}")[step], gradient.numpy())
        squares = [np.square(gradient.numpy()).sum() for gradient in done.results[step].gradients]
        norm = train_events.values("gradient_norm")[step]
        assert norm == pytest.approx(np.sqrt(sum(squares)), rel=1e-6)
    # Weights are shown as the update left them.
    for name, weight in zip(WEIGHTS, done.before[4], strict=True):
        check_histogram(train_events.values(f"weights/{name}")[3], weight)


@pytest.mark.pitfall(8)
def test_activations_are_those_of_the_steps_first_microbatch(done, train_events):
    for step in SHOWN:
        kernel, bias = done.before[step][:2]
        images = done.drawn[step][: BATCH // MICROBATCHES].reshape(-1, 48)
        hidden = np.maximum(images @ kernel + bias, 0.0)
        assert 0 < (hidden == 0).mean() < 1  # else the next line would show little
        assert train_events.values("sparsity/hidden")[step] == np.float32((hidden == 0).mean())
        check_histogram(train_events.values("activations/hidden")[step], hidden)


@pytest.mark.pitfall(8)
def test_activations_have_the_steps_own_draws():
    made, [(images, labels)] = tiny_trainer(), random_batches(1)
    logits = activations.Activations(made)(images)["logits"]
    result = made.train_step(images, labels)
    first = losses.cross_entropy(labels[: BATCH // MICROBATCHES], logits).numpy().mean()
    assert first == pytest.approx(float(result.losses["cross_entropy"][0]), rel=1e-5)


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
        images = done.drawn[step]
        low, high = (extreme(images, axis=(1, 2, 3), keepdims=True) for extreme in (np.min, np.max))
        assert pictures.shape == (summaries.MAX_IMAGES, 4, 4, 3)
        np.testing.assert_allclose(pictures, 255 * (images - low) / (high - low), atol=1.0)


def test_the_confusion_matrix_is_a_picture(eval_events):
    shown = eval_events.images("confusion_matrix")
    assert sorted(shown) == EVALUATED
    height, width, channels = shown[3][0].shape
    assert height == width > 44 * len(CLASS_NAMES) and channels == 3


def test_a_class_without_examples_has_no_accuracy(tmp_path):
    result = tally.Evaluation(
        count=4,
        loss=1.0,
        metrics={"accuracy": 0.75, "top5_accuracy": 1.0},
        confusion=np.array([[3, 1], [0, 0]]),
    )
    writer = tf.summary.create_file_writer(str(tmp_path))
    summaries.write_evaluation(writer, result, ("cat", "dog"), at_step=5, examples_seen=40)
    events = Events(tmp_path)
    assert events.values("accuracy_per_class/cat") == {5: 0.75}
    assert events.values("accuracy") == {5: 0.75}
    assert events.values("by_examples_seen/accuracy") == {40: 0.75}
    assert events.values("by_examples_seen/loss") == {40: 1.0}
    assert "accuracy_per_class/dog" not in events.tags("scalars")


def test_the_graph_shows_towers_side_by_side(train_events):
    nodes = {node.name: node for node in train_events.accumulator.Graph().node}
    boxes = {name.split("/")[0] for name in nodes}
    assert boxes == {
        "inputs", "labels", "learning_rate", "split_batch", "weights", "tower_0", "tower_1",
        "average_gradients", "apply", "count", "result",
    }  # fmt: skip
    # From 15 boxes on, TensorBoard puts the best connected ones among the "auxiliary nodes".
    assert len(boxes) < 15
    feeds = {box: set() for box in boxes}
    for name, node in nodes.items():
        for source in node.input:
            source = source.lstrip("^").split(":")[0]
            assert source in nodes
            feeds[name.split("/")[0]].add(source.split("/")[0])
    for tower in ("tower_0", "tower_1"):
        assert feeds[tower] - {tower} == {"split_batch", "weights"}
        assert tower in feeds["average_gradients"] and tower in feeds["result"]
    assert "average_gradients" in feeds["apply"]


def test_a_towers_box_holds_its_backward_pass_on_its_device(train_events):
    for tower in range(TOWERS):
        backward = [
            node
            for node in train_events.accumulator.Graph().node
            if node.name.startswith(f"tower_{tower}/microbatch/gradient_tape/")
        ]
        assert any(node.op == "ReluGrad" for node in backward)
        assert {node.device[-5:] for node in backward} == {f"CPU:{tower}"}


def test_settings_are_a_table_of_text(train_events):
    [text] = train_events.values("settings").values()
    assert text.item().decode().splitlines() == [
        "| name | value |",
        "| --- | --- |",
        '| train_dir | "/a/folder" |',
        '| model | "tiny" |',
        "| num_towers | 2 |",
        "| learning_rate | 0.1 |",
        "| decay_epochs | [] |",
        "| train_epochs | null |",
    ]


@pytest.mark.parametrize("logdir", ["run", "folder of runs"])
def test_hparams_shows_settings_and_metrics_of_a_run(done, logdir):
    """As TensorBoard's own back end reads them, for `--logdir=runs/first` and `--logdir=runs`."""
    path = done.folder.path if logdir == "run" else done.folder.path.parent
    [group] = session_groups(path)
    assert group.name == str(done.folder.path)
    assert {name: value.string_value or value.number_value for name, value in
            group.hparams.items()} == {
        "model": "tiny", "num_towers": 2, "learning_rate": 0.1, "train_epochs": "null",
    }  # fmt: skip
    last = done.metrics[-1]
    assert {value.name.tag: value.value for value in group.metric_values} == {
        "accuracy": np.float32(last["accuracy"]),
        "top5_accuracy": np.float32(last["top5_accuracy"]),
        "loss/cross_entropy": np.float32(last["loss"]),
    }


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
