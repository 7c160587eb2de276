"""What the commands build of their settings, and how TensorFlow's runtime starts."""

import sys
from types import SimpleNamespace

import forked
import numpy as np
import photos
import pytest
import scripts
import tensorflow as tf

from towers import networks, worker
from towers_cli import build, settings


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_runtime_has_keras_s_defaults_and_a_deterministic_one_no_tf32(deterministic):
    program = f"""
import os, sys
import keras
import tensorflow as tf
from tensorflow.python.framework import config
from towers_cli import build, settings
os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
keras.config.set_floatx("float16")
keras.config.set_image_data_format("channels_first")
keras.config.set_epsilon(0.1)
build.start_runtime(settings.TrainSettings(intra_op_threads=1, deterministic={deterministic}))
print(keras.config.floatx(), keras.config.image_data_format(), keras.config.epsilon())
print(tf.config.experimental.tensor_float_32_execution_enabled())
print(os.environ.get("CUBLAS_WORKSPACE_CONFIG"), config.is_op_determinism_enabled())
"""
    done = forked.run([sys.executable, "-c", program], timeout=60)
    runtime = ["False", ":4096:8", "True"] if deterministic else ["True", "None", "False"]
    assert done.stdout.split() == ["float32", "channels_last", "1e-07", *runtime], done.stderr


def test_other_workers_read_images_once_the_chief_has(tmp_path):
    class Other(worker.Workers):
        is_chief = False

        def from_chief(self, what, make):
            if not any(tmp_path.iterdir()):
                photos.folder(tmp_path, 50, splits=("train", "test"))

    chosen = scripts.settings_of("--dataset=folder", f"--data_dir={tmp_path}", "--image_size=32")
    assert build.load_data(chosen, Other())[0].class_names == ("ant", "bee", "cow")


SGD = {"momentum": 0.5, "nesterov": True, "global_clipnorm": 2.0, "weight_decay": None}


@pytest.mark.parametrize(
    "flags, config, losses, names, labels",
    [
        ("--optimizer=sgd --momentum=0.5 --nesterov --clip_norm=2", SGD, 2, "abc", 2),
        ("--optimizer=adamw --label_smoothing=0.5", {"weight_decay": 0.1}, 0, "ab", [0, 1]),
    ],
)
def test_flags_reach_weights_optimizer_loss_and_metrics(flags, config, losses, names, labels):
    """Weights decay in the loss, or in the optimizer; and the loss is of logits."""
    chosen = scripts.settings_of("--seed=5", "--weight_decay=0.1", *flags.split())
    images, prepared = SimpleNamespace(class_names=names), SimpleNamespace(output_shape=(24, 24, 3))
    is_one_hot, count = isinstance(labels, list), len(names)
    model = build.build_model(chosen, images, prepared, "/CPU:0", is_one_hot)
    drawn = networks.build("cifarnet", (24, 24, 3), count, seed=5)
    np.testing.assert_equal(model.get_weights(), drawn.get_weights())
    assert len(model.losses) == losses and config.items() <= model.optimizer.get_config().items()
    model.optimizer.learning_rate = 1.0
    model.optimizer.apply([*map(tf.zeros_like, model.weights)], model.weights)
    pairs = zip(model.get_weights(), drawn.get_weights(), strict=True)
    assert sum((after != before).all() for after, before in pairs) == 2 - losses  # hidden kernels
    labels, logits = tf.constant([labels]), tf.range(1.0, count + 1)[tf.newaxis]
    logs = -np.log(np.exp(logits[0]) / np.exp(logits).sum())
    smoothed = np.dot([1 / 4, 3 / 4] if is_one_hot else [0, 0, 1], logs)
    assert float(model.loss(labels, logits)) == pytest.approx(smoothed)
    for metric, value in zip(build.make_metrics(count, is_one_hot), [1, 1, logs[-1]], strict=True):
        assert float(metric(labels, logits)) == pytest.approx(value)


@pytest.mark.parametrize("side, count", [(1, 5_000), (2**11, 16), (2**15, 1)])
def test_a_network_adapts_to_as_many_images_as_256_mib_hold_in_float32(side, count):
    asked = []
    images = SimpleNamespace(class_names="ab", image_shape=(side, side, 1), some=asked.append)
    prepared = SimpleNamespace(output_shape=(9, 9, 3), evaluate=lambda _: tf.ones((1, 9, 9, 3)))
    build.build_model(scripts.settings_of("--model=fastnet"), images, prepared, "/CPU:0", False)
    assert asked == [count]


def test_a_run_has_the_callbacks_that_it_needs():
    chosen = settings.TrainSettings(moving_average_decay=0.0, summary_every_steps=0)
    made = build.make_callbacks(chosen, None, None, 4)
    assert [type(one).__name__ for one in made] == ["LearningRate", "Log"]


def test_a_runtime_that_has_started_keeps_its_threads():
    tf.zeros(())  # as a module of --model may have it
    with pytest.raises(settings.SettingsError, match="--model=mine:build: "):
        build.start_runtime(settings.TrainSettings(model="mine:build", intra_op_threads=999))
