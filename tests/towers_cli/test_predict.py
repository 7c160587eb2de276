"""`towers-predict`, and the final model that it asks."""

import errno
import functools
import os

import keras
import numpy as np
import pytest
import toys
from PIL import Image

import towers
from input_pipeline import arrays, datasets, raw_images
from towers_cli import predict


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


@pytest.mark.parametrize(
    "what", ["none", "unfinished", "gone.keras", "text.keras", "other.keras", "two_channels.keras"]
)
def test_what_is_no_model_of_pictures(trained, tmp_path, capsys, what):
    path = tmp_path / what
    if what == "unfinished":
        path.mkdir()
        (path / "config.json").write_bytes((trained / "config.json").read_bytes())
    elif what == "text.keras":
        path.write_text("text")
    elif what == "other.keras":
        toys.classifier().save(path)
    elif what == "two_channels.keras":
        model = keras.Sequential([keras.Input((9, 7, 2)), keras.layers.GlobalMaxPooling2D()])
        raw_images.classifier(model, image_shape=(9, 7, 2), class_names=("a", "b")).save(path)
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
