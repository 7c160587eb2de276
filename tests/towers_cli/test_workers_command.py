"""train.py as several processes: one run folder, the bits of one process, and no worker left."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import types

import pytest
import scripts

import towers
from towers import machine, worker_errors
from towers.multi_worker import collectives
from towers.runs import run_folder
from towers_cli import agreement, launch

STOPS_WITHIN_SECONDS = 25  # as docs/workers.md says


def flags(folder, *more: str) -> list[str]:
    """A run of 40 steps in four microbatches, with a checkpoint at every tenth."""
    return [
        f"--train_dir={folder}",
        "--dataset=shapes",
        "--global_batch_size=32",
        "--microbatch_size=8",
        "--intra_op_threads=1",
        "--momentum=0.9",
        "--log_every_steps=5",
        "--checkpoint_every_steps=10",
        "--verify_every_steps=20",
        "--max_steps=40",
        *more,
    ]


class Workers:
    """Processes of one run, by `--workers` and `--worker_index`."""

    def __init__(self, cache_home, count: int):
        self.addresses = [f"127.0.0.1:{port}" for port in launch.free_ports(count)]
        self._cache_home, self.processes = cache_home, {}

    def start(self, index: int, *arguments: str) -> subprocess.Popen:
        workers = [f"--workers={','.join(self.addresses)}", f"--worker_index={index}"]
        self.processes[index] = scripts.start(self._cache_home, "train", *workers, *arguments)
        return self.processes[index]

    def ended(self, index: int) -> tuple[int, str]:
        """(exit code, stderr) of a worker, once it has ended."""
        _, err = self.processes[index].communicate(timeout=60)
        return self.processes[index].returncode, err

    def name(self, index: int) -> str:
        return f"worker {index} ({self.addresses[index]})"


@pytest.fixture
def workers(cache_home):
    """Makes `Workers`; kills what a failing test leaves of them."""
    made = []

    def make(count: int = 2) -> Workers:
        made.append(Workers(cache_home, count))
        return made[-1]

    yield make
    for one in made:
        for process in one.processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def alone(tmp_path_factory, cache):
    """The run of one worker, made in this process."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    assert scripts.run("train", *flags(folder)).returncode == 0
    return folder


@pytest.mark.whole_program
@pytest.mark.long
def test_the_folder_of_two_workers_is_that_of_one(tmp_path, alone, cache_home):
    folder = tmp_path / "run"
    script = scripts.lighter_train(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "towers_cli.launch", "--workers=2", "--", script, *flags(folder)],
        capture_output=True,
        text=True,
        cwd=scripts.ROOT,
        timeout=120,
        env=os.environ | {"XDG_CACHE_HOME": str(cache_home)},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    scripts.assert_same_run(folder, alone)
    assert file_names(folder) == file_names(alone)
    out = done.stdout.splitlines()
    table = next(line for line in out if line.startswith("[0]   workers "))
    assert re.search(r"2 \(127.0.0.1:\d+, 127.0.0.1:\d+\)", table)
    assert any(
        re.match(r"\[1\] finished at step 40; worker 0 .* has the run", line) for line in out
    )


def file_names(folder) -> set[str]:
    """The files of a run; event files without the number of their process."""
    return {re.sub(r"(\.tfevents\.).*", r"\1", name) for name in scripts.contents(folder)}


@pytest.mark.whole_program
def test_killed_stopped_and_continued_by_other_numbers_of_workers(tmp_path, alone, workers):
    folder, elsewhere = tmp_path / "run", tmp_path / "nothing"
    assert scripts.run("train", *flags(folder, "--max_steps=10")).returncode == 0
    two = workers(2)
    chief = two.start(0, *flags(folder))
    time.sleep(1)  # a worker that starts late is waited for
    other = two.start(1, *flags(elsewhere))
    assert scripts.wait_for_line(chief, "continuing at step 10")
    scripts.wait_for_line(chief, "step 15/40")
    other.kill()
    killed = time.monotonic()
    code, err = two.ended(0)
    said = f"{two.name(1)} died without an error message. "
    said += f"The newest checkpoint is {folder}/checkpoints"
    saved = int(re.fullmatch(rf"train.py: error: {re.escape(said)}/step-(\d+).\n", err)[1])
    assert code == 138 and saved >= 15  # nothing is lost but the step under way
    assert time.monotonic() - killed < STOPS_WITHIN_SECONDS

    again = workers(2)
    chief, other = again.start(0, *flags(folder)), again.start(1, *flags(elsewhere))
    assert scripts.wait_for_line(chief, f"continuing at step {saved}")
    scripts.wait_for_line(chief, "step 20/40")
    other.send_signal(signal.SIGTERM)  # one worker is asked, and all stop after the same step
    stopped = scripts.wait_for_line(other, "stopped at step")
    assert again.ended(1) == (143, "")
    assert again.ended(0) == (143, "")
    step = int(re.search(r"step (\d+) of", stopped).group(1))
    assert scripts.checkpoint_steps(folder)[-1] == step

    third = workers(2)
    chief, other = third.start(0, *flags(folder)), third.start(1, *flags(elsewhere))
    scripts.wait_for_line(chief, "step 25/40")
    chief.kill()
    killed = time.monotonic()
    code, err = third.ended(1)
    assert (code, err) == (138, f"train.py: error: {third.name(0)} died without an error message\n")
    assert time.monotonic() - killed < STOPS_WITHIN_SECONDS

    assert scripts.run("train", *flags(folder)).returncode == 0
    scripts.assert_same_run(folder, alone)
    hashes = [line for line in scripts.hash_lines(folder) if line["step"] != 10]  # a run's end
    assert hashes == scripts.hash_lines(alone)
    assert not elsewhere.exists()  # the chief alone writes


@pytest.mark.whole_program
def test_a_worker_with_other_settings_is_refused_by_name(tmp_path, workers):
    folder = tmp_path / "run"
    two = workers(2)
    two.start(0, *flags(folder))
    two.start(1, *flags(folder, "--seed=1", "--max_steps=30"))
    problem = (
        f"{two.name(1)} differs from {two.name(0)}: --seed=1 ({two.name(0)} has 0); "
        f"--max_steps=30 ({two.name(0)} has 40)"
    )
    for index in range(2):
        assert two.ended(index) == (1, f"train.py: error: {problem}\n")
    assert not folder.exists()


@pytest.mark.whole_program
def test_what_the_chief_finds_wrong_is_told_to_the_others(tmp_path, workers):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "notes.txt").write_text("not a run")
    two = workers(2)
    two.start(0, *flags(folder))
    two.start(1, *flags(tmp_path / "elsewhere"))
    code, problem = two.ended(0)
    problem = problem.removeprefix("train.py: error: ")
    assert (code, "holds files but no run" in problem) == (1, True)
    assert two.ended(1) == (1, f"train.py: error: {two.name(0)} has ended: {problem}")
    assert scripts.contents(folder) == {"notes.txt": b"not a run"}


@pytest.mark.whole_program
def test_a_worker_that_never_comes_is_named(tmp_path, workers):
    two = workers(2)
    two.start(0, *flags(tmp_path / "run", "--worker_wait_seconds=0.5"))
    assert two.ended(0) == (138, f"train.py: error: {two.name(1)} did not connect within 0.5 s\n")
    assert not (tmp_path / "run").exists()


@pytest.mark.whole_program
@pytest.mark.parametrize("moment", ["importing", pytest.param("training", marks=pytest.mark.long)])
def test_a_launcher_that_is_killed_takes_its_workers_with_it(tmp_path, cache_home, moment):
    folder = tmp_path / "run"
    script = tmp_path / "train.py"  # says when it has begun
    script.write_text(
        "import runpy, sys\n"
        "print('begins', flush=True)\n"
        f"sys.path.insert(0, {str(scripts.ROOT)!r})\n"
        f"runpy.run_path({str(scripts.ROOT / 'train.py')!r}, run_name='__main__')\n"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-m", "towers_cli.launch", "--workers=2", "--", str(script),
         *flags(folder, "--max_steps=100000", "--checkpoint_every_steps=100000",
                "--log_every_steps=1")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=scripts.ROOT,
        env=os.environ | {"XDG_CACHE_HOME": str(cache_home), "CUDA_VISIBLE_DEVICES": "-1",
                          "TOWERS_TEST": str(tmp_path)},
    )  # fmt: skip
    with launcher:
        line = {"importing": "[1] begins", "training": "[0] step 10/"}[moment]
        scripts.wait_for_line(launcher, line)
        time.sleep(1.0)
        launcher.kill()
    killed = time.monotonic()
    while scripts.processes_with(f"TOWERS_TEST={tmp_path}"):
        assert time.monotonic() - killed < 10
        time.sleep(0.1)
    if moment == "training":
        [step] = scripts.checkpoint_steps(folder)
        assert step == scripts.training_lines(folder)[-1]["step"] >= 10


# The worker of that index gets that signal at that moment.
SMALL = """
import os, sys
from towers_cli import system
with system.without_notices():
    from towers import multi_worker  # before TensorFlow: it sets it up
    import tensorflow as tf
addresses, index, moment, victim, signal, seconds = sys.argv[1:]
def die():
    if index == victim:
        os.kill(os.getpid(), int(signal))
class Dies(tf.distribute.MultiWorkerMirroredStrategy):
    def __init__(self, *arguments):
        die()
        super().__init__(*arguments)
if moment == "servers":
    tf.distribute.MultiWorkerMirroredStrategy = Dies
members = multi_worker.Cluster(tuple(addresses.split(",")), int(index))
with multi_worker.meet(members, float(seconds)) as workers:
    if moment == "before":
        die()
    workers.start()
    def make():
        if moment == "making":
            die()
    workers.from_chief("it", make)
"""


@pytest.fixture
def one_of_two_dies(workers):
    """Two small programs, of which one gets a signal; what becomes of the other, and its name."""

    def die(moment: str, victim: int, number: int, wait_seconds: float = 60.0):
        two = workers(2)
        for index in range(2):
            arguments = [",".join(two.addresses), index, moment, victim, int(number), wait_seconds]
            two.processes[index] = subprocess.Popen(
                [sys.executable, "-c", SMALL, *map(str, arguments)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=scripts.ROOT,
                env=os.environ | {"CUDA_VISIBLE_DEVICES": "-1"},
            )
        return *two.ended(1 - victim), two.name(victim)

    return die


@pytest.mark.long
@pytest.mark.whole_program
def test_a_worker_that_is_killed_while_tensorflow_starts_does_not_hang_the_others(one_of_two_dies):
    code, err, name = one_of_two_dies("servers", 1, signal.SIGKILL)
    assert (code, err) == (-signal.SIGUSR1, f"-c: error: {name} died without an error message\n")


@pytest.mark.whole_program
@pytest.mark.long
def test_one_that_hangs_then_does_not_either(one_of_two_dies):
    code, err, _ = one_of_two_dies("servers", 1, signal.SIGSTOP, 6.0)
    late = "TensorFlow's servers have not found each other within 6 s"
    assert (code, err) == (-signal.SIGUSR1, f"-c: error: {late}\n")


@pytest.mark.whole_program
@pytest.mark.long
def test_nor_one_that_hangs_before(one_of_two_dies):
    code, err, name = one_of_two_dies("before", 1, signal.SIGSTOP, 6.0)
    said = f'{name} did not reach "the start of TensorFlow\'s servers" within 6 s'
    assert (code, err) == (138, f"-c: error: {said}\n")


@pytest.mark.whole_program
@pytest.mark.long  # TensorFlow misses a heartbeat after ten seconds, and the chief's later
def test_a_chief_that_hangs_while_it_makes_something_does_not_hang_the_others(one_of_two_dies):
    code, err, name = one_of_two_dies("making", 0, signal.SIGSTOP)
    assert (code, err) == (138, f"-c: error: {name} does not answer\n")


class Fake:
    """Two workers, of which this is the chief; the other one answers as it is told."""

    is_chief = True

    def __init__(self, change: dict, processor: str | None = None):
        self._change, self._processor = change, processor

    def exchange(self, what, message) -> list:
        if isinstance(message, str):
            return [message, self._processor or message]
        return [message, json.loads(json.dumps(message)) | self._change]

    def name(self, index: int) -> str:
        return f"worker {index}"


def test_another_kind_of_processor_is_said(capsys):
    agreement.check_alike(Fake({}, "of yesterday"), scripts.settings_of())
    assert "processors of different kinds" in capsys.readouterr().out
    agreement.check_alike(Fake({}), scripts.settings_of())
    assert capsys.readouterr().out == ""


def test_another_kind_of_gpu_is_said(capsys, monkeypatch):
    of_this_one = machine.processor()
    monkeypatch.setattr(machine, "gpu_names", lambda: ["A100"])
    agreement.check_alike(Fake({}, f"{of_this_one}, A100"), scripts.settings_of())
    assert capsys.readouterr().out == ""
    agreement.check_alike(Fake({}, f"{of_this_one}, H100"), scripts.settings_of())
    said = capsys.readouterr().out
    assert f"({of_this_one}, A100, {of_this_one}, H100)" in said


def test_another_version_of_a_package_is_refused_by_name():
    chosen = scripts.settings_of()
    agreement.check_alike(Fake({}), chosen)
    with pytest.raises(worker_errors.WorkerError) as error:
        agreement.check_alike(Fake({"version of keras": "3.0.0"}), chosen)
    assert str(error.value).startswith(
        "worker 1 differs from worker 0: version of keras 3.0.0 (wor"
    )


def test_workers_have_onednn_all_or_none():
    """The bits of a worker without it are others."""
    with pytest.raises(worker_errors.WorkerError, match=r"use of oneDNN neither \(worker 0 has o"):
        agreement.check_alike(Fake({"use of oneDNN": "neither"}), scripts.settings_of())


@pytest.mark.parametrize(
    "name", ["train_dir", "data_dir", "num_towers", "worker_index", "worker_wait_seconds"]
)
def test_what_is_of_one_worker_may_differ(name):
    asked = []

    def exchange(what, message):
        asked.append(message)
        return [message, message]

    workers = types.SimpleNamespace(exchange=exchange, is_chief=False, name=str)
    agreement.check_alike(workers, scripts.settings_of())
    assert "seed" in asked[0] and name not in asked[0]


@pytest.mark.whole_program
@pytest.mark.parametrize("split", ["data_batch_3", "test_batch"])
def test_a_worker_with_other_images_is_refused_by_name(tmp_path, workers, split):
    for name, pixel in (("here", 0), ("there", 1)):
        folder = tmp_path / name / "cifar-10-batches-bin"
        folder.mkdir(parents=True)
        for file in ["test_batch", *(f"data_batch_{n}" for n in range(1, 6))]:
            image = bytes([file == split and pixel]) + bytes(3071)
            (folder / f"{file}.bin").write_bytes(b"".join(bytes([n]) + image for n in range(10)))
    two = workers(2)
    for index, name in enumerate(("here", "there")):
        two.start(index, *flags(tmp_path / "run"), "--dataset=cifar10",
                  f"--data_dir={tmp_path / name}")  # fmt: skip
    which = "evaluation" if split == "test_batch" else "training"
    for index in range(2):
        code, err = two.ended(index)
        assert code == 1
        assert f"{two.name(1)} differs from {two.name(0)}: sha256 of the {which} images " in err
        assert err.count("sha256") == err.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--workers=a:1"], "--workers=a:1: must be at least two"),
        (["--workers=a:1,b:2"], "--workers=a:1,b:2: needs --worker_index"),
        (
            ["--workers=a:1,b:2", "--worker_index=0", "--parameter_device=gpu"],
            "--parameter_device=gpu: several workers (--workers=a:1,b:2) exchange their gradients",
        ),
        (["--worker_index=0"], "--worker_index=0: only with --workers="),
        (["--workers=a:1,b:2", "--worker_index=2"], "worker_index=2: must be at least 0 and below"),
        (["--workers=a:1,b", "--worker_index=0"], "--workers=a:1,b: 'b' is not host:port"),
        (["--workers=a:1,a:1", "--worker_index=0"], "--workers=a:1,a:1: a:1 is listed twice"),
    ],
)
def test_wrong_flags(tmp_path, arguments, problem):
    done = scripts.train(tmp_path / "run", *arguments)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert problem in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "arguments", "problem"),
    [
        ("[1]", [], "TF_CONFIG: must have the form"),
        ("[" * 100_000, [], "TF_CONFIG: is nested too deeply"),
        (
            '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}',
            ["--workers=c:1,d:1", "--worker_index=0"],
            "--workers=c:1,d:1: TF_CONFIG names workers too; give one of the two",
        ),
    ],
)
def test_a_wrong_tf_config(tmp_path, monkeypatch, text, arguments, problem):
    monkeypatch.setenv("TF_CONFIG", text)
    done = scripts.train(tmp_path / "run", *arguments)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert problem in done.stderr


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("TOWERS_SECRET", "short", "TOWERS_SECRET: a secret must have at least 16 characters"),
        ("TOWERS_SECRET_FILE", "/nowhere", "TOWERS_SECRET_FILE=/nowhere: No such file"),
    ],
)
def test_a_wrong_secret(tmp_path, monkeypatch, name, value, problem):
    monkeypatch.setenv(name, value)
    two = ["--workers=127.0.0.1:1,127.0.0.1:2", "--worker_index=0"]
    done = scripts.train(tmp_path / "run", *two)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert problem in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("secret", "times"), [("", 1), ("s" * 16, 0)])
def test_a_chief_says_whether_everybody_may_join(monkeypatch, capsys, secret, times):
    monkeypatch.setenv("TOWERS_SECRET", secret)
    monkeypatch.setattr(collectives, "MultiWorker", lambda *_: types.SimpleNamespace(is_chief=True))
    agreement.meet_workers(scripts.settings_of("--workers=a:1,b:1", "--worker_index=0"))
    assert capsys.readouterr().out.count("port may join") == times


def test_workers_whose_weights_differ_stop(tmp_path, monkeypatch):
    """Before the next checkpoint; none is written."""

    def exchange(self, what, parts):
        if not isinstance(parts, dict):
            return [parts]
        return [
            parts,
            {name: "0" * 64 if name == "weights" else sha for name, sha in parts.items()},
        ]

    def save_as_one_of_two(self):
        self.workers.count = 2
        save(self)

    save = towers.Run._save
    monkeypatch.setattr(towers.Run, "_save", save_as_one_of_two)
    monkeypatch.setattr("towers.worker.SingleWorker.exchange", exchange)
    monkeypatch.setattr("towers_cli.agreement.check_alike", lambda *_: None)
    monkeypatch.setattr("towers_cli.agreement.check_same_data", lambda *_, **__: None)
    done = scripts.train(tmp_path / "run")
    assert done.returncode == 1
    assert "step 4: worker 1 and worker 0 differ in weights" in done.stderr
    assert not run_folder.RunFolder(str(tmp_path / "run")).final_model.exists()
    assert scripts.checkpoint_steps(tmp_path / "run") == []
