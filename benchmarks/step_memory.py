"""Memory of a training step on every kind of network, beside Keras's `fit` and PyTorch.

    python -m benchmarks.step_memory
    python -m benchmarks.step_memory --task=resnet --rounds=3

The sides are those of `benchmarks.networks`. Each trains the network's batch in one process and
four times as many images, in eight microbatches too, in another; its peak of resident memory is
taken after the warm-up. The difference of the two peaks over that of the batches is what an image
takes; libraries, weights and their gradients are in both. The peak at the larger batch has them,
too.
"""

import statistics

from benchmarks import networks, turns
from benchmarks.peers import task_sizes

SIDES = ("towers", "fused", "keras", "pytorch")
OWN, PEERS = SIDES[:2], SIDES[2:]
HEAD = """\
| network | batches | towers, MB per image (peak of the process) | with `fused` | Keras `fit` | \
PyTorch | per image, our smallest relative to theirs |
|---|---|---|---|---|---|---|"""
STEPS = 3  # of a turn
TIMES = 4  # as many images in the other process
MICROBATCHES = 8


def main():
    """Measures each network, and prints a table."""
    parser = turns.parser(__doc__, rounds=3)
    parser.add_argument("--task", action="append", choices=list(task_sizes.SHAPES))
    options = parser.parse_args()
    rows = (measure(task, options.rounds) for task in options.task or task_sizes.SHAPES)
    turns.report(HEAD, rows, as_row, options.output)


def measure(task: str, rounds: int) -> dict:
    """The figures of one network, in float32."""
    batches = task_sizes.BATCHES[task], TIMES * task_sizes.BATCHES[task]
    more = batches[1] - batches[0]
    measured = [[peaks(task, batch) for batch in batches] for _ in range(rounds)]
    sides = measured[0][0]
    per_image = {
        name: [(large[name] - small[name]) / more for small, large in measured] for name in sides
    }
    medians = {name: statistics.median(found) for name, found in per_image.items()}
    figures = {
        "task": task,
        "batches": list(batches),
        "megabytes_per_image": {name: round(found, 3) for name, found in medians.items()},
        "every_round": {name: [round(mb, 3) for mb in found] for name, found in per_image.items()},
        "peak_megabytes": {
            name: round(statistics.median(large[name] for _, large in measured)) for name in sides
        },
        "rounds": rounds,
    }
    least = min(medians[name] for name in PEERS if name in medians)
    ours = min(medians[name] for name in OWN if name in medians)
    return figures | {"to_least_peer": round(ours / least, 3)} | turns.conditions()


def peaks(task: str, batch: int) -> dict[str, float]:
    """Name of a side to its process's peak, in MB; one process after the other."""
    commands = networks.commands(
        task, "float32", SIDES, batch // MICROBATCHES, batch, networks.has_pytorch()
    )
    found = {}
    for name, command in commands.items():
        sides = {name: turns.Side(command, {"steps": STEPS})}
        found[name] = turns.measure(sides, 1, peak_of_turns=True)[name].peak_megabytes
        if found[name] is None:
            raise SystemExit("there is no /proc here, and so no peak of resident memory")
    return found


def as_row(row: dict) -> str:
    """One row of the table."""
    found, peak = row["megabytes_per_image"], row["peak_megabytes"]
    shown = [f"{found[name]:.2f} ({peak[name]:,})" if name in found else "" for name in SIDES]
    small, large = row["batches"]
    ratio = f"{row['to_least_peer']:.2f}"
    return f"| {row['task']} | {small}, {large} | {' | '.join(shown)} | {ratio} |"


if __name__ == "__main__":
    main()
