"""What several workers cost: time and bytes of a step beside one worker.

python -m benchmarks.workers

All workers are processes of this machine and share its cores, so the ratio is what communication
costs, and no speed-up is measured.
"""

import argparse
import tempfile
from pathlib import Path

import psutil

from benchmarks import turns
from benchmarks.peers import counter
from towers import networks

HEAD = """\
| network | workers x towers | ms per step | relative to one worker | \
megabytes sent by each worker in a step |
|---|---|---|---|---|"""
TOWERS = (2, 3, 4)  # of all workers together, with 8 microbatches: of 3, shares are uneven
STEPS_TO_COUNT_BYTES = 30


def main():
    """Prints the table."""
    parser = turns.parser(__doc__, rounds=7)
    parser.add_argument("--model", action="append", choices=list(networks.NETWORKS))
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn")
    options = parser.parse_args()
    rows = (
        row
        for model in options.model or ["cifarnet", "resnet"]
        for num_towers in TOWERS
        for row in measure(model, num_towers, options)
    )
    turns.report(HEAD, rows, as_row, options.output)


def as_row(row: dict) -> str:
    """One row of the measured table."""
    return (
        f"| {row['model']} | {row['num_workers']} x {row['num_towers']} | "
        f"{row['step_milliseconds']:.1f} | {row['to_one_worker']:.2f} | {row['megabytes']:.2f} |"
    )


def measure(model: str, num_towers: int, options: argparse.Namespace) -> list[dict]:
    """Times one worker of `num_towers` and as many workers of one tower, by turns."""
    batch = options.batch
    sides = {
        f"{num_workers} workers": turns.Side(
            (
                "benchmarks.peers.keras_tasks",
                "towers",
                model,
                "float32",
                f"--batch={batch}",
                f"--num_workers={num_workers}",
                f"--num_towers={num_towers // num_workers}",
            ),
            {"seconds": options.seconds},
        )  # fmt: skip
        for num_workers in (1, num_towers)
    }
    measured = turns.measure(sides, options.rounds)
    alone, *_ = measured.values()
    return [
        {
            "model": model,
            "global_batch_size": batch,
            "num_workers": num_workers,
            "num_towers": num_towers // num_workers,
            "step_milliseconds": round(1000 * batch / found.median_rate(), 2),
            # A ratio of times: the other way round than of images per second.
            "to_one_worker": turns.median_ratio(alone.rates, found.rates),
            "megabytes": round(bytes_of_a_step(side) / num_workers / 1e6, 3),
            "rounds": options.rounds,
        }
        | turns.conditions()
        for num_workers, side, found in zip(
            (1, num_towers), sides.values(), measured.values(), strict=True
        )
    ]


def bytes_of_a_step(side: turns.Side) -> float:
    """Bytes over the loopback interface in a step, from all workers together."""
    counted = turns.Side(side.arguments, {"steps": STEPS_TO_COUNT_BYTES})
    with tempfile.TemporaryDirectory() as logs:
        worker = turns.Worker("bytes", counted, Path(logs) / "log")
        try:
            worker.warm_up()
            worker.images_per_second()
            before = psutil.net_io_counters(pernic=True)["lo"].bytes_sent
            worker.images_per_second()
            sent = psutil.net_io_counters(pernic=True)["lo"].bytes_sent - before
        finally:
            worker.end()
    # A turn's first steps are not timed, but they send.
    return sent / (STEPS_TO_COUNT_BYTES + counter.LEAD_IN_STEPS)


if __name__ == "__main__":
    main()
