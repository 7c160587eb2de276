"""What all tests share: logical CPU devices, fixtures, and the places where real data may be.

conftest.py makes it a plugin of each process that runs tests.
"""

import functools
import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# These tests are of logical CPU devices, on machines with GPUs too.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import forked
import keras
import lighter
import scripts
import tensorflow as tf
from several import Workers

from towers import devices

from tensorflow.python.util import tf_stack  # isort: skip

# A shell that starts the tests in the background has them ignore SIGINT, nohup has them ignore
# SIGHUP, and so would all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Before anything starts TensorFlow's runtime: the threads of the train.py that runs in this process
# too (scripts.py); and towers on a CPU need logical devices.
devices.use_intra_op_threads(1)
devices.choose(8)

# Tracing makes many objects that stay: with Python's 700 it took 5 % longer.
gc.set_threshold(7_000, 10, 10)

# TensorFlow notes for each operation the Python calls that led to it, of which pytest has a
# hundred: a tenth of the time of tracing. Only its own error messages show them.
_CALLS = tf_stack.extract_stack()
tf_stack.extract_stack = lambda stacklevel=1: _CALLS

# TensorFlow's tuner may miss its end, for which a data set that is let go waits up to a minute.
_ITER, _UNTUNED = tf.data.Dataset.__iter__, tf.data.Options()
_UNTUNED.autotune.enabled = False
tf.data.Dataset.__iter__ = lambda dataset: _ITER(dataset.with_options(_UNTUNED))


def pytest_collection_finish():
    """Leaves what is there now, libraries and tests, out of all collections of garbage.

    Each would take 0.4 s longer.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def as_at_the_start():
    """Keras says what it does, though a lesson or a command has run in this process before."""
    keras.config.enable_interactive_logging()
    yield
    scripts.let_graphs_go()


@pytest.fixture(scope="session")
def cifar10_dir() -> Path:
    """The folder of CIFAR-10 prepared for TFDS (JPEG q75); its tests are skipped without it."""
    folder = os.environ.get("TOWERS_TEST_DATA_DIR")
    if folder is None or not (Path(folder) / "cifar10").is_dir():
        pytest.skip(f"needs TOWERS_TEST_DATA_DIR, a data_dir with cifar10 prepared: it is {folder}")
    return Path(folder).resolve()


@pytest.fixture
def whole_networks():
    """Runs of the commands have the networks that people have (helpers/lighter.py)."""
    with lighter.only({"images"}):
        yield


@pytest.fixture
def whole_runs():
    """Runs of the commands have the networks and the test images that people have."""
    with lighter.only(()):
        yield


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory):
    """The kernels that GPUs chose are kept in one folder, and not in the user's."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def run_of(tmp_path_factory):
    """`run_of(*flags)` is a run of train.py, made once; whoever changes it copies it."""

    @functools.cache
    def make(*flags: str) -> Path:
        folder = tmp_path_factory.mktemp("run") / "run"
        scripts.trained(folder, *flags)
        return folder

    return make


@pytest.fixture
def several():
    """Makes `several.Workers`, and kills what a failing test leaves of them."""
    made = []

    def make(count: int = 2) -> Workers:
        made.append(Workers(count))
        return made[-1]

    yield make
    for workers in made:
        workers.kill()


@pytest.fixture(scope="session")
def forked_command():
    """Runs a script as a user does, in a process that has TensorFlow already (helpers/forked.py).

    `forked_command("train.py", "--max_steps=2")`
    """

    def run(script: str, *arguments: str, **options) -> subprocess.CompletedProcess:
        call = [sys.executable, str(scripts.ROOT / script), *arguments]
        return forked.run(call, timeout=300, **options)

    return run
