"""What a run does along the way: Keras callbacks that know the run (`run.Run`).

`towers.callbacks` is this module.
"""

import contextlib
import time
from collections.abc import Callable, Iterator

import keras
import numpy as np
import tensorflow as tf
from tensorboard.plugins.hparams import api as hparams

from towers import gradients, moving_averages, schedules
from towers.keras_fit import cutting, microbatch
from towers.runs import activations, figures, picture, run_folder, summaries
from towers.support import hashes, shares


class RunCallback(keras.callbacks.Callback):
    """A callback of a run, which `set_run` gives it before the training begins."""

    run = None

    def set_run(self, run) -> None:
        """Takes the run."""
        self.run = run

    @property
    def _writes(self) -> bool:
        """Whether this worker is the one that writes into the folder."""
        return self.run.workers.is_chief

    @property
    def _at_step(self) -> int:
        return int(self.run.state.step)


class LearningRate(RunCallback):
    """Sets the learning rate of each step as a function of the examples seen.

    Attributes:
      rate: (examples seen before the step) to the rate, such as a `schedules.LearningRate`.
    """

    def __init__(self, rate: Callable[[int], float]):
        super().__init__()
        self.rate = rate

    def get_config(self) -> dict:
        """What defines it."""
        if isinstance(self.rate, schedules.LearningRate):
            return {"rate": repr(self.rate)}
        # Of any other function there are its name and some values.
        values = [float(self.rate(seen)) for seen in (0, 1_000, 10_000, 100_000)]
        return {"rate": f"{getattr(self.rate, '__name__', 'a function')} {values}"}

    def on_train_batch_begin(self, batch, logs=None):
        # As an array: TensorFlow 2.21 keeps every Python number forever (tensorflow#68196).
        rate = np.float32(self.rate(int(self.run.state.examples_seen)))
        self.model.optimizer.learning_rate.assign(rate)


class MovingAverages(RunCallback):
    """Keeps moving averages of the weights; evaluations and the final model use them.

    Attributes:
      averages: one variable for each trainable weight.
      decay: as `moving_averages.update` takes it.
    """

    def __init__(self, model: keras.Model, decay: float):
        super().__init__()
        if not 0 <= decay < 1:
            raise ValueError(f"decay={decay}: must be at least 0 and below 1")
        self.decay, self._trained = decay, None
        self.averages = [tf.Variable(w.value, trainable=False) for w in model.trainable_variables]
        self._update = tf.function(self._move, autograph=False)

    def get_config(self) -> dict:
        """What defines it."""
        return {"decay": self.decay}

    def _move(self, step: tf.Tensor) -> None:
        weights = [weight.value for weight in self.model.trainable_variables]
        moving_averages.update(self.averages, weights, self.decay, step)

    def on_train_batch_end(self, batch, logs=None):
        self._update(self.run.state.step - 1)

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """While entered, the model has the averages in place of its weights."""
        weights = self.model.trainable_variables
        trained = [tf.identity(weight.value) for weight in weights]
        try:
            for weight, average in zip(weights, self.averages, strict=True):
                weight.assign(average)
            yield
        finally:
            for weight, value in zip(weights, trained, strict=True):
                weight.assign(value)

    def on_test_begin(self, logs=None):
        self._trained = self.averaged()
        self._trained.__enter__()

    def on_test_end(self, logs=None):
        self._trained.__exit__(None, None, None)


class Log(RunCallback):
    """Writes `metrics.jsonl` and TensorBoard's scalars: of steps, and of each epoch's end.

    The loss, its microbatches and its decay are those of the step alone, before its update; Keras's
    metrics are means over the epoch so far.
    """

    def __init__(self, steps: int = 20):
        super().__init__()
        self._every, self._since = steps, None

    def on_train_begin(self, logs=None):
        if not self._writes:
            return
        self._train = summaries.file_writer(self.run.folder.train_events)
        self._eval = summaries.file_writer(self.run.folder.eval_events)
        if self.run.settings:
            values = {name: _as_hparam(value) for name, value in self.run.settings.items()}
            with self._eval.as_default(step=tf.constant(np.int64(0))):
                hparams.hparams(values, trial_id=str(self.run.folder.path))
        self._begin()

    def _begin(self) -> None:
        """Counts the time from now on."""
        self._since = time.perf_counter(), self._at_step, int(self.run.state.examples_seen)

    def on_train_batch_end(self, batch, logs=None):
        if not self._writes:
            return
        at_step = self._at_step
        if at_step == 1:
            with self._train.as_default(step=tf.constant(np.int64(0))):
                tf.summary.graph(picture.of_graph(self.run.graph()))
        if at_step % self._every and at_step != 1:
            return
        watched, state = self.run.watched, self.run.state
        began, before, seen_before = self._since
        self._begin()
        losses = watched.losses.numpy().astype(np.float64)
        values = {path: float(value) for path, value in watched.regularizers.items()}
        seconds = (self._since[0] - began) / max(1, at_step - before)
        count = int(state.examples_seen) - seen_before
        line = {
            "step": at_step,
            "examples_seen": int(state.examples_seen),
            "learning_rate": float(np.asarray(self.model.optimizer.learning_rate)),
            "loss": float(np.average(losses, weights=self._sizes(len(losses)))),
            "weight_decay": sum(values.values()),
            "examples_per_second": count / seconds,
            "step_seconds": seconds,
        } | {name: float(value) for name, value in (logs or {}).items() if name != "loss"}
        run_folder.append_line(self.run.folder.metrics, line)
        towers = len(self.run.distribution.tower_devices)
        runs = [own for own in shares.evenly(len(losses), towers) if own]
        sizes = self._sizes(len(losses))
        means = [
            np.average(losses[r.start : r.stop], weights=sizes[r.start : r.stop]) for r in runs
        ]
        spread = {"towers/loss_spread": max(means) - min(means)}
        scalars = {f"weight_decay/{path}": value for path, value in values.items()}
        self._write(self._train, at_step, line | scalars | spread)
        self._write(
            self._train, line["examples_seen"],
            {summaries.BY_EXAMPLES + name: line[name] for name in ("loss", "learning_rate")},
        )  # fmt: skip

    def on_epoch_end(self, epoch, logs=None):
        if not self._writes:
            return
        state = self.run.state
        values = {name: float(value) for name, value in (logs or {}).items() if np.isscalar(value)}
        line = {
            "step": self._at_step,
            "examples_seen": int(state.examples_seen),
            "epoch": epoch + 1,
        }
        run_folder.append_line(self.run.folder.metrics, line | values)
        of_eval = {name[4:]: value for name, value in values.items() if name.startswith("val_")}
        self._write(self._eval, self._at_step, of_eval)
        seen = {summaries.BY_EXAMPLES + name: value for name, value in of_eval.items()}
        self._write(self._eval, line["examples_seen"], seen)
        self._begin()  # an evaluation is no training

    def on_train_end(self, logs=None):
        if self._writes:
            self._train.flush()
            self._eval.flush()

    def _sizes(self, count: int) -> list[int]:
        """Examples that each loss counts for; a joined loss is the batch's."""
        examples = cutting.num_examples(self.run.batch)
        return cutting.sizes(examples, self.run.distribution.size_of_run()) if count > 1 else [1]

    @staticmethod
    def _write(writer, at_step: int, values) -> None:
        with writer.as_default(step=tf.constant(np.int64(at_step))):
            for name, value in values.items():
                if name not in ("step", "examples_seen"):
                    tf.summary.scalar(name, np.asarray(value, np.float32))


class Histograms(RunCallback):
    """Writes histograms of weights, gradients and activations, and the images of a batch.

    Activations are those of the step's first microbatch, where the model is a functional one.
    """

    def __init__(self, steps: int):
        super().__init__()
        self._every, self._shown, self._pass = steps, {}, None

    def on_train_begin(self, logs=None):
        model = activations.with_activations(self.model)
        self._pass = model and microbatch.Microbatch(model, training=True, jit_compile=False)

    def on_train_batch_begin(self, batch, logs=None):
        self._shown = {}
        if (self._at_step + 1) % self._every or not self._writes or self._pass is None:
            return
        model = self._pass.model
        x, _, _ = keras.utils.unpack_x_y_sample_weight(self.run.batch)
        (first, *_) = cutting.cut(x, self.run.distribution.size_of_run())
        weights = [variable.value for variable in model.trainable_variables]
        state = [variable.value for variable in model.non_trainable_variables]
        draw = tf.constant(0, tf.int64)
        self._shown = self._pass.forward(weights, state, draw, first).outputs

    def on_train_batch_end(self, batch, logs=None):
        at_step = self._at_step
        if at_step % self._every or not self._writes:
            return
        writer, watched = summaries.file_writer(self.run.folder.train_events), self.run.watched
        with writer.as_default(step=tf.constant(np.int64(at_step))):
            variables = self.model.trainable_variables
            for weight, gradient in zip(variables, watched.gradients, strict=True):
                tf.summary.histogram(f"weights/{weight.path}", weight.value)
                if gradient is not None:
                    dense = tf.convert_to_tensor(gradient)
                    tf.summary.histogram(f"gradients/{weight.path}", dense)
            tf.summary.scalar("gradient_norm", gradients.global_norm(watched.gradients))
            for layer, values in self._shown.items():
                tf.summary.histogram(f"activations/{layer}", tf.cast(values, tf.float32))
                tf.summary.scalar(f"sparsity/{layer}", tf.nn.zero_fraction(values))
            for place, images in enumerate(tf.nest.flatten(self.run.batch)):
                if images is not None and len(images.shape) == 4 and images.shape[-1] in (1, 3):
                    shown = figures.stretched(np.asarray(images[: summaries.MAX_IMAGES]))
                    name = "augmented_images" + (f"_{place}" if place else "")
                    tf.summary.image(name, shown, max_outputs=summaries.MAX_IMAGES)
        writer.close()


class Confusion(RunCallback):
    """Draws which classes a classifier takes for which, after each epoch.

    Its labels are integers [n] or [n, 1], and the model's outputs [n, num_classes].
    """

    def __init__(self, x, y, class_names: tuple[str, ...], batch_size: int | None = None):
        """
        Args:
          x, y: what is predicted, as Keras's `predict` takes x, and its labels.
          class_names: one for each class.
          batch_size: of the prediction; None as in Keras.
        """
        super().__init__()
        self._x, self._y, self._batch = x, np.ravel(y), batch_size
        self._names = tuple(class_names)

    def on_epoch_end(self, epoch, logs=None):
        found = self.model.predict(self._x, batch_size=self._batch, verbose=0).argmax(axis=-1)
        if not self._writes:
            return
        counts = np.zeros([len(self._names)] * 2, np.int64)
        np.add.at(counts, (self._y, found), 1)
        writer = summaries.file_writer(self.run.folder.eval_events)
        with writer.as_default(step=tf.constant(np.int64(self._at_step))):
            picture_of_it = figures.confusion_matrix(counts, self._names)
            tf.summary.image("confusion_matrix", picture_of_it[None])
            of_labels = counts.diagonal() / np.maximum(counts.sum(axis=1), 1)
            for name, share in zip(self._names, of_labels, strict=True):
                tf.summary.scalar(f"accuracy_per_class/{name}", np.float32(share))
        writer.close()


class Verify(RunCallback):
    """Writes a hash of the whole state into `metrics.jsonl`, by which runs are compared."""

    def __init__(self, steps: int):
        super().__init__()
        self._every = steps

    def on_train_batch_end(self, batch, logs=None):
        if self._at_step % self._every == 0 and self._writes:
            parts = self.run.state.parts_sha256()
            line = {"step": self._at_step, "examples_seen": int(self.run.state.examples_seen)}
            line |= {"state_sha256": hashes.sha256_of_parts(parts), "parts_sha256": parts}
            run_folder.append_line(self.run.folder.metrics, line)


def _as_hparam(value):
    """A number, a truth value or a text, which is all that HParams takes."""
    return value if isinstance(value, (bool, int, float, str)) else str(value)
