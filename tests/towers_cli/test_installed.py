"""The commands as they are after `pip install`."""

import os
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


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel, and the modules of the checkout."""
    # From a copy, as setuptools writes beside what it packs.
    tmp_path = tmp_path_factory.mktemp("wheel")
    files = ["setup.py", "pyproject.toml", "README.md", "LICENSE"]
    for name in files:
        shutil.copy(scripts.ROOT / name, tmp_path / name)
    modules = set()
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
    return wheel, modules


def test_a_wheel_holds_every_module(built):
    wheel, modules = built
    assert {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")} == modules


def test_the_package_of_the_data_has_two_names_and_one_set_of_modules():
    import towers.data.arrays

    from input_pipeline import arrays, datasets
    from towers.data import datasets as by_the_other_name

    assert by_the_other_name is datasets and towers.data.arrays is arrays
    assert datasets.__spec__.name == "input_pipeline.datasets"


PROGRAM = """
import input_pipeline
assert input_pipeline.WHOSE == "the project's own"
import towers
import keras, numpy
from towers.data import arrays
x = numpy.random.default_rng(0).normal(size=(64, 5)).astype("float32")
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
towers.distribute(model, 2)
done = towers.Run("run", model).fit(arrays.batches(x, x[:, :1]), batch_size=16, epochs=2)
print(done.step, towers.__file__)
assert input_pipeline.WHOSE == "the project's own"
"""


@pytest.fixture(scope="module")
def packages(built, tmp_path_factory):
    folder = tmp_path_factory.mktemp("packages")
    call = [
        *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"),
        *("--disable-pip-version-check", "--target", str(folder), str(built[0])),
    ]
    done = subprocess.run(call, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.whole_program
class TestInAnotherProject:
    """Installed from the wheel, far from the checkout, beside a module of the same name as ours."""

    @pytest.fixture
    def project(self, tmp_path):
        (tmp_path / "input_pipeline.py").write_text('WHOSE = "the project\'s own"\n')
        (tmp_path / "program.py").write_text(PROGRAM)
        return tmp_path

    def run(self, packages, project, *call) -> subprocess.CompletedProcess:
        environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "PYTHONPATH": str(packages),
        }
        return subprocess.run(
            [sys.executable, *map(str, call)],
            cwd=project, env=environment, capture_output=True, text=True, timeout=300,
        )  # fmt: skip

    @pytest.mark.long
    def test_a_program_has_its_own_module_and_ours(self, packages, project):
        done = self.run(packages, project, "program.py")
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == f"8 {packages / 'towers' / '__init__.py'}"
        assert (project / "run" / "final_model.json").exists()

    @pytest.mark.long
    def test_the_commands_do_what_they_do(self, packages, project):
        train = packages / "bin" / "towers-train"
        done = self.run(packages, project, train, *scripts.small_run(project / "first"))
        assert done.returncode == 0, done.stderr
        for command, argument in (("eval", "--train_dir=first"), ("compare", "first")):
            more = ["first"] if command == "compare" else []
            done = self.run(
                packages, project, packages / "bin" / f"towers-{command}", argument, *more
            )
            assert done.returncode == 0, done.stderr

    @pytest.mark.long
    def test_a_model_beside_a_module_of_that_name_is_refused(self, packages, project):
        (project / "mine.py").write_text("def build(image_shape, num_classes):\n    pass\n")
        train = packages / "bin" / "towers-train"
        flags = [*scripts.small_run(project / "first"), "--model=mine:build"]
        done = self.run(packages, project, train, *flags)
        assert done.returncode == 2
        assert f"{project / 'input_pipeline.py'} has the name of a package" in done.stderr
        assert not (project / "first").exists()


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


@pytest.mark.long
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
