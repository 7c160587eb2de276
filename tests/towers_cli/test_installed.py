"""The commands as they are after `pip install`."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import scripts

import towers

COMMANDS = ("towers-train", "towers-eval", "towers-predict", "towers-compare", "towers-launch")


def run(command: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess:
    """What the installed command says; only its own folder tells it where the packages are."""
    program = Path(sys.executable).with_name(command)
    return subprocess.run(
        [program, *arguments], cwd=cwd, capture_output=True, text=True, timeout=300
    )


def test_what_is_installed_is_this_checkout(tmp_path):
    """Otherwise the tests below would be of another one."""
    program = "import towers_cli; print(towers_cli.__file__)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.strip() == str(scripts.ROOT / "towers_cli" / "__init__.py")


def test_a_wheel_holds_every_module(tmp_path):
    """Built from a copy, as setuptools writes beside what it packs."""
    files = ["setup.py", "README.md", "LICENSE", "container_limits.py"]
    for name in files:
        shutil.copy(scripts.ROOT / name, tmp_path / name)
    modules = {"container_limits.py"}
    for package in ("towers", "towers_cli", "input_pipeline"):
        for path in (scripts.ROOT / package).rglob("*.py"):
            name = path.relative_to(scripts.ROOT)
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, tmp_path / name)
            modules.add(name.as_posix())
    call = [sys.executable, "setup.py", "--quiet", "bdist_wheel", "--dist-dir", "wheels"]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "wheels").iterdir()
    assert {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")} == modules


@pytest.mark.whole_program
@pytest.mark.parametrize("command", COMMANDS)
def test_help_comes_without_tensorflow(command, tmp_path):
    program = Path(sys.executable).with_name(command)
    done = subprocess.run(
        [sys.executable, "-X", "importtime", program, "--help"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0
    assert command in done.stdout
    assert not {"tensorflow", "keras", "numpy"} & set(done.stderr.replace("|", " ").split())


@pytest.mark.whole_program
def test_a_run_is_trained_evaluated_and_compared(tmp_path):
    trained = run("towers-train", *scripts.small_run(tmp_path / "run"), cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    evaluated = run("towers-eval", f"--train_dir={tmp_path / 'run'}", cwd=tmp_path)
    assert evaluated.returncode == 0, evaluated.stderr
    same = run("towers-compare", "run", "run", cwd=tmp_path)
    assert same.returncode == 0 and "the same, to the last bit" in same.stdout


@pytest.mark.whole_program
def test_an_error_names_the_command_as_it_was_called(tmp_path):
    done = run("towers-train", "--momentum=2", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "towers-train: error: --momentum=2.0: must be at least 0 and below 1\n"
    version = run("towers-eval", "--version", cwd=tmp_path)
    assert version.stdout == f"towers {towers.__version__}\n"


@pytest.mark.whole_program
def test_the_launcher_starts_an_installed_command(tmp_path):
    done = run("towers-launch", "--workers=2", "--", "towers-train", "--version", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    version = f"towers {towers.__version__}"
    assert sorted(done.stdout.splitlines()) == [f"[0] {version}", f"[1] {version}"]


@pytest.mark.whole_program
def test_a_wrong_value_does_not_wait_for_tensorflow(tmp_path):
    program = Path(sys.executable).with_name("towers-train")
    done = subprocess.run(
        [sys.executable, "-X", "importtime", program, "--momentum=2"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert "towers-train: error: --momentum=2.0: must be at least 0 and below 1" in done.stderr
    assert not {"tensorflow", "keras", "numpy"} & set(done.stderr.replace("|", " ").split())
