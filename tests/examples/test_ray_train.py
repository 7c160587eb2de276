"""`examples/cluster/ray_train.py`, with a Ray that is started here."""

import os
import re
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
    "--dataset=shapes", "--global_batch_size=32", "--max_steps=400", "--log_every_steps=1",
    "--checkpoint_every_steps=50", "--intra_op_threads=1",
]  # fmt: skip


@pytest.fixture
def cluster():
    """Two nodes of one core each, both on this machine."""
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    made.second = made.add_node(num_cpus=1)
    yield made
    ray.shutdown()
    made.shutdown()


def read_until(process: subprocess.Popen, pattern: str) -> None:
    """Reads on to a line that has the pattern."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if re.search(pattern, line):
            return
    raise AssertionError(f"no line {pattern!r}:\n" + "".join(lines))


def trainings(folder) -> dict[int, psutil.Process]:
    """The processes that train into a folder, by the index of the worker."""
    result = {}
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"]
        if f"--train_dir={folder}" in command and "--" not in command:  # which starts them
            index = re.search(r'"index": (\d+)', process.environ().get("TF_CONFIG", ""))
            result[int(index[1]) if index else 0] = process
    return result


def test_a_lost_node_makes_the_run_smaller(cluster, tmp_path):
    """Ray kills the chief's training, too: what is lost are the steps since its checkpoint."""
    folder, alone = tmp_path / "run", tmp_path / "alone"
    assert scripts.run("train", f"--train_dir={alone}", *FLAGS).returncode == 0
    call = [sys.executable, str(scripts.ROOT / "examples/cluster/ray_train.py"), "--workers=1:2"]
    call += ["--", scripts.lighter_train(tmp_path), f"--train_dir={folder}", *FLAGS]
    variables = {"RAY_ADDRESS": cluster.address, "RAY_DEDUP_LOGS": "0", "RAY_COLOR_PREFIX": "0"}
    process = subprocess.Popen(
        call, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        cwd=tmp_path, env=os.environ | variables,
    )  # fmt: skip
    try:
        read_until(process, r"towers +1, 1 on ")
        read_until(process, r"\bstep 60/")
        before = trainings(folder)
        assert sorted(before) == [0, 1]
        cluster.remove_node(cluster.second, allow_graceful=False)
        read_until(process, r"continuing at step (50|6\d|[7-9]\d|\d{3})")
        assert [index for index in before if before[index].is_running()] == []
        assert list(trainings(folder)) == [0]  # alone: no TF_CONFIG of several workers
        process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    scripts.assert_same_run(folder, alone)
