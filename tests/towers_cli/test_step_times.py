"""`--time_microbatches` prints how long steps take, and trains nothing."""

import pytest
import scripts

from towers.runs import microbatch_times
from towers_cli import build, step_times


@pytest.fixture(autouse=True)
def short_turns(monkeypatch):
    monkeypatch.setattr(step_times, "_SECONDS", 0.01)


def time_steps(folder, *flags: str) -> scripts.Done:
    """As a user does who leaves the number of microbatches open."""
    return scripts.train(folder, "--time_microbatches", "--num_microbatches=0", *flags)


def numbers(stdout: str) -> list[int]:
    """Of the table's rows."""
    return [int(line.split()[0]) for line in stdout.splitlines() if line[:12].strip().isdigit()]


def test_steps_are_timed_and_nothing_is_written(tmp_path):
    done = time_steps(tmp_path / "run", "--num_towers=3")
    assert (done.returncode, done.stderr) == (0, "")
    assert numbers(done.stdout) == [4, 8]  # each tower has one at least
    assert "Steps of 24 images on /CPU:0, /CPU:1, /CPU:2 with" in done.stdout
    assert "take turns of 0.01 second, 5 each" in done.stdout
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("flags", "expected", "usual"),
    [
        ((), [2, 4, 8], 8),
        (("--num_microbatches=6",), [2, 4, 6, 8], 6),
        (("--cutmix_alpha=1",), [2, 4, 6], 6),  # of pairs of images: not 8 of 3
        (("--mixup_alpha=0.2",), [2, 4, 6], 6),
    ],
)
def test_which_numbers_are_timed(tmp_path, monkeypatch, flags, expected, usual):
    def timed(_, __, ___, numbers, **____):
        return {number: [0.1] for number in numbers}

    monkeypatch.setattr(microbatch_times, "time_microbatches", timed)
    done = time_steps(tmp_path / "run", *flags)
    assert numbers(done.stdout) == expected
    [marked] = [line for line in done.stdout.splitlines() if "as the run would have it" in line]
    assert int(marked.split()[0]) == usual


def test_each_number_is_timed_on_the_run_s_first_batch(tmp_path, monkeypatch):
    seen = {}

    def timed(make_trainer, inputs, labels, numbers, *, rounds, seconds):
        made = [make_trainer(number) for number in numbers]
        seen.update(batch=inputs.shape, labels=labels.shape)
        seen["microbatches"] = [each.num_microbatches for each in made]
        seen["models"] = len({id(each.state.model) for each in made})
        return {2: [0.1] * rounds, 4: [0.15] * rounds, 8: [0.2] * rounds}

    monkeypatch.setattr(microbatch_times, "time_microbatches", timed)
    done = time_steps(tmp_path / "run")
    assert done.returncode == 0
    assert seen["batch"][0] == seen["labels"][0] == 24
    assert seen["microbatches"] == [2, 4, 8] and seen["models"] == 3
    assert "           4   150.0 (150.0 to 150.0)\n" in done.stdout
    assert done.stdout.endswith(
        "\n2 was 2.00 times as fast as 8, and faster in every turn. A new run can have "
        "--num_microbatches=2 --intra_op_threads=1, on at most 2 towers; its bits are not those of "
        "a run with 8.\n"
    )


def test_parameters_are_where_the_run_has_them(tmp_path, monkeypatch):
    on_devices = []

    def timed(make_trainer, _, __, numbers, **____):
        made = make_trainer(2)
        on_devices.append(made.program.parameter_device)
        on_devices.extend(
            weight.value.device[-5:] for weight in made.state.model.trainable_variables
        )
        return {number: [0.1] for number in numbers}

    monkeypatch.setattr(microbatch_times, "time_microbatches", timed)
    monkeypatch.setattr(build, "parameter_device", lambda *_: "/CPU:1")
    assert time_steps(tmp_path / "run", "--num_towers=2").returncode == 0
    assert set(on_devices) == {"/CPU:1", "CPU:1"}


def test_no_number_is_named_where_turns_overlap(tmp_path, monkeypatch):
    times = {2: [0.1, 0.3], 4: [0.2, 0.2], 8: [0.2, 0.2]}
    monkeypatch.setattr(microbatch_times, "time_microbatches", lambda *_, **__: times)
    done = time_steps(tmp_path / "run")
    assert done.stdout.endswith("No number was faster than 8 in every turn.\n")


@pytest.mark.parametrize(
    ("others", "said"),
    [
        (["--dry_run"], "--time_microbatches and --dry_run: give one of the two"),
        (["--show_batch=a.png"], "--time_microbatches and --show_batch: give one of the two"),
        (["--workers=a:1,b:2", "--worker_index=0"], "it cannot be given for several workers"),
    ],
)
def test_what_it_does_not_go_with(tmp_path, others, said):
    done = time_steps(tmp_path / "run", *others)
    assert done.returncode == 2 and said in done.stderr


def test_a_batch_that_no_other_number_divides(tmp_path):
    done = time_steps(tmp_path / "run", "--global_batch_size=25")
    assert done.returncode == 2 and done.stderr == (
        "train.py: error: --time_microbatches: there is nothing to compare 5 with: no other number "
        "of 2, 4, 8, 16, 32 fits --global_batch_size=25 and 1 tower(s)\n"
    )


def test_memory_that_does_not_suffice_is_one_line(tmp_path, monkeypatch):
    def timed(*_, **__):
        raise MemoryError

    monkeypatch.setattr(microbatch_times, "time_microbatches", timed)
    done = time_steps(tmp_path / "run")
    assert done.returncode == 1
    assert done.stderr.startswith("train.py: error: ") and "not enough memory" in done.stderr
    assert done.stderr.count("\n") == 1
