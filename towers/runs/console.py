"""What a run prints: a line for each of `metrics.jsonl` that a person wants to see."""

from collections.abc import Callable, Mapping

import tqdm


def printer(last_step: int, evaluated: str) -> Callable[[Mapping], None]:
    """Prints a line of `metrics.jsonl`; the `show` of a `callbacks.Log`.

    Args:
      last_step: of the run.
      evaluated: what the examples are called that are evaluated.
    """

    def show(line: Mapping) -> None:
        if "step_seconds" in line:
            seconds = (last_step - line["step"]) * line["step_seconds"]
            left = tqdm.tqdm.format_interval(max(0, seconds))
            text = f"step {line['step']}/{last_step}  {_summary(line)}  time left {left}"
            print(text, flush=True)
        elif "val_loss" in line:
            print(f"{evaluated} at step {line['step']}: {_evaluation(line)}", flush=True)

    return show


def _evaluation(line: Mapping) -> str:
    shown = [f"accuracy {line['val_accuracy']:.2%}"] if "val_accuracy" in line else []
    loss = "cross_entropy" if "val_cross_entropy" in line else "loss"
    return ", ".join([*shown, f"{loss.replace('_', ' ')} {line[f'val_{loss}']:.4f}"])


def _summary(line: Mapping) -> str:
    shown = {"epoch": ".2f", "loss": ".4f", "accuracy": ".1%", "learning_rate": ".4g"}
    parts = [
        f"{name.removeprefix('learning_')} {line[name]:{form}}"
        for name, form in shown.items()
        if name in line
    ]
    return "  ".join([*parts, f"{line['examples_per_second']:,.0f} examples/s"])
