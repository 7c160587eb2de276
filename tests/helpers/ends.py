"""A worker that takes steps, for tests of how it ends.

    python ends.py '{"seconds": 60, "at": 3, "act": "SIGKILL"}'

After so many steps it gets a signal, sleeps so many seconds, or does so and raises an error.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
sys.path.insert(0, str(Path(__file__).parents[2]))

from towers import multi_worker  # before TensorFlow: it sets it up

import tensorflow as tf  # isort: skip


def act(what) -> None:
    """Does what a test asks for."""
    if isinstance(what, str):
        os.kill(os.getpid(), getattr(signal, what))
    elif isinstance(what, list):
        time.sleep(what[1])
        raise OSError("my disk is full")
    else:
        time.sleep(what)


def main(wanted: dict) -> None:
    """Takes twenty steps, each of which all workers take together."""
    if wanted.get("is_early"):
        tf.zeros([])
    print("begins", flush=True)
    with multi_worker.meet(wait_seconds=wanted.get("seconds", 60.0)) as workers:
        for step in range(20):
            print("step", step, flush=True)
            if step == wanted.get("at"):
                act(wanted["act"])
            workers.exchange("a step", "x" * 1023)  # and two quotes: a byte beyond the shortest
            time.sleep(0.05)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
