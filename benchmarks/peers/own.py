"""This project as a side: `train.py` itself, told to wait between turns.

    python -m benchmarks.peers.own real --train_dir=... --compute_dtype=bfloat16

`real` reads what the command reads; `fixed` repeats the first batch, so that the difference is what
the input pipeline costs.
"""

import itertools
import sys
from collections.abc import Iterable

from benchmarks.peers import counter
from input_pipeline import batches
from towers_cli import train


def main():
    """Runs the command with its batches counted."""
    source = sys.argv.pop(1)
    turn = counter.Counter()
    read = batches.training_batches

    def counted(*arguments, **options) -> Iterable:
        data = read(*arguments, **options)
        batch_size = options["global_batch_size"]
        for batch in itertools.repeat(next(iter(data))) if source == "fixed" else data:
            yield batch
            turn.step_done(batch_size)  # the loop asks for the next one when a step is done

    batches.training_batches = counted
    train.command()


if __name__ == "__main__":
    main()
