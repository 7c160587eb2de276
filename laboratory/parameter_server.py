"""Asynchronous SGD for real: TensorFlow's parameter server, with the package's gradient.

    python -m laboratory.parameter_server --workers=3 --gradients=300

Starts one process for the server and one for each worker, on this machine; this process
coordinates them. Each worker reads the weights from the server, computes the gradient of a
microbatch and applies it on the server, whatever the other workers do. The server counts how
stale each gradient was, and the command shows the counts beside those of the simulation.
"""

import collections
import contextlib
import dataclasses
import functools
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from laboratory import flags, problems, rules, simulation, speeds

_AHEAD = 4  # gradients that are scheduled for each worker
_SERVE = "serve"  # the only argument of the processes that this command starts


class Applied(NamedTuple):
    """One gradient that was applied.

    read_at: updates of the weights before it read them.
    staleness: updates by others between reading the weights and applying the gradient.
    began: the server's clock when the weights were read, seconds.
    ended: the server's clock when the gradient had been applied.
    """

    read_at: int
    staleness: int
    began: float
    ended: float


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a run on real processes.

    Attributes:
      workers: how many there were.
      applied: the gradients, in the order in which they were scheduled.
      accuracy_before: of the initial weights, on test images.
      accuracy: of the server's weights at the end, the one model.
      weights: the server's weights, [weights].
    """

    workers: int
    applied: Sequence[Applied]
    accuracy_before: float
    accuracy: float
    weights: np.ndarray

    def steady(self) -> list[Applied]:
        """All but the first third, in which workers are still building their graphs."""
        return [one for one in self.applied if one.read_at >= len(self.applied) // 3]

    def staleness(self) -> collections.Counter:
        """Staleness to the number of steady gradients that had it."""
        return collections.Counter(one.staleness for one in self.steady())

    def pause(self) -> float:
        """How long a worker is idle between two gradients, in units of a gradient."""
        steady = self.steady()
        at_work = sum(one.ended - one.began for one in steady)
        span = max(one.ended for one in steady) - min(one.began for one in steady)
        return max(0.0, self.workers * span / at_work - 1)


def serve() -> None:
    """Runs a worker or the parameter server, as TF_CONFIG says, until the coordinator is gone."""
    threading.Thread(target=_end_with_coordinator, daemon=True).start()
    import tensorflow as tf

    config = json.loads(os.environ["TF_CONFIG"])
    # Arithmetic as in the simulation: one thread for an operation, graphs as they are written.
    arithmetic = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1)
    arithmetic.graph_options.rewrite_options.disable_meta_optimizer = True
    server = tf.distribute.Server(
        config["cluster"],
        job_name=config["task"]["type"],
        task_index=config["task"]["index"],
        protocol="grpc",
        config=arithmetic,
    )
    server.join()


def _end_with_coordinator() -> None:
    sys.stdin.buffer.read()  # this pipe ends with the coordinator, however it ends
    os._exit(0)


class Processes:
    """The server's and the workers' processes, which end with the `with` block.

    Attributes:
      cluster: job to the addresses of its processes.
    """

    def __init__(self, workers: int):
        """
        Args:
          workers: how many, besides one parameter server.
        """
        from towers_cli import launch

        addresses = [f"127.0.0.1:{port}" for port in launch.free_ports(workers + 1)]
        self.cluster = {"ps": addresses[:1], "worker": addresses[1:]}
        self._running = []
        self._ending = threading.Event()

    def __enter__(self):
        for job, addresses in self.cluster.items():
            for index in range(len(addresses)):
                task = {"cluster": self.cluster, "task": {"type": job, "index": index}}
                said = tempfile.TemporaryFile()
                process = subprocess.Popen(
                    [sys.executable, "-m", "laboratory.parameter_server", _SERVE],
                    env=os.environ | {"TF_CONFIG": json.dumps(task)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=said,
                )
                self._running.append(process)
                watch = functools.partial(self._watch, process, f"{job} {index}", said)
                threading.Thread(target=watch, daemon=True).start()
        return self

    def _watch(self, process: subprocess.Popen, name: str, said) -> None:
        """Ends everything if a process is gone, because TensorFlow would wait forever."""
        code = process.wait()
        if not self._ending.is_set():
            said.seek(0)
            last = said.read().decode(errors="replace").strip().rpartition("\n")[2]
            why = f": {last}" if code > 0 else ""
            print(f"laboratory: error: {name} is gone (exit code {code}){why}", file=sys.stderr)
            os._exit(1)  # the others notice

    def wait_until_they_listen(self) -> None:
        """Else TensorFlow would wait, hold Python's lock, and keep `_watch` from noticing ends."""
        for address in (address for addresses in self.cluster.values() for address in addresses):
            host, port = address.split(":")
            while True:
                with contextlib.suppress(OSError), socket.create_connection((host, int(port))):
                    break
                time.sleep(0.05)

    def __exit__(self, *_):
        self._ending.set()
        for process in self._running:
            process.kill()
        for process in self._running:
            process.wait()
            process.stdin.close()


def train(problem, workers: int, gradients: int, rate: float) -> Outcome:
    """Applies gradients asynchronously, in separate processes.

    Weights and updates are two variables, and reading or writing both is not one operation: a
    gradient's staleness may be off by the gradients that are applied at that very moment.

    Args:
      problem: a network.Network; the n-th gradient to be scheduled takes its n-th batch.
      workers: processes besides the server's.
      gradients: how many are applied.
      rate: learning rate of each gradient.
    """
    import tensorflow as tf

    with Processes(workers) as processes:
        processes.wait_until_they_listen()
        strategy = tf.distribute.ParameterServerStrategy(
            tf.distribute.cluster_resolver.SimpleClusterResolver(
                tf.train.ClusterSpec(processes.cluster), rpc_layer="grpc"
            )
        )
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            weights = tf.Variable(problem.initial)
            updates = tf.Variable(0, dtype=tf.int64)

        def server_time_after(operation):
            """The server's clock, once an operation has been done there."""
            with tf.control_dependencies([operation]), tf.device(weights.device):
                return tf.timestamp()

        @tf.function(autograph=False)
        def step(images, labels, number):
            """On a worker: reads, computes, applies; nothing here waits for another worker."""
            read_at = updates.read_value()
            began = server_time_after(read_at)
            with tf.control_dependencies([began]):
                read = weights.read_value()
            gradient = problem.gradient_of(read, images, labels, number)
            with tf.control_dependencies([weights.assign_sub(rate * gradient)]):
                applied = updates.assign_add(1, read_value=True)
            ended = server_time_after(applied)
            return read_at, applied - 1 - read_at, began, ended

        scheduled, applied = collections.deque(), []

        def fetch():
            applied.append(Applied(*(value.item() for value in scheduled.popleft().fetch())))

        for number, batch in enumerate(problem.batches(gradients)):
            scheduled.append(
                coordinator.schedule(step, args=(*batch, tf.constant(number, tf.int64)))
            )
            if len(scheduled) > _AHEAD * workers:  # their batches are in memory
                fetch()
        while scheduled:
            fetch()
        final = weights.numpy()
    return Outcome(
        workers=workers,
        applied=applied,
        accuracy_before=problem.evaluate(problem.initial).accuracy,
        accuracy=problem.evaluate(final).accuracy,
        weights=final,
    )


def simulated(workers: int, pause: float, gradients: int = 20_000) -> collections.Counter:
    """The staleness of simulated gradients, from workers that pause between them.

    There are many gradients, because all workers begin together, and it takes a while until they
    are spread evenly.

    Args:
      workers: how many.
      pause: between two gradients of a worker, in units of a gradient.
      gradients: how many are simulated.
    """

    class Paused(rules.Asynchronous):
        def applied(self, worker):
            self.cluster.clock.after(pause, functools.partial(self.ask, worker))

    run = simulation.run(
        "asynchronous",
        Paused(rate=0.0),
        problems.Parabola(),
        speeds.Speeds("jitter", workers),
        until=gradients * (1 + pause) / workers,
    )
    return run.staleness


def rows(outcome: Outcome) -> list[list[str]]:
    """The table: staleness, and the share of gradients that have it."""
    columns = (
        simulated(outcome.workers, 0.0),
        simulated(outcome.workers, outcome.pause()),
        outcome.staleness(),
    )
    shown = [key for column in columns for key, n in column.items() if n >= 0.005 * column.total()]
    return [
        [str(staleness), *(f"{column[staleness] / column.total():.0%}" for column in columns)]
        for staleness in range(max(shown) + 1)
    ] + [["mean", *(f"{mean(column):.2f}" for column in columns)]]


def mean(staleness: collections.Counter) -> float:
    """The mean staleness over the gradients."""
    return sum(key * count for key, count in staleness.items()) / staleness.total()


HEAD = ("staleness", "simulated, never idle", "simulated, idle as measured", "measured")


def main(arguments: Sequence[str]) -> int:
    """Trains, and prints the staleness; returns the exit code."""
    if list(arguments) == [_SERVE]:
        serve()
        return 0
    parser = flags.Parser(
        prog="python -m laboratory.parameter_server",
        description=__doc__ and __doc__.splitlines()[0],
    )
    parser.add_number("workers", 3, int, 1, 16, "processes besides the server's")
    parser.add_number("gradients", 300, int, 30, 100_000, "how many are applied")
    parser.add_number("batch", 32, int, 1, 1024, "examples of a gradient")
    parser.add_number("rate", 0.05, float, 0, 100, "learning rate of each gradient")
    parser.add_argument("--data_dir", help=flags.DATA_DIR)
    options = parser.parse(arguments)

    # After --help, because it imports TensorFlow; the laboratory runs on the CPU everywhere.
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    from input_pipeline import datasets
    from laboratory import data, findings, network, race
    from towers.runs import console

    findings.start_runtime()
    try:
        images = data.load(findings.Setup(data_dir=options.data_dir))
    except datasets.DataError as error:
        parser.error(console.printable(error))
    problem = network.Network(race.network, images, options.batch)
    outcome = train(problem, options.workers, options.gradients, options.rate)
    if not np.isfinite(outcome.weights).all():
        parser.error(f"--rate={options.rate:g}: the weights are no longer finite; try a lower one")
    print(findings.table(HEAD, rows(outcome)))
    print(
        f"\nA worker was idle for {outcome.pause():.2f} gradients' time between two gradients. "
        f"The one model is the server's weights: {outcome.accuracy:.1%} of test images "
        f"after {options.gradients} gradients ({outcome.accuracy_before:.1%} before; {images.name})"
    )
    return 0


if __name__ == "__main__":
    sys.exit(flags.run(main, sys.argv[1:]))
