"""What several workers cost: time and bytes of a step beside one worker, and on paper for more.

    python -m benchmarks.workers
    python -m benchmarks.workers --paper

All workers are processes of this machine and share its cores, so the ratio is what communication
costs, and no speed-up is measured. On paper, an all-reduce takes as long as its bytes and messages
do, and hides behind the backward pass where that takes longer.
"""

import argparse
import dataclasses
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
PAPER_HEAD = """\
| network | machine | link | 2 workers | 8 workers | 64 workers | 512 workers |
|---|---|---|---|---|---|---|"""
TOWERS = (2, 3, 4)  # of all workers together, with 8 microbatches: of 3, shares are uneven
STEPS_TO_COUNT_BYTES = 30


def main():
    """Prints one of the two tables."""
    parser = turns.parser(__doc__, rounds=7)
    parser.add_argument("--paper", action="store_true", help="compute the table on paper instead")
    parser.add_argument("--model", action="append", choices=list(networks.NETWORKS))
    parser.add_argument("--global_batch_size", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn")
    options = parser.parse_args()
    if options.paper:
        turns.report(PAPER_HEAD, paper(), paper_as_row, options.output)
        return
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
    batch = options.global_batch_size
    sides = {
        f"{num_workers} workers": turns.Side(
            (
                "benchmarks.peers.step",
                f"--model={model}",
                f"--global_batch_size={batch}",
                f"--num_workers={num_workers}",
                f"--num_towers={num_towers // num_workers}",
            ),
            {"seconds": options.seconds},
        )
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


@dataclasses.dataclass(frozen=True)
class Network:
    """A network on paper: its weights, and multiply-adds of a forward pass for one example."""

    name: str
    weights: float
    multiply_adds: float


@dataclasses.dataclass(frozen=True)
class Link:
    """What joins the workers: bytes per second each way, and seconds before a message's first."""

    name: str
    bytes_per_second: float
    latency: float


# The first two are counted from this project's models by a test; ResNet-50 has 25.6 million weights
# and 3.8e9 multiply-adds for an image of 224 x 224 (He et al. 2015, arXiv:1512.03385, table 1).
NETWORKS = (
    Network("cifarnet", 1.068e6, 18.5e6),
    Network("resnet", 0.27e6, 41e6),
    Network("ResNet-50", 25.6e6, 3.8e9),
)
LINKS = [
    Link(f"{gigabits} Gb/s, {latency}", gigabits * 1e9 / 8, seconds)
    for gigabits in (10, 100)
    for latency, seconds in (("1 ms", 1e-3), ("10 us", 10e-6))
]
# Sustained, not peak: what the two cores here reach in cifarnet's step, and a round number.
MACHINES = {"these 2 cores": 0.38e12, "50 TFLOP/s": 50e12}
WORKERS = (2, 8, 64, 512)


def all_reduce_seconds(num_bytes: float, num_workers: int, link: Link) -> float:
    """The least time in which every worker has the sum.

    `2 (W - 1) / W * bytes / bandwidth + 2 (W - 1) * latency`: each worker sends and receives that
    many bytes in 2 (W - 1) messages, one after the other (Patarasuk and Yuan 2009, "Bandwidth
    optimal all-reduce algorithms for clusters of workstations"). Here each sends as many bytes
    where shares are even, in messages that need not wait for each other.
    """
    others = num_workers - 1
    return 2 * others / num_workers * num_bytes / link.bytes_per_second + 2 * others * link.latency


def backward_seconds(network: Network, examples: float, flops: float) -> float:
    """Two products for each one of the forward pass, at two operations a multiply-add."""
    return 2 * 2 * network.multiply_adds * examples / flops


def examples_to_hide(network: Network, num_workers: int, link: Link, flops: float) -> float:
    """Examples per worker and step with which the backward pass takes as long as the all-reduce."""
    seconds = all_reduce_seconds(4 * network.weights, num_workers, link)
    return seconds / backward_seconds(network, 1, flops)


def paper() -> list[dict]:
    """Every network, machine and link; examples of each worker for every number of workers."""
    return [
        {
            "network": network.name,
            "machine": machine,
            "link": link.name,
            "examples": {w: round(examples_to_hide(network, w, link, flops), 1) for w in WORKERS},
        }
        for network in NETWORKS
        for machine, flops in MACHINES.items()
        for link in LINKS
    ]


def paper_as_row(row: dict) -> str:
    """One row of the table on paper."""
    examples = " | ".join(_rounded(row["examples"][num_workers]) for num_workers in WORKERS)
    return f"| {row['network']} | {row['machine']} | {row['link']} | {examples} |"


def _rounded(examples: float) -> str:
    """Two digits are more than such a table knows."""
    return f"{examples:.1f}" if examples < 10 else f"{float(f'{examples:.2g}'):,.0f}"


if __name__ == "__main__":
    main()
