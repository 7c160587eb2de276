"""What TensorFlow has no kernels for, and how its runtime starts."""

import sys
import types

import forked
import pytest
import toys

from towers import machine
from towers_cli import build, settings


def check(model, **chosen):
    build._check_has_kernels(types.SimpleNamespace(**chosen), model)


def frozen():
    model = toys.small_resnet()
    model.get_layer("conv1_norm").trainable = False
    return model


@pytest.mark.parametrize(
    "num_gpus, make, is_refused",
    [(1, frozen, True), (0, frozen, False), (1, toys.small_resnet, False)],
)
def test_frozen_batch_norm_is_not_deterministic_on_gpus(monkeypatch, num_gpus, make, is_refused):
    monkeypatch.setattr(machine, "num_devices", lambda kind: num_gpus)
    model = make()
    check(model, deterministic=False)
    if is_refused:
        with pytest.raises(settings.SettingsError, match="the layer conv1_norm is a frozen Fused"):
            check(model, deterministic=True)
    else:
        check(model, deterministic=True)


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
