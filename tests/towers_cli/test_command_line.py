"""Help, the version, and what is said to a flag that is none."""

import dataclasses
import os
import re
import subprocess
import sys

import forked
import pytest
import scripts

import towers
from towers_cli import command_line

FLAGS = {name: scripts.line_of(name).values for name in ("train", "eval")}
# Other names, and what train.py and eval.py say to them; "" where they have nothing of the kind.
SAID = {
    "batch_size": ("--global_batch_size", "--global_batch_size"),
    "batch-size": ("--global_batch_size", "--global_batch_size"),
    "per_device_train_batch_size": ("--global_batch_size", "--global_batch_size"),
    "lr": ("--learning_rate", ""),
    "learning-rate": ("--learning_rate", ""),
    "Learning_Rate": ("--learning_rate", ""),
    "gpus": ("--num_towers", "--num_towers"),
    "num_gpus": ("--num_towers", "--num_towers"),
    "n_gpu": ("--num_towers", "--num_towers"),
    "epochs": ("--train_epochs", ""),
    "max_epoch": ("--train_epochs", ""),
    "steps": ("--max_steps", ""),
    "logdir": ("--train_dir", "--train_dir"),
    "model_dir": ("--train_dir", "--train_dir"),
    "output_dir": ("--train_dir", "--train_dir"),
    "checkpoint_dir": ("--train_dir", "--train_dir"),
    "checkpoint_path": ("--train_dir", "--checkpoint or --train_dir"),
    "chekpoint": ("--train_dir", "--checkpoint or --train_dir"),
    "data": ("--dataset or --data_dir", "--dataset or --data_dir"),
    "wd": ("--weight_decay", ""),
    "ema": ("--moving_average_decay", ""),
    "num_workers": ("--workers", ""),
    "use_fp16": ("--compute_dtype", ""),
    "accumulate_grad_batches": ("--num_microbatches", ""),
    "log_frequency": ("--log_every_steps", ""),
    "eval_interval_secs": ("", "--eval_interval_seconds"),
    "eval_data": ("--eval_split", "--split"),
    "warm_start": ("--init_from", ""),
    "no-nesterov": ("--nonesterov", ""),
    "dropout": ("", ""),
    "verison": ("--version", "--version"),
}


def said_to(name: str, flag: str) -> str:
    """What stands on stderr, after the script's name."""
    done = scripts.run(name, f"--{flag}=1")
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr.removeprefix(f"{name}.py: error: --{flag}: there is no such flag").rstrip()


@pytest.mark.parametrize("flag", SAID)
def test_a_name_from_elsewhere_gets_the_flag_that_is_meant(flag):
    for name, meant in zip(FLAGS, SAID[flag], strict=True):
        hint = f"; did you mean {meant}?" if meant else "; --help lists them"
        assert said_to(name, flag).endswith(hint)


@pytest.mark.parametrize("flag", command_line.NOT_NEEDED)
def test_what_needs_no_flag_is_said_to_need_none(flag):
    for name in FLAGS:
        assert said_to(name, flag).startswith(" (images are prepared on all cores); ")


def test_every_other_name_gets_the_flag_that_has_it():
    for name, (_, record) in scripts.COMMANDS.items():
        for field in dataclasses.fields(record):
            for other in set(field.metadata["also_called"]) - set(FLAGS[name]):
                said = said_to(name, other)
                assert f"--{field.name}" in said, other
                suggested = re.findall(r"--(\w+)", said.replace("--help lists them", ""))
                assert set(suggested) <= set(FLAGS[name]), other


@pytest.mark.whole_program
@pytest.mark.parametrize("script", ["train.py", "eval.py"])
class TestWhatIsAskedForGoesToStdout:
    @pytest.mark.parametrize("flag", ["--help", "-h", "-?", "--helpshort", "--helpfull"])
    def test_help(self, command, script, flag):
        done = command(script, "--train_dir=runs/a", flag)
        assert (done.returncode, done.stderr) == (0, "")
        default = "" if flag == "--helpfull" else "=runs/tutorial"
        assert f"--train_dir{default}: Folder of the run" in done.stdout
        assert "--[no]version: Show the version." in done.stdout
        assert max(map(len, done.stdout.splitlines())) <= 80
        assert ("--logtostderr" in done.stdout or "stderrthreshold" in done.stdout) == (
            flag == "--helpfull"
        )

    def test_the_version(self, command, script):
        done = command(script, "--version")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"towers {towers.__version__}\n"

    def test_an_error_before_it_comes_first(self, command, script):
        done = command(script, "--num_towers=x", "--help")
        assert (done.returncode, done.stdout) == (2, "")

    @pytest.mark.parametrize("unbuffered", ["", "1"])
    @pytest.mark.parametrize("flag", ["--help", "--version"])
    def test_a_reader_that_has_gone_is_no_traceback(self, script, flag, unbuffered):
        read, write = os.pipe()
        os.close(read)
        with os.fdopen(write) as closed:
            done = subprocess.run(
                [sys.executable, str(scripts.ROOT / script), flag],
                stdout=closed,
                stderr=subprocess.PIPE,
                env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
                timeout=60,
            )
        assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.whole_program
def test_the_version_comes_without_tensorflow_from_anywhere(tmp_path):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", str(scripts.ROOT / "train.py"), "--version"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == f"towers {towers.__version__}\n"
    assert not {"tensorflow", "keras", "towers"} & set(done.stderr.replace("|", " ").split())


# The benchmarks' command lines have one parser in common; these stand for them.
@pytest.mark.whole_program
@pytest.mark.parametrize(
    "module",
    [
        "benchmarks.kills",
        "benchmarks.plots",
        "benchmarks.throughput",
        "input_pipeline.shapes",
        "laboratory",
        "laboratory.parameter_server",
        "lessons",
        "lessons.drawing",
        "lessons.house",
        "lessons.pages",
        "towers_cli.compare",
        "towers_cli.launch",
        "lessons.recipe",
    ],
)
def test_every_command_has_help(module, tmp_path):
    environment = os.environ | {"COLUMNS": "80"}
    call = [sys.executable, "-m", module, "-h"]
    done = forked.run(call, cwd=tmp_path, env=environment, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    is_usage = f"python -m {module}" in done.stdout or "usage: " in done.stdout
    assert is_usage or "    towers-compare runs" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert list(tmp_path.iterdir()) == []


@pytest.mark.whole_program
class TestOutputThatCannotBe:
    """Closed, or of ASCII alone: the run goes its way."""

    SHORT = ("--dataset=shapes", "--global_batch_size=24", "--max_steps=1", "--num_microbatches=1")

    @pytest.mark.parametrize(
        "closed",
        [
            pytest.param("<&-", marks=pytest.mark.long),
            pytest.param(">&-", marks=pytest.mark.long),
            pytest.param(">&- 2>&-", marks=pytest.mark.long),
            "<&- >&- 2>&-",
        ],
    )
    @pytest.mark.long
    def test_closed_streams(self, tmp_path, cache_home, closed):
        script = scripts.ROOT / "train.py"
        flags = [*self.SHORT, "--summary_every_steps=0", f"--train_dir={tmp_path / 'run'}"]
        done = subprocess.run(
            ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, str(script), *flags],
            capture_output=True,
            env=os.environ | {"XDG_CACHE_HOME": str(cache_home)},
            timeout=300,
        )
        assert (done.returncode, done.stderr) == (0, b"")
        assert scripts.final_summary(tmp_path / "run")["step"] == 1

    @pytest.mark.parametrize("flag", ["--help", "--version", "--zzz"])
    def test_words_alone_with_stdout_closed(self, flag):
        done = subprocess.run(
            [
                "sh",
                "-c",
                'exec "$@" >&-',
                "sh",
                sys.executable,
                str(scripts.ROOT / "eval.py"),
                flag,
            ],
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
        assert done.returncode == (2 if flag == "--zzz" else 0)
        assert done.stderr.count("\n") == (1 if flag == "--zzz" else 0)

    @pytest.mark.long
    def test_a_terminal_of_ascii_and_a_folder_of_more(self, command, tmp_path, monkeypatch):
        monkeypatch.setenv("PYTHONIOENCODING", "ascii")
        folder = tmp_path / "läufe-日本"
        trained = command("train.py", f"--train_dir={folder}", *self.SHORT)
        evaluated = command("eval.py", f"--train_dir={folder}")
        for done in (trained, evaluated):
            assert (done.returncode, done.stderr) == (0, "")
        assert "l\\xe4ufe-\\u65e5\\u672c" in trained.stdout


@pytest.mark.parametrize("depth", [3, 1500])
def test_flag_files_that_name_the_next_one(tmp_path, depth):
    for number in range(depth):
        (tmp_path / f"{number}").write_text(f"--flagfile={tmp_path / str(number + 1)}\n")
    (tmp_path / f"{depth}").write_text("--zzz=1\n")
    done = scripts.run("eval", f"--flagfile={tmp_path / '0'}")
    said = "--flagfile: too many files within each other" if depth > 3 else "--zzz: there is no "
    assert done.returncode == 2
    assert done.stderr.startswith(f"eval.py: error: {said}")
    assert done.stderr.count("\n") == 1
