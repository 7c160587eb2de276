"""Images per second of this project, of the tutorial, of Keras and of PyTorch, in one run.

    python -m benchmarks.throughput --data_dir=...
    python -m benchmarks.throughput --data_dir=... --all --rounds=5
    python -m benchmarks.throughput --side=towers-bfloat16-1 --side=tutorial

Each side is a process of its own. They take turns, so that what else the machine does falls on all
of them alike; a ratio is the median over rounds of the ratios within a round. `train.py` has turns
of 500 steps, so that each holds its share of logs, summaries and checkpoints at their defaults;
the others have turns of some seconds.
"""

import argparse
import dataclasses
import importlib.util
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks import turns
from input_pipeline import datasets
from towers.support import noise

QUIET = tuple(
    f"--{name}_every_steps=1000000000" for name in ("log", "checkpoint")
) + ("--summary_every_steps=0",)  # fmt: skip
STEPS_PER_TURN = 500
DEFAULT = (  # in ten minutes, and all in float32
    *("towers-float32-1", "towers-float32-2", "tutorial", "keras"),
    *("pytorch", "pytorch-compiled"),
)
HEAD = """\
| side | images/s | relative to the tutorial | to Keras `fit` | to the best PyTorch |
|---|---|---|---|---|"""


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of the comparison.

    Attributes:
      label: its name in the table.
      arguments: after `python -m`; `{folder}`, `{dataset}`, `{data_dir}` and `{binary}` are filled.
      whole_loop: it has turns of STEPS_PER_TURN steps, not of seconds.
      needs: a package without which it is left out.
    """

    label: str
    arguments: tuple[str, ...]
    whole_loop: bool = False
    needs: str = "tensorflow"


def own(source: str, compute_dtype: str, num_towers: int, *more: str) -> tuple[str, ...]:
    """Arguments of a side that is `train.py`."""
    return (
        "benchmarks.peers.own", source, "--train_dir={folder}", "--dataset={dataset}",
        "--data_dir={data_dir}", f"--compute_dtype={compute_dtype}", f"--num_towers={num_towers}",
        "--max_steps=1000000", "--train_epochs=1000000", *more,
    )  # fmt: skip


def rows() -> dict[str, Row]:
    """Every row by its name."""
    found = {}
    for dtype in ("float32", "bfloat16"):
        for towers in (1, 2):
            plural = "tower" if towers == 1 else "towers"
            found[f"towers-{dtype}-{towers}"] = Row(
                f"`train.py`, {dtype}, {towers} {plural}", own("real", dtype, towers), True
            )
            found[f"fixed-{dtype}-{towers}"] = Row(
                f"the same on one fixed batch, no logs ({dtype}, {towers} {plural})",
                own("fixed", dtype, towers, *QUIET),
            )
        found[f"quiet-{dtype}-1"] = Row(
            f"the same with its input and no logs ({dtype}, 1 tower)", own("real", dtype, 1, *QUIET)
        )
    keras_fit = ("benchmarks.peers.keras_fit", "{dataset}", "{data_dir}")
    pytorch = "benchmarks.peers.pytorch"
    return found | {
        "tutorial": Row(
            "the tutorial's graph and queues (TensorFlow v1 compatibility)",
            ("benchmarks.peers.tutorial", "{binary}", "{folder}"),
        ),
        "keras": Row("Keras `fit`", keras_fit),
        "keras-own-layers": Row(
            "Keras `fit` with this project's layers", (*keras_fit, "--own_layers")
        ),
        "keras-xla": Row("Keras `fit`, compiled with XLA", (*keras_fit, "--xla")),
        "keras-mirrored": Row(
            "Keras `fit`, MirroredStrategy on 2 logical CPUs", (*keras_fit, "--mirrored")
        ),
        "pytorch": Row("PyTorch, fixed batch", (pytorch,), needs="torch"),
        "pytorch-compiled": Row(
            "PyTorch compiled, channels-last, fixed batch", (pytorch, "--compile"), needs="torch"
        ),
        "pytorch-bfloat16": Row(
            "PyTorch compiled, bfloat16 channels-last, fixed batch",
            (pytorch, "--compile", "--bfloat16"),
            needs="torch",
        ),
    }


def main():
    """Measures, and prints a table."""
    parser = turns.parser(__doc__, rounds=3)
    parser.add_argument("--dataset", default="cifar10", help="as train.py's; of CIFAR-10's shape")
    parser.add_argument("--data_dir", default="", help="as train.py's")
    chosen_by = parser.add_mutually_exclusive_group()
    chosen_by.add_argument(
        "--side",
        action="append",
        choices=list(rows()),
        metavar="NAME",
        help=f"{', '.join(rows())}; default: {', '.join(DEFAULT)}",
    )
    chosen_by.add_argument("--all", action="store_true", help="every side, in half an hour or more")
    parser.add_argument("--seconds", type=float, default=8.0, help="of a turn")
    options = parser.parse_args()
    noise.quiet_loggers()
    names = options.side or (rows() if options.all else DEFAULT)
    chosen = {name: row for name, row in rows().items() if name in names}
    for name in [name for name, row in chosen.items() if not importlib.util.find_spec(row.needs)]:
        print(f"{name} is left out: {chosen[name].needs} is not installed", file=sys.stderr)
        del chosen[name]
    if not chosen:
        raise SystemExit("no side is left to measure")
    with tempfile.TemporaryDirectory() as folder:
        measured = turns.measure(sides(chosen, options, Path(folder)), options.rounds)
    turns.report(HEAD, figures(chosen, measured, options), as_row, options.output)


def sides(
    chosen: dict[str, Row], options: argparse.Namespace, folder: Path
) -> dict[str, turns.Side]:
    """The processes of the rows; writes the files that the tutorial reads."""
    data_dir = options.data_dir or None
    # Decoded and cached before any side starts.
    data = datasets.load(options.dataset, data_dir, "train")
    datasets.load(options.dataset, data_dir, "test")
    if (data.images.shape[1:], len(data.class_names)) != ((32, 32, 3), 10):
        raise SystemExit(f"--dataset={options.dataset}: must have 32 x 32 x 3 images in 10 classes")
    binary = folder / "binary"
    if "tutorial" in chosen:
        write_binary_batches(binary, data.images, data.labels)
    found = {}
    for name, row in chosen.items():
        fill = {
            "folder": str(folder / name),
            "binary": str(binary),
            "dataset": options.dataset,
            "data_dir": options.data_dir,
        }
        found[name] = turns.Side(
            tuple(part.format(**fill) for part in row.arguments),
            {"steps": STEPS_PER_TURN} if row.whole_loop else {"seconds": options.seconds},
        )
    return found


def write_binary_batches(folder: Path, images: np.ndarray, labels: np.ndarray) -> None:
    """Writes CIFAR-10's binary files: records of a label byte and 3,072 bytes, plane by plane.

    Args:
      folder: to be made.
      images: uint8 [n, 32, 32, 3].
      labels: integers [n], below 256.
    """
    folder.mkdir(parents=True)
    planes = np.moveaxis(images, 3, 1).reshape(len(images), -1)  # [n, 3072]
    records = np.concatenate([labels.astype(np.uint8)[:, None], planes], axis=1)  # [n, 3073]
    for number, part in enumerate(np.array_split(records, 5), start=1):
        part.tofile(folder / f"data_batch_{number}.bin")


def figures(
    chosen: dict[str, Row], measured: dict[str, turns.Measured], options: argparse.Namespace
) -> list[dict]:
    """One object for each row."""
    pytorch = [name for name in measured if name.startswith("pytorch")]
    best = max(pytorch, key=lambda name: measured[name].median_rate(), default=None)

    def ratio(name: str, to: str | None) -> float | None:
        if to not in measured:
            return None
        return turns.median_ratio(measured[name].rates, measured[to].rates)

    return [
        {
            "side": name,
            "label": row.label,
            "images_per_second": round(measured[name].median_rate()),
            "to_tutorial": ratio(name, "tutorial"),
            "to_keras": ratio(name, "keras"),
            "to_pytorch": ratio(name, best),
            "every_round": [round(rate) for rate in measured[name].rates],
            "dataset": options.dataset,
            "rounds": options.rounds,
        }
        | turns.conditions()
        for name, row in chosen.items()
    ]


def as_row(row: dict) -> str:
    """One row of the table."""
    ratios = (row["to_tutorial"], row["to_keras"], row["to_pytorch"])
    shown = " | ".join("" if ratio is None else f"{ratio:.2f}" for ratio in ratios)
    return f"| {row['label']} | {row['images_per_second']:,} | {shown} |"


if __name__ == "__main__":
    main()
