"""train.py, eval.py and towers-predict on a folder of pictures of different sizes."""

import json
import os
import re
import types

import photos
import pytest
import scripts
import tensorflow as tf

from input_pipeline import mixing
from towers import networks
from towers_cli import build, own_model, settings


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return photos.folder(tmp_path_factory.mktemp("data") / "pictures", 12)


def flags(folder, run, *more: str) -> list[str]:
    """Four steps of 24 pictures, in eight microbatches."""
    data = "--dataset=folder", f"--data_dir={folder}", "--image_size=24"
    how = "--preprocessing=random_resized_crop", "--microbatch_size=3", "--momentum=0.9"
    return [*scripts.small_run(run), *data, *how, *more]


def test_every_flag_of_augmentation_reaches_the_preprocessing():
    """Or is refused, where it does not take such images."""
    flags = ["--preprocessing=pad_crop_flip", "--augment=colour_jitter", "--random_erasing=0.25"]
    chosen = scripts.settings_of(*flags, "--mixup_alpha=0.2", "--cutmix_alpha=1")
    split = types.SimpleNamespace(image_shape=(28, 28, 3), class_names=("a", "b"))
    result = build.preprocessing(chosen, split)
    assert (result.augmentation.name, result.augmentation.erasing) == ("colour_jitter", 0.25)
    assert result.mixed == mixing.Mixing(mixup_alpha=0.2, cutmix_alpha=1.0, num_classes=2)
    split.image_shape = (28, 28, 1)
    with pytest.raises(settings.SettingsError, match="--dataset=.*: colour_jitter takes"):
        build.preprocessing(chosen, split)


def test_an_evaluation_of_other_pictures_is_of_all_of_them(folder, tmp_path):
    run, new = tmp_path / "run", photos.folder(tmp_path / "new", 5, first=50)
    assert scripts.run("train", *flags(folder, run)).returncode == 0
    evaluation = "eval", f"--train_dir={run}", f"--data_dir={new}", "--split=all"
    assert "all split, 15 examples, each once" in scripts.run(*evaluation).stdout
    for name in ("ant", "bee"):
        os.rename(new / name, tmp_path / name)
    assert "all split, 5 examples, each once" in scripts.run(*evaluation).stdout  # of one class
    os.rename(tmp_path / "ant", new / "dog")
    done = scripts.run(*evaluation)
    assert done.returncode == 1
    assert "'dog'" in done.stderr and "'ant', 'bee', 'cow'" in done.stderr


@pytest.mark.long
def test_the_readme_s_command_takes_a_folder(tmp_path):
    """But for fewer steps on smaller pictures."""
    root = photos.folder(tmp_path / "Meine Bilder", 50)
    readme = " ".join((scripts.ROOT / "README.md").read_text().replace("\\", "").split())
    command = re.search(r"python train.py (--dataset=folder .*?) python", readme)[1]
    flags = [flag for flag in command.split() if not flag.startswith(("--data_dir", "--train_dir"))]
    places = f"--data_dir={root}", f"--train_dir={tmp_path / 'run'}"
    done = scripts.run("train", *flags, *places, "--max_steps=1", "--image_size=32")
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["resolved"]["class_names"] == ["ant", "bee", "cow"]


@pytest.mark.parametrize(
    ("chosen", "code", "message"),
    [
        (["--dataset=folder", "--data_dir="], 1, "dataset=folder needs `data_dir`"),
        (["--dataset=shapes", "--data_dir="], 1, "image_size=24: the images of dataset=shapes"),
        (["--eval_split=val"], 1, "has no split 'val'"),
        (["--model=resnet50"], 2, "images of 24 x 24 are too small for resnet50"),
        (["--model=EfficientNetB0", "--image_size=32"], 2, "scales raw pixels itself"),
        (["--model=MobileNetV9"], 2, "no attribute 'MobileNetV9'"),
    ],
)
def test_what_does_not_fit_is_said(folder, tmp_path, chosen, code, message):
    done = scripts.run("train", *flags(folder, tmp_path / "run", *chosen))
    assert done.returncode == code and message in done.stderr, done.stderr
    assert not (tmp_path / "run").exists()


def test_a_network_of_keras_applications_has_logits():
    model = networks.build(own_model.network("MobileNetV3Small"), (32, 32, 3), 5)
    assert abs(float(tf.reduce_sum(model(tf.ones((1, 32, 32, 3))))) - 1) > 0.01


@pytest.mark.long
def test_a_network_of_keras_applications(folder, tmp_path):
    """Two towers and one have the same bits."""
    chosen = ["--model=MobileNetV3Small", "--image_size=32"]
    for name, more in [("one", []), ("two", ["--num_towers=2"])]:
        done = scripts.run("train", *flags(folder, tmp_path / name, *chosen, *more))
        assert done.returncode == 0, done.stderr
    scripts.assert_same_run(tmp_path / "one", tmp_path / "two")
    config = json.loads((tmp_path / "one" / "config.json").read_text())
    assert config["settings"]["preprocessing"] == "random_resized_crop"
