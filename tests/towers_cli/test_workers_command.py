"""train.py as several processes: one run folder, the bits of one process, and no worker left.

How workers end in general is in tests/multi_worker/test_ends.py.
"""

import os
import random
import re
import signal
import subprocess
import sys
import time

import pytest
import scripts

import towers
from towers.runs import run_folder
from towers_cli import agreement, launch

STOPS_WITHIN_SECONDS = 25  # as docs/workers.md says
DEATHS = int(os.environ.get("TOWERS_TEST_DEATHS", 5))


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
    """Processes of one run, by TF_CONFIG."""

    def __init__(self, cache_home, count: int):
        self.addresses = [f"127.0.0.1:{port}" for port in launch.free_ports(count)]
        self._cache_home, self.processes = cache_home, {}

    def start(self, index: int, *arguments: str) -> subprocess.Popen:
        config = launch.tf_config(self.addresses, index)
        self.processes[index] = scripts.start(
            self._cache_home, "train", *arguments, TF_CONFIG=config
        )
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


def launcher(tmp_path, cache_home, *arguments: str) -> subprocess.Popen:
    """Starts the launcher with train.py, as lightly as the tests run it."""
    script = scripts.lighter_train(tmp_path)
    split = next(n for n, argument in enumerate(arguments) if argument.startswith("--train_dir"))
    own, of_script = arguments[:split], arguments[split:]
    return subprocess.Popen(
        [sys.executable, "-m", "towers_cli.launch", *own, "--", script, *of_script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=scripts.ROOT,
        env=os.environ | {"XDG_CACHE_HOME": str(cache_home), "TOWERS_TEST": str(tmp_path)},
    )


@pytest.mark.whole_program
@pytest.mark.long
def test_the_folder_of_two_workers_is_that_of_one(tmp_path, alone, cache_home):
    folder = tmp_path / "run"
    process = launcher(tmp_path, cache_home, "--workers=2", *flags(folder))
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    scripts.assert_same_run(folder, alone)
    assert file_names(folder) == file_names(alone)
    lines = out.splitlines()
    table = next(line for line in lines if line.startswith("[0]   workers "))
    assert re.search(r"2: worker 0 \(127.0.0.1:\d+\), worker 1 \(127.0.0.1:\d+\)", table)
    assert any(re.match(r"\[1\] finished; worker 0 .* has the run", line) for line in lines)


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
    stopped = scripts.wait_for_line(chief, "stopped at step")
    assert again.ended(1) == (143, "")
    assert again.ended(0) == (143, "")
    step = int(re.search(r"step (\d+), and saved", stopped).group(1))
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
@pytest.mark.long
def test_one_run_on_three_workers_then_two_then_one_with_three_towers(tmp_path, alone, workers):
    """3 x 1, 2 + 1 and 1 x 3 towers, with a kill between them."""
    folder = tmp_path / "run"
    for towers_of_workers, step, victim in (((1, 1, 1), 10, 2), ((2, 1), 25, 0)):
        some = workers(len(towers_of_workers))
        for index, num_towers in enumerate(towers_of_workers):
            some.start(index, *flags(folder, f"--num_towers={num_towers}"))
        scripts.wait_for_line(some.processes[0], f"step {step}/40")
        some.processes[victim].kill()
        codes = [some.ended(index)[0] for index in some.processes]
        assert codes == [-9 if index == victim else 138 for index in some.processes]
    assert scripts.run("train", *flags(folder, "--num_towers=3")).returncode == 0
    scripts.assert_same_run(folder, alone)


@pytest.mark.whole_program
@pytest.mark.long
def test_random_deaths_under_the_launcher_do_not_show(tmp_path, cache_home):
    """Three workers, killed while they start and train; docs/workers.md has more deaths."""
    more = "--max_steps=120", "--checkpoint_every_steps=20", "--log_every_steps=1"
    alone, folder = tmp_path / "alone", tmp_path / "run"
    assert scripts.run("train", *flags(alone, *more)).returncode == 0
    arguments = "--workers=3", f"--restarts={DEATHS}", *flags(folder, *more)
    process, drawn, deaths = launcher(tmp_path, cache_home, *arguments), random.Random(58), 0
    is_due = False
    for line in process.stdout:
        if deaths == DEATHS or not line.startswith(("[0] step", "[launcher]")):
            continue
        if line.startswith("[launcher]"):
            is_due = drawn.random() < 0.3
            time.sleep(drawn.uniform(1, 8) if is_due else 0)  # while they start
        if is_due or drawn.random() < 0.2:
            pids = scripts.processes_with(f"TOWERS_TEST={tmp_path}")
            if pids := sorted(set(pids) - {process.pid}):
                os.kill(drawn.choice(pids), signal.SIGKILL)
                deaths, is_due = deaths + 1, False
    assert (process.wait(timeout=60), deaths) == (0, DEATHS)
    scripts.assert_same_run(folder, alone)


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
def test_a_worker_with_other_threads_is_refused_by_name(tmp_path, workers):
    two = workers(2)
    two.start(0, *flags(tmp_path / "run"))
    two.start(1, *flags(tmp_path / "run", "--intra_op_threads=2"))
    for index in range(2):
        code, err = two.ended(index)
        assert code == 1
        assert f"{two.name(1)} differs from {two.name(0)}: intra-op threads 2 (" in err


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
    ("text", "problem"),
    [
        ("[1]", "TF_CONFIG: must have the form"),
        ("[" * 100_000, "TF_CONFIG: is nested too deeply"),
        (launch.tf_config(["a:1", "b"], 0), "TF_CONFIG: 'b' is not host:port"),
        (launch.tf_config(["a:1", "a:1"], 0), "TF_CONFIG: a:1 is listed twice"),
    ],
)
def test_a_wrong_tf_config(tmp_path, monkeypatch, text, problem):
    monkeypatch.setenv("TF_CONFIG", text)
    done = scripts.train(tmp_path / "run")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert problem in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["train_dir", "data_dir", "num_towers", "worker_wait_seconds"])
def test_what_is_of_one_worker_may_differ(name):
    asked = []

    class Two(towers.worker.SingleWorker):
        def exchange(self, what, message):
            asked.append(message)
            return [message, message]

    agreement.check_alike(Two(), scripts.settings_of())
    assert "seed" in asked[0] and name not in asked[0]


def test_workers_whose_weights_differ_stop(tmp_path, monkeypatch):
    """Before the next checkpoint; none is written."""

    def exchange(self, what, parts):
        if what != "hashes of their states":
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
    done = scripts.train(tmp_path / "run")
    assert done.returncode == 1
    assert "step 4: worker 1 and worker 0 differ in weights" in done.stderr
    assert not run_folder.RunFolder(str(tmp_path / "run")).final_model.exists()
    assert scripts.checkpoint_steps(tmp_path / "run") == []
