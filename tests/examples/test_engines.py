"""What `examples/cluster` gives to engines: the script by a stand-in for Slurm, and the manifests.

Neither was run on a real cluster.
"""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import scripts
import yaml

from towers.multi_worker import cluster
from towers_cli import launch

EXAMPLES = scripts.ROOT / "examples" / "cluster"
SRUN = """\
[ "$1 $2" = "--kill-on-bad-exit=0 --distribution=block" ] || exit 99
shift 2
for SLURM_PROCID in $(seq 0 $((SLURM_NTASKS - 1))); do
  export SLURM_PROCID
  "$@" &
  pids="${pids:-} $!"
done
worst=0
for pid in $pids; do
  wait "$pid"; code=$?
  [ "$code" -le "$worst" ] || worst=$code
done
exit "$worst"
"""
SCONTROL = """\
echo "$@" >> "$(dirname "$0")/asked"
[ "$1" = requeue ] || printf '127.0.0.1\\n127.0.0.2\\n'
"""


@pytest.fixture
def submitted(tmp_path):
    """Runs the script as Slurm does, on two nodes that are this machine."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (tools / name).write_text(f"#!/bin/bash\n{text}")
        (tools / name).chmod(0o755)
    (tools / "asked").touch()

    def run(program: str, *arguments: str, ntasks: int = 2, **variables: str):
        (tmp_path / "train.py").write_text(program)
        (port,) = launch.free_ports(1)
        done = subprocess.run(
            ["bash", EXAMPLES / "slurm.sh", *arguments],
            capture_output=True, text=True, cwd=tmp_path, timeout=120,
            env={
                **os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "PYTHON": sys.executable,
                "PORT": str(port), "SLURM_JOB_ID": "77", "SLURM_NTASKS": str(ntasks),
                "SLURM_NTASKS_PER_NODE": str(ntasks // 2), "SLURM_JOB_NODELIST": "node[1-2]",
                **variables,
            },
        )  # fmt: skip
        return done, port, (tools / "asked").read_text().splitlines()

    return run


class TestSlurm:
    def test_every_task_knows_all_and_keeps_its_arguments(self, submitted, tmp_path, monkeypatch):
        program = f"""
import json, os, sys
said = json.dumps([os.environ["TF_CONFIG"], *sys.argv[1:]])
open({str(tmp_path)!r} + "/said-" + os.environ["SLURM_PROCID"], "w").write(said)
"""
        done, port, _ = submitted(program, "--a=b c", "*", ntasks=4)
        assert done.returncode == 0
        hosts = ["127.0.0.1", "127.0.0.1", "127.0.0.2", "127.0.0.2"]
        workers = [f"{host}:{port + i}" for i, host in enumerate(hosts)]
        for index in range(4):
            text, *arguments = yaml.safe_load((tmp_path / f"said-{index}").read_text())
            monkeypatch.setenv("TF_CONFIG", text)
            members = cluster.from_tf_config()
            assert (list(members.addresses), members.index) == (workers, index)
            assert arguments == ["--a=b c", "*"]

    @pytest.mark.parametrize(
        ("codes", "restarts", "code", "is_requeued"),
        [
            ((138, 137), 0, 0, True), ((0, 137), 0, 0, True), ((134, 138), 0, 0, True),
            ((138, 137), 20, 138, False), ((0, 2), 0, 2, False), ((139, 2), 0, 2, False),
            ((143, 143), 0, 143, False), ((138, 130), 0, 143, False),
        ],
    )  # fmt: skip
    def test_the_job_is_started_again_where_a_worker_died(
        self, submitted, codes, restarts, code, is_requeued
    ):
        program = f"import os, sys; sys.exit({codes}[int(os.environ['SLURM_PROCID'])])"
        done, _, asked = submitted(program, SLURM_RESTART_COUNT=str(restarts))
        assert done.returncode == code
        assert ("requeue 77" in asked) == is_requeued


def manifest(name: str) -> dict:
    return yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())


def test_manifests_have_the_form_of_their_types():
    """What a client of theirs does not know would be left out."""
    # Not above: every process of the tests reads this file, and this takes 2 s of a core.
    import kubeflow.training
    import kubernetes
    from kubeflow_trainer_api import models

    jobset = manifest("jobset")
    assert models.JobsetV1alpha2JobSet.from_dict(jobset).to_dict() == jobset
    for name, api, of_type in (
        ("tfjob", kubeflow.training.ApiClient(), "KubeflowOrgV1TFJob"),
        ("networkpolicy", kubernetes.client.ApiClient(), "V1NetworkPolicy"),
    ):
        answer = SimpleNamespace(data=json.dumps(manifest(name)))
        result = api.sanitize_for_serialization(api.deserialize(answer, of_type))
        assert result == manifest(name), name


def test_every_pod_of_a_jobset_is_a_worker_that_the_others_know(monkeypatch):
    """Names are `JOBSET-JOB-REPLICA-INDEX.SUBDOMAIN`, the subdomain is the JobSet's name."""
    document = manifest("jobset")
    (job,) = document["spec"]["replicatedJobs"]
    spec, name = job["template"]["spec"], document["metadata"]["name"]
    assert spec["completions"] == spec["parallelism"] and job["replicas"] == 1
    workers = [f"{name}-{job['name']}-0-{i}.{name}:12345" for i in range(spec["completions"])]
    (container,) = spec["template"]["spec"]["containers"]
    script = container["command"][-1].replace("exec python train.py", "printenv TF_CONFIG #")
    done = subprocess.run(
        ["sh", "-c", script], env=os.environ | {"JOB_COMPLETION_INDEX": "2"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    monkeypatch.setenv("TF_CONFIG", done.stdout)
    members = cluster.from_tf_config()
    assert (list(members.addresses), members.index) == (workers, 2)
    (rule,) = spec["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"]["values"] == [1, 2]  # what docs/workers.md says not to try again
    assert rule["onExitCodes"]["containerName"] == container["name"]
