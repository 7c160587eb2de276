"""Seconds for an epoch: `train.py --recipe=fast` and airbench94 in PyTorch, by turns.

    python -m benchmarks.fast --data_dir=...

airbench94 is `peers/airbench.py`: the published network and update, on one batch in memory.
"""

import importlib.util
import sys
import tempfile
from pathlib import Path

from benchmarks import turns
from input_pipeline import datasets
from towers.support import noise

HEAD = """\
| side | images/s | seconds for an epoch of 50,000 | relative to the best PyTorch |
|---|---|---|---|"""
EPOCH = 50_000
AIRBENCH = {
    "airbench": ("airbench94 in PyTorch, fixed batch", ()),
    "airbench-compiled": ("airbench94 in PyTorch, compiled, fixed batch", ("--compile",)),
}


def main():
    """Measures, and prints a table."""
    parser = turns.parser(__doc__, rounds=3)
    parser.add_argument("--data_dir", default="", help="as train.py's")
    parser.add_argument("--seconds", type=float, default=12.0, help="of a turn")
    options = parser.parse_args()
    noise.quiet_loggers()
    datasets.load("cifar10", options.data_dir or None, "train")  # cached before any side starts
    datasets.load("cifar10", options.data_dir or None, "test")
    with tempfile.TemporaryDirectory() as folder:
        measured = turns.measure(sides(options, Path(folder)), options.rounds)
    turns.report(HEAD, figures(measured), as_row, options.output)


def sides(options, folder: Path) -> dict[str, turns.Side]:
    """The processes: the recipe on 1 and 2 towers, and PyTorch where it is installed."""
    turn = {"seconds": options.seconds}
    found = {
        f"towers-{num_towers}": turns.Side(
            (
                "benchmarks.peers.own", "real", "--recipe=fast", f"--num_towers={num_towers}",
                f"--train_dir={folder / str(num_towers)}", f"--data_dir={options.data_dir}",
                "--train_epochs=100000",
            ),
            turn,
        )
        for num_towers in (1, 2)
    }  # fmt: skip
    if not importlib.util.find_spec("torch"):
        print("PyTorch is left out: torch is not installed", file=sys.stderr)
        return found
    return found | {
        name: turns.Side(("benchmarks.peers.airbench", *arguments), turn)
        for name, (_, arguments) in AIRBENCH.items()
    }


def figures(measured: dict[str, turns.Measured]) -> list[dict]:
    """One object for each side."""
    pytorch = [name for name in measured if name in AIRBENCH]
    best = max(pytorch, key=lambda name: measured[name].median_rate(), default=None)
    return [
        {
            "side": name,
            "label": AIRBENCH[name][0]
            if name in AIRBENCH
            else f"`train.py --recipe=fast`, {name[-1]} tower{'s' if name[-1] != '1' else ''}",
            "images_per_second": round(found.median_rate()),
            "epoch_seconds": round(EPOCH / found.median_rate(), 1),
            "to_pytorch": turns.median_ratio(found.rates, measured[best].rates) if best else None,
            "every_round": [round(rate) for rate in found.rates],
        }
        | turns.conditions()
        for name, found in measured.items()
    ]


def as_row(row: dict) -> str:
    """One row of the table."""
    ratio = "" if row["to_pytorch"] is None else f"{row['to_pytorch']:.2f}"
    return (
        f"| {row['label']} | {row['images_per_second']:,} | {row['epoch_seconds']:.1f} | {ratio} |"
    )


if __name__ == "__main__":
    main()
