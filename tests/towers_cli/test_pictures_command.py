"""train.py, eval.py and towers-predict on a folder of pictures of different sizes."""

import csv
import json
import os
import signal
import sys
import time
import types

import forked
import numpy as np
import photos
import pytest
import scripts
from PIL import Image

from input_pipeline import datasets, images, mixing
from towers_cli import build, check_pictures, pictures, settings, tally

STEPS = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return photos.folder(tmp_path_factory.mktemp("data") / "pictures", 12)


def flags(folder, run, *more: str) -> list[str]:
    """Six steps of 24 pictures, in eight microbatches."""
    return [
        f"--train_dir={run}",
        "--dataset=folder",
        f"--data_dir={folder}",
        "--image_size=24",
        "--preprocessing=random_resized_crop",
        "--global_batch_size=24",
        "--microbatch_size=3",
        "--intra_op_threads=1",
        "--learning_rate=0.05",
        "--momentum=0.9",
        "--log_every_steps=1",
        "--verify_every_steps=2",
        "--checkpoint_every_steps=2",
        f"--max_steps={STEPS}",
        *more,
    ]


@pytest.fixture(scope="module")
def whole(folder, tmp_path_factory):
    """A run on one tower."""
    run = tmp_path_factory.mktemp("runs") / "run"
    done = scripts.run("train", *flags(folder, run))
    assert done.returncode == 0, done.stderr
    return run


@pytest.mark.long
def test_augmented_pictures_are_the_same_on_any_number_of_towers(folder, whole, tmp_path):
    for towers in (1, 3):
        augmentation = ("--augment=trivial_augment", "--random_erasing=0.5")
        augmentation += ("--mixup_alpha=0.4", "--cutmix_alpha=1", "--microbatch_size=2")
        run = tmp_path / str(towers)
        done = scripts.run("train", *flags(folder, run, *augmentation, f"--num_towers={towers}"))
        assert done.returncode == 0, done.stderr
        said = (
            "augmentation   trivial_augment, random erasing with probability 0.5, "
            "mixup with alpha 0.4, CutMix with alpha 1"
        )
        assert said in scripts.unwrapped(done.stdout)
    scripts.assert_same_run(tmp_path / "3", tmp_path / "1")
    assert scripts.final_summary(tmp_path / "1") != scripts.final_summary(whole)


def test_every_flag_of_augmentation_reaches_the_preprocessing():
    images_ = types.SimpleNamespace(image_shape=(28, 28, 3), class_names=("a", "b"))
    chosen = scripts.settings_of(
        "--preprocessing=pad_crop_flip", "--augment=colour_jitter", "--random_erasing=0.25",
        "--mixup_alpha=0.2", "--cutmix_alpha=1",
    )  # fmt: skip
    found = build.preprocessing(chosen, images_)
    assert (found.augmentation.name, found.augmentation.erasing) == ("colour_jitter", 0.25)
    assert found.mixed == mixing.Mixing(mixup_alpha=0.2, cutmix_alpha=1.0, num_classes=2)


def test_an_augmentation_that_does_not_take_such_images_is_refused():
    grey = types.SimpleNamespace(image_shape=(28, 28, 1), class_names=("0", "1"))
    chosen = scripts.settings_of(
        "--dataset=mnist", "--augment=rand_augment", "--preprocessing=pad_crop_flip"
    )
    said = "--dataset=mnist: rand_augment takes images of 3 channels, but these have 1$"
    with pytest.raises(settings.SettingsError, match=said):
        build.preprocessing(chosen, grey)


@pytest.mark.long
def test_killed_on_one_number_of_towers_and_continued_on_another(folder, whole, tmp_path):
    pause = ["--checkpoint_every_steps=2", "--summary_every_steps=3"]  # which takes a while
    process = scripts.start("train", *flags(folder, tmp_path, *pause))
    while not scripts.checkpoint_steps(tmp_path):
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert not (tmp_path / "final_model.json").exists()
    done = scripts.run("train", *flags(folder, tmp_path, "--num_towers=3"))
    assert done.returncode == 0, done.stderr
    assert "continuing at step " in done.stdout
    scripts.assert_same_run(tmp_path, whole)


def test_the_table_says_where_the_pictures_are(folder, tmp_path):
    done = scripts.run("train", *flags(folder, tmp_path, "--dry_run"))
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert f"pictures in {folder}, every 10th for test by a hash of its path" in said
    assert not list(tmp_path.iterdir())


class TestEvaluation:
    def test_has_the_accuracy_of_the_training(self, whole):
        done = scripts.run("eval", f"--train_dir={whole}")
        assert done.returncode == 0, done.stderr
        line = scripts.lines_of(whole / "eval.jsonl")[-1]
        final = scripts.final_summary(whole)
        for name in ("accuracy", "cross_entropy"):
            assert line[name] == pytest.approx(final[f"val_{name}"], abs=1e-6)

    def test_of_other_pictures_is_of_all_of_them(self, whole, tmp_path):
        photos.folder(tmp_path / "new", 5, first=50)
        done = scripts.run("eval", f"--train_dir={whole}", f"--data_dir={tmp_path / 'new'}")
        assert done.returncode == 0, done.stderr
        assert "all split, 15 examples, each once" in done.stdout
        line = scripts.lines_of(whole / "eval.jsonl")[-1]
        assert line["dataset"] == f"folder {tmp_path / 'new'}"

    def test_of_the_run_s_own_folder_is_of_its_own_split(self, whole, folder):
        spelled = folder / ".." / folder.name
        done = scripts.run("eval", f"--train_dir={whole}", f"--data_dir={spelled}")
        assert done.returncode == 0, done.stderr
        assert "test split" in done.stdout
        assert scripts.lines_of(whole / "eval.jsonl")[-1]["dataset"] == "folder"

    def test_of_pictures_of_one_class(self, whole, tmp_path):
        photos.folder(tmp_path / "new", 5, first=50)
        for name in ("ant", "bee"):
            os.rename(tmp_path / "new" / name, tmp_path / name)
        done = scripts.run("eval", f"--train_dir={whole}", f"--data_dir={tmp_path / 'new'}")
        assert done.returncode == 0, done.stderr
        line = scripts.lines_of(whole / "eval.jsonl")[-1]
        assert line["count"] == 5

    def test_of_another_class_is_refused(self, whole, tmp_path):
        photos.folder(tmp_path / "new", 2)
        os.rename(tmp_path / "new" / "ant", tmp_path / "new" / "dog")
        done = scripts.run("eval", f"--train_dir={whole}", f"--data_dir={tmp_path / 'new'}")
        assert done.returncode == 1
        assert "'dog' is not a class of the set, which has ant, bee, cow" in done.stderr


class TestWhatAPersonLooksAt:
    def test_a_sheet_of_the_first_batch(self, folder, tmp_path):
        sheet = tmp_path / "batch.png"
        done = scripts.run("train", *flags(folder, tmp_path / "run", f"--show_batch={sheet}"))
        assert (done.returncode, done.stderr) == (0, "")
        assert f"{sheet}: 24 of 24 images of the first batch" in done.stdout
        assert not (tmp_path / "run").exists()
        with Image.open(sheet) as image:
            pixels = np.asarray(image.convert("RGB"))
        assert pixels.shape[1] > pixels.shape[0] > 300  # three rows of eight
        # Its first image is of the class that the batch begins with, by its colour.
        chosen = datasets.load("folder", str(folder), "train", image_size=24)
        how = images.preprocessing("random_resized_crop", chosen)
        batch = next(images.training(chosen, how, 0).batches(0, 1, global_batch_size=24))
        strongest = pixels[10:110, 10:110].mean(axis=(0, 1)).argmax()
        assert strongest == batch[1].numpy()[0]

    def test_a_mixed_image_has_the_names_of_its_classes(self):
        names = ("ant", "bee", "cow")
        for label, expected in (
            (np.int32(1), "bee"),
            (np.array([0, 0, 1], np.float32), "cow"),
            (np.array([0.3, 0.7, 0], np.float32), "70% bee, 30% ant"),
            (np.array([0.999, 0, 0.001], np.float32), "ant"),
        ):
            assert pictures._caption(label, names) == expected

    def test_a_sheet_that_cannot_be_written(self, folder, tmp_path):
        sheet = tmp_path / "no" / "batch.png"
        done = scripts.run("train", *flags(folder, tmp_path / "run", f"--show_batch={sheet}"))
        assert done.returncode == 1
        assert (
            done.stderr
            == f"train.py: error: {sheet}: cannot be written: No such file or directory\n"
        )

    def test_a_sheet_and_a_dry_run(self, folder, tmp_path):
        asked = [f"--show_batch={tmp_path / 'a.png'}", "--dry_run"]
        done = scripts.run("train", *flags(folder, tmp_path / "run", *asked))
        assert done.returncode == 2 and "--dry_run writes none" in done.stderr

    def test_predictions_with_the_names_of_files(self, whole, folder, tmp_path):
        file = tmp_path / "predictions.csv"
        asked = [f"--train_dir={whole}", "--split=all"]
        done = scripts.run("eval", *asked, f"--write_predictions={file}")
        assert done.returncode == 0, done.stderr
        with open(file, newline="") as opened:
            rows = list(csv.DictReader(opened))
        assert [row["name"] for row in rows] == sorted(
            str(path.relative_to(folder)) for path in folder.glob("*/*.jpg")
        )
        assert all(row["name"].startswith(row["class"]) for row in rows)
        line = scripts.lines_of(whole / "eval.jsonl")[-1]
        right = [row["class"] == row["predicted"] for row in rows]
        assert [row["correct"] == "1" for row in rows] == right
        assert sum(right) / len(rows) == pytest.approx(line["accuracy"])
        losses = [float(row["loss"]) for row in rows]
        assert np.mean(losses) == pytest.approx(line["cross_entropy"], rel=1e-4)
        assert list(tmp_path.iterdir()) == [file]

    def test_the_most_confused_are_those_of_the_largest_loss(self, folder):
        split = datasets.load("folder", str(folder), "all", image_size=24)
        losses, labels = np.zeros(36), np.repeat(np.arange(3), 12)
        predicted, in_top = labels.copy(), labels >= 0
        seen = tally.Evaluation(losses, labels, predicted, in_top, np.zeros((3, 3)))
        assert pictures.most_confused(seen, split) is None
        predicted[[3, 20]], losses[[3, 20]] = 2, [1.0, 5.0]
        losses[30] = 9.0  # right all the same
        sheet = pictures.most_confused(seen, split)
        assert sheet.shape[1] < 300  # two of them
        first, second = sheet[10:110, 10:110], sheet[10:110, 130:220]
        assert first.mean(axis=(0, 1)).argmax() == 1 and second.mean(axis=(0, 1)).argmax() == 0


def test_a_changed_picture_is_another_run(tmp_path, whole):
    folder = photos.folder(tmp_path / "pictures", 12)
    first = scripts.run("train", *flags(folder, tmp_path / "run", "--max_steps=2"))
    assert first.returncode == 0, first.stderr
    content = photos.encoded(photos.picture(30, 30, 99), quality=91)
    (folder / "ant" / "003.jpg").write_bytes(content)
    done = scripts.run("train", *flags(folder, tmp_path / "run"))
    assert done.returncode == 1
    assert "holds a run with other settings: sha256 of the images" in done.stderr


def test_the_final_model_takes_pictures(whole, folder):
    picture = folder / "cow" / "001.jpg"
    call = [sys.executable, "-m", "towers_cli.predict", str(whole), str(picture)]
    done = forked.run(call, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{picture}: ") and done.stdout.count("%") == 3


@pytest.fixture
def broken(tmp_path):
    """A folder in which one picture of the training is no picture."""
    folder = photos.folder(tmp_path / "pictures", 12)
    (folder / "bee" / "003.jpg").write_bytes(b"<html>not found</html>")
    return folder


def test_a_broken_picture_ends_a_run_with_a_sentence(broken, tmp_path):
    done = scripts.run("train", *flags(broken, tmp_path / "run"))
    assert done.returncode == 1
    assert "bee/003.jpg is not JPEG" in done.stderr and "skip_broken" in done.stderr
    assert done.stderr.count("\n") == 1


def test_broken_pictures_are_skipped_where_asked_for(broken, tmp_path):
    done = scripts.run("train", *flags(broken, tmp_path / "run", "--skip_broken"))
    assert done.returncode == 0, done.stderr
    assert "skipped: bee/003.jpg is not JPEG" in done.stderr
    evaluated = scripts.run("eval", f"--train_dir={tmp_path / 'run'}", "--split=all")
    assert "35 examples, each once" in evaluated.stdout


def test_a_folder_is_checked_by_a_command_of_its_own(broken, folder, capsys):
    assert check_pictures.main([str(folder)]) == 0
    assert "36 pictures, all of them can be used" in capsys.readouterr().out
    assert check_pictures.main([str(broken)]) == 1
    assert "bee/003.jpg is not JPEG" in capsys.readouterr().out
    assert check_pictures.main([str(broken / "nowhere")]) == 1
    assert "nowhere does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("chosen", "code", "said"),
    [
        (["--dataset=folder", "--data_dir="], 1, "dataset=folder needs `data_dir`"),
        (["--dataset=shapes", "--data_dir="], 1, "image_size=24: the images of dataset=shapes"),
        (["--eval_split=val"], 1, "has no split 'val' in"),
        (["--model=resnet50"], 2, "images of 24 x 24 are too small for resnet50"),
        (["--model=EfficientNetB0", "--image_size=32"], 2, "B0: scales raw pixels itself"),
        (["--model=MobileNetV9"], 2, "has no such network; it has MobileNetV"),
    ],
)
def test_what_does_not_fit_is_said(folder, tmp_path, chosen, code, said):
    done = scripts.run("train", *flags(folder, tmp_path / "run", *chosen))
    assert done.returncode == code and said in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_a_network_of_keras_applications(folder, tmp_path):
    """Two towers and one have the same bits; and it goes on."""
    chosen = ["--model=MobileNetV3Small", "--image_size=32"]
    for name, more in [("one", []), ("two", ["--num_towers=2"])]:
        done = scripts.run("train", *flags(folder, tmp_path / name, *chosen, *more))
        assert done.returncode == 0, done.stderr
    scripts.assert_same_run(tmp_path / "one", tmp_path / "two")
    config = json.loads((tmp_path / "one" / "config.json").read_text())
    assert config["settings"]["preprocessing"] == "random_resized_crop"
