"""What TensorBoard shows of a run.

All summaries are written outside the training step's graph, from tensors it returns at every step:
the graph is then the same whatever is watched, and its picture keeps the towers in the middle.
"""

import contextlib
import errno
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from tensorboard.plugins.hparams import api as hparams

from towers import gradients, step
from towers.runs import figures, picture, run_folder
from towers.support import noise, shares, tally

MAX_IMAGES = 8

# These are about files, whatever their message.
_OF_FILES = (
    tf.errors.AlreadyExistsError,
    tf.errors.FailedPreconditionError,
    tf.errors.NotFoundError,
    tf.errors.PermissionDeniedError,
)


# The settings by which runs are compared. HParams shows the first five in alphabetical order, the
# others after a click; the table of all settings is on the text page.
COMPARED = (
    "clip_norm",
    "compute_dtype",
    "dataset",
    "global_batch_size",
    "label_smoothing",
    "learning_rate",
    "learning_rate_schedule",
    "model",
    "momentum",
    "moving_average_decay",
    "num_microbatches",
    "num_towers",
    "optimizer",
    "seed",
    "train_epochs",
    "warmup_epochs",
    "weight_decay",
)

BY_EXAMPLES = "by_examples_seen/"


class Summaries:
    """Writers of one run's event files: `train/` and `eval/`, with the same tags for the same
    quantity so that their curves overlay.

    TensorBoard's horizontal axis is the step, and runs with other batch sizes have other steps. So
    the loss, the accuracy and the learning rate are written a second time with the examples seen in
    place of the step, as `by_examples_seen/loss` and so on: there, one schedule is one curve.
    """

    def __init__(self, folder: run_folder.RunFolder):
        """Makes the files.

        Raises:
          RunFolderError: they cannot be written; from every method.
        """
        self._folder = folder
        self._train = file_writer(folder.train_events)
        self._eval = file_writer(folder.eval_events)

    def start(self, config: Mapping, graph: tf.Graph) -> None:
        """Writes the settings as text and HParams, and the graph of the step."""
        settings = config["settings"]
        with _events(self._train, 0):
            for part in ("settings", "resolved"):
                tf.summary.text(part, _markdown_table(config[part]))
            tf.summary.graph(picture.of_graph(graph))
        # HParams finds the metrics of a session only in the session's own run, whether --logdir is
        # this run or the folder of many: a group of metrics beside it is not found in the former.
        with _events(self._eval, 0):
            values = {name: _as_hparam(settings[name]) for name in COMPARED if name in settings}
            split = settings.get("eval_split", "test")
            hparams.hparams_config(
                hparams=[hparams.HParam(name) for name in values],
                metrics=[
                    hparams.Metric("accuracy", display_name=f"{split} accuracy"),
                    hparams.Metric("top5_accuracy", display_name=f"{split} top-5 accuracy"),
                    hparams.Metric("loss/cross_entropy", display_name=f"{split} loss"),
                ],
            )
            hparams.hparams(values, trial_id=str(self._folder.path))

    def scalars(
        self,
        metrics: Mapping,
        losses: Mapping[str, np.ndarray],
        num_towers: int,
        divergence: Mapping[str, Mapping[str, float]],
    ) -> None:
        """Writes one logged step: its metrics and the terms of its loss.

        Args:
          metrics: a line of `metrics.jsonl`.
          losses: loss term to its value in each microbatch, [num_microbatches].
          num_towers: the spread is over the means of the towers.
          divergence: from `divergence.divergence`, or empty.
        """
        self._by_examples_seen(metrics, losses["total"])
        with _events(self._train, metrics["step"]):
            for term, values in losses.items():
                _scalar(f"loss/{term}", values.mean(dtype=np.float64))
            total = losses["total"]
            of_towers = shares.evenly(len(total), num_towers)
            per_tower = np.array([total[own.start : own.stop].mean() for own in of_towers])
            _scalar("towers/loss_spread", per_tower.max() - per_tower.min())
            for name in ("accuracy", "learning_rate", "epoch", "examples_per_second"):
                if name in metrics:
                    _scalar(name, metrics[name])
            for layer, of_layer in divergence.items():
                for name, value in of_layer.items():
                    # TensorBoard cuts titles short before the last slash.
                    _scalar(f"batch_norm_divergence/{layer}_{name}", value)

    def _by_examples_seen(self, metrics: Mapping, total: np.ndarray) -> None:
        with _events(self._train, metrics["examples_seen"]):
            _scalar(BY_EXAMPLES + "loss", total.mean(dtype=np.float64))
            for name in ("accuracy", "learning_rate"):
                if name in metrics:
                    _scalar(BY_EXAMPLES + name, metrics[name])

    def histograms(
        self,
        model: keras.Model,
        result: step.StepResult,
        activations: Mapping[str, tf.Tensor],
        images: tf.Tensor,
        at_step: int,
    ) -> None:
        """Writes weights, gradients, activations with their sparsity, and images."""
        with _events(self._train, at_step):
            for weight, gradient in zip(model.trainable_variables, result.gradients, strict=True):
                tf.summary.histogram(f"weights/{weight.path}", weight.value)
                if gradient is not None:
                    dense = tf.convert_to_tensor(gradient)
                    tf.summary.histogram(f"gradients/{weight.path}", dense)
            _scalar("gradient_norm", gradients.global_norm(result.gradients))
            for layer, values in activations.items():
                tf.summary.histogram(f"activations/{layer}", tf.cast(values, tf.float32))
                _scalar(f"sparsity/{layer}", tf.nn.zero_fraction(values))
            if images.shape[-1] in (1, 3):
                shown = figures.stretched(np.asarray(images[:MAX_IMAGES]))
                tf.summary.image("augmented_images", shown, max_outputs=MAX_IMAGES)

    def evaluation(
        self,
        result: tally.Evaluation,
        class_names: tuple[str, ...],
        at_step: int,
        examples_seen: int,
    ) -> None:
        """Writes one evaluation: scalars, accuracy per class and the confusion matrix."""
        write_evaluation(self._eval, result, class_names, at_step, examples_seen)

    def flush(self) -> None:
        """Writes out what is buffered."""
        with _on_disk():
            self._train.flush()
            self._eval.flush()


def file_writer(folder: Path) -> tf.summary.SummaryWriter:
    """A writer of event files in `folder`, which is made if it does not exist.

    Raises:
      RunFolderError: they cannot be written.
    """
    # TensorFlow's name has the second, the machine and the process. In a container that was started
    # again, all three may be those of an existing file, which would be overwritten.
    there = len(list(folder.glob("events.out.tfevents.*")))
    with _on_disk():
        return tf.summary.create_file_writer(str(folder), filename_suffix=f".{there}.v2")


@contextlib.contextmanager
def _events(writer: tf.summary.SummaryWriter, at_step: int) -> Iterator[None]:
    with _on_disk(), writer.as_default(step=tf.constant(np.int64(at_step))):
        yield


def _scalar(tag: str, value) -> None:
    # As an array, and the step above as well: TensorFlow 2.21 keeps every Python number forever
    # (tensorflow#68196).
    tf.summary.scalar(tag, np.asarray(value, np.float32))


@contextlib.contextmanager
def _on_disk() -> Iterator[None]:
    """Turns TensorFlow's error about files that cannot be written into a RunFolderError."""
    try:
        yield
    except tf.errors.OpError as error:
        # Errors of other kinds are about files where they end with the system's words; the rest are
        # about the tensors to be shown.
        words = tuple(f"; {os.strerror(number)}" for number in (0, *errno.errorcode))
        if not isinstance(error, _OF_FILES) and not noise.reason(error).endswith(words):
            raise
        raise run_folder.RunFolderError(
            f"TensorBoard's files cannot be written: {noise.reason(error)}"
        ) from error


def write_evaluation(
    writer,
    result: tally.Evaluation,
    class_names: tuple[str, ...],
    at_step: int,
    examples_seen: int,
    most_confused: np.ndarray | None = None,
) -> None:
    """Writes one evaluation to a `file_writer`.

    Args:
      writer: the `file_writer`.
      result: of the evaluation.
      class_names: one per class.
      at_step: of the weights.
      examples_seen: by the weights, in training.
      most_confused: a sheet of examples, uint8 [height, width, 3]; None for none.

    Raises:
      RunFolderError: it cannot be written.
    """
    with _events(writer, examples_seen):
        _scalar(BY_EXAMPLES + "loss", result.loss)
        _scalar(BY_EXAMPLES + "accuracy", result.accuracy)
    with _events(writer, at_step):
        _scalar("loss/cross_entropy", result.loss)
        for name, value in result.metrics.items():
            _scalar(name, value)
        for name, value in zip(class_names, result.per_class_accuracy(), strict=True):
            if not np.isnan(value):
                _scalar(f"accuracy_per_class/{name}", value)
        picture = figures.confusion_matrix(result.confusion, class_names)
        tf.summary.image("confusion_matrix", picture[None])
        if most_confused is not None:
            tf.summary.image("most_confused", most_confused[None])
        writer.flush()


@contextlib.contextmanager
def profile(folder: run_folder.RunFolder):
    """Records a profile for TensorBoard's Profile tab (needs the `profile` extra to be shown)."""
    with _on_disk():
        tf.profiler.experimental.start(str(folder.train_events))
    try:
        yield
    finally:
        with _on_disk():
            tf.profiler.experimental.stop()


def _markdown_table(values: Mapping) -> str:
    rows = [f"| {name} | {json.dumps(value)} |" for name, value in values.items()]
    return "\n".join(["| name | value |", "| --- | --- |", *rows])


def _as_hparam(value):
    return value if isinstance(value, (bool, int, float, str)) else json.dumps(value)
