"""What the package sets for TensorFlow and Keras as it is imported, and what it refuses."""

import os
import subprocess
import sys

import pytest
import scripts

import towers
from towers import conditions

VARIABLE = "TF_ENABLE_ONEDNN_OPTS"
REFUSED = "towers needs Keras on TensorFlow, and its backend is 'jax'"


def run(*command, **environment):
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        [sys.executable, *command], cwd=scripts.ROOT, capture_output=True, text=True,
        env=kept | {"CUDA_VISIBLE_DEVICES": "-1"} | environment, timeout=300,
    )  # fmt: skip


class TestABackend:
    def test_named_in_the_environment_is_refused(self):
        done = run("-c", "import towers", KERAS_BACKEND="jax")
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].startswith(f"ImportError: {REFUSED}")

    def test_of_a_keras_that_is_there_already_is_refused(self):
        program = (
            "import sys, types; keras = types.ModuleType('keras'); sys.modules['keras'] = keras\n"
            "keras.config = types.SimpleNamespace(backend=lambda: 'jax')\n"
            "import towers"
        )
        done = run("-c", program, KERAS_BACKEND="tensorflow")
        assert done.stderr.splitlines()[-1].startswith(f"ImportError: {REFUSED}")

    @pytest.mark.long
    def test_named_in_keras_s_file_gives_way(self, tmp_path):
        (tmp_path / "keras.json").write_text('{"backend": "jax"}')
        program = "import towers, keras; print(keras.config.backend())"
        assert run("-c", program, KERAS_HOME=str(tmp_path)).stdout == "tensorflow\n"

    @pytest.mark.parametrize("script", ["train.py", "eval.py"])
    def test_is_one_line_of_a_command(self, script, tmp_path):
        done = run(script, f"--train_dir={tmp_path / 'run'}", KERAS_BACKEND="jax")
        assert (done.returncode, done.stdout) == (1, "")
        [line] = done.stderr.splitlines()
        assert line.startswith(f"{script}: error: {REFUSED}")
        assert not (tmp_path / "run").exists()

    def test_is_one_line_of_a_comparison(self):
        done = run("-m", "towers_cli.compare", "a", "b", KERAS_BACKEND="jax")
        assert (done.returncode, done.stdout) == (2, "")
        assert len(done.stderr.splitlines()) == 1 and REFUSED in done.stderr


@pytest.mark.parametrize(
    ("before", "imported", "after"),
    [(None, False, "1"), ("0", False, "0"), ("1", False, "1"), (None, True, None)],
)
def test_a_variable_is_set_unless_it_was_or_it_is_too_late(monkeypatch, before, imported, after):
    if before is None:
        monkeypatch.delenv(VARIABLE, raising=False)
    else:
        monkeypatch.setenv(VARIABLE, before)
    if not imported:
        monkeypatch.delitem(sys.modules, "tensorflow")
    towers.setup()
    assert os.environ.get(VARIABLE) == after


@pytest.mark.parametrize(
    ("at_the_end", "warns"), [("", False), (f"del os.environ['{VARIABLE}']", True)]
)
def test_a_tensorflow_that_was_there_first_is_warned_of_where_nobody_chose(at_the_end, warns):
    program = f"import os, tensorflow; {at_the_end}\nimport towers"
    done = run("-c", program, **{VARIABLE: "0"})
    assert (VARIABLE in done.stderr and "UserWarning" in done.stderr) == warns


class TestOneDNN:
    def test_computes_and_a_run_says_so(self):
        chosen = os.environ[VARIABLE]  # by this package, or by who runs the tests
        assert chosen in ("0", "1")
        assert conditions.environment()["oneDNN"] == {"0": "off", "1": "on"}[chosen]

    @pytest.mark.long
    def test_a_run_says_what_tensorflow_does(self):
        """A convolution's bits are others with oneDNN."""
        program = (
            "import towers; from towers import conditions\n"
            "import numpy as np; import tensorflow as tf\n"
            "x = np.random.default_rng(0).normal(size=(16, 24, 24, 64)).astype(np.float32)\n"
            "kernel = tf.reshape(x[:1, :, :, :], [24, 24, 64, 1])[:5, :5]\n"
            "done = tf.function(lambda: tf.nn.conv2d(x, kernel, 1, 'SAME'))().numpy()\n"
            "print(conditions.environment()['oneDNN'], done.tobytes().hex()[:999])"
        )
        off, on = (run("-c", program, **{VARIABLE: chosen}).stdout.split() for chosen in "01")
        assert (off[0], on[0]) == ("off", "on")
        assert off[1:] != on[1:]
