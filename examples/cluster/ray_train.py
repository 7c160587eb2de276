"""Ray Train starts the workers of a run, and starts them again where one has died.

    pip install -e '.[ray]'
    python examples/cluster/ray_train.py --workers=1:4 -- train.py --train_dir=/shared/four

Each Ray worker runs the command after `--` as a process of its own, with the TF_CONFIG that Ray
makes. So signals work, and Keras stays Keras 3: Ray's worker is a thread, and sets
TF_USE_LEGACY_KERAS. Every machine needs this package, the current folder and --train_dir under the
same paths. `--workers=1:4` is any number from 1 to 4: what the Ray cluster has room for, from start
to start. The weights are the same. Of the exit codes (docs/workers.md) those from 128 on start the
run again; the others end it.
"""

import argparse
import os
import subprocess
import sys

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig, collective, get_context
from ray.train.tensorflow import TensorflowTrainer

# Ray kills all workers as soon as one of them raises an error. So each waits until the others have
# ended, too, the chief with a checkpoint; but not longer than this for one that hangs.
os.environ.setdefault("RAY_TRAIN_COLLECTIVE_TIMEOUT_S", "120")


def workers(text: str) -> int | tuple[int, int]:
    """4, or 1:4 as the least and the most."""
    least, _, most = text.partition(":")
    if not 1 <= int(least) <= int(most or least):
        raise ValueError
    return (int(least), int(most)) if most else int(least)


def work(run: dict) -> int:
    """Runs one worker to its end, in a Ray worker; returns its exit code."""
    environment = {**os.environ}
    environment.pop("TF_USE_LEGACY_KERAS", None)
    # Where Ray's worker is killed, so is the training, which holds the run's folder.
    command = ["setpriv", "--pdeathsig", "KILL", sys.executable, *run["command"]]
    code = subprocess.run(command, cwd=run["folder"], env=environment).returncode
    code = 128 - code if code < 0 else code  # as shells and engines count signals
    collective.barrier()
    if code >= 128:
        raise RuntimeError(f"worker {get_context().get_world_rank()} ended with {code}")
    return code


def main() -> int:
    """Runs the workers to their end; returns the chief's exit code, or 1 where Ray gave up."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--workers", type=workers, default=2, help="how many, or the least and the most: 1:4"
    )
    parser.add_argument("--restarts", type=int, default=20, help="how often to start again")
    parser.add_argument("--cpus", type=float, default=1, help="that each worker asks Ray for")
    parser.add_argument("--gpus", type=float, default=0, help="that each worker asks Ray for")
    parser.add_argument("command", nargs="+", help="-- train.py and its flags")
    flags = parser.parse_args()
    trainer = TensorflowTrainer(
        work,
        train_loop_config={"command": flags.command, "folder": os.getcwd()},
        scaling_config=ScalingConfig(
            num_workers=flags.workers,
            use_gpu=flags.gpus > 0,
            resources_per_worker={"CPU": flags.cpus} | ({"GPU": flags.gpus} if flags.gpus else {}),
        ),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=flags.restarts)),
    )
    try:
        return trainer.fit().return_value
    except ray.train.TrainingFailedError as error:
        print(f"ray_train.py: error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
