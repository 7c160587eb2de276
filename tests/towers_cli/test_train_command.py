"""`train.py`: what a run leaves and says; that it goes on where it was stopped, however it was.

Most tests run the script in their own process (scripts.py); signals, the exported model and a
silent stderr are tested on real ones.
"""

import dataclasses
import json
import math
import re
import shutil
import signal
import sys

import forked
import keras
import lighter
import numpy as np
import pytest
import scripts
import tensorflow as tf
import tiny_photos

from input_pipeline import batches, datasets
from towers import distribution, schedules
from towers_cli import resolve, settings

COMPUTED_KEYS = ["accuracy", "cross_entropy", "loss", "top5_accuracy"]
EVALUATION_KEYS = [
    *("step", "examples_seen", "epoch"), *COMPUTED_KEYS, *(f"val_{key}" for key in COMPUTED_KEYS)
]  # fmt: skip
TRAINING_KEYS = {
    *("step", "examples_seen", "epoch", "learning_rate", "weight_decay", *COMPUTED_KEYS),
    *("examples_per_second", "step_seconds"),
}
NUM_TRAIN = 5000  # of `shapes`


pytestmark = pytest.mark.usefixtures("cache")


WHOLE_RUN = (
    "--num_towers=2",
    "--microbatch_size=6",
    "--max_steps=7",
    "--checkpoint_every_steps=2",
    "--checkpoints_to_keep=2",
    "--summary_every_steps=3",
    "--moving_average_decay=0.5",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("whole") / "deep" / "run"


@pytest.fixture(scope="module")
def done(forked_command, folder):
    with lighter.only(()):
        return forked_command("train.py", *scripts.small_run(folder), *WHOLE_RUN)


@pytest.mark.whole_program
@pytest.mark.usefixtures("whole_runs")
class TestARun:
    """One run of two towers as a process, and what it leaves."""

    def test_is_quiet_and_succeeds(self, done):
        assert done.stderr == ""
        assert done.returncode == 0

    @pytest.mark.pitfall(3, 4, 22)
    def test_begins_with_a_table(self, done, folder):
        table = [
            line for line in scripts.unwrapped(done.stdout).splitlines() if line.startswith("  ")
        ]
        said = dict(re.split(r"  +", line.strip(), maxsplit=1) for line in table)
        assert said["run"] == str(folder)
        assert "5,000 train, 1,000 test, 10 classes" in said["data"]
        assert said["model"] == "cifarnet, float32, images 24 x 24 x 3"
        assert said["towers"] == "2 on /CPU:0, /CPU:1"
        assert said["batch"] == "24 global, 4 microbatches of at most 6, 2 for each tower"
        assert said["steps"] == "7, 208.3 per epoch"
        assert said["learning rate"] == "0.1, x 0.1 every 350 epochs"
        assert "0.004 on hidden_dense_kernels" in said["weight decay"]
        assert said["warning"].startswith("the run ends at epoch 0.0336, before the learning rate ")

    def test_says_how_each_step_went(self, done):
        lines = [line for line in done.stdout.splitlines() if line.startswith("step ")]
        pattern = (
            r"step (\d+)/7  epoch 0\.0\d  loss \d+\.\d{4}  accuracy \d+\.\d%  rate 0\.1  "
            r"[\d,]+ examples/s  time left \d+s"
        )
        assert [int(re.fullmatch(pattern, line)[1]) for line in lines] == [1, 2, 3, 4, 5, 6, 7]

    def test_ends_with_the_model_and_the_command_to_watch_it(self, done, folder):
        finished, watch = done.stdout.splitlines()[-2:]
        sha256 = scripts.final_summary(folder)["weights_sha256"]
        accuracy = scripts.final_summary(folder)["val_accuracy"]
        assert finished == (
            f"finished: test accuracy {accuracy:.2%}, {folder}/final_model.keras, "
            f"weights sha256 {sha256[:16]}"
        )
        assert re.fullmatch(rf"watch it: \S*tensorboard --logdir {re.escape(str(folder))}", watch)

    def test_leaves_the_promised_files(self, done, folder):
        names = {path.name for path in folder.iterdir() if "tfevents" not in path.name}
        assert names == {
            "config.json",
            "metrics.jsonl",
            "checkpoints",
            "train",
            "eval",
            "final_model.keras",
            "final_model.json",
        }

    @pytest.mark.pitfall(3, 10)
    def test_config_holds_every_setting_resolved(self, done, folder):
        config = json.loads((folder / "config.json").read_text())
        chosen, derived = config["settings"], config["resolved"]
        given = scripts.settings_of(*scripts.small_run(folder), *WHOLE_RUN)
        assert set(chosen) == set(settings.recorded_names())
        filled_in = {
            "preprocessing": "crop_flip_colour",
            "weight_decay": 0.004,
            "weight_decay_filter": "hidden_dense_kernels",
        }
        for name, value in (settings.recorded(given) | filled_in).items():
            assert chosen[name] == (list(value) if isinstance(value, tuple) else value)
        assert derived["tower_devices"] == ["/CPU:0", "/CPU:1"]
        assert (derived["towers_of_workers"], derived["num_microbatches"]) == ([2], 4)
        assert derived["steps_per_epoch"] == NUM_TRAIN / 24
        assert derived["examples_per_epoch"] == NUM_TRAIN
        assert derived["last_step"] == 7
        assert len(derived["class_names"]) == 10
        [began] = config["stretches"]
        assert began["runs_on"]["tensorflow"] == tf.__version__
        assert {"keras", "numpy", "python", "processor", "git revision"} <= set(began["runs_on"])

    @pytest.mark.pitfall(5)
    def test_metrics_name_steps_examples_and_epochs(self, done, folder):
        lines = scripts.training_lines(folder)
        assert [set(line) for line in lines] == [TRAINING_KEYS] * 7
        for step, line in enumerate(lines, start=1):
            assert line["step"] == step
            assert line["examples_seen"] == step * 24
            assert line["epoch"] == step * 24 / NUM_TRAIN

    @pytest.mark.pitfall(9)
    def test_step_seconds_are_those_of_a_step_of_all_towers(self, done, folder):
        for line in scripts.training_lines(folder):
            assert line["step_seconds"] * line["examples_per_second"] == pytest.approx(24)

    @pytest.mark.pitfall(19, 20)
    def test_the_loss_is_the_sum_of_its_terms(self, done, folder):
        first, last = scripts.training_lines(folder)[0], scripts.evaluation_lines(folder)[-1]
        assert first["loss"] == pytest.approx(first["cross_entropy"] + first["weight_decay"])
        assert first["cross_entropy"] == pytest.approx(math.log(10), rel=0.05)
        assert first["weight_decay"] == pytest.approx(2.374, abs=0.001)  # once, for 2 towers
        assert last["val_loss"] - last["val_cross_entropy"] == pytest.approx(2.37, abs=0.01)

    def test_is_evaluated_at_its_end(self, done, folder):
        [line] = scripts.evaluation_lines(folder)
        assert (line["step"], sorted(line)) == (7, sorted(EVALUATION_KEYS))

    def test_checkpoints_are_named_by_step_and_the_newest_are_kept(self, done, folder):
        assert scripts.checkpoint_steps(folder) == [6, 7]

    def test_the_summary_of_the_final_model(self, done, folder):
        summary = scripts.final_summary(folder)
        for name in ("weights_sha256", "state_sha256"):
            assert re.fullmatch("[0-9a-f]{64}", summary.pop(name))
        assert summary == scripts.evaluation_lines(folder)[-1]

    @pytest.mark.pitfall(12)
    def test_plain_keras_loads_the_final_model(self, done, folder, cache_home):
        """As a user does it: what it says of the test images as they are."""
        program = """
import json, sys
import towers
import keras, numpy
from input_pipeline import datasets
model = keras.saving.load_model(sys.argv[1])
test = datasets.load("shapes", None, "test")
found = model.predict(test.images, verbose=0)
names = [test.class_names[label].encode() for label in test.labels]
correct = sum(found["class_name"] == names)
losses = keras.losses.sparse_categorical_crossentropy(test.labels, found["probabilities"])
shape = list(found["probabilities"].shape)
print(json.dumps([shape, int(correct), float(numpy.mean(losses))]))
"""
        call = [sys.executable, "-c", program, str(folder / "final_model.keras")]
        done = forked.run(call, cwd=scripts.ROOT, timeout=120)
        assert done.stderr == ""
        shape, correct, loss = json.loads(done.stdout)
        assert shape == [1000, 10]
        summary = scripts.final_summary(folder)
        assert correct / 1000 == pytest.approx(summary["val_accuracy"], abs=1e-7)
        assert loss == pytest.approx(summary["val_cross_entropy"], abs=1e-5)

    @pytest.mark.pitfall(13)
    def test_nothing_is_called_precision(self, done, folder):
        assert "precision" not in done.stdout.lower()
        for name, content in scripts.contents(folder).items():
            if name.endswith((".json", ".jsonl")) or "tfevents" in name:
                assert b"precision" not in content.lower(), name

    @pytest.mark.pitfall(11)
    def test_a_second_start_changes_nothing(self, done, folder, tmp_path):
        """It needs no checkpoint: nothing comes after it that would use the weights."""
        copied = shutil.copytree(folder, tmp_path / "copied")
        shutil.rmtree(copied / "checkpoints")
        before = scripts.contents(copied)
        for flags in ([], ["--num_towers=1"], ["--max_steps=3"]):
            again = scripts.train(copied, *WHOLE_RUN, *flags)
            assert (again.returncode, again.stderr) == (0, "")
            assert "the run has finished already, at step 7" in again.stdout
        assert scripts.contents(copied) == before


@pytest.mark.whole_program
@pytest.mark.long
def test_tensorflows_notices_are_there_for_who_asks(command, monkeypatch):
    # Refused once TensorFlow is there, unlike a value that is wrong by itself.
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    done = command("train.py", "--parameter_device=gpu")
    assert "oneDNN" in done.stderr or "cpu_feature_guard" in done.stderr
    assert "train.py: error: --parameter_device=" in done.stderr


MOVING_RATE = (  # at every example: warm-up over 50 examples, then cosine to 0 at 160
    "--learning_rate_schedule=cosine",
    "--warmup_epochs=0.01",
    "--train_epochs=0.032",
    "--moving_average_decay=0",
    "--summary_every_steps=0",
    "--microbatch_size=4",
)


@pytest.mark.pitfall(1, 2)
def test_the_learning_rate_is_that_of_the_examples_seen_before(tmp_path):
    """The same number for any number of towers and any global batch."""
    schedule = schedules.LearningRate(
        "cosine", 0.1, NUM_TRAIN, warmup_epochs=0.01, total_epochs=0.032
    )
    for towers, batch in ((1, 16), (4, 16), (2, 32)):
        size = [f"--num_towers={towers}", f"--global_batch_size={batch}"]
        folder = tmp_path / f"{towers}_{batch}"
        done = scripts.train(folder, *MOVING_RATE, *size, f"--max_steps={128 // batch}")
        assert done.returncode == 0, done.stderr
        rates = [line["learning_rate"] for line in scripts.training_lines(folder)]
        expected = [schedule(seen) for seen in range(0, 128, batch)]
        assert np.float32(rates).tolist() == np.float32(expected).tolist()
        assert len(set(rates)) == 128 // batch


@pytest.mark.pitfall(8, 14)
def test_no_batch_is_fetched_for_what_is_shown(tmp_path, monkeypatch):
    """Lines, histograms and images come from the step's own."""
    fetched = []
    original = batches.Source.batches

    def counted(*arguments, **options):
        for images, labels in original(*arguments, **options):
            fetched.append(images.numpy())
            yield images, labels

    monkeypatch.setattr(batches.Source, "batches", counted)
    shown = scripts.train(tmp_path / "shown", "--summary_every_steps=2")
    assert shown.returncode == 0, shown.stderr
    with_summaries = fetched.copy()
    fetched.clear()
    scripts.train(tmp_path / "hidden", "--summary_every_steps=0", "--log_every_steps=4")
    assert len(fetched) >= 4
    np.testing.assert_array_equal(with_summaries, fetched)
    hashes = [scripts.final_summary(tmp_path / name) for name in ("shown", "hidden")]
    assert hashes[0] == hashes[1]


SIX_STEPS = (
    "--max_steps=6",
    "--checkpoint_every_steps=2",
    "--momentum=0.9",
    "--moving_average_decay=0.9",
    "--summary_every_steps=0",
)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Six steps in one go."""
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    done = scripts.train(folder, *SIX_STEPS)
    assert done.returncode == 0, done.stderr
    return folder


class TestGoingOn:
    """The same six steps after a stop."""

    @pytest.mark.pitfall(11, 28, 31)
    def test_ends_with_the_same_weights_and_metrics(self, uninterrupted, tmp_path):
        """In a folder that was moved meanwhile, with another number of towers each time."""
        for towers, end in ((1, 3), (4, 4), (2, 6)):
            folder = tmp_path / str(end)
            done = scripts.train(folder, *SIX_STEPS, f"--num_towers={towers}", f"--max_steps={end}")
            assert done.returncode == 0, done.stderr
            assert scripts.final_summary(folder)["step"] == end
            shutil.move(folder, tmp_path / {3: "4", 4: "6", 6: "end"}[end])
        assert "\ncontinuing at step 4\n" in done.stdout
        scripts.assert_same_run(tmp_path / "end", uninterrupted)

    def test_keeps_the_microbatches_it_began_with(self, uninterrupted, tmp_path):
        scripts.train(tmp_path, *SIX_STEPS, "--max_steps=2")
        scripts.train(tmp_path, *SIX_STEPS, "--microbatch_size=0", "--num_towers=3")
        scripts.assert_same_run(tmp_path, uninterrupted)

    @pytest.mark.whole_program
    @pytest.mark.pitfall(11, 28)
    def test_goes_on_after_signals(self, uninterrupted, tmp_path, cache_home):
        """SIGTERM, then the same command and Ctrl-C, then the same command to the end."""
        folder = tmp_path / "run"
        command = [*scripts.small_run(folder), *SIX_STEPS, "--max_steps=50000"]
        steps = [0]
        for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
            process = scripts.start(cache_home, "train", *command)
            scripts.wait_for_line(process, f"step {steps[-1] + 2}/")
            process.send_signal(number)
            stdout, stderr = process.communicate(timeout=60)
            assert (process.returncode, stderr) == (code, "")
            last = stdout.splitlines()[-1]
            said = re.fullmatch(
                r"stopped at step (\d+), and saved: .*",
                last,
            )
            assert said, last
            assert (folder / "checkpoints" / f"step-{said[1]}").exists()
            assert not (folder / "final_model.json").exists()
            assert scripts.training_lines(folder)[-1]["step"] == int(said[1])
            steps.append(int(said[1]))
        assert steps[2] > steps[1]
        # Where it stands now is up to the clock, so the comparison runs to a little further.
        end = f"--max_steps={steps[2] + 2}"
        assert scripts.train(folder, *SIX_STEPS, end).returncode == 0
        assert scripts.train(tmp_path / "in_one_go", *SIX_STEPS, end).returncode == 0
        scripts.assert_same_run(folder, tmp_path / "in_one_go")

    def test_a_run_killed_while_it_exported_writes_its_lines_once(self, uninterrupted, tmp_path):
        folder = tmp_path / "run"
        shutil.copytree(uninterrupted, folder)
        (folder / "final_model.json").unlink()
        assert scripts.train(folder, *SIX_STEPS).returncode == 0
        scripts.assert_same_run(folder, uninterrupted)
        assert scripts.evaluation_lines(folder) == scripts.evaluation_lines(uninterrupted)


@pytest.mark.parametrize("name", ["train", "eval"])
def test_ctrl_c_before_the_first_step_ends_in_one_line(tmp_path, monkeypatch, short_run, name):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(datasets, "load", interrupted)
    folder = short_run if name == "eval" else tmp_path / "run"
    done = scripts.run(name, f"--train_dir={folder}")
    assert (done.returncode, done.stderr) == (130, "")
    assert re.fullmatch(r"stopped.*\n", done.stdout)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("schedule", "refused"), [("exponential", False), ("cosine", True)])
def test_the_end_moves_unless_the_rate_depends_on_it(tmp_path, schedule, refused):
    flags = ["--max_steps=100", "--summary_every_steps=0", f"--learning_rate_schedule={schedule}"]
    scripts.train(tmp_path, *flags, "--train_epochs=0.0096")
    assert scripts.final_summary(tmp_path)["step"] == 2
    before = scripts.contents(tmp_path)
    done = scripts.train(tmp_path, *flags, "--train_epochs=0.0192")
    if refused:
        assert done.returncode == 1
        assert "--train_epochs=0.0192 (the run has 0.0096)" in done.stderr
        assert scripts.contents(tmp_path) == before
    else:
        assert scripts.final_summary(tmp_path)["step"] == 4
        assert [line["step"] for line in scripts.evaluation_lines(tmp_path)] == [2, 4]


@pytest.fixture(scope="module")
def short_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("short") / "run"
    done = scripts.train(folder, "--max_steps=1", "--momentum=0.9", "--summary_every_steps=0")
    assert done.returncode == 0, done.stderr
    return folder


class TestAnotherRun:
    SAME = ("--max_steps=9", "--momentum=0.9", "--summary_every_steps=0")

    @pytest.mark.pitfall(11)
    @pytest.mark.parametrize(
        ("flags", "named"),
        [
            (["--global_batch_size=48"], ["--global_batch_size=48 (the run has 24)"]),
            (["--microbatch_size=6"], ["--microbatch_size=6 (the run has 12)"]),
            (["--nesterov"], ["--nesterov=True (the run has False)"]),
            (["--weight_decay=0.001"], ["--weight_decay=0.001 (the run has 0.004)"]),
            (
                ["--model=resnet"],
                [
                    "--model=resnet (the run has cifarnet)",
                    "--preprocessing=pad_crop_flip (the run has crop_flip_colour)",
                    "--weight_decay=0.0001 (the run has 0.004)",
                    "--weight_decay_filter=kernels (the run has hidden_dense_kernels)",
                ],
            ),
            (
                ["--optimizer=adam", "--momentum=0"],
                ["--optimizer=adam (the run has sgd)", "--momentum=0.0 (the run has 0.9)"],
            ),
        ],
    )
    def test_is_refused_by_name_and_leaves_the_folder_alone(self, short_run, flags, named):
        before = scripts.contents(short_run)
        done = scripts.train(short_run, *self.SAME, *flags)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"train.py: error: --train_dir={short_run} holds a run with")
        assert done.stderr.count("\n") == 1
        for difference in named:
            assert difference in done.stderr
        assert done.stderr.count("(the run has") == len(named)
        assert scripts.contents(short_run) == before

    @pytest.mark.parametrize(
        ("change", "named"),
        [
            (
                lambda data: {"fingerprint": "f" * 64},
                ["sha256 of the images ffffffffffff (", "sha256 of the test images ffffffffffff ("],
            ),
            (lambda data: {"class_names": data.class_names[::-1]}, ["names of the classes "]),
        ],
    )
    def test_on_other_data_under_the_same_name_is_refused(
        self, short_run, monkeypatch, change, named
    ):
        original = datasets.load

        def other(*arguments, **options):
            data = original(*arguments, **options)
            return dataclasses.replace(data, **change(data))

        monkeypatch.setattr(datasets, "load", other)
        before = scripts.contents(short_run)
        done = scripts.train(short_run, *self.SAME)
        assert done.returncode == 1
        for difference in named:
            assert difference in done.stderr
        assert scripts.contents(short_run) == before


def test_a_final_model_that_is_gone_is_exported_again(tmp_path, short_run):
    folder = tmp_path / "run"
    shutil.copytree(short_run, folder)
    whole = scripts.final_summary(folder)
    (folder / "final_model.keras").unlink()
    same = ["--max_steps=1", "--momentum=0.9", "--summary_every_steps=0"]
    done = scripts.train(folder, *same)
    assert (done.returncode, done.stderr) == (0, "")
    assert "finished already" not in done.stdout
    assert scripts.final_summary(folder) == whole
    keras.saving.load_model(folder / "final_model.keras")


@pytest.mark.whole_program
@pytest.mark.long
def test_a_configuration_of_keras_does_not_decide_a_run(tmp_path, command, monkeypatch):
    flags = ["--summary_every_steps=0", "--max_steps=2"]
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    content = {"floatx": "float16", "image_data_format": "channels_first", "epsilon": 0.1}
    (tmp_path / "keras.json").write_text(json.dumps(content | {"backend": "tensorflow"}))
    small = scripts.small_run(tmp_path / "other")
    script = scripts.lighter_train(tmp_path)
    done = command(script, *small, *flags, "--optimizer=adam", "--learning_rate=0.001")
    assert (done.returncode, done.stderr) == (0, "")
    scripts.train(tmp_path / "own", *flags, "--optimizer=adam", "--learning_rate=0.001")
    assert scripts.final_summary(tmp_path / "other") == scripts.final_summary(tmp_path / "own")


def test_a_loss_that_is_not_finite_stops_the_run_and_no_checkpoint_holds_it(tmp_path):
    flags = ("--learning_rate=1e20", "--checkpoint_every_steps=1", "--max_steps=9")
    done = scripts.train(tmp_path, *flags)
    assert done.returncode == 1
    assert done.stderr.startswith("train.py: error: step 2: a loss or a gradient is NaN or Inf")
    assert done.stderr.count("\n") == 1
    assert scripts.checkpoint_steps(tmp_path) == [1]
    reader = tf.train.load_checkpoint(str(tmp_path / "checkpoints" / "step-1" / "state"))
    types = reader.get_variable_to_dtype_map()
    names = [name for name, dtype in types.items() if dtype == tf.float32]
    assert len(names) > 10
    assert all(np.isfinite(reader.get_tensor(name)).all() for name in names)
    assert not (tmp_path / "final_model.keras").exists()


def test_weights_that_an_update_has_left_infinite_are_not_saved(tmp_path):
    flags = ("--weight_decay=1e6", "--learning_rate=1e38", "--max_steps=1")
    done = scripts.train(tmp_path, *flags)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "error: step 1: the update has left NaN or Inf in local3/kernel" in done.stderr
    assert scripts.checkpoint_steps(tmp_path) == []
    assert not (tmp_path / "final_model.keras").exists()


@pytest.mark.parametrize(
    ("model", "dtype"),
    [
        ("cifarnet", "float16"),
        pytest.param("resnet", "bfloat16", marks=pytest.mark.long),
        pytest.param("fastnet", "float16", marks=pytest.mark.long),
    ],
)
@pytest.mark.pitfall(29)
def test_other_networks_and_dtypes_go_the_same_way(tmp_path, model, dtype):
    flags = (f"--model={model}", f"--compute_dtype={dtype}", "--global_batch_size=20")
    adamw = ("--optimizer=adamw", "--learning_rate=0.001")
    done = scripts.train(tmp_path, *flags, *adamw, "--max_steps=2")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{model}, {dtype}, images" in scripts.unwrapped(done.stdout)
    reader = tf.train.load_checkpoint(str(tmp_path / "checkpoints" / "step-2" / "state"))
    types = reader.get_variable_to_dtype_map()
    weights = [name for name in types if name.startswith(("weights/", "moving_averages/"))]
    assert len(weights) >= 20
    assert {types[name] for name in weights} == {tf.float32}

    assert scripts.run("eval", f"--train_dir={tmp_path}").returncode == 0
    [line], own = scripts.lines_of(tmp_path / "eval.jsonl"), scripts.evaluation_lines(tmp_path)[-1]
    assert line["accuracy"] == pytest.approx(own["val_accuracy"])
    assert line["cross_entropy"] == pytest.approx(own["val_cross_entropy"], abs=1e-6)


def test_a_filter_that_no_weight_passes_is_refused(tmp_path):
    done = scripts.train(
        tmp_path / "run", "--model=resnet", "--weight_decay_filter=hidden_dense_kernels"
    )
    assert done.returncode == 2
    assert "--weight_decay_filter=hidden_dense_kernels: no weight of --model=resnet" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor with shape[8,9]"),
        MemoryError("cannot allocate"),
    ],
    ids=["tensorflow", "python"],
)
def test_too_little_memory_is_said_in_one_line(tmp_path, monkeypatch, error):
    """What TensorFlow and Python say of it; neither can be had here without harm to others."""

    def no_memory(*_, **__):
        raise error

    monkeypatch.setattr(distribution.Distribution, "train_step", no_memory)
    done = scripts.train(tmp_path, "--max_steps=2")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("train.py: error: there is not enough memory for a batch")


def test_other_errors_of_memory_are_not_taken_for_a_full_disk(tmp_path, monkeypatch):
    def no_memory(*_, **__):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    monkeypatch.setattr(tf.summary, "histogram", no_memory)
    with pytest.raises(tf.errors.ResourceExhaustedError):
        scripts.train(tmp_path, "--max_steps=2", "--summary_every_steps=1")


class TestTheProfile:
    def test_that_cannot_be_written_is_said_in_one_line(self, tmp_path, monkeypatch):
        def no_folder(_):
            raise tf.errors.NotFoundError(None, None, "train; No such file or directory")

        monkeypatch.setattr(tf.profiler.experimental, "start", no_folder)
        done = scripts.train(tmp_path, "--max_steps=2", "--profile_steps=1,2")
        assert (done.returncode, done.stderr) == (
            1,
            "train.py: error: TensorBoard's files cannot be written: train; No such file or "
            "directory\n",
        )

    @pytest.mark.long
    def test_begins_where_the_run_goes_on(self, tmp_path):
        scripts.train(tmp_path, "--max_steps=3")
        scripts.train(tmp_path, "--max_steps=5", "--profile_steps=2,4")
        assert list(tmp_path.glob("train/plugins/profile/*/*.xplane.pb"))

    def test_past_the_end_is_refused(self, tmp_path):
        done = scripts.train(tmp_path / "run", "--max_steps=3", "--profile_steps=2,4")
        assert done.returncode == 2
        assert "--profile_steps=2,4: must end by the last step, 3" in done.stderr


@pytest.mark.parametrize(
    ("train_epochs", "max_steps", "batch", "step"),
    [(1.1, None, 10, 5500), (5.0, None, 128, 1954), (5.0, 100, 128, 100), (256.0, 7, 128, 7)],
)
def test_the_last_step_is_the_first_to_reach_the_end(train_epochs, max_steps, batch, step):
    chosen = settings.TrainSettings(
        train_epochs=train_epochs, max_steps=max_steps, global_batch_size=batch
    )
    assert resolve.last_step(chosen, 50_000) == step


@pytest.mark.long
def test_any_tfds_set_of_images_and_labels(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tiny_photos.prepare(tmp_path / "data", size=(32, 32))
    flags = ["--dataset=tiny_photos", f"--data_dir={tmp_path / 'data'}", "--model=cifarnet"]
    done = scripts.run("train", *scripts.small_run(tmp_path / "run"), *flags)
    assert (done.returncode, done.stderr) == (0, "")
    evaluated = scripts.run("eval", f"--train_dir={tmp_path / 'run'}")
    assert "25 train, 25 test, 3 classes" in scripts.unwrapped(done.stdout)
    assert "25 examples, each once" in evaluated.stdout
