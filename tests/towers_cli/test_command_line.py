"""Help, the version, and output that cannot be."""

import os
import subprocess
import sys

import forked
import pytest
import scripts

import towers


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
        "benchmarks.networks",
        "laboratory",
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

    SHORT = ("--dataset=shapes", "--global_batch_size=24", "--max_steps=1", "--microbatch_size=24")

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
    said = "--flagfile: too many files within each other" if depth > 3 else "Unknown command line "
    assert done.returncode == 2
    assert done.stderr.startswith(f"eval.py: error: {said}")
    assert done.stderr.count("\n") == 1
