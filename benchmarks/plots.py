"""Draws the figures of docs/speed.md and docs/fast.md from what was measured.

python -m benchmarks.plots
"""

import argparse
import json
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt

matplotlib.use("Agg")

DOCS = Path(__file__).resolve().parent.parent / "docs"
STYLE = DOCS / "figures" / "towers.mplstyle"
OURS, NARROW, PEER = "#0072b2", "#d55e00", "#8a8a8a"
NO_INPUT = "#c8c8c8"  # of peers that train on one batch in memory


def main():
    """Draws every figure."""
    plt.style.use(STYLE)
    throughput(measured("throughput"))
    growth(measured("growth"))
    time_to_accuracy([*measured("tutorial"), *measured("time_to_accuracy")])


def measured(name: str) -> list[dict]:
    """The lines of one file of measurements."""
    text = (DOCS / "measurements" / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def machine(row: dict) -> str:
    """Where a figure was measured."""
    return f"{row['cores']} shared cores, {row['processor']}; TensorFlow {row['tensorflow']}"


def throughput(rows: list[dict]) -> None:
    """Bars of images per second, the fastest on top."""
    rows = [row for row in rows if not row["side"].startswith(("fixed-", "quiet-"))]
    rows.sort(key=lambda row: row["images_per_second"])
    figure, axes = plt.subplots(figsize=(8.5, 0.42 * len(rows) + 1.2))
    colours = [
        (NO_INPUT if "fixed batch" in row["label"] else PEER)
        if not row["side"].startswith("towers-")
        else NARROW if "bfloat16" in row["side"] else OURS
        for row in rows
    ]  # fmt: skip
    labels = [row["label"].replace("`", "").partition(" (")[0] for row in rows]
    axes.barh(labels, [row["images_per_second"] for row in rows], color=colours)
    for place, row in enumerate(rows):
        said = f" {row['images_per_second']:,}  (× {row['to_tutorial']:.2f})"
        axes.text(row["images_per_second"], place, said, va="center", fontsize=9)
    axes.set_xlim(0, 1.3 * rows[-1]["images_per_second"])
    axes.set_xlabel("images/s, batch 128, the tutorial's network (× the tutorial's graph)")
    axes.text(0.99, 0.02, "light: without an input pipeline", transform=axes.transAxes, ha="right")
    axes.grid(visible=False, axis="y")
    axes.set_title(f"Training throughput\n{machine(rows[0])}", loc="left")
    save(figure, "throughput")


# Of the figure of growth: series of a panel, its x axis.
PANELS = (
    (("batch, float32", "batch, evaluation"), "global batch"),
    (("microbatches",), "microbatches of a batch of 128"),
    (("towers, 8 microbatches of 16", "workers, 8 microbatches of 16"), "towers or workers"),
    (("filters",), "filters of both convolutions"),
    (("parameters, batch 8",), "parameters, in steps of 8 images"),
    (("images in the set",), "images in the set"),
)
NAMES = {
    "batch, evaluation": "evaluation",
    "towers, 8 microbatches of 16": "towers",
    "workers, 8 microbatches of 16": "workers",
}
LINES = ((OURS, "o", "-"), (NARROW, "s", "--"))


def growth(rows: list[dict]) -> None:
    """Time of a step against six sizes, on logarithmic axes, each line with its exponent."""
    figure, panels = plt.subplots(2, 3, figsize=(11, 7))
    for axes, (several, what) in zip(panels.flat, PANELS, strict=True):
        ticks: dict[int, str] = {}
        for series, (colour, marker, style) in zip(several, LINES, strict=False):
            points = [row for row in rows if row["series"] == series]
            [exponent] = [row["exponent"] for row in points if "exponent" in row]
            points = [row for row in points if "point" in row]
            x = [row["size"] for row in points]
            name = NAMES.get(series, "training")
            axes.plot(
                x,
                [row["step_milliseconds"] for row in points],
                style,
                marker=marker,
                color=colour,
                label=f"{name}: time ~ $x^{{{exponent:.2f}}}$",
            )
            if len(x) > len(ticks):
                ticks = {row["size"]: row["point"] for row in points}
        axes.set(xlabel=what, ylabel="ms per step", xscale="log", yscale="log")
        names = [f"{int(name):,}" if name.isdecimal() else name for name in ticks.values()]
        axes.set_xticks(list(ticks), names, fontsize=8)
        axes.minorticks_off()
        _at_least_a_decade(axes)
        axes.legend(loc="upper left", fontsize=9)
    figure.suptitle(f"Time of a step of cifarnet, float32\n{machine(rows[0])}")
    save(figure, "growth")


def _at_least_a_decade(axes) -> None:
    """Without it a line that does not rise would look as steep as one that does."""
    low, high = axes.dataLim.intervaly
    low, high = low / 1.3, max(3 * high, 10 * low)
    axes.set_ylim(low, high)


def time_to_accuracy(rows: list[dict]) -> None:
    """Accuracy against time in training, a line for each run."""
    figure, axes = plt.subplots(figsize=(8.5, 4.2))
    runs = {}
    for row in rows:
        key = row["recipe"], row["compute_dtype"], row["train_epochs"], row["seed"]
        runs.setdefault(key, []).append(row)
    named = set()
    for (recipe, compute_dtype, train_epochs, _), run in runs.items():
        label = f"--recipe={recipe}, {compute_dtype}, {train_epochs:g} epochs"
        axes.plot(
            [row["training_seconds"] / 60 for row in run],
            [100 * row["accuracy"] for row in run],
            color=OURS if recipe == "tutorial" else NARROW,
            label=None if label in named else label,
            linestyle="-" if recipe == "tutorial" else "--",
            marker="o" if recipe == "tutorial" else "s",
            markersize=3,
        )
        named.add(label)
    for percent, said in (
        (86, "the tutorial's files: ~86 %, in 4 to 8 hours"),
        (83, "and 83.0 %, after 256 epochs"),
    ):
        axes.axhline(percent, color=PEER, linestyle="--", linewidth=1)
        axes.text(61, percent + 0.4, said, fontsize=9, color="#555555", ha="right")
    axes.set_xlim(left=0)
    axes.set(xlabel="minutes of training", ylabel="test accuracy, %", ylim=(55, 92))
    versions = f"{rows[0]['processor']}; TensorFlow {rows[0]['tensorflow']}"
    axes.set_title(f"CIFAR-10, JPEG q75\n2 shared cores, {versions}", loc="left")
    axes.legend(loc="lower right")
    save(figure, "time_to_accuracy")


def save(figure, name: str) -> None:
    """Writes `docs/figures/<name>.png`."""
    figure.savefig(DOCS / "figures" / f"{name}.png")
    plt.close(figure)


if __name__ == "__main__":
    argparse.ArgumentParser(
        prog="python -m benchmarks.plots", description=__doc__.splitlines()[0]
    ).parse_args()
    main()
