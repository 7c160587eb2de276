"""What a run prints on the terminal."""

import errno
import shutil
import signal
import sys
from collections.abc import Mapping

import tqdm

from towers.runs import callbacks


class Progress(callbacks.RunCallback):
    """Shows a training: a bar with one status line on a terminal, plain lines elsewhere.

    Give its `show` to a `callbacks.Log`.
    """

    def __init__(self, last_step: int, evaluated: str = "validation"):
        """
        Args:
          last_step: of the run.
          evaluated: what the examples are called that are evaluated.
        """
        super().__init__()
        self._last_step, self._evaluated = last_step, evaluated
        self._bar = self._status = None

    def on_train_begin(self, logs=None):
        if not (self._writes and sys.stderr.isatty() and sys.stdout.isatty()):
            return
        self._bar = tqdm.tqdm(
            initial=self._at_step,
            total=self._last_step,
            unit="step",
            ncols=min(60, shutil.get_terminal_size().columns),
            bar_format="{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}]",
        )
        self._status = tqdm.tqdm(bar_format="{desc}", position=1)

    def on_train_batch_end(self, batch, logs=None):
        if self._bar is not None:
            self._bar.update()

    def on_train_end(self, logs=None):
        if self._bar is not None:
            self._status.close()
            self._bar.close()

    def show(self, line: Mapping) -> None:
        """Shows a line of `metrics.jsonl`."""
        if "step_seconds" not in line:
            if "val_loss" in line:
                self._say(_evaluation(self._evaluated, line))
        elif self._bar is not None:
            self._status.set_description_str(_summary(line))
        else:
            seconds = (self._last_step - line["step"]) * line["step_seconds"]
            left = tqdm.tqdm.format_interval(max(0, seconds))
            self._say(f"step {line['step']}/{self._last_step}  {_summary(line)}  time left {left}")

    def _say(self, text: str) -> None:
        """Prints a line; stops the run where nobody reads it any more, as after `... | head`."""
        try:
            if self._bar is not None:
                self._bar.write(text)
            else:
                print(text, flush=True)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):  # a terminal that was closed
                raise
            self.run.stop(signal.SIGPIPE)


def _evaluation(name: str, line: Mapping) -> str:
    shown = [f"accuracy {line['val_accuracy']:.2%}"] if "val_accuracy" in line else []
    name_of_loss = "cross_entropy" if "val_cross_entropy" in line else "loss"
    shown.append(f"{name_of_loss.replace('_', ' ')} {line[f'val_{name_of_loss}']:.4f}")
    return f"{name} at step {line['step']}: {', '.join(shown)}"


def _summary(line: Mapping) -> str:
    shown = {"epoch": ".2f", "loss": ".4f", "accuracy": ".1%", "learning_rate": ".4g"}
    parts = [
        f"{name.removeprefix('learning_')} {line[name]:{form}}"
        for name, form in shown.items()
        if name in line
    ]
    return "  ".join([*parts, f"{line['examples_per_second']:,.0f} examples/s"])
