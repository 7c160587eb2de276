"""Accuracy against epochs and time, from the folders of runs.

    python train.py --recipe=fast --eval_every_epochs=1 --train_dir=runs/fast0
    python eval.py --train_dir=runs/fast0 --test_time_flip
    python -m benchmarks.time_to_accuracy runs/fast0
    python -m benchmarks.time_to_accuracy --figure

Time is that of all training steps with logs, summaries and checkpoints; evaluations are not in it.
`--figure` draws docs/figures/time_to_accuracy.png from docs/measurements.
"""

import argparse
from pathlib import Path

from benchmarks import turns
from towers.runs import run_folder

DOCS = Path(__file__).resolve().parent.parent / "docs"
HEAD = """\
| recipe | seed | epoch | minutes of training | accuracy | with a flip at test time |
|---|---|---|---|---|---|"""
MEASURED = ("tutorial", "time_to_accuracy")
COLOURS = {"tutorial": "#0072b2", "fast": "#d55e00"}
CLAIMS = (
    (86, "the tutorial's files: ~86 %, in 4 to 8 hours"),
    (83, "and 83.0 %, after 256 epochs"),
)


def main():
    """Prints a table with one row for each evaluation of each run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", nargs="*", help="folder of a run")
    parser.add_argument("--output", help="file of one JSON object per line to add the figures to")
    parser.add_argument("--figure", action="store_true", help="draw what was measured")
    options = parser.parse_args()
    if options.figure:
        files = [DOCS / "measurements" / f"{name}.jsonl" for name in MEASURED]
        rows = [row for file in files for row in run_folder.read_lines(file)]
        draw(rows, DOCS / "figures" / "time_to_accuracy.png")
        return
    rows = [row for path in options.run for row in figures(run_folder.RunFolder(path))]
    turns.report(HEAD, rows, as_row, options.output)


def figures(folder: run_folder.RunFolder) -> list[dict]:
    """One object for each of the run's evaluations."""
    config = folder.read_config()
    if config is None:
        raise SystemExit(f"{folder.path}: there is no run here")
    chosen, flipped = config["settings"], {}
    if folder.evaluations.exists():
        flipped = {
            line["step"]: line["accuracy"]
            for line in run_folder.read_lines(folder.evaluations)
            if line["split"] == chosen["eval_split"] and line.get("test_time_flip")
        }
    rows, seconds, before = [], 0.0, 0
    # A line has the mean time of the steps since the one before it.
    for line in run_folder.read_lines(folder.metrics):
        if "step_seconds" in line:
            seconds += line["step_seconds"] * (line["step"] - before)
            before = line["step"]
        elif "val_accuracy" in line:
            # Evaluated between two such lines, at the mean pace so far.
            pace = seconds / before if before else 0.0
            names = ("recipe", "compute_dtype", "train_epochs", "seed", "num_towers")
            rows.append(
                {name: chosen[name] for name in names}
                | {
                    "step": line["step"],
                    "epoch": round(line["epoch"], 2),
                    "accuracy": line["val_accuracy"],
                    "accuracy_with_flip": flipped.get(line["step"]),
                    "training_seconds": round(seconds + pace * (line["step"] - before), 1),
                }
                | config["runs_on"]
            )
    return rows


def as_row(row: dict) -> str:
    """One row of the table."""
    with_flip = row["accuracy_with_flip"]
    return (
        f"| {row['recipe']} | {row['seed']} | {row['epoch']:.4g} "
        f"| {row['training_seconds'] / 60:.1f} | {row['accuracy']:.2%} "
        f"| {'' if with_flip is None else f'{with_flip:.2%}'} |"
    )


def draw(rows: list[dict], path: Path) -> None:
    """Accuracy against time in training, a line for each run."""
    import matplotlib.pyplot as plt

    plt.style.use(DOCS / "figures" / "towers.mplstyle")
    figure, axes = plt.subplots(figsize=(8.5, 4.2))
    runs = {}
    for row in rows:
        runs.setdefault((row["recipe"], row["train_epochs"], row["seed"]), []).append(row)
    for (recipe, epochs, seed), run in runs.items():
        axes.plot(
            [row["training_seconds"] / 60 for row in run],
            [100 * row["accuracy"] for row in run],
            color=COLOURS[recipe],
            label=None if seed else f"--recipe={recipe}, bfloat16, {epochs:g} epochs",
            marker="o",
            markersize=3,
        )
    for percent, claim in CLAIMS:
        axes.axhline(percent, color="#8a8a8a", linestyle="--", linewidth=1)
        axes.text(61, percent + 0.4, claim, fontsize=9, color="#555555", ha="right")
    axes.set(xlabel="minutes of training", ylabel="test accuracy, %", ylim=(55, 92))
    axes.set_xlim(left=0)
    versions = f"{rows[0]['processor']}; TensorFlow {rows[0]['tensorflow']}"
    axes.set_title(f"CIFAR-10, JPEG q75\n2 shared cores, {versions}", loc="left")
    axes.legend(loc="lower right")
    figure.savefig(path)
    plt.close(figure)


if __name__ == "__main__":
    main()
