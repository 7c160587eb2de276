"""train.py, eval.py and towers-predict on a folder of pictures of different sizes."""

import errno
import functools
import json
import os
import re
import types

import keras
import numpy as np
import photos
import pytest
import scripts
import tensorflow as tf
import toys
from PIL import Image

import towers
from input_pipeline import arrays, datasets, mixing, raw_images
from towers import networks
from towers_cli import build, own_model, predict, settings


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return photos.folder(tmp_path_factory.mktemp("data") / "pictures", 12)


def flags(folder, run, *more: str) -> list[str]:
    """Four steps of 24 pictures."""
    data = "--dataset=folder", f"--data_dir={folder}", "--image_size=24"
    how = "--preprocessing=random_resized_crop", "--momentum=0.9"
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
        (["--dataset=shapes", "--data_dir="], 1, "image_size=24: "),
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


@pytest.fixture(scope="module")
def trained(run_of):
    return run_of("--momentum=0.9", "--max_steps=9", "--moving_average_decay=0.9")


def run_predict(capsys, *arguments):
    code = predict.main([str(argument) for argument in arguments])
    return code, *capsys.readouterr()


def test_the_best_three_classes_of_each_picture(trained, tmp_path, capsys):
    """As the final model has them."""
    shapes = datasets.load("shapes", None, "test")
    images = shapes.images[:5]
    result = keras.saving.load_model(trained / "final_model.keras").predict(images, verbose=0)
    paths = [tmp_path / f"{place}.png" for place in range(5)]
    for path, image in zip(paths, images, strict=True):
        Image.fromarray(image).save(path)
    code, out, err = run_predict(capsys, trained, *paths)
    assert (code, err) == (0, "")
    expected = zip(paths, result["class_name"], result["probabilities"], strict=True)
    for line, (path, name, shares) in zip(out.splitlines(), expected, strict=True):
        best = [f"{shapes.class_names[k]} {shares[k]:.1%}" for k in np.argsort(-shares)[:3]]
        assert line == f"{path}: {', '.join(best)}"
        assert best[0].startswith(name.decode())


def test_a_picture_that_cannot_be_read_does_not_stop_the_others(trained, tmp_path, capsys):
    good, cut, text = (tmp_path / name for name in ("good.png", "cut.png", "text.png"))
    Image.effect_noise((40, 40), 50).save(good)
    cut.write_bytes(good.read_bytes()[:200])
    text.write_text("no picture")
    code, out, err = run_predict(capsys, trained, tmp_path / "none.png", text, cut, tmp_path, good)
    assert code == 1
    assert out.startswith(f"{good}: ") and out.count("\n") == 1
    assert [line.partition(": error: ")[2].partition(": ")[0] for line in err.splitlines()] == [
        str(path) for path in (tmp_path / "none.png", text, cut, tmp_path)
    ]
    assert os.strerror(errno.ENOENT) in err and os.strerror(errno.EISDIR) in err


@pytest.mark.parametrize(
    "what",
    ["none", "unfinished", "gone.keras", "text.keras", "other.keras", "code.keras", "2.keras"],
)
def test_what_is_no_model_of_pictures(trained, tmp_path, capsys, what):
    path = tmp_path / what
    if what == "begun":
        path.mkdir()
        (path / "config.json").write_bytes((trained / "config.json").read_bytes())
    elif what == "text.keras":
        path.write_text("text")
    elif what == "other.keras":
        toys.classifier().save(path)
    elif what in ("code.keras", "2.keras"):
        code = [keras.layers.Lambda(lambda x: x)] * (what == "code.keras")
        shape = (9, 7, 2 + len(code))  # two channels are none of a picture
        model = keras.Sequential([keras.Input(shape), *code, keras.layers.GlobalMaxPooling2D()])
        raw_images.classifier(model, image_shape=shape, class_names="abc"[: shape[2]]).save(path)
    code, out, err = run_predict(capsys, path, "a.png")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("towers-predict: error: ") and str(path) in err
    assert (os.strerror(errno.ENOENT) in err) == (what == "gone.keras")


def test_a_program_s_run_of_pictures(tmp_path, capsys):
    """A model of one's own with `export=`: the final one takes raw pictures."""
    pictures = np.random.default_rng(0).integers(256, size=(24, 9, 7, 1), dtype=np.uint8)
    bright = (pictures.mean(axis=(1, 2, 3)) > 127).astype(np.int32)
    layers = keras.Input((9, 7, 1)), keras.layers.Flatten(), keras.layers.Dense(2)
    model = keras.Sequential(layers)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    names = "dark", "bright"
    export = functools.partial(raw_images.classifier, image_shape=(9, 7, 1), class_names=names)
    run = towers.Run(tmp_path / "run", model, export=export)
    run.fit(arrays.batches(pictures, bright), batch_size=8, epochs=2)
    capsys.readouterr()
    Image.fromarray(pictures[0, ..., 0]).save(tmp_path / "a.png")
    expected = keras.ops.softmax(model(pictures[:1]))[0].numpy()
    code, out, err = run_predict(capsys, tmp_path / "run", tmp_path / "a.png")
    assert (code, err) == (0, "")
    assert f"a.png: {names[expected.argmax()]} {expected.max():.1%}, " in out
