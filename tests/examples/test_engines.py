"""What `examples/cluster` gives to engines: the script by a stand-in for Slurm, and the manifests.

Neither was run on a real cluster.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
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
    @pytest.mark.long
    @pytest.mark.whole_program
    def test_a_run_has_the_bits_of_one_worker(self, submitted, tmp_path, cache_home):
        flags = ["--dataset=shapes", "--global_batch_size=32", "--max_steps=10"]
        flags += ["--verify_every_steps=10", "--intra_op_threads=1"]
        program = Path(scripts.lighter_train(tmp_path)).read_text()
        two, one = tmp_path / "two", tmp_path / "one"
        done, _, asked = submitted(
            program, *flags, f"--train_dir={two}", XDG_CACHE_HOME=str(cache_home)
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert asked == ["show hostnames node[1-2]"]
        assert scripts.run("train", f"--train_dir={one}", *flags).returncode == 0
        assert scripts.hash_lines(two) != []
        scripts.assert_same_run(two, one)

    def test_every_task_is_told_who_all_are_and_keeps_its_arguments(self, submitted, tmp_path):
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
            members = cluster.from_tf_config(text)
            assert (list(members.addresses), members.index) == (workers, index)
            assert arguments == ["--a=b c", "*"]

    @pytest.mark.parametrize(
        ("codes", "restarts", "code", "is_requeued"),
        [
            ((138, 137), 0, 0, True),
            ((0, 137), 0, 0, True),
            ((138, 137), 19, 0, True),
            ((138, 137), 20, 138, False),
            ((1, 1), 0, 1, False),
            ((0, 2), 0, 2, False),
            ((143, 143), 0, 143, False),
            ((138, 1), 0, 1, False),
            ((139, 2), 0, 2, False),
            ((138, 139), 0, 0, True),
            ((134, 138), 0, 0, True),
            ((138, 130), 0, 143, False),
        ],
    )
    def test_the_job_is_started_again_where_a_worker_died(
        self, submitted, codes, restarts, code, is_requeued
    ):
        program = f"import os, sys; sys.exit({codes}[int(os.environ['SLURM_PROCID'])])"
        done, _, asked = submitted(program, SLURM_RESTART_COUNT=str(restarts))
        assert done.returncode == code
        assert ("requeue 77" in asked) == is_requeued

    def test_every_task_gets_the_signal_and_is_waited_for(self, submitted, tmp_path):
        """Where Slurm sends it to a task's shell alone."""
        program = """
import os, signal, sys, time
def answer(*_):
    time.sleep(0.5)  # as a checkpoint takes a while
    open(f"saved-{os.environ['SLURM_PROCID']}", "w").close()
    sys.exit(143)
signal.signal(signal.SIGTERM, answer)
os.kill(os.getppid(), signal.SIGTERM)
time.sleep(60)
"""
        done, _, asked = submitted(program)
        assert (done.returncode, len(list(tmp_path.glob("saved-*")))) == (143, 2)
        assert "requeue 77" not in asked

    def test_jobs_that_follow_each_other_have_ports_of_their_own(self, submitted, tmp_path):
        program = f"""
import os, sys
port = sys.argv[1].rpartition(":")[2]
open({str(tmp_path)!r} + "/ports", "a").write(port + "\\n")
"""
        for job in ("1234566", "1234567", "1234568"):
            submitted(program, ntasks=4, SLURM_JOB_ID=job, PORT="")
        last = {int(text) for text in (tmp_path / "ports").read_text().split()}
        assert len(last) == 3
        low, middle, high = sorted(last)
        assert middle - low >= 4 and high - middle >= 4  # each task of a job has one
        assert low >= 10000 and high < 32768


def read_back(document: dict) -> dict:
    """What is left of a JobSet that has the form of its model; its fields have their types."""
    # Not above: every process of the tests reads this file, and this takes 2 s of a core.
    from kubeflow_trainer_api import models

    return models.JobsetV1alpha2JobSet.from_dict(document).to_dict()


def read_with(api, document: dict, of_type: str) -> dict:
    """The same for a type that a client of Kubernetes knows."""
    answer = SimpleNamespace(data=json.dumps(document))
    return api.sanitize_for_serialization(api.deserialize(answer, of_type))


class TestJobSet:
    @pytest.fixture
    def manifest(self):
        return yaml.safe_load((EXAMPLES / "jobset.yaml").read_text())

    def test_it_has_the_form_of_its_schema(self, manifest):
        """What the schema does not know would be left out."""
        assert read_back(manifest) == manifest

    @pytest.mark.parametrize(
        ("name", "value"), [("replicatedJob", []), ("network", {"enableDNSHostnames": "yes"})]
    )
    def test_a_mistake_would_be_found(self, manifest, name, value):
        manifest["spec"][name] = value
        try:
            found = read_back(manifest)
        except ValueError:
            return
        assert found != manifest

    def test_every_pod_is_a_worker_that_the_others_know(self, manifest):
        """Names are `JOBSET-JOB-REPLICA-INDEX.SUBDOMAIN`, the subdomain is the JobSet's name."""
        (job,) = manifest["spec"]["replicatedJobs"]
        spec, name = job["template"]["spec"], manifest["metadata"]["name"]
        assert spec["completions"] == spec["parallelism"] and job["replicas"] == 1
        workers = [f"{name}-{job['name']}-0-{i}.{name}:12345" for i in range(spec["completions"])]
        (container,) = spec["template"]["spec"]["containers"]
        script = container["command"][-1].replace("exec python train.py", "printenv TF_CONFIG #")
        done = subprocess.run(
            ["sh", "-c", script], env=os.environ | {"JOB_COMPLETION_INDEX": "2"},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        members = cluster.from_tf_config(done.stdout)
        assert (list(members.addresses), members.index) == (workers, 2)
        (rule,) = spec["podFailurePolicy"]["rules"]
        assert rule["onExitCodes"]["values"] == [1, 2]  # what docs/workers.md says not to try again
        assert rule["onExitCodes"]["containerName"] == container["name"]


class TestTFJob:
    @pytest.fixture
    def manifest(self):
        return yaml.safe_load((EXAMPLES / "tfjob.yaml").read_text())

    def read_back(self, document: dict) -> dict:
        from kubeflow.training import ApiClient

        return read_with(ApiClient(), document, "KubeflowOrgV1TFJob")

    def test_it_has_the_form_of_its_types(self, manifest):
        assert self.read_back(manifest) == manifest

    @pytest.mark.parametrize(
        ("name", "value"), [("tfReplicaSpec", {}), ("runPolicy", {"backoffLimit": "twenty"})]
    )
    def test_a_mistake_would_be_found(self, manifest, name, value):
        manifest["spec"][name] = value
        try:
            found = self.read_back(manifest)
        except ValueError:
            return
        assert found != manifest

    def test_what_the_operator_sets_and_retries_is_what_the_command_reads_and_says(self, manifest):
        """The form of TF_CONFIG, the container's name and the port are the operator's own."""
        worker = manifest["spec"]["tfReplicaSpecs"]["Worker"]
        name = manifest["metadata"]["name"]
        addresses = [f"{name}-worker-{i}.default.svc:2222" for i in range(worker["replicas"])]
        config = {
            "cluster": {"worker": addresses},
            "task": {"type": "worker", "index": 3},
            "environment": "cloud",
        }
        members = cluster.from_tf_config(json.dumps(config))
        assert (members.addresses, members.index) == (tuple(addresses), 3)
        assert worker["restartPolicy"] == "ExitCode"  # retries 128 and above
        (container,) = worker["template"]["spec"]["containers"]
        assert container["name"] == "tensorflow"
        assert container["command"][:2] == ["python", "train.py"]


class TestNetworkPolicy:
    """On `kubernetes`, which `kubeflow-training` brings."""

    @pytest.fixture
    def manifest(self):
        return yaml.safe_load((EXAMPLES / "networkpolicy.yaml").read_text())

    def read_back(self, document: dict) -> dict:
        from kubernetes import client

        return read_with(client.ApiClient(), document, "V1NetworkPolicy")

    def test_it_has_the_form_of_its_types(self, manifest):
        assert self.read_back(manifest) == manifest

    @pytest.mark.parametrize(
        ("name", "value"), [("podSelectors", {}), ("ingress", [{"from": [{"podSelector": "all"}]}])]
    )
    def test_a_mistake_would_be_found(self, manifest, name, value):
        manifest["spec"][name] = value
        try:
            found = self.read_back(manifest)
        except (AttributeError, ValueError):
            return
        assert found != manifest

    @pytest.mark.parametrize("job", ["jobset", "tfjob"])
    def test_it_lets_the_pods_of_a_job_in_and_nobody_else(self, manifest, job):
        of_job = yaml.safe_load((EXAMPLES / f"{job}.yaml").read_text())["spec"]
        if job == "jobset":
            pod = of_job["replicatedJobs"][0]["template"]["spec"]["template"]
        else:
            pod = of_job["tfReplicaSpecs"]["Worker"]["template"]
        spec, own = manifest["spec"], {"podSelector": {"matchLabels": pod["metadata"]["labels"]}}
        assert spec["podSelector"] == own["podSelector"]
        assert spec["policyTypes"] == ["Ingress"]
        assert spec["ingress"] == [{"from": [own]}]
