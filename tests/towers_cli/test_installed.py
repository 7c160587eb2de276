"""The commands as they are after `pip install`, from a wheel, far from the checkout."""

import os
import shutil
import subprocess
import sys
import zipfile

import pytest
import scripts

PROGRAM = """
import towers
import keras, numpy
from input_pipeline import arrays
x = numpy.random.default_rng(0).normal(size=(64, 5)).astype("float32")
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
towers.distribute(model, 2)
done = towers.Run("run", model).fit(arrays.batches(x, x[:, :1]), batch_size=16, epochs=2)
print(done.step, towers.__file__)
"""

PACKAGES = ("towers", "towers_cli", "input_pipeline")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")  # as setuptools writes beside what it packs
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(scripts.ROOT / name, folder / name)
    for package in PACKAGES:
        no_caches = shutil.ignore_patterns("__pycache__")
        shutil.copytree(scripts.ROOT / package, folder / package, ignore=no_caches)
    call = [sys.executable, "setup.py", "--quiet", "bdist_wheel", "--dist-dir", "wheels"]
    subprocess.run(call, cwd=folder, check=True, timeout=120)
    (wheel,) = (folder / "wheels").iterdir()
    return wheel


def test_a_wheel_holds_the_packages_and_no_other_name(wheel):
    files = [
        path.relative_to(scripts.ROOT).as_posix()
        for package in PACKAGES
        for path in (scripts.ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    names = zipfile.ZipFile(wheel).namelist()
    assert sorted(n for n in names if ".dist-info/" not in n) == sorted(files)
    assert {"towers/py.typed", "input_pipeline/py.typed"} <= set(names)


@pytest.mark.whole_program
@pytest.mark.long
def test_in_another_project_a_program_and_the_commands_do_what_they_do(wheel, tmp_path):
    packages, project = tmp_path / "packages", tmp_path / "project"
    call = [*(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index")]
    call += ["--disable-pip-version-check", "--target", packages, wheel]
    subprocess.run(call, check=True, timeout=120)
    project.mkdir()
    (project / "program.py").write_text(PROGRAM)
    for call in (
        ["program.py"],
        [packages / "bin" / "towers-train", *scripts.small_run(project / "first")],
        [packages / "bin" / "towers-eval", "--train_dir=first"],
        [packages / "bin" / "towers-compare", "first", "first"],
    ):
        done = subprocess.run(
            [sys.executable, *map(str, call)],
            cwd=project, env=os.environ | {"PYTHONPATH": str(packages)},
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        if call == ["program.py"]:
            assert done.stdout.splitlines()[-1] == f"8 {packages / 'towers' / '__init__.py'}"
