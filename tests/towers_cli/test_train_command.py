"""`train.py`: what a run leaves and says; that it goes on where it was stopped, however it was.

Most tests run the script in their own process (scripts.py); signals, the exported model and a
silent stderr are tested on real ones.
"""

import dataclasses
import json
import math
import os
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

from input_pipeline import batches
from towers import schedules, trainer
from towers.runs import resuming, run_folder, summaries
from towers.runs.loop import Outcome
from towers.support import container_limits
from towers_cli import settings, start_table

TRAINING_KEYS = [
    "step",
    "examples_seen",
    "epoch",
    "learning_rate",
    "loss",
    "cross_entropy",
    "weight_decay",
    "accuracy",
    "examples_per_second",
    "step_seconds",
]
EVALUATION_KEYS = ["step", "epoch", "split", "count", "accuracy", "top5_accuracy", "loss"]
NUM_TRAIN = 5000  # of `shapes`


pytestmark = pytest.mark.usefixtures("cache")


WHOLE_RUN = (
    "--num_towers=2",
    "--num_microbatches=4",
    "--max_steps=7",
    "--checkpoint_every_steps=2",
    "--checkpoints_to_keep=2",
    "--summary_every_steps=3",
    "--eval_every_epochs=0.0144",  # 3 steps of 24
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
        assert said["batch"] == "24 global, 4 microbatch(es) of 6, 2 for each tower"
        assert said["steps"] == "7, 208.3 per epoch"
        assert said["learning rate"] == "0.1, x 0.1 every 350 epochs"
        assert "0.004 on hidden_dense_kernels" in said["weight decay"]
        assert said["reduction"].startswith("mean of the gradients over microbatches")
        assert said["warning"].startswith("the run ends at epoch 0.0336, before the learning rate ")
        assert said["warning"].endswith("first decays at epoch 350")

    @pytest.mark.parametrize(
        "emulates, device, compute_dtype, jit_compile, warns",
        [
            (True, "/CPU:0", "bfloat16", False, True),
            (True, "/CPU:0", "float16", False, True),
            (True, "/CPU:0", "bfloat16", True, False),
            (True, "/CPU:0", "float32", False, False),
            (True, "/GPU:0", "bfloat16", False, False),
            (False, "/CPU:0", "bfloat16", False, False),
        ],
    )
    def test_warns_of_a_type_that_the_processor_emulates(
        self, done, folder, monkeypatch, emulates, device, compute_dtype, jit_compile, warns
    ):
        config = json.loads((folder / "config.json").read_text())
        config["settings"] |= {"compute_dtype": compute_dtype, "jit_compile": jit_compile}
        config["resolved"]["tower_devices"] = [device]
        monkeypatch.setattr(start_table.machine, "emulates_half_precision", lambda: emulates)
        table = start_table.rows(config, schedules.LearningRate("exponential", 0.1, 5000), 1000)
        warnings = [said for name, said in table if name == "warning"]
        assert warnings[0].startswith("the run ends at epoch 0.0336")
        assert [said.split(" on this")[0] for said in warnings[1:]] == (
            [f"TensorFlow has no fast {compute_dtype}"] if warns else []
        )

    def test_says_how_each_step_went(self, done):
        lines = [line for line in done.stdout.splitlines() if line.startswith("step ")]
        pattern = (
            r"step (\d+)/7  epoch 0\.0\d  loss \d+\.\d{4}  accuracy \d+\.\d%  rate 0\.1  "
            r"[\d,]+ examples/s  time left \d+s"
        )
        assert [int(re.fullmatch(pattern, line)[1]) for line in lines] == [1, 2, 3, 4, 5, 6, 7]

    def test_the_table_promises_no_bits_on_gpus(self, done, folder):
        from towers_cli import start_table

        config = json.loads((folder / "config.json").read_text())
        rate = schedules.LearningRate("constant", 0.1, 5000)
        said = dict(start_table.rows(config, rate, 1000))["same bits"]
        assert said == (
            "on 1 to 4 towers in all, on any number of workers, with --num_microbatches=4 and "
            "--intra_op_threads=1"
        )
        config["resolved"]["tower_devices"] = ["/GPU:0", "/GPU:1"]
        said = dict(start_table.rows(config, rate, 1000))["same bits"]
        launches = (
            "; a tower launches its kernels 2 times a step; in a new run with "
            "--num_microbatches=2, once, with different bits"
        )
        assert said == f"not promised on GPUs without --deterministic{launches}"
        config["settings"]["deterministic"] = True
        said = dict(start_table.rows(config, rate, 1000))["same bits"]
        assert said.startswith("on 1 to 4 towers in all, on any number of workers, with --num_mic")
        assert said.endswith(f"(measured on one kind of GPU){launches}")
        config["resolved"]["microbatches_of_towers"] = [[2, 2, 1, 1, 1]]  # 5 do not divide 24
        said = dict(start_table.rows(config, rate, 1000))["same bits"]
        assert said.endswith("; a tower launches its kernels 2 times a step")
        config["resolved"]["microbatches_of_towers"] = [[1, 1]]
        said = dict(start_table.rows(config, rate, 1000))["same bits"]
        assert said.endswith("(measured on one kind of GPU)")

    @pytest.mark.parametrize(
        ("device", "chosen", "said"),
        [
            ("/CPU:0", {}, None),
            ("/GPU:0", {}, ""),
            ("/GPU:0", {"parameter_device": "gpu"}, ""),
            ("/GPU:0", {"workers": ["one:1", "two:1"]}, None),  # which refuse the first flag
            ("/GPU:0", {"jit_compile": True, "parameter_device": "gpu"}, None),
            ("/GPU:0", {"deterministic": True}, " for networks without max pooling"),
        ],
    )
    def test_the_table_says_what_is_faster_on_gpus(self, done, folder, device, chosen, said):
        from towers_cli import start_table

        config = json.loads((folder / "config.json").read_text())
        config["settings"] |= chosen
        config["resolved"]["tower_devices"] = [device]
        rate = schedules.LearningRate("constant", 0.1, 5000)
        found = dict(start_table.rows(config, rate, 1000)).get("faster")
        flags = f"--parameter_device=gpu and --jit_compile{said}"
        assert found == (
            None if said is None else f"in a new run with {flags}, with different bits"
        )

    @pytest.mark.parametrize(
        ("parts", "cores", "said"),
        [
            (4, 4, "--intra_op_threads=1"),
            (4, 9, "; they use 4 of 9 cores; in a new run, more microbatches would use more, "
                   "with different bits"),
            (4, 7, "--intra_op_threads=1"),  # two for each are too many
            (1, 1, "on 1 tower in all, on any number of workers, with --num_microbatches=1 and "
                   "--intra_op_threads=1"),
        ],
    )  # fmt: skip
    def test_the_table_says_what_the_promise_leaves_idle(self, done, folder, parts, cores, said):
        from towers_cli import start_table

        config = json.loads((folder / "config.json").read_text())
        config["settings"]["num_microbatches"] = parts
        rate = schedules.LearningRate("constant", 0.1, 5000)
        assert dict(start_table.rows(config, rate, 1000, cores))["same bits"].endswith(said)

    def test_what_xla_compiles_shares_its_threads(self, done, folder):
        config = json.loads((folder / "config.json").read_text())
        config["settings"] |= {"jit_compile": True, "intra_op_threads": 8}
        rate = schedules.LearningRate("constant", 0.1, 5000)
        said = dict(start_table.rows(config, rate, 1000, 20))["same bits"]
        assert said.endswith(
            "; they use 8 of 20 cores; in a new run, --intra_op_threads=20 would use more, with "
            "different bits"
        )
        assert "cores" not in dict(start_table.rows(config, rate, 1000, 15))["same bits"]

    def test_all_microbatches_share_the_intra_op_threads(self, done, folder):
        """TensorFlow has one pool of them for a process, so 2 for each of 4 are not 8 at work."""
        config = json.loads((folder / "config.json").read_text())
        config["settings"]["intra_op_threads"] = 2
        rate = schedules.LearningRate("constant", 0.1, 5000)
        said = dict(start_table.rows(config, rate, 1000, 8))["same bits"]
        assert "; they use 2 of 8 cores; " in said

    @pytest.mark.parametrize(
        ("of_workers", "towers", "batch"),
        [
            ([[3, 3, 2]], "3 on /CPU:0, /CPU:1", "3 or 2 for a tower"),
            ([[2, 2], [2, 2]], "2 on each worker, here on /CPU:0, /CPU:1", "2 for each tower"),
            ([[3, 3], [2]], "2, 1 on the workers in their order, here on /C", "3 or 2 for a tower"),
        ],
    )
    def test_the_table_says_what_each_worker_and_tower_has(
        self, done, folder, of_workers, towers, batch
    ):
        from towers_cli import start_table

        config = json.loads((folder / "config.json").read_text())
        config["settings"] |= {"workers": [f"host{i}:1234" for i in range(len(of_workers))]}
        config["resolved"]["microbatches_of_towers"] = of_workers
        table = dict(start_table.rows(config, schedules.LearningRate("constant", 0.1, 5000), 1000))
        assert table["towers"].startswith(towers)
        assert table["batch"].endswith(batch)
        assert table["workers"].startswith(f"{len(of_workers)} (host0:1234")

    def test_ends_with_the_model_and_the_command_to_watch_it(self, done, folder):
        finished, watch = done.stdout.splitlines()[-2:]
        sha256 = scripts.final_summary(folder)["weights_sha256"]
        accuracy = scripts.final_summary(folder)["accuracy"]
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
        assert (derived["microbatches_of_towers"], derived["microbatch_size"]) == ([[2, 2]], 6)
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
        assert [list(line) for line in lines] == [TRAINING_KEYS] * 7
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
        for line in scripts.training_lines(folder):
            assert line["loss"] == pytest.approx(line["cross_entropy"] + line["weight_decay"])
        first = scripts.training_lines(folder)[0]
        assert first["cross_entropy"] == pytest.approx(math.log(10), rel=0.05)
        assert first["weight_decay"] == pytest.approx(2.374, abs=0.001)  # once, for 2 towers

    @pytest.mark.pitfall(12)
    def test_evaluations_count_each_example_once(self, done, folder):
        lines = scripts.evaluation_lines(folder)
        assert [list(line) for line in lines] == [EVALUATION_KEYS] * 3
        assert [line["step"] for line in lines] == [3, 6, 7]
        assert {(line["split"], line["count"]) for line in lines} == {("test", 1000)}
        assert done.stdout.count(" on 1,000 examples") == 3

    def test_checkpoints_are_named_by_step_and_the_newest_are_kept(self, done, folder):
        assert scripts.checkpoint_steps(folder) == [6, 7]

    def test_the_summary_of_the_final_model(self, done, folder):
        summary = scripts.final_summary(folder)
        last = scripts.evaluation_lines(folder)[-1]
        assert re.fullmatch("[0-9a-f]{64}", summary.pop("weights_sha256"))
        assert summary == {
            "step": 7,
            "examples_seen": 168,
            "epoch": 168 / NUM_TRAIN,
            "split": "test",
            **{name: last[name] for name in ("accuracy", "top5_accuracy", "loss", "count")},
        }

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
        assert correct / 1000 == scripts.final_summary(folder)["accuracy"]
        assert loss == pytest.approx(scripts.evaluation_lines(folder)[-1]["loss"], abs=1e-5)

    @pytest.mark.pitfall(13)
    def test_nothing_is_called_precision(self, done, folder):
        assert "precision" not in done.stdout.lower()
        for name, content in scripts.contents(folder).items():
            if name.endswith((".json", ".jsonl")) or "tfevents" in name:
                assert b"precision" not in content.lower(), name

    def test_a_second_start_needs_no_checkpoint(self, done, folder, tmp_path):
        """Nothing comes after it that would use the weights."""
        copied = shutil.copytree(folder, tmp_path / "copied")
        shutil.rmtree(copied / "checkpoints")
        again = scripts.train(copied, *WHOLE_RUN)
        assert (again.returncode, again.stderr) == (0, "")
        assert "the run has finished already, at step 7" in again.stdout

    @pytest.mark.pitfall(11)
    def test_a_second_start_changes_nothing(self, done, folder):
        before = scripts.contents(folder)
        for flags in ([], ["--num_towers=1"], ["--max_steps=3"]):
            again = scripts.train(folder, *WHOLE_RUN, *flags)
            assert (again.returncode, again.stderr) == (0, "")
            assert again.stdout.splitlines()[-3] == "the run has finished already, at step 7"
            assert again.stdout.splitlines()[-2:] == done.stdout.splitlines()[-2:]
        assert scripts.contents(folder) == before


@pytest.mark.whole_program
@pytest.mark.long
def test_tensorflows_notices_are_there_for_who_asks(command, monkeypatch):
    # Refused once TensorFlow is there, unlike a value that is wrong by itself.
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    done = command("train.py", "--num_towers=9")
    assert "oneDNN" in done.stderr or "cpu_feature_guard" in done.stderr
    assert "train.py: error: --num_towers=" in done.stderr


@pytest.mark.pitfall(4)
class TestTheWarningOfARateThatNeverDecays:
    @pytest.mark.parametrize(
        ("flags", "warns"),
        [
            (["--epochs_per_decay=0.02"], True),
            (["--epochs_per_decay=0.01"], False),
            (["--learning_rate_schedule=piecewise", "--decay_epochs=82"], True),
            (["--learning_rate_schedule=cosine", "--train_epochs=0.0192"], False),
            (["--learning_rate_schedule=constant"], False),
        ],
    )
    def test_is_given_where_it_is_true(self, flags, warns, tmp_path, monkeypatch):
        monkeypatch.setattr(resuming, "train", lambda *_: Outcome(None, 0))  # the table is enough
        done = scripts.train(tmp_path, *flags)  # ends at epoch 4 * 24 / 5000 = 0.0192
        assert done.returncode == 0
        said = scripts.unwrapped(done.stdout)
        assert ("warning  " in said) == warns
        assert ("before the learning rate first decays" in said) == warns

    def test_and_where_a_rate_that_falls_to_0_does_not_get_there(self, tmp_path, monkeypatch):
        monkeypatch.setattr(resuming, "train", lambda *_: Outcome(None, 0))
        done = scripts.train(tmp_path, "--learning_rate_schedule=linear", "--train_epochs=9")
        assert (
            "warning        the run ends at epoch 0.0192, before the learning rate has fallen to 0 "
            "at epoch 9\n"
        ) in scripts.unwrapped(done.stdout)


MOVING_RATE = (  # at every example: warm-up over 50 examples, then cosine to 0 at 160
    "--learning_rate_schedule=cosine",
    "--warmup_epochs=0.01",
    "--train_epochs=0.032",
    "--moving_average_decay=0",
    "--summary_every_steps=0",
    "--num_microbatches=0",
)


@pytest.fixture(scope="module")
def rates(tmp_path_factory):
    """Towers and global batch to the rate at each epoch, read from metrics.jsonl."""
    found = {}
    for towers, batch in ((1, 16), (4, 16), (2, 32)):
        folder = tmp_path_factory.mktemp("rate") / "run"
        size = [f"--num_towers={towers}", f"--global_batch_size={batch}"]
        done = scripts.train(folder, *MOVING_RATE, *size, f"--max_steps={128 // batch}")
        assert done.returncode == 0, done.stderr
        lines = scripts.training_lines(folder)
        found[towers, batch] = {line["epoch"]: line["learning_rate"] for line in lines}
    return found


class TestTheLearningRate:
    @pytest.mark.pitfall(1, 2)
    def test_is_the_same_number_at_an_epoch_for_any_number_of_towers(self, rates):
        assert rates[1, 16] == rates[4, 16]
        assert len(set(rates[1, 16].values())) == 8

    @pytest.mark.pitfall(1, 2)
    def test_is_the_same_number_at_an_epoch_for_any_global_batch(self, rates):
        common = set(rates[2, 32]) & set(rates[1, 16])
        assert len(common) == 4
        for epoch in common:
            assert rates[2, 32][epoch] == rates[1, 16][epoch]

    def test_is_that_of_the_schedule(self, rates):
        schedule = schedules.LearningRate(
            "cosine", 0.1, NUM_TRAIN, warmup_epochs=0.01, total_epochs=0.032
        )
        for epoch, rate in rates[1, 16].items():
            assert rate == schedule(round(epoch * NUM_TRAIN))


@pytest.mark.pitfall(8)
def test_each_batch_is_used_once_whatever_is_shown(tmp_path, monkeypatch):
    """Lines, histograms and images come from the step's own batch; no other is fetched for them."""
    fetched = []
    original = batches.training_batches

    def counted(*arguments, **options):
        for images, labels in original(*arguments, **options):
            fetched.append(images.numpy())
            yield images, labels

    monkeypatch.setattr(batches, "training_batches", counted)
    shown = scripts.train(tmp_path / "shown", "--summary_every_steps=2")
    assert shown.returncode == 0, shown.stderr
    assert len(fetched) == 4
    scripts.train(tmp_path / "hidden", "--summary_every_steps=0", "--log_every_steps=4")
    for with_summaries, without in zip(fetched[:4], fetched[4:], strict=True):
        np.testing.assert_array_equal(with_summaries, without)
    hashes = [scripts.final_summary(tmp_path / name) for name in ("shown", "hidden")]
    assert hashes[0] == hashes[1]


SIX_STEPS = (
    "--max_steps=6",
    "--num_microbatches=2",
    "--checkpoint_every_steps=2",
    "--eval_every_epochs=0.0096",  # 2 steps of 24
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
    @pytest.mark.parametrize(
        ("stopped_at", "towers_before", "towers_after"),
        [
            pytest.param(2, 1, 1, marks=pytest.mark.long),
            (3, 1, 2),
            pytest.param(4, 2, 1, marks=pytest.mark.long),
        ],
    )
    def test_ends_with_the_same_weights_and_metrics(
        self, uninterrupted, tmp_path, stopped_at, towers_before, towers_after
    ):
        folder = tmp_path / "run"
        first = scripts.train(
            folder, *SIX_STEPS, f"--max_steps={stopped_at}", f"--num_towers={towers_before}"
        )
        assert first.returncode == 0, first.stderr
        assert scripts.final_summary(folder)["step"] == stopped_at
        second = scripts.train(folder, *SIX_STEPS, f"--num_towers={towers_after}")
        assert f"\ncontinuing at step {stopped_at}\n" in second.stdout
        scripts.assert_same_run(folder, uninterrupted)

    @pytest.mark.long
    def test_so_it_does_on_four_towers_and_then_two(self, tmp_path):
        flags = (*SIX_STEPS, "--num_microbatches=4")
        scripts.train(tmp_path / "whole", *flags)
        for towers, end in ((1, 3), (4, 4), (2, 6)):
            scripts.train(tmp_path / "run", *flags, f"--num_towers={towers}", f"--max_steps={end}")
        scripts.assert_same_run(tmp_path / "run", tmp_path / "whole")

    @pytest.mark.long
    def test_goes_on_in_a_folder_that_was_moved(self, uninterrupted, tmp_path):
        scripts.train(tmp_path / "here", *SIX_STEPS, "--max_steps=4")
        shutil.move(tmp_path / "here", tmp_path / "there")
        scripts.train(tmp_path / "there", *SIX_STEPS)
        scripts.assert_same_run(tmp_path / "there", uninterrupted)

    def test_keeps_the_number_of_microbatches_it_began_with(self, uninterrupted, tmp_path):
        folder = tmp_path / "run"
        scripts.train(folder, *SIX_STEPS, "--max_steps=2")
        scripts.train(folder, *SIX_STEPS, "--num_microbatches=0", "--num_towers=2")
        scripts.assert_same_run(folder, uninterrupted)
        refused = scripts.train(folder, *SIX_STEPS, "--num_microbatches=0", "--num_towers=3")
        assert refused.returncode == 2
        assert "--num_towers=3: must be at most num_microbatches=2" in refused.stderr
        assert "began with 2 microbatch(es)" in refused.stderr

    @pytest.mark.whole_program
    @pytest.mark.pitfall(11, 28)
    def test_goes_on_after_signals(self, uninterrupted, tmp_path, cache_home):
        """SIGTERM, then the same command and Ctrl-C, then the same command to the end."""
        folder = tmp_path / "run"
        flags = [*SIX_STEPS, "--eval_every_epochs=0"]
        command = [*scripts.small_run(folder), *flags, "--max_steps=50000"]
        steps = [0]
        for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
            process = scripts.start(cache_home, "train", *command)
            scripts.wait_for_line(process, f"step {steps[-1] + 2}/")
            process.send_signal(number)
            stdout, stderr = process.communicate(timeout=60)
            assert (process.returncode, stderr) == (code, "")
            last = stdout.splitlines()[-1]
            said = re.fullmatch(
                r"stopped at step (\d+) of 50000; checkpoint saved: the same command continues "
                r"from there",
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
        assert scripts.train(folder, *flags, end).returncode == 0
        assert scripts.train(tmp_path / "in_one_go", *flags, end).returncode == 0
        scripts.assert_same_run(folder, tmp_path / "in_one_go")

    @pytest.mark.whole_program
    @pytest.mark.pitfall(11, 28)
    @pytest.mark.long
    def test_goes_on_after_being_killed(self, tmp_path, cache_home):
        folder = tmp_path / "run"
        flags = ["--checkpoint_every_steps=3", "--eval_every_epochs=0"]
        command = [*scripts.small_run(folder), *SIX_STEPS, *flags]
        process = scripts.start(cache_home, "train", *command, "--max_steps=50000")
        scripts.wait_for_line(process, "step 4/")
        process.kill()
        process.communicate(timeout=60)
        with open(folder / "metrics.jsonl", "a") as file:
            file.write('{"step": 5, "exam')  # as a kill in the middle of a line leaves it
        newest = run_folder.read_lines(folder / "metrics.jsonl")[-1]["step"]
        end = f"--max_steps={newest + 2}"
        done = scripts.train(folder, *SIX_STEPS, *flags, end)
        assert done.returncode == 0, done.stderr
        continued_at = int(re.search(r"continuing at step (\d+)", done.stdout)[1])
        assert continued_at % 3 == 0
        assert continued_at >= newest - 3
        steps = [line["step"] for line in scripts.training_lines(folder)]
        assert steps == list(range(1, newest + 3))
        scripts.train(tmp_path / "in_one_go", *SIX_STEPS, *flags, end)
        scripts.assert_same_run(folder, tmp_path / "in_one_go")

    def test_a_run_killed_before_its_first_checkpoint_starts_over(self, uninterrupted, tmp_path):
        folder = tmp_path / "run"
        folder.mkdir()
        config = json.loads((uninterrupted / "config.json").read_text())
        assert config.pop("first_checkpoint") == 2
        (folder / "config.json").write_text(json.dumps(config))
        line = (uninterrupted / "metrics.jsonl").read_text().splitlines()[0]
        (folder / "metrics.jsonl").write_text(line + "\n")
        done = scripts.train(folder, *SIX_STEPS)
        assert "continuing" not in done.stdout
        scripts.assert_same_run(folder, uninterrupted)

    def test_a_run_killed_while_it_exported_writes_its_lines_once(self, uninterrupted, tmp_path):
        folder = tmp_path / "run"
        shutil.copytree(uninterrupted, folder)
        (folder / "final_model.json").unlink()
        assert scripts.train(folder, *SIX_STEPS).returncode == 0
        scripts.assert_same_run(folder, uninterrupted)
        assert scripts.evaluation_lines(folder) == scripts.evaluation_lines(uninterrupted)

    @pytest.mark.long
    def test_an_evaluation_that_was_missed_is_made_up_for(self, uninterrupted, tmp_path):
        """A signal at a step with an evaluation stops the run before that evaluation."""
        folder = tmp_path / "run"
        scripts.train(folder, *SIX_STEPS, "--max_steps=4")
        (folder / "final_model.json").unlink()
        lines = [line for line in scripts.lines_of(folder / "metrics.jsonl")]
        assert lines.pop()["split"] == "test"
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        scripts.train(folder, *SIX_STEPS)
        scripts.assert_same_run(folder, uninterrupted)
        assert scripts.evaluation_lines(folder) == scripts.evaluation_lines(uninterrupted)


@pytest.mark.parametrize("name", ["train", "eval"])
def test_ctrl_c_before_the_first_step_ends_in_one_line(tmp_path, monkeypatch, short_run, name):
    from input_pipeline import datasets

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(datasets, "load", interrupted)
    folder = short_run if name == "eval" else tmp_path / "run"
    done = scripts.run(name, f"--train_dir={folder}")
    assert (done.returncode, done.stderr) == (130, "")
    assert re.fullmatch(r"stopped.*\n", done.stdout)
    assert not (tmp_path / "run").exists()


class TestTheEndMoves:
    @pytest.mark.parametrize(
        ("schedule", "refused"),
        [
            pytest.param("exponential", False, marks=pytest.mark.long),
            ("cosine", True),
            pytest.param("linear", True, marks=pytest.mark.long),
        ],
    )
    def test_unless_the_rate_depends_on_it(self, tmp_path, schedule, refused):
        schedule = f"--learning_rate_schedule={schedule}"
        flags = ["--max_steps=100", "--summary_every_steps=0", schedule]
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

    def test_but_not_to_before_the_newest_checkpoint(self, tmp_path):
        scripts.train(tmp_path, "--summary_every_steps=0")
        (tmp_path / "final_model.json").unlink()  # as if it had been stopped
        before = scripts.contents(tmp_path)
        done = scripts.train(tmp_path, "--max_steps=3")
        assert done.returncode == 1
        assert "the run is at step 4, past its last step, 3; give it a later end" in done.stderr
        assert done.stderr.count("\n") == 1
        assert scripts.contents(tmp_path) == before


@pytest.fixture(scope="module")
def short_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("short") / "run"
    done = scripts.train(folder, "--max_steps=1", "--momentum=0.9", "--summary_every_steps=0")
    assert done.returncode == 0, done.stderr
    return folder


class TestAnotherRun:
    @pytest.mark.pitfall(11)
    @pytest.mark.parametrize(
        ("flags", "named"),
        [
            (["--global_batch_size=48"], ["--global_batch_size=48 (the run has 24)"]),
            (["--num_microbatches=4"], ["--num_microbatches=4 (the run has 2)"]),
            (["--learning_rate=0.2"], ["--learning_rate=0.2 (the run has 0.1)"]),
            (
                ["--learning_rate_schedule=constant"],
                ["--learning_rate_schedule=constant (the run has exponential)"],
            ),
            (["--seed=1"], ["--seed=1 (the run has 0)"]),
            (["--nesterov"], ["--nesterov=True (the run has False)"]),
            (["--jit_compile"], ["--jit_compile=True (the run has False)"]),
            (["--label_smoothing=0.2"], ["--label_smoothing=0.2 (the run has 0.0)"]),
            (["--weight_decay=0.001"], ["--weight_decay=0.001 (the run has 0.004)"]),
            (["--compute_dtype=bfloat16"], ["--compute_dtype=bfloat16 (the run has float32)"]),
            (["--gradient_reduction=sum"], ["--gradient_reduction=sum (the run has mean)"]),
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
        same = ["--max_steps=9", "--momentum=0.9", "--summary_every_steps=0"]
        done = scripts.train(short_run, *same, *flags)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(
            f"train.py: error: --train_dir={short_run} holds a run with oth"
        )
        assert done.stderr.count("\n") == 1
        for difference in named:
            assert difference in done.stderr
        assert done.stderr.count("(the run has") == len(named)
        assert scripts.contents(short_run) == before

    def test_on_other_images_under_the_same_name_is_refused(self, short_run, monkeypatch):
        from input_pipeline import datasets

        original = datasets.load

        def other_images(*arguments, **options):
            data = original(*arguments, **options)
            return type(data)(**{**vars(data), "fingerprint": "f" * 64})

        monkeypatch.setattr(datasets, "load", other_images)
        done = scripts.train(short_run, "--momentum=0.9", "--max_steps=9")
        assert done.returncode == 1
        assert "sha256 of the images ffffffffffff (the run has " in done.stderr
        assert "sha256 of the test images ffffffffffff (the run has " in done.stderr

    def test_with_other_names_for_the_classes_is_refused(self, short_run, monkeypatch):
        from input_pipeline import datasets

        original = datasets.load

        def other_names(*arguments, **options):
            data = original(*arguments, **options)
            return dataclasses.replace(data, class_names=data.class_names[::-1])

        monkeypatch.setattr(datasets, "load", other_names)
        before = scripts.contents(short_run)
        done = scripts.train(short_run, "--momentum=0.9", "--max_steps=9")
        assert done.returncode == 1
        assert "names of the classes " in done.stderr
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
    flags = ["--summary_every_steps=0", "--num_microbatches=2", "--max_steps=2"]
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    content = {"floatx": "float16", "image_data_format": "channels_first", "epsilon": 0.1}
    (tmp_path / "keras.json").write_text(json.dumps(content | {"backend": "tensorflow"}))
    small = scripts.small_run(tmp_path / "other")
    script = scripts.lighter_train(tmp_path)
    done = command(script, *small, *flags, "--optimizer=adam", "--learning_rate=0.001")
    assert (done.returncode, done.stderr) == (0, "")
    scripts.train(tmp_path / "own", *flags, "--optimizer=adam", "--learning_rate=0.001")
    assert scripts.final_summary(tmp_path / "other") == scripts.final_summary(tmp_path / "own")


@pytest.fixture
def overflow_in_step_3(monkeypatch):
    """Step 3 has a finite loss, but its update overflows in two weights."""
    real = trainer.Trainer.train_step

    def train_step(self, *arguments, **options):
        result = real(self, *arguments, **options)
        if int(self.state.step) == 3:
            for weight in self.state.model.trainable_variables[:2]:
                weight.assign(tf.fill(weight.shape, np.inf))
        return result

    monkeypatch.setattr(trainer.Trainer, "train_step", train_step)


class TestALossThatIsNotFinite:
    @pytest.mark.parametrize(
        ("rate", "message"),
        [
            ("0.1", "step 3: the update has left NaN or Inf in conv1/kernel, relu1/bias"),
            # The loss of step 2 overflows before step 3; the weights do not.
            (
                "1e20",
                r"step 2, tower 0: the loss \(cross_entropy\) is NaN or Inf; the step was not "
                "applied",
            ),
        ],
    )
    @pytest.mark.usefixtures("overflow_in_step_3")
    def test_stops_the_run_and_no_checkpoint_holds_it(self, tmp_path, rate, message):
        flags = (f"--learning_rate={rate}", "--checkpoint_every_steps=1", "--max_steps=9")
        done = scripts.train(tmp_path, *flags, "--checkpoints_to_keep=9")
        assert done.returncode == 1
        assert re.search(rf"^train.py: error: {message}; a lower learning rate, clip", done.stderr)
        assert done.stderr.count("\n") == 1
        step = int(re.search(r"step (\d+)", done.stderr)[1])
        newest = tmp_path / "checkpoints" / f"step-{step - 1}"
        assert f"The newest checkpoint is {newest}. To begin with its weights and other" in (
            done.stderr
        )
        assert scripts.checkpoint_steps(tmp_path) == list(range(1, step))
        for folder in (tmp_path / "checkpoints").iterdir():
            assert _all_finite(folder / "state")
        assert not (tmp_path / "final_model.keras").exists()

    def test_is_found_at_once_where_no_step_is_logged(self, tmp_path):
        flags = ("--learning_rate=1e20", "--checkpoint_every_steps=3", "--log_every_steps=100")
        done = scripts.train(tmp_path, *flags, "--max_steps=9")
        assert done.returncode == 1
        assert "step 2, tower 0: the loss (cross_entropy) is NaN or Inf" in done.stderr
        assert "There is no checkpoint yet." in done.stderr
        assert scripts.checkpoint_steps(tmp_path) == []

    @pytest.mark.long
    def test_is_what_is_said_where_the_disk_is_full_besides(self, tmp_path, monkeypatch):
        def no_space(_):
            raise run_folder.RunFolderError("TensorBoard's files cannot be written: no space")

        monkeypatch.setattr(summaries.Summaries, "flush", no_space)
        done = scripts.train(tmp_path, "--learning_rate=1e20", "--max_steps=9")
        assert done.returncode == 1
        assert "step 2, tower 0: the loss (cross_entropy) is NaN or Inf" in done.stderr
        assert "no space" not in done.stderr
        done = scripts.train(tmp_path / "another", "--max_steps=1")
        assert done.stderr == "train.py: error: TensorBoard's files cannot be written: no space\n"

    @pytest.mark.usefixtures("overflow_in_step_3")
    def test_is_found_at_the_end(self, tmp_path):
        done = scripts.train(tmp_path, "--max_steps=3")
        assert done.returncode == 1
        assert "step 3: the update has left NaN or Inf in " in done.stderr
        assert scripts.checkpoint_steps(tmp_path) == []
        assert not (tmp_path / "final_model.keras").exists()


def _all_finite(path) -> bool:
    reader = tf.train.load_checkpoint(str(path))
    values = [reader.get_tensor(name) for name in reader.get_variable_to_shape_map()]
    numbers = [value for value in values if isinstance(value, (np.ndarray, np.generic))]
    assert len(numbers) > 10
    return all(np.isfinite(value).all() for value in numbers if value.dtype == np.float32)


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
    assert line["accuracy"] == own["accuracy"]
    assert line["loss"] == pytest.approx(own["loss"], abs=1e-6)


class TestBeforeTheFirstStep:
    def test_sigterm_ends_in_one_line(self, tmp_path, monkeypatch):
        from input_pipeline import datasets

        handler = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the tests' own process
        monkeypatch.setattr(datasets, "load", lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM))
        try:
            with pytest.raises(SystemExit) as stopped:
                scripts.train(tmp_path / "run")
        finally:
            signal.signal(signal.SIGTERM, handler)
        assert stopped.value.code == 143
        assert not (tmp_path / "run").exists()

    def test_a_filter_that_no_weight_passes_is_refused(self, tmp_path):
        done = scripts.train(
            tmp_path / "run", "--model=resnet", "--weight_decay_filter=hidden_dense_kernels"
        )
        assert done.returncode == 2
        assert "--weight_decay_filter=hidden_dense_kernels: no weight of --model=resnet" in (
            done.stderr
        )
        assert not (tmp_path / "run").exists()

    @pytest.mark.long
    def test_metrics_without_their_checkpoints_are_not_thrown_away(self, tmp_path):
        flags = ["--max_steps=4", "--checkpoint_every_steps=2", "--log_every_steps=1"]
        scripts.train(tmp_path, *flags)
        for lost in ("final_model.json", "final_model.keras"):
            (tmp_path / lost).unlink()
        shutil.rmtree(tmp_path / "checkpoints")
        before = scripts.contents(tmp_path)
        done = scripts.train(tmp_path, *flags)
        assert done.returncode == 1
        assert (
            "the run has saved checkpoints, the first at step 2, but "
            f"{tmp_path / 'checkpoints'} holds none; put them back"
        ) in done.stderr
        assert scripts.contents(tmp_path) == before

    @pytest.mark.parametrize("flags", [[], ["--jit_compile"]])
    def test_jit_compile_reaches_the_step_and_the_table(self, tmp_path, monkeypatch, flags):
        trainers = []
        monkeypatch.setattr(
            resuming, "train", lambda made, *_: trainers.append(made) or Outcome(None, 0)
        )
        done = scripts.train(tmp_path, *flags)
        assert (", compiled with XLA" in scripts.unwrapped(done.stdout)) == bool(flags)
        images, labels = tf.zeros([24, 24, 24, 3]), tf.zeros([24], tf.int32)
        graph = trainers[0].step_graph(images, labels).as_graph_def()
        assert any(node.attr["_XlaMustCompile"].b for node in graph.node) == bool(flags)

    @pytest.mark.parametrize(
        ("num_microbatches", "same"),
        [("1", "1 tower"), ("4", "1 to 4 towers"), ("6", "1 to 6 towers")],
    )
    def test_the_table_says_on_which_towers_the_bits_agree(
        self, tmp_path, monkeypatch, num_microbatches, same
    ):
        monkeypatch.setattr(resuming, "train", lambda *_: Outcome(None, 0))
        done = scripts.train(
            tmp_path, f"--num_microbatches={num_microbatches}", "--global_batch_size=24"
        )
        by = f"with --num_microbatches={num_microbatches} and --intra_op_threads="
        said = scripts.unwrapped(done.stdout)
        assert f"  same bits      on {same} in all, on any number of workers, {by}" in said


class TestTooLittleMemory:
    """What TensorFlow and Python say of it; neither can be had here without harm to others."""

    ERRORS = [
        tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor with shape[8,9]"),
        MemoryError("cannot allocate"),
    ]

    @pytest.mark.parametrize("error", ERRORS, ids=["tensorflow", "python"])
    @pytest.mark.parametrize("where", ["train_step", "evaluate"])
    def test_is_said_in_one_line(self, tmp_path, monkeypatch, where, error):
        def no_memory(*_, **__):
            raise error

        monkeypatch.setattr(trainer.Trainer, where, no_memory)
        monkeypatch.setattr(container_limits, "available_cores", lambda: 2)
        done = scripts.train(tmp_path, "--max_steps=2")
        assert done.returncode == 1
        assert re.fullmatch(
            "train.py: error: there is not enough memory for a batch; give a lower "
            "global_batch_size, or accumulate_gradients\\. .*\n",
            done.stderr,
        )
        if where == "train_step":
            assert done.stderr.endswith(
                "There is no checkpoint yet. The same command takes other settings, and starts "
                "over.\n"
            )
        else:
            assert done.stderr.endswith(
                f"give --init_from={tmp_path}, or a checkpoint in it, and a new --train_dir.\n"
            )

    @pytest.mark.parametrize(
        ("cores", "flags"), [(1, []), (2, ["--num_towers=2"]), (2, ["--accumulate_gradients"])]
    )
    def test_what_would_not_help_is_not_said(self, tmp_path, monkeypatch, cores, flags):
        """Where a tower computes one microbatch at a time anyway."""

        def no_memory(*_, **__):
            raise MemoryError

        monkeypatch.setattr(trainer.Trainer, "train_step", no_memory)
        monkeypatch.setattr(container_limits, "available_cores", lambda: cores)
        done = scripts.train(tmp_path, "--max_steps=2", *flags)
        assert "give a lower global_batch_size. There is no checkpoint" in done.stderr

    def test_is_not_taken_for_a_full_disk(self, tmp_path, monkeypatch):
        def no_memory(*_, **__):
            raise self.ERRORS[0]

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


def test_seconds_per_step_leave_out_what_is_not_training(monkeypatch):
    from towers.runs import step_metrics

    now = [0.0]
    monkeypatch.setattr(step_metrics.time, "perf_counter", lambda: now[0])
    clock = step_metrics.Clock(10)
    now[0] = 3.0
    with clock.paused():
        now[0] = 100.0
    now[0] = 101.0
    assert clock.seconds_per_step(12) == 2.0  # (3 + 1) seconds for 2 steps
    now[0] = 102.0
    assert clock.seconds_per_step(14) == 0.5


@pytest.mark.parametrize(
    ("train_epochs", "max_steps", "batch", "step"),
    [(1.1, None, 10, 5500), (5.0, None, 128, 1954), (5.0, 100, 128, 100), (256.0, 7, 128, 7)],
)
def test_the_last_step_is_the_first_to_reach_the_end(train_epochs, max_steps, batch, step):
    from towers.runs import run_plan

    assert run_plan.last_step(train_epochs, max_steps, 50_000, batch) == step


@pytest.mark.long
def test_any_tfds_set_of_images_and_labels(tmp_path, monkeypatch):
    import tensorflow_datasets as tfds

    from input_pipeline import tfds_source

    monkeypatch.setattr(tfds_source, "host_reachable", lambda *_: True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    with tfds.testing.mock_data(num_examples=30):
        flags = ["--dataset=cifar100", f"--data_dir={tmp_path / 'data'}", "--model=cifarnet"]
        done = scripts.run("train", *scripts.small_run(tmp_path / "run"), *flags)
        assert (done.returncode, done.stderr) == (0, "")
        evaluated = scripts.run("eval", f"--train_dir={tmp_path / 'run'}")
    assert "30 train, 30 test, 100 classes" in scripts.unwrapped(done.stdout)
    assert "30 examples, each once" in evaluated.stdout
