"""Accuracy against epochs and time, from the folders of runs.

    python train.py --recipe=fast --eval_every_epochs=1 --train_dir=runs/fast0
    python eval.py --train_dir=runs/fast0 --test_time_flip
    python -m benchmarks.time_to_accuracy runs/fast0

Time is that of all training steps with logs, summaries and checkpoints; evaluations are not in it.
"""

from benchmarks import turns
from towers.runs import run_folder

HEAD = """\
| recipe | seed | epoch | minutes of training | accuracy | with a flip at test time |
|---|---|---|---|---|---|"""


def main():
    """Prints a table with one row for each evaluation of each run."""
    options = turns.runs_parser(__doc__).parse_args()
    rows = [row for path in options.run for row in figures(run_folder.RunFolder(path))]
    turns.report(HEAD, rows, as_row, options.output)


def figures(folder: run_folder.RunFolder) -> list[dict]:
    """One object for each of the run's evaluations on the test split."""
    config = folder.read_config()
    if config is None:
        raise SystemExit(f"{folder.path}: there is no run here")
    chosen, lines = config["settings"], run_folder.read_lines(folder.metrics)
    flipped = {}
    if folder.evaluations.exists():
        flipped = {
            line["step"]: line["accuracy"]
            for line in run_folder.read_lines(folder.evaluations)
            if line["split"] == "test" and line.get("test_time_flip")
        }
    rows, seconds, before = [], 0.0, 0
    # A line has the mean time of the steps since the one before it.
    for line in sorted(lines, key=lambda line: (line["step"], "split" in line)):
        if "step_seconds" in line:
            seconds += line["step_seconds"] * (line["step"] - before)
            before = line["step"]
        elif line.get("split") == "test":
            # Evaluated between two such lines, at the mean pace so far.
            pace = seconds / before if before else 0.0
            rows.append(
                {
                    "recipe": chosen["recipe"],
                    "compute_dtype": chosen["compute_dtype"],
                    "train_epochs": chosen["train_epochs"],
                    "seed": chosen["seed"],
                    "num_towers": chosen["num_towers"],
                    "step": line["step"],
                    "epoch": round(line["epoch"], 2),
                    "accuracy": line["accuracy"],
                    "accuracy_with_flip": flipped.get(line["step"]),
                    "count": line["count"],
                    "training_seconds": round(seconds + pace * (line["step"] - before), 1),
                }
                | config["stretches"][-1]["runs_on"]
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


if __name__ == "__main__":
    main()
