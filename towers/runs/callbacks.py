"""What a run does along the way: Keras callbacks that know the run (`run.Run`).

`towers.callbacks` is this module.
"""

import contextlib
import errno
import numbers
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tqdm

from towers import cutting, gradients, hashes, moving_averages, schedules, shares, updating
from towers.runs import fit_state, run_folder, summaries


class RunCallback(keras.callbacks.Callback):
    """A callback that knows its run.

    Attributes:
      run: the `run.Run`, from before the training begins.
    """

    run: Any = None

    def __init__(self, steps: int = 1):
        """Of a callback that writes every `steps` steps."""
        super().__init__()
        self._every = steps

    @property
    def _writes(self) -> bool:
        """Whether this worker is the one that writes into the folder."""
        return self.run.workers.is_chief

    def _is_due(self, step: int) -> bool:
        return self._writes and step % self._every == 0

    def _append(self, values: dict) -> dict:
        """Writes a line of `metrics.jsonl`: how far the run is, and values; returns it."""
        line = self.run.progress() | values
        run_folder.append_line(self.run.folder.metrics, line)
        return line


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
        rate = np.float32(self.rate(self.run.examples_seen))
        self.model.optimizer.learning_rate.value.assign(rate)


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
        self.decay, self._weights = decay, model.trainable_variables
        self.averages = []
        for weight in self._weights:
            with tf.device(weight.value.device):
                self.averages.append(tf.Variable(weight.value, trainable=False))

    def get_config(self) -> dict:
        """What defines it."""
        return {"decay": self.decay}

    def in_step(self, examples: int) -> None:
        """Is called in the graph of a step of so many examples, once the weights are updated."""
        with tf.name_scope("moving_averages"):
            step = tf.convert_to_tensor(self.run.state.counter)  # updates before this one
            weights = [weight.value for weight in self._weights]
            is_one_program = updating.are_on_one_device([*weights, *self.averages])
            jit_compile = (self.run.model.jit_compile and is_one_program) or None
            update = tf.function(moving_averages.update, autograph=False, jit_compile=jit_compile)
            update(self.averages, weights, self.decay, step)

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """While entered, the model has the averages in place of its weights."""
        with fit_state.kept(self._weights):
            for weight, average in zip(self._weights, self.averages, strict=True):
                weight.assign(average)
            yield


class Log(RunCallback):
    """Writes `metrics.jsonl` and TensorBoard's scalars: of steps, and of each epoch's end.

    In the line of a step, the loss and its decay are those of the step alone, before its update;
    Keras's metrics are means over the epoch so far. In the line of an epoch's end all are Keras's,
    of the whole epoch; TensorBoard has them as `epoch_loss` and so on.
    """

    def __init__(self, steps: int = 20, *, show: Callable[[dict], None] | None = None):
        """
        Args:
          steps: between two lines; the first step has one, too.
          show: is called with each line.
        """
        super().__init__(steps)
        self._show = show or (lambda line: None)
        self._decays: dict[str, float] = {}

    def on_train_begin(self, logs=None):
        self._start_clock()

    def _start_clock(self) -> None:
        self._since = time.perf_counter(), self.run.state.step

    def _is_due(self, step: int) -> bool:
        return super()._is_due(step) or (self._writes and step == 1)

    def on_train_batch_begin(self, batch, logs=None):
        if self._is_due(self.run.state.step + 1):
            self._decays = {
                weight.path: float(weight.regularizer(weight.value))
                for weight in self.model.trainable_variables
                if weight.regularizer is not None
            }

    def on_train_batch_end(self, batch, logs=None):
        run, step, decays = self.run, self.run.state.step, self._decays
        if not self._is_due(step):
            return
        began, before = self._since
        self._start_clock()
        elapsed, steps = self._since[0] - began, max(1, step - before)
        losses = run.watched.losses.numpy().astype(np.float64)
        examples = cutting.num_examples(run.batch)
        sizes = np.ones(1)  # the examples that each counts for; a joined loss is the batch's
        if len(losses) > 1:
            sizes = np.array(cutting.sizes(examples, run.distribution.size_of_run()))
        values = {
            "learning_rate": float(str(np.float32(self.model.optimizer.learning_rate))),
            "loss": float(np.average(losses, weights=sizes)),
            "weight_decay": sum(decays.values()),
            "examples_per_second": steps * examples / elapsed,
            "step_seconds": elapsed / steps,
        }
        values |= {name: float(value) for name, value in (logs or {}).items() if name != "loss"}
        tower_shares = shares.evenly(len(losses), min(len(losses), run.distribution.num_towers))
        means = [np.average(losses[share], weights=sizes[share]) for share in tower_shares]
        scalars = {f"weight_decay/{path}": value for path, value in decays.items()}
        scalars["towers/loss_spread"] = max(means) - min(means)
        self._write(values, {"train": values | scalars})
        if step == 1:
            with summaries.events(run.writer("train"), 0):
                tf.summary.graph(summaries.graph_with_calls_inlined(run.step_function()))
            self._start_clock()

    def on_epoch_end(self, epoch, logs=None):
        if not self._writes:
            return
        values = {k: float(v) for k, v in (logs or {}).items() if isinstance(v, numbers.Real)}
        train_means = {f"epoch_{n}": v for n, v in values.items() if not n.startswith("val_")}
        evaluated = {n.removeprefix("val_"): v for n, v in values.items() if n.startswith("val_")}
        self._write(values, {"train": train_means, "eval": evaluated})
        self._start_clock()  # an evaluation is no training

    def _write(self, values: dict, scalars_by_part: dict[str, dict]) -> None:
        """Writes a line, and numbers by the part of TensorBoard's files that they are for."""
        line = self._append(values)
        for part, scalars in scalars_by_part.items():
            with summaries.events(self.run.writer(part), line["step"]):
                summaries.scalars({"epoch": line["epoch"]} | scalars)
            with summaries.events(self.run.writer(part), line["examples_seen"]):
                names = [name for name in ("loss", "accuracy", "learning_rate") if name in scalars]
                summaries.scalars({summaries.BY_EXAMPLES + name: scalars[name] for name in names})
        try:
            self._show(line)
        except OSError as error:  # nobody reads it any more, as after `... | head`
            if error.errno not in (errno.EPIPE, errno.EIO):  # a terminal that was closed
                raise
            self.run.stop(signal.SIGPIPE)


def printer(last_step: int, evaluated: str) -> Callable[[Mapping], None]:
    """The `show` of a command's `Log`; `evaluated` names the validation data."""

    def show(line: Mapping) -> None:
        if "step_seconds" in line:
            seconds = max(0, last_step - line["step"]) * line["step_seconds"]
            print(
                f"step {line['step']}/{last_step}  epoch {line['epoch']:.2f}  "
                f"loss {line['loss']:.4f}  accuracy {line['accuracy']:.1%}  "
                f"rate {line['learning_rate']:.4g}  "
                f"{line['examples_per_second']:,.0f} examples/s  "
                f"time left {tqdm.tqdm.format_interval(seconds)}",
                flush=True,
            )
        elif "val_loss" in line:
            print(
                f"{evaluated} at step {line['step']}: accuracy {line['val_accuracy']:.2%}, "
                f"cross entropy {line['val_cross_entropy']:.4f}",
                flush=True,
            )

    return show


class Histograms(RunCallback):
    """Writes histograms of weights, gradients and activations, and the images of a batch.

    Activations are those of the step's first microbatch, where the model is a functional one.
    """

    def on_train_begin(self, logs=None):
        self._with_activations = summaries.with_activations(self.model)

    def on_train_batch_begin(self, batch, logs=None):
        self._shown: Any = {}  # activations by the name of their layer
        model = self._with_activations
        if model is None or not self._is_due(self.run.state.step + 1):
            return
        x, _, _ = keras.utils.unpack_x_y_sample_weight(self.run.batch)
        (first, *_) = cutting.cut(x, self.run.distribution.size_of_run())
        weights = [variable.value for variable in model.trainable_variables]
        state = [variable.value for variable in model.non_trainable_variables]
        self._shown, _ = model.stateless_call(weights, state, first, training=True)

    def on_train_batch_end(self, batch, logs=None):
        if not self._is_due(self.run.state.step):
            return
        watched = self.run.watched
        with summaries.events(self.run.writer("train"), self.run.state.step):
            variables = self.model.trainable_variables
            for weight, gradient in zip(variables, watched.gradients, strict=True):
                tf.summary.histogram(f"weights/{weight.path}", weight.value)
                if gradient is not None:
                    dense = tf.convert_to_tensor(gradient)
                    tf.summary.histogram(f"gradients/{weight.path}", dense)
            numbers = {"gradient_norm": gradients.global_norm(watched.gradients)}
            for layer, values in self._shown.items():
                tf.summary.histogram(f"activations/{layer}", tf.cast(values, tf.float32))
                numbers[f"sparsity/{layer}"] = tf.nn.zero_fraction(values)
            summaries.scalars(numbers)
            for place, images in enumerate(tf.nest.flatten(self.run.batch)):
                if images is not None and len(images.shape) == 4 and images.shape[-1] in (1, 3):
                    shown = summaries.stretched(np.asarray(images[: summaries.MAX_IMAGES]))
                    name = "augmented_images" + (f"_{place}" if place else "")
                    tf.summary.image(name, shown, max_outputs=summaries.MAX_IMAGES)


class Verify(RunCallback):
    """Writes a hash of the whole state into `metrics.jsonl`, by which runs are compared.

    Before the first step, after every few, and at the end of each epoch.
    """

    def on_train_begin(self, logs=None):
        self._write(self._writes and not self.run.state.step)

    def on_train_batch_end(self, batch, logs=None):
        self._write(self._is_due(self.run.state.step))

    def on_epoch_end(self, epoch, logs=None):
        self._write(self._writes and not self._is_due(self.run.state.step))

    def _write(self, is_due: bool) -> None:
        if is_due:
            parts = self.run.state.parts_sha256()
            sha256 = hashes.sha256_of_parts(parts)
            self._append({"state_sha256": sha256, "parts_sha256": parts})
