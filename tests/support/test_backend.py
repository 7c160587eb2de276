"""Keras computes with TensorFlow here, or the package says so as it is imported."""

import os
import subprocess
import sys

import pytest
import scripts

from towers.runs import stretches
from towers.support import backend

VARIABLE = "TF_ENABLE_ONEDNN_OPTS"
MESSAGE = (
    "towers needs Keras on TensorFlow, and {} says {!r}: set the environment variable "
    "KERAS_BACKEND=tensorflow"
)


def run(*command, **environment):
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        [sys.executable, *command], cwd=scripts.ROOT, capture_output=True, text=True,
        env=kept | {"CUDA_VISIBLE_DEVICES": "-1"} | environment, timeout=300,
    )  # fmt: skip


@pytest.mark.parametrize("backend", ["jax", "torch", "nonsense"])
def test_a_backend_named_in_the_environment(backend):
    done = run("-c", "import towers", KERAS_BACKEND=backend)
    message = MESSAGE.format("KERAS_BACKEND", backend)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"ImportError: {message}"


@pytest.mark.long
def test_a_backend_named_in_keras_s_file(tmp_path):
    (tmp_path / "keras.json").write_text('{"backend": "jax"}')
    home = {"KERAS_HOME": str(tmp_path)}
    done = run("-c", "import towers", **home)
    message = MESSAGE.format(tmp_path / "keras.json", "jax")
    assert done.stderr.splitlines()[-1] == f"ImportError: {message}"
    done = run("-c", "import towers", **home, KERAS_BACKEND="tensorflow")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_backend_of_a_keras_that_is_there_already():
    program = (
        "import sys, types; keras = types.ModuleType('keras'); sys.modules['keras'] = keras\n"
        "keras.config = types.SimpleNamespace(backend=lambda: 'jax')\n"
        "import towers"
    )
    done = run("-c", program, KERAS_BACKEND="tensorflow")
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: {MESSAGE.format('keras.config.backend()', 'jax')}, before Keras is imported"
    )


@pytest.mark.parametrize("script", ["train.py", "eval.py"])
def test_a_backend_is_one_line_of_a_command(script, tmp_path):
    done = run(script, f"--train_dir={tmp_path / 'run'}", KERAS_BACKEND="jax")
    message = MESSAGE.format("KERAS_BACKEND", "jax")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"{script}: error: {message}\n"
    assert not (tmp_path / "run").exists()


def test_a_backend_is_one_line_of_a_comparison():
    done = run("-m", "towers_cli.compare", "a", "b", KERAS_BACKEND="jax")
    message = MESSAGE.format("KERAS_BACKEND", "jax")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1 and message in done.stderr


class TestOneDNN:
    @pytest.mark.parametrize(
        ("before", "imported", "after"),
        [(None, False, "1"), ("0", False, "0"), ("1", False, "1"), (None, True, None)],
    )
    def test_is_chosen_unless_it_was_or_it_is_too_late(self, monkeypatch, before, imported, after):
        if before is None:
            monkeypatch.delenv(VARIABLE, raising=False)
        else:
            monkeypatch.setenv(VARIABLE, before)
        if not imported:
            monkeypatch.delitem(sys.modules, "tensorflow")
        backend.choose_onednn()
        assert os.environ.get(VARIABLE) == after

    def test_computes_and_a_run_says_so(self):
        chosen = os.environ[VARIABLE]  # by this package, or by who runs the tests
        assert chosen in ("0", "1")
        assert stretches.environment()["oneDNN"] == {"0": "off", "1": "on"}[chosen]

    @pytest.mark.long
    def test_a_run_says_what_tensorflow_does(self):
        """A convolution's bits are others with oneDNN."""
        program = (
            "import towers; from towers.runs import stretches\n"
            "import numpy as np; import tensorflow as tf\n"
            "x = np.random.default_rng(0).normal(size=(16, 24, 24, 64)).astype(np.float32)\n"
            "kernel = tf.reshape(x[:1, :, :, :], [24, 24, 64, 1])[:5, :5]\n"
            "done = tf.function(lambda: tf.nn.conv2d(x, kernel, 1, 'SAME'))().numpy()\n"
            "print(stretches.environment()['oneDNN'], done.tobytes().hex()[:999])"
        )
        off, on = (run("-c", program, **{VARIABLE: chosen}).stdout.split() for chosen in "01")
        assert (off[0], on[0]) == ("off", "on")
        assert off[1:] != on[1:]
