"""The thesis, through `train.py`: with the same microbatches, towers do not show in a run's bits.

Real images come last, where TOWERS_TEST_DATA_DIR has CIFAR-10, JPEG q75; several workers are in
test_workers_command.py.
"""

import pytest
import scripts

from towers_cli import resolve

OPTIMIZERS = {
    "sgd": ("--momentum=0.9", "--learning_rate=0.05"),
    "adamw": ("--optimizer=adamw", "--learning_rate=0.001"),
}


@pytest.mark.pitfall(31)
@pytest.mark.usefixtures("whole_networks")
@pytest.mark.parametrize(
    ("numbers", "model", "dtype", "optimizer"),
    [
        ((1, 4), "cifarnet", "float32", "sgd"),
        pytest.param(range(1, 9), "cifarnet", "bfloat16", "adamw", marks=pytest.mark.long),
        pytest.param(range(1, 9), "resnet", "float32", "sgd", marks=pytest.mark.long),
        pytest.param(range(1, 9), "resnet", "bfloat16", "adamw", marks=pytest.mark.long),
    ],
    ids=lambda value: value if isinstance(value, str) else "towers",
)
def test_steps_on_several_towers_are_one_run(tmp_path, numbers, model, dtype, optimizer):
    """Every hash, loss and accuracy; hashes are of the state and of its parts."""
    written = {}
    for num_towers in numbers:
        folder = tmp_path / str(num_towers)
        done = scripts.train(
            folder, f"--model={model}", f"--compute_dtype={dtype}", *OPTIMIZERS[optimizer],
            f"--num_towers={num_towers}", "--global_batch_size=24", "--microbatch_size=3",
            "--max_steps=8", "--verify_every_steps=3", "--summary_every_steps=0",
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        written[num_towers] = scripts.values_of(scripts.lines_of(folder / "metrics.jsonl"))
    lines = scripts.hash_lines(tmp_path / "1")
    assert [line["step"] for line in lines] == [0, 3, 6, 8]  # the last step too
    parts = ["weights", "model_state", "optimizer", "metrics", "moving_averages", "step"]
    if model == "cifarnet":
        parts.remove("model_state")  # no batch norm
    for line in lines:
        assert list(line["parts_sha256"]) == parts
    for part in parts:
        assert len({line["parts_sha256"][part] for line in lines}) == 4
    for num_towers in numbers:
        assert written[num_towers] == written[1]


FAST = (
    "--recipe=fast", "--global_batch_size=16", "--microbatch_size=4", "--verify_every_steps=1",
    "--compute_dtype=float32",  # the others are slow on some processors
    "--train_epochs=0.0128",  # 4 steps, of a schedule that falls to 0
    "--summary_every_steps=0",
)  # fmt: skip


@pytest.mark.long
def test_the_fast_recipe_goes_on_on_another_number_of_towers(tmp_path):
    """Whitening, fused batch norm, Muon and labels that are smoothed, whole and in pieces."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder, *flags in (
        (whole, "--num_towers=1"),
        (parts, "--num_towers=4", "--max_steps=2"),
        (parts, "--num_towers=2"),
    ):
        scripts.trained(folder, *FAST, *flags)
    assert len(scripts.hash_lines(whole)) == 5
    assert scripts.hash_lines(parts) == scripts.hash_lines(whole)
    assert scripts.final_summary(parts) == scripts.final_summary(whole)


@pytest.mark.parametrize("num_gpus", [0, 1, 8])
@pytest.mark.parametrize("num_towers", [1, 3])
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], 16), (["--global_batch_size=24"], 16), (["--global_batch_size=1000"], 125),
        (["--microbatch_size=4"], 4), (["--compute_dtype=bfloat16"], 16),
    ],
)  # fmt: skip
def test_towers_and_devices_do_not_occur_in_the_default_microbatches(
    num_towers, num_gpus, flags, expected
):
    asked = scripts.settings_of(f"--num_towers={num_towers}", *flags)
    chosen = resolve.resolved(asked, num_gpus=num_gpus, cores=2)
    assert chosen.microbatch_size == expected


@pytest.mark.parametrize(
    ("cores", "flags", "expected"),
    [
        (2, [], 1), (64, [], 1), (64, ["--microbatch_size=64"], 1),
        (2, ["--jit_compile"], 8),  # XLA's microbatches share these threads
        (64, ["--jit_compile"], 8), (16, ["--jit_compile", "--microbatch_size=128"], 16),
        (16, ["--microbatch_size=128"], 16),  # which has the machine to itself
        (16, ["--intra_op_threads=3"], 3),
    ],
)  # fmt: skip
def test_cores_do_not_occur_in_the_default_threads_of_several_microbatches(cores, flags, expected):
    chosen = resolve.resolved(scripts.settings_of(*flags), num_gpus=0, cores=cores)
    assert chosen.intra_op_threads == expected


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
        assert "with --microbatch_size=12 and --intra_op_threads=3" in done.stdout
        run("parts", *flags, "--intra_op_threads=3", "--max_steps=2")
        done, parts = run("parts", *flags, "--num_towers=2")  # 4 steps, the flag left open
        assert (done.returncode, done.stderr) == (0, "")
        assert scripts.hash_lines(parts) == scripts.hash_lines(parts.parent / "whole")

        done, _ = run("parts", *flags, "--intra_op_threads=1", "--max_steps=5")
        assert done.returncode == 1
        assert "--intra_op_threads=1 (the run has 3)" in done.stderr

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


@pytest.mark.usefixtures("whole_networks")
@pytest.mark.long
@pytest.mark.whole_program
@pytest.mark.pitfall(12)
def test_one_epoch_of_the_tutorial_learns_on_two_towers(cifar10_dir, forked_command, tmp_path):
    """About half a minute. Three seeds gave 47.8 to 49.2 % after this epoch; chance is 10 %."""
    folder = tmp_path / "run"
    flags = f"--data_dir={cifar10_dir}", f"--train_dir={folder}", "--train_epochs=1"
    trained = forked_command("train.py", *flags, "--num_towers=2")
    assert (trained.returncode, trained.stderr) == (0, "")
    final = scripts.final_summary(folder)
    assert (final["step"], final["examples_seen"]) == (391, 50_048)
    assert final["val_accuracy"] > 0.44

    evaluated = forked_command("eval.py", f"--train_dir={folder}", "--global_batch_size=999")
    assert evaluated.returncode == 0, evaluated.stderr
    [line] = scripts.lines_of(folder / "eval.jsonl")
    assert line["count"] == 10_000
    assert line["accuracy"] == pytest.approx(final["val_accuracy"], rel=1e-6)
