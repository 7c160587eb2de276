"""Keras callbacks in a run: those that look at logs, and those that ask it to stop."""

from collections.abc import Sequence

import keras
import numpy as np

from towers import trainer
from towers.runs import events, step_metrics

# What needs a compiled model, or would change what a run computes.
_OF_RATE = "give the Trainer learning_rate, or the optimizer a schedule"
_REFUSED = {
    keras.callbacks.BackupAndRestore: "leave it out; a run has checkpoints of its own",
    keras.callbacks.LearningRateScheduler: _OF_RATE,
    keras.callbacks.ModelCheckpoint: "use towers.keep_best(...), which saves what is evaluated",
    keras.callbacks.ReduceLROnPlateau: _OF_RATE,
    keras.callbacks.SwapEMAWeights: "give the Trainer moving_average_decay",
    keras.callbacks.TensorBoard: "a run writes its files; towers.histograms(...) adds more",
}


class KerasCallbacks:
    """Calls Keras callbacks as `fit` does, with the mean loss and the evaluation, if any.

    What a callback remembers is not in a checkpoint: in a run that continues, it starts over.
    """

    def __init__(self, callbacks: Sequence[keras.callbacks.Callback], of: trainer.Trainer):
        """
        Args:
          callbacks: in their order.
          of: the run's Trainer, whose model they see.

        Raises:
          ValueError: one would keep the run's state on its own.
        """
        for one in callbacks:
            for kind, why in _REFUSED.items():
                if isinstance(one, kind):
                    raise ValueError(f"every has a keras.callbacks.{kind.__name__}: {why}")
            if getattr(one, "restore_best_weights", False):
                raise ValueError(
                    "every has restore_best_weights, which would come after the final model is "
                    "saved: use towers.keep_best(...)"
                )
        self._model = of.state.model
        if not of.workers.is_chief:  # one worker writes
            callbacks = [one for one in callbacks if not isinstance(one, keras.callbacks.CSVLogger)]
        self._callbacks = keras.callbacks.CallbackList(list(callbacks), model=self._model)
        self._has_begun = False
        self._epoch: int | None = None  # the one that is under way
        self._losses: list[float] = []  # of its steps

    def __call__(self, event: events.Event) -> None:
        """A step was made."""
        if not self._has_begun:
            self._model.stop_training = False
            self._callbacks.on_train_begin()
            self._has_begun = True
        batch = event.trainer.global_batch_size
        if event.result is not None:
            first = (event.step - 1) * batch // event.examples_per_epoch
            if self._epoch is None:
                self._epoch = first
                self._callbacks.on_epoch_begin(first)
            loss = step_metrics.mean_loss(event.result)
            self._losses.append(loss)
            self._callbacks.on_train_batch_end(event.step - 1, {"loss": loss})
        has_ended = event.step * batch // event.examples_per_epoch > (self._epoch or 0)
        if self._epoch is not None and (has_ended or event.is_last):
            logs = {"loss": float(np.mean(self._losses))}
            if event.evaluation is not None:
                logs |= {f"val_{k}": v for k, v in event.evaluation.as_metrics().items()}
            self._callbacks.on_epoch_end(self._epoch, logs)
            self._epoch, self._losses = None, []
        if self._model.stop_training:
            event.stop("a Keras callback stopped it")

    def end(self) -> None:
        """The run has ended."""
        if self._has_begun:
            self._callbacks.on_train_end()
