"""How far apart each microbatch's own batch-norm statistics are, and what that does.

For runs trained with --batch_norm_statistics=each and evaluated by eval.py (docs/batch_norm.md has
the commands):

    python -m benchmarks.batch_norm runs/bn1 runs/bn2 runs/bn4 runs/bn8
"""

import statistics
from collections.abc import Sequence

from benchmarks import turns
from towers import model_state
from towers.runs import checkpoints, divergence, run_folder
from towers_cli import build

HEAD = """\
| microbatches | seed | means apart (largest layer) | variances apart (largest layer) | \
accuracy with their mean | with each one's own |
|---|---|---|---|---|---|"""


def main():
    """Prints a table with one row for each run."""
    options = turns.runs_parser(__doc__).parse_args()
    rows = (figures(run_folder.RunFolder(path)) for path in options.run)
    turns.report(HEAD, rows, as_row, options.output)


def figures(folder: run_folder.RunFolder) -> dict:
    """The figures of one finished run."""
    config = folder.read_config()
    if config is None or config["settings"]["batch_norm_statistics"] != "each":
        raise SystemExit(f"{folder.path}: there is no run with --batch_norm_statistics=each here")
    chosen = config["settings"]
    model = build.build_model(config)
    newest = checkpoints.newest(folder.checkpoints)
    values = checkpoints.read(newest)
    kept = [values[f"statistics_of_each/{i}"] for i in range(len(model_state.kept_apart(model)))]
    by_layer = list(divergence.divergence(model, kept).values())
    lines = run_folder.read_lines(folder.evaluations) if folder.evaluations.exists() else []
    here = ("test", checkpoints.step_of(newest))
    evaluations = [line for line in lines if (line["split"], line["step"]) == here]
    if not evaluations:
        raise SystemExit(f"{folder.path}: run eval.py --train_dir={folder.path} first")
    evaluation = evaluations[-1]
    return {
        "model": chosen["model"],
        "num_microbatches": chosen["num_microbatches"],
        "num_towers": chosen["num_towers"],
        "global_batch_size": chosen["global_batch_size"],
        "seed": chosen["seed"],
        "epoch": round(evaluation["epoch"], 2),
        "count": evaluation["count"],
        "accuracy": evaluation["accuracy"],
        "accuracy_of_each": evaluation["accuracy_of_each"],
        "means_apart_largest": round(max(layer["moving_mean"] for layer in by_layer), 4),
        "means_apart_median": round(
            statistics.median(layer["moving_mean"] for layer in by_layer), 4
        ),
        "variances_apart_largest": round(max(layer["moving_variance"] for layer in by_layer), 4),
    }


def as_row(row: dict) -> str:
    """One row of the table."""
    return (
        f"| {row['num_microbatches']} of {row['global_batch_size'] // row['num_microbatches']} "
        f"| {row['seed']} | {row['means_apart_largest']:.1%} | "
        f"{row['variances_apart_largest']:.1%} | {row['accuracy']:.2%} | "
        f"{span(row['accuracy_of_each'])} |"
    )


def span(shares: Sequence[float]) -> str:
    """`66.61–66.75%`, or one figure."""
    low, high = f"{min(shares):.2%}", f"{max(shares):.2%}"
    return low if low == high else f"{low[:-1]}–{high}"


if __name__ == "__main__":
    main()
