"""The thesis, through `train.py`: with the same microbatches, towers do not show in a run's bits.

On real images where TOWERS_TEST_DATA_DIR has them; what needs no data is tested on `shapes`.
"""

import dataclasses
import json
import random
import shutil
import signal

import keras
import numpy as np
import pytest
import scripts

from input_pipeline import batches, datasets, preprocess
from towers.networks import layers
from towers.runs import run_folder
from towers_cli import build, resolve

REAL = ("--dataset=cifar10", "--log_every_steps=1")
OPTIMIZERS = {
    "sgd": ("--momentum=0.9", "--learning_rate=0.05"),
    "adamw": ("--optimizer=adamw", "--learning_rate=0.001"),
}


pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def short_evaluation(monkeypatch):
    """The first 256 images of the test split, and all of the training split."""
    whole = datasets.load

    def load(name, data_dir, split, **options):
        data = whole(name, data_dir, split, **options)
        if split == "train":
            return data
        return dataclasses.replace(data, images=data.images[:256], labels=data.labels[:256])

    monkeypatch.setattr(datasets, "load", load)


def what_a_run_wrote(folder) -> list[dict]:
    """Every line of metrics.jsonl without what the clock put into it."""
    lines = scripts.lines_of(folder / "metrics.jsonl")
    return scripts.values_of(lines)


@pytest.mark.pitfall(31)
@pytest.mark.usefixtures("whole_networks")
@pytest.mark.parametrize(
    ("model", "dtype", "optimizer", "steps"),
    [
        pytest.param("cifarnet", "float32", "sgd", 50, marks=pytest.mark.long),
        pytest.param("cifarnet", "float32", "adamw", 50, marks=pytest.mark.long),
        pytest.param("cifarnet", "bfloat16", "sgd", 50, marks=pytest.mark.long),
        pytest.param("cifarnet", "bfloat16", "adamw", 50, marks=pytest.mark.long),
        # Each type and each optimizer once.
        pytest.param("resnet", "float32", "sgd", 50, marks=pytest.mark.long),
        pytest.param("resnet", "bfloat16", "adamw", 50, marks=pytest.mark.long),
    ],
)
def test_steps_on_1_to_8_towers_are_one_run(
    tmp_path, cifar10_dir, short_evaluation, model, dtype, optimizer, steps
):
    """Every hash, loss and accuracy; about half a minute for a residual network."""
    flags = (f"--data_dir={cifar10_dir}", f"--model={model}", f"--compute_dtype={dtype}")
    are_one_run(tmp_path, range(1, 9), steps, model, *REAL, *flags, *OPTIMIZERS[optimizer])


@pytest.mark.pitfall(31)
@pytest.mark.usefixtures("whole_networks")
def test_steps_on_1_and_4_towers_are_one_run(tmp_path):
    """As above with what every clone has: drawn images."""
    flags = ("--microbatch_size=8", *OPTIMIZERS["sgd"])
    are_one_run(tmp_path, (1, 4), 8, "cifarnet", *flags)


def are_one_run(tmp_path, numbers, steps, model, *flags):
    """Trains on these numbers of towers, and compares all that the runs wrote."""
    for num_towers in numbers:
        done = scripts.train(
            tmp_path / str(num_towers),
            *flags,
            f"--num_towers={num_towers}",
            "--global_batch_size=32",
            "--microbatch_size=4",
            f"--max_steps={steps}",
            f"--verify_every_steps={steps // 4}",
            "--summary_every_steps=0",
        )
        assert (done.returncode, done.stderr) == (0, "")
    written = what_a_run_wrote(tmp_path / "1")
    assert len(scripts.training_lines(tmp_path / "1")) == steps
    hashes = [line["state_sha256"] for line in scripts.hash_lines(tmp_path / "1")]
    assert len(set(hashes)) == len(hashes) >= 5
    parts = ["weights", "model_state", "optimizer", "metrics", "moving_averages", "counters"]
    if model == "cifarnet":
        parts.remove("model_state")  # no batch norm
    assert list(scripts.hash_lines(tmp_path / "1")[0]["parts_sha256"]) == parts
    for num_towers in numbers:
        assert what_a_run_wrote(tmp_path / str(num_towers)) == written


@pytest.mark.long
@pytest.mark.whole_program
@pytest.mark.usefixtures("whole_networks")
@pytest.mark.pitfall(28, 31)
def test_killed_at_random_steps_on_5_1_and_2_towers(tmp_path, cifar10_dir, cache_home):
    """Two processes die by SIGKILL, the third one finishes; as if nothing had happened."""
    flags = (
        *REAL,
        f"--data_dir={cifar10_dir}",
        *OPTIMIZERS["sgd"],
        "--global_batch_size=64",
        "--microbatch_size=8",
        "--max_steps=40",
        "--verify_every_steps=4",
        "--checkpoint_every_steps=3",
        "--summary_every_steps=0",
    )
    at_steps = sorted(random.sample(range(4, 36), 2))
    for num_towers, at_step in zip((5, 1), at_steps, strict=True):
        process = scripts.start(
            cache_home,
            "train",
            f"--train_dir={tmp_path / 'killed'}",
            f"--num_towers={num_towers}",
            *flags,
        )
        scripts.wait_for_line(process, f"step {at_step}/")
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    last = scripts.train(tmp_path / "killed", *flags, "--num_towers=2")
    assert "continuing at step " in last.stdout
    scripts.train(tmp_path / "whole", *flags, "--num_towers=2")
    written = what_a_run_wrote(tmp_path / "killed")
    assert written == what_a_run_wrote(tmp_path / "whole"), f"killed at steps {at_steps}"
    assert scripts.hash_lines(tmp_path / "killed")[-1]["step"] == 40


@pytest.mark.long
@pytest.mark.usefixtures("whole_networks")
def test_evaluation_is_the_same_on_any_number_of_towers(tmp_path, cifar10_dir):
    """All 10,000 test images; other batch sizes may sum in another order."""
    flags = (*REAL, f"--data_dir={cifar10_dir}", "--global_batch_size=128", "--max_steps=30")
    scripts.train(tmp_path, *flags, "--moving_average_decay=0.9", "--summary_every_steps=0")
    for flag in ("--num_towers=1", "--num_towers=2", "--num_towers=3", "--num_towers=4"):
        assert scripts.run("eval", f"--train_dir={tmp_path}", flag).returncode == 0
    *same, last = scripts.lines_of(tmp_path / "eval.jsonl")
    assert same == [last] * 3
    assert_is_the_training_s_own(tmp_path, last)
    scripts.run("eval", f"--train_dir={tmp_path}", "--global_batch_size=999")
    other = scripts.lines_of(tmp_path / "eval.jsonl")[-1]
    assert other | {"cross_entropy": last["cross_entropy"]} == last
    assert other["cross_entropy"] == pytest.approx(last["cross_entropy"], abs=1e-6)


def assert_is_the_training_s_own(folder, line):
    """What eval.py counted is what Keras counted in the training."""
    own = scripts.evaluation_lines(folder)[-1]
    assert line["step"] == own["step"]
    for name in ("accuracy", "top5_accuracy", "cross_entropy"):
        assert line[name] == pytest.approx(own[f"val_{name}"], rel=1e-5)


class TestVerifying:
    FLAGS = ("--verify_every_steps=2", "--checkpoint_every_steps=3", "--max_steps=7")

    def test_writes_a_hash_of_the_state_and_of_its_parts(self, tmp_path):
        scripts.train(tmp_path, *self.FLAGS, "--momentum=0.5")
        lines = scripts.hash_lines(tmp_path)
        assert [line["step"] for line in lines] == [0, 2, 4, 6, 7]  # the last step too
        assert [line["examples_seen"] for line in lines] == [0, 48, 96, 144, 168]
        parts = ["weights", "optimizer", "metrics", "moving_averages", "counters"]
        for line in lines:
            assert list(line["parts_sha256"]) == parts
        for part in parts:
            assert len({line["parts_sha256"][part] for line in lines}) == 5

    @pytest.mark.long
    def test_changes_nothing_else(self, tmp_path):
        scripts.train(tmp_path / "verified", *self.FLAGS)
        scripts.train(tmp_path / "plain", *self.FLAGS, "--verify_every_steps=0")
        assert not scripts.hash_lines(tmp_path / "plain")
        verified = what_a_run_wrote(tmp_path / "verified")
        plain = what_a_run_wrote(tmp_path / "plain")
        assert [line for line in verified if "state_sha256" not in line] == plain
        finals = [scripts.final_summary(tmp_path / name) for name in ("verified", "plain")]
        assert finals[0] == finals[1]

    @pytest.mark.long
    def test_a_run_that_goes_on_writes_each_line_once(self, tmp_path):
        scripts.train(tmp_path / "whole", *self.FLAGS)
        scripts.train(tmp_path / "parts", *self.FLAGS, "--max_steps=5")
        # As if it had been killed after its first checkpoint, at step 3.
        shutil.rmtree(tmp_path / "parts" / "train")
        for name in ("final_model.json", "final_model.keras"):
            (tmp_path / "parts" / name).unlink()
        shutil.rmtree(tmp_path / "parts" / "checkpoints" / "step-5")
        done = scripts.train(tmp_path / "parts", *self.FLAGS, "--num_towers=2")
        assert "continuing at step 3" in done.stdout
        whole = scripts.hash_lines(tmp_path / "whole")
        assert scripts.hash_lines(tmp_path / "parts") == whole
        assert len(whole) == 5

    @pytest.mark.long
    def test_a_run_killed_before_its_first_checkpoint_has_one_first_line(self, tmp_path):
        scripts.train(tmp_path / "whole", *self.FLAGS)
        scripts.train(tmp_path / "killed", *self.FLAGS, "--max_steps=2")
        for name in ("final_model.json", "final_model.keras"):
            (tmp_path / "killed" / name).unlink()
        shutil.rmtree(tmp_path / "killed" / "checkpoints")
        config = run_folder.RunFolder(str(tmp_path / "killed")).read_config()
        del config["first_checkpoint"]
        (tmp_path / "killed" / "config.json").write_text(json.dumps(config))
        assert [line["step"] for line in scripts.hash_lines(tmp_path / "killed")] == [0, 2]
        scripts.train(tmp_path / "killed", *self.FLAGS)
        assert what_a_run_wrote(tmp_path / "killed") == what_a_run_wrote(tmp_path / "whole")


FAST = (
    "--recipe=fast",
    "--compute_dtype=float32",  # test_step.py has bfloat16, in which some processors are slow
    "--global_batch_size=16",
    "--microbatch_size=4",
    "--train_epochs=0.0128",  # 4 steps, of a schedule that falls to 0
    "--verify_every_steps=1",
    "--summary_every_steps=0",
)


@pytest.fixture(scope="module")
def fast_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fast") / "run"
    done = scripts.train(folder, *FAST, "--num_towers=1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "labels         smoothed by 0.2" in done.stdout
    return folder


class TestTheFastRecipe:
    """Whitening, fused batch norm, Muon and labels that are smoothed, whole and in pieces."""

    @pytest.mark.pitfall(23, 32)
    @pytest.mark.long
    def test_goes_on_on_another_number_of_towers(self, tmp_path, fast_folder):
        scripts.train(tmp_path, *FAST, "--num_towers=4", "--max_steps=2")
        done = scripts.train(tmp_path, *FAST, "--num_towers=2")
        assert (done.returncode, done.stderr) == (0, "")
        assert len(scripts.hash_lines(fast_folder)) == 5
        assert scripts.hash_lines(tmp_path) == scripts.hash_lines(fast_folder)
        assert scripts.final_summary(tmp_path) == scripts.final_summary(fast_folder)

    @pytest.mark.long
    def test_has_seen_the_training_images_before_its_first_step(self, fast_folder):
        model = keras.saving.load_model(fast_folder / "final_model.keras")
        train = datasets.load("shapes", None, "train")
        seen = preprocess.scale_pixels(batches.spread_out(train.images, 5000)).numpy()
        whitening = layers.Whitening()
        whitening.build(seen.shape)
        whitening.adapt(seen)
        np.testing.assert_array_equal(
            model.get_layer("fastnet").get_layer("whitening").kernel, whitening.kernel
        )


@pytest.mark.parametrize("num_gpus", [0, 1, 8])
@pytest.mark.parametrize("num_towers", [1, 3])
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], 16),
        (["--global_batch_size=24"], 16),  # at least so many
        (["--global_batch_size=1000"], 125),
        (["--microbatch_size=4"], 4),
        (["--compute_dtype=bfloat16"], 16),
    ],
)
def test_towers_and_devices_do_not_occur_in_the_default_microbatches(
    num_towers, num_gpus, flags, expected
):
    asked = scripts.settings_of(f"--num_towers={num_towers}", *flags)
    chosen = resolve.resolved(asked, None, num_gpus=num_gpus, cores=2)
    assert chosen.microbatch_size == expected


@pytest.mark.parametrize(
    ("cores", "flags", "expected"),
    [
        (2, [], 1),
        (64, [], 1),
        (64, ["--microbatch_size=64"], 1),
        (2, ["--jit_compile"], 8),  # XLA's microbatches share these threads
        (64, ["--jit_compile"], 8),
        (16, ["--jit_compile", "--microbatch_size=128"], 16),
        (16, ["--microbatch_size=128"], 16),  # which has the machine to itself
        (16, ["--intra_op_threads=3"], 3),
    ],
)
def test_cores_do_not_occur_in_the_default_threads_of_several_microbatches(cores, flags, expected):
    chosen = resolve.resolved(scripts.settings_of(*flags), None, num_gpus=0, cores=cores)
    assert chosen.intra_op_threads == expected


@pytest.mark.parametrize("cores", [2, 64])
def test_threads_with_gpus(cores):
    with_gpus = resolve.resolved(scripts.settings_of(), None, num_gpus=8, cores=cores)
    assert with_gpus.intra_op_threads == 8  # the microbatches are not on the CPU


@pytest.fixture
def run(forked_command, tmp_path):
    """Runs train.py as a process, in a folder of a given name."""

    def train(name, *flags):
        # Without the number of threads, which is this test process's own.
        small = [f for f in scripts.small_run(tmp_path / name) if "intra_op_threads" not in f]
        return forked_command("train.py", *small, *flags), tmp_path / name

    return train


@pytest.mark.whole_program
@pytest.mark.long
class TestARuntimeOfItsOwn:
    """Threads and determinism are set before TensorFlow's runtime starts."""

    @pytest.mark.pitfall(28)
    @pytest.mark.usefixtures("whole_networks")  # in a small one threads may not change a bit
    def test_a_run_goes_on_with_the_threads_it_began_with(self, run):
        flags = ("--verify_every_steps=1", "--summary_every_steps=0", "--global_batch_size=32")
        done, _ = run("whole", *flags, "--intra_op_threads=3")
        table = scripts.unwrapped(done.stdout)
        assert "with --microbatch_size=12 and --intra_op_threads=3" in table
        run("parts", *flags, "--intra_op_threads=3", "--max_steps=2")
        done, parts = run("parts", *flags, "--num_towers=2")  # 4 steps, the flag left open
        assert (done.returncode, done.stderr) == (0, "")
        assert scripts.hash_lines(parts) == scripts.hash_lines(parts.parent / "whole")

        done, parts = run("parts", *flags, "--intra_op_threads=1", "--max_steps=5")
        assert done.returncode == 1
        assert "--intra_op_threads=1 (the run has 3)" in done.stderr

        done, one = run("one", *flags, "--intra_op_threads=1")
        last = [scripts.hash_lines(folder)[-1]["state_sha256"] for folder in (one, parts)]
        assert last[0] != last[1]  # else the setting need not define a run

    def test_deterministic_operations_are_the_same_bits_too(self, run):
        hashes = {}
        for name, flags in {
            "plain": ["--num_towers=2"],
            "deterministic": ["--num_towers=1", "--deterministic"],
            "deterministic2": ["--num_towers=2", "--deterministic"],
        }.items():
            done, folder = run(name, "--verify_every_steps=4", *flags)
            assert (done.returncode, done.stderr) == (0, "")
            hashes[name] = scripts.hash_lines(folder)
        assert hashes["deterministic"] == hashes["deterministic2"]
        # They are other operations: softmax cross entropy, in float32 on CPUs.
        assert hashes["deterministic"][-1] != hashes["plain"][-1]

        done, _ = run("deterministic", "--max_steps=5")
        assert done.returncode == 1
        assert "--deterministic=False (the run has True)" in done.stderr

    @pytest.mark.parametrize(
        "flags",
        # Not the threads that eval.py would choose for itself.
        [
            pytest.param(["--model=resnet", "--intra_op_threads=3"], id="resnet"),
            pytest.param(
                ["--deterministic", "--intra_op_threads=2"],
                id="deterministic",
                marks=pytest.mark.long,
            ),
        ],
    )
    def test_eval_is_the_training_s_own_evaluation(self, run, forked_command, flags):
        _, folder = run("run", "--microbatch_size=6", *flags)
        done = forked_command("eval.py", f"--train_dir={folder}", "--num_towers=3")
        assert (done.returncode, done.stderr) == (0, "")
        [line] = scripts.lines_of(folder / "eval.jsonl")
        assert_is_the_training_s_own(folder, line)


@pytest.mark.long
def test_eval_starts_the_runtime_as_the_training_did(tmp_path, monkeypatch):
    # A forward pass alone does not show the threads in its bits on every machine.
    started = []
    monkeypatch.setattr(build, "start_runtime", lambda *arguments: started.append(arguments))
    scripts.train(tmp_path, "--max_steps=1", "--intra_op_threads=5", "--deterministic")
    done = scripts.run("eval", f"--train_dir={tmp_path}")
    assert (done.returncode, done.stderr) == (0, "")
    assert started == [(5, True)] * 2
