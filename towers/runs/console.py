"""What a run prints: a line for each of `metrics.jsonl` that a person wants to see."""

from collections.abc import Callable, Mapping

import tqdm


def printer(last_step: int, evaluated: str) -> Callable[[Mapping], None]:
    """The `show` of a command's `callbacks.Log`; `evaluated` names the validation data."""

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
