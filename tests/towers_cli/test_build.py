"""How TensorFlow's runtime starts, and what a network is shown before its first step."""

import sys

import forked
import pytest


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_deterministic_runtime_has_no_tf32_and_cublas_a_workspace(deterministic):
    program = f"""
import os, sys
import tensorflow as tf
from tensorflow.python.framework import config
from towers_cli import build
os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
build.start_runtime(1, {deterministic})
print(tf.config.experimental.tensor_float_32_execution_enabled())
print(os.environ.get("CUBLAS_WORKSPACE_CONFIG"), config.is_op_determinism_enabled())
"""
    done = forked.run([sys.executable, "-c", program], timeout=60)
    assert done.stdout.split() == (
        ["False", ":4096:8", "True"] if deterministic else ["True", "None", "False"]
    ), done.stderr
