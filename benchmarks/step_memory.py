"""Memory per image of a training step on every kind of network, beside Keras's `fit` and PyTorch.

    python -m benchmarks.step_memory
    python -m benchmarks.step_memory --task=resnet --rounds=3

As `benchmarks.networks` measures time. Each side trains a quarter of the network's batch in one
process and all of it in another; the difference of the two peaks of resident memory, over the
difference of the batches, is what an image takes. Libraries, weights and all else that does not
depend on the batch is in both and cancels out.
"""

import statistics

from benchmarks import networks, turns
from benchmarks.peers import task_sizes
from towers.support import shares

SIDES = ("towers", "fused", "keras", "pytorch")
PEERS = SIDES[2:]
HEAD = """\
| network | batches | towers, MB per image | with `fused` | Keras `fit` | PyTorch | \
towers to the least of them |
|---|---|---|---|---|---|---|"""
STEPS = 3  # of a turn, after the warm-up


def main():
    """Measures each network, and prints a table."""
    parser = turns.parser(__doc__, rounds=3)
    parser.add_argument("--task", action="append", choices=list(task_sizes.SHAPES))
    options = parser.parse_args()
    rows = (measure(task, options.rounds) for task in options.task or task_sizes.SHAPES)
    turns.report(HEAD, rows, as_row, options.output)


def measure(task: str, rounds: int) -> dict:
    """The figures of one network, in float32."""
    whole = task_sizes.BATCHES[task]
    batches = whole // 4, whole
    per_image: dict[str, list[float]] = {}
    for _ in range(rounds):
        small, large = (peaks(task, batch) for batch in batches)
        for name in large:
            per_image.setdefault(name, []).append(
                (large[name] - small[name]) / (whole - whole // 4)
            )
    medians = {name: statistics.median(found) for name, found in per_image.items()}
    figures = {
        "task": task,
        "batches": batches,
        "megabytes_per_image": {name: round(found, 3) for name, found in medians.items()},
        "every_round": {name: [round(mb, 3) for mb in found] for name, found in per_image.items()},
        "rounds": rounds,
    }
    if least := min((medians[name] for name in PEERS if name in medians), default=None):
        ours = medians.get("fused", medians["towers"])
        figures["to_least_peer"] = round(ours / least, 3)
    return figures | turns.conditions()


def peaks(task: str, batch: int) -> dict[str, float]:
    """Name of a side to its process's peak, in MB; one process after the other."""
    number = shares.MOST_BY_DEFAULT
    commands = networks.commands(task, "float32", PEERS, number, f"--batch={batch}")
    return {
        name: turns.measure({name: turns.Side(command, {"steps": STEPS})}, 1)[name].peak_megabytes
        for name, command in commands.items()
    }


def as_row(row: dict) -> str:
    """One row of the table."""
    found = row["megabytes_per_image"]
    shown = " | ".join(f"{found[name]:.2f}" if name in found else "" for name in SIDES)
    ratio = f"{row['to_least_peer']:.2f}" if "to_least_peer" in row else ""
    small, large = row["batches"]
    return f"| {row['task']} | {small}, {large} | {shown} | {ratio} |"


if __name__ == "__main__":
    main()
