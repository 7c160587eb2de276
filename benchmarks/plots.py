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
OURS, NARROW, PEER = "#1f6fb4", "#d9731a", "#9a9a9a"


def main():
    """Draws every figure."""
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
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
        PEER if not row["side"].startswith("towers-")
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
    axes.set_title(f"Training throughput\n{machine(rows[0])}", fontsize=10, loc="left")
    save(figure, "throughput")


def growth(rows: list[dict]) -> None:
    """Time and memory against batch, towers and width."""
    figure, ((rate, memory), (towers, filters)) = plt.subplots(2, 2, figsize=(9, 7))

    def line(axes, series, what, label, colour, style="-"):
        points = [row for row in rows if row["series"] == series]
        x = [int(row["point"]) for row in points]
        axes.plot(x, [row[what] for row in points], style, marker="o", color=colour, label=label)
        axes.set_xscale("log", base=2)
        axes.set_xticks(x, [f"{value:,}" for value in x])

    line(rate, "batch, float32", "images_per_second", "float32", OURS)
    line(rate, "batch, bfloat16", "images_per_second", "bfloat16", NARROW)
    rate.set(xlabel="global batch", title="Training, images/s")
    line(memory, "batch, float32", "peak_megabytes", "training, float32", OURS)
    line(memory, "batch, bfloat16", "peak_megabytes", "training, bfloat16", NARROW)
    line(memory, "batch, evaluation", "peak_megabytes", "evaluation, float32", PEER)
    memory.set(xlabel="global batch", title="Peak memory of the process, MB")
    line(towers, "towers, 8 microbatches of 16", "step_milliseconds", "float32", OURS)
    towers.set(xlabel="towers, all on the same cores", title="Step of 128 in 8 microbatches, ms")
    line(filters, "filters", "step_milliseconds", "float32", OURS)
    filters.set(xlabel="filters of both convolutions", title="Step of 128, ms", yscale="log")
    filters.set_ylim(4, 1000)
    for axes in (rate, memory, towers):
        axes.set_ylim(0, 1.08 * axes.dataLim.ymax)
    rate.legend(frameon=False)
    memory.legend(frameon=False)
    figure.suptitle(machine(rows[0]), fontsize=10)
    save(figure, "growth")


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
            marker=".",
        )
        named.add(label)
    axes.axhline(86, color=PEER, linestyle="--", linewidth=1)
    axes.axhline(83, color=PEER, linestyle="--", linewidth=1)
    said = "the tutorial says 83.0 %, and ~86 % in 4 to 8 hours"
    axes.text(61, 86.4, said, fontsize=9, color="#606060", ha="right")
    axes.set_xlim(left=0)
    axes.set(xlabel="minutes in training", ylabel="test accuracy, %", ylim=(55, 92))
    versions = f"{rows[0]['processor']}; TensorFlow {rows[0]['tensorflow']}"
    axes.set_title(f"CIFAR-10, JPEG q75\n2 shared cores, {versions}", fontsize=10, loc="left")
    axes.legend(frameon=False, loc="lower right")
    save(figure, "time_to_accuracy")


def save(figure, name: str) -> None:
    """Writes `docs/figures/<name>.png`."""
    figure.tight_layout()
    figure.savefig(DOCS / "figures" / f"{name}.png", dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    argparse.ArgumentParser(
        prog="python -m benchmarks.plots", description=__doc__.splitlines()[0]
    ).parse_args()
    main()
