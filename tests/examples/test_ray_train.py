"""`examples/cluster/ray_train.py`, with a Ray that is started here."""

import os
import re
import signal
import subprocess
import sys

import psutil
import pytest
import scripts

pytest.importorskip("ray.train", reason="Ray is not installed: pip install 'towers[ray]'")

import ray
from ray.cluster_utils import Cluster

pytestmark = [pytest.mark.long, pytest.mark.whole_program]

FLAGS = [
    "--dataset=shapes",
    "--global_batch_size=32",
    "--max_steps=400",
    "--log_every_steps=1",
    "--checkpoint_every_steps=50",
    "--intra_op_threads=1",
]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The run of one worker, made in this process."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    assert scripts.run("train", f"--train_dir={folder}", *FLAGS).returncode == 0
    return folder


@pytest.fixture
def cluster():
    """Two nodes of one core each, both on this machine."""
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    made.second = made.add_node(num_cpus=1)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def started(cluster, tmp_path):
    """Starts the example there; its output, stderr too, is read line by line."""
    processes = []

    def start(*arguments: str) -> subprocess.Popen:
        processes.append(
            subprocess.Popen(
                [sys.executable, str(scripts.ROOT / "examples/cluster/ray_train.py"), *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=tmp_path,
                env=os.environ
                | {"RAY_ADDRESS": cluster.address, "RAY_DEDUP_LOGS": "0", "RAY_COLOR_PREFIX": "0"},
            )
        )
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


def read_until(process: subprocess.Popen, pattern: str) -> tuple[re.Match, list[str]]:
    """Reads on to a line that has the pattern; also returns the lines up to there."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if found := re.search(pattern, line):
            return found, lines
    raise AssertionError(f"no line {pattern!r}:\n" + "".join(lines))


def trainings(folder) -> dict[int, psutil.Process]:
    """The processes that train into a folder, by the index of the worker."""
    found = {}
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"]
        if f"--train_dir={folder}" in command and "--" not in command:  # which starts them
            index = re.search(r'"index": (\d+)', process.environ().get("TF_CONFIG", ""))
            found[int(index[1]) if index else 0] = process
    return found


def test_a_killed_worker_costs_a_start_and_no_step(started, tmp_path, alone):
    folder = tmp_path / "run"
    script = scripts.lighter_train(tmp_path)
    process = started("--workers=2", "--", script, f"--train_dir={folder}", *FLAGS)
    read_until(process, r"\bstep 60/")
    killed = trainings(folder)[1]
    killed.send_signal(signal.SIGKILL)
    _, lines = read_until(process, r"worker 1 .* died without an error message")
    said = [int(step) for step in re.findall(r"\bstep (\d+)/400", "".join(lines))]
    found, _ = read_until(process, r"continuing at step (\d+)")
    assert int(found[1]) >= max(said, default=60)
    process.communicate(timeout=120)
    assert process.returncode == 0
    scripts.assert_same_run(folder, alone)


def test_a_lost_node_makes_the_run_smaller(started, cluster, tmp_path, alone):
    """Ray kills the chief's training, too: what is lost are the steps since its checkpoint."""
    folder = tmp_path / "run"
    script = scripts.lighter_train(tmp_path)
    process = started("--workers=1:2", "--", script, f"--train_dir={folder}", *FLAGS)
    read_until(process, r"workers +2 \(")
    read_until(process, r"\bstep 60/")
    before = trainings(folder)
    assert sorted(before) == [0, 1]
    cluster.remove_node(cluster.second, allow_graceful=False)
    read_until(process, r"continuing at step (50|6\d|[7-9]\d|\d{3})")
    assert [index for index in before if before[index].is_running()] == []
    assert list(trainings(folder)) == [0]  # alone: no TF_CONFIG of several workers
    process.communicate(timeout=120)
    assert process.returncode == 0
    scripts.assert_same_run(folder, alone)
