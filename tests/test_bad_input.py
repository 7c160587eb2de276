"""Bad input gets one line that names the flag, the value and what is allowed, and leaves no trace.

What is wrong with data is in test_datasets.py, with checkpoints in test_checkpoints.py.
"""

import pytest
import scripts

TOO_LARGE_SEED = 2**31

OUT_OF_RANGE = {
    "--train_dir=": "must be a folder",
    "--num_towers=0": "must be at least 1",
    "--global_batch_size=0": "must be at least 1",
    "--global_batch_size=-128": "must be at least 1",
    "--num_microbatches=-1": "must be at least 0",
    "--train_epochs=0.0": "must be above 0",
    "--train_epochs=nan": "must be above 0",
    "--train_epochs=inf": "must be finite",
    "--max_steps=0": "must be at least 1",
    "--learning_rate=0.0": "must be above 0",
    "--learning_rate=-0.1": "must be above 0",
    "--learning_rate=nan": "must be above 0",
    "--learning_rate=inf": "must be finite",
    "--epochs_per_decay=0.0": "must be above 0",
    "--decay_factor=0.0": "must be above 0 and at most 1",
    "--decay_factor=1.5": "must be above 0 and at most 1",
    "--warmup_epochs=-1.0": "must be at least 0",
    "--base_batch_size=0": "must be at least 1",
    "--momentum=1.0": "must be at least 0 and below 1",
    "--momentum=-0.9": "must be at least 0 and below 1",
    "--weight_decay=-0.004": "must be at least 0",
    "--clip_norm=-1.0": "must be at least 0",
    "--label_smoothing=1.0": "must be at least 0 and below 1",
    "--label_smoothing=-0.1": "must be at least 0 and below 1",
    "--label_smoothing=nan": "must be at least 0 and below 1",
    "--moving_average_decay=1.0": "must be at least 0 and below 1",
    "--seed=-1": "must be at least 0 and below 2147483648",
    f"--seed={TOO_LARGE_SEED}": "must be at least 0 and below 2147483648",
    "--log_every_steps=0": "must be at least 1",
    "--summary_every_steps=-1": "must be at least 0",
    "--verify_every_steps=-1": "must be at least 0",
    "--intra_op_threads=0": "must be at least 1 and at most 1024",
    "--intra_op_threads=1025": "must be at least 1 and at most 1024",
    "--checkpoint_every_steps=0": "must be at least 1",
    "--checkpoints_to_keep=0": "must be at least 1",
    "--eval_every_epochs=-1.0": "must be at least 0",
    "--profile_steps=5": "must be two steps A,B with 0 < A <= B",
    "--profile_steps=6,5": "must be two steps A,B with 0 < A <= B",
    "--profile_steps=0,5": "must be two steps A,B with 0 < A <= B",
    "--profile_steps=1,x": "must be numbers separated by commas",
}

CONTRADICTORY = [
    (
        ["--learning_rate_schedule=piecewise"],
        ["--learning_rate_schedule=piecewise needs --decay_e"],
    ),
    (
        ["--decay_epochs=82,123"],
        ["--decay_epochs=82,123: only for --learning_rate_schedule=piecewise", "it is exponential"],
    ),
    (
        ["--learning_rate_schedule=piecewise", "--decay_epochs=123,82"],
        ["--decay_epochs=123,82: must be above 0 and increase"],
    ),
    (
        ["--learning_rate_schedule=piecewise", "--decay_epochs=0,82"],
        ["--decay_epochs=0,82: must be above 0 and increase"],
    ),
    (
        ["--learning_rate_schedule=piecewise", "--decay_epochs=82,later"],
        ["--decay_epochs=82,later: must be numbers separated by commas"],
    ),
    (
        ["--learning_rate_schedule=cosine", "--warmup_epochs=5", "--train_epochs=5"],
        ["--warmup_epochs=5: must be below --train_epochs=5 for the cosine schedule"],
    ),
    (
        ["--optimizer=adam", "--momentum=0.9"],
        ["--momentum=0.9: only for --optimizer=sgd or rmsprop or muon, and it is adam"],
    ),
    (["--nesterov"], ["--nesterov: only for --optimizer=sgd or muon with --momentum above 0"]),
    (["--optimizer=rmsprop", "--momentum=0.9", "--nesterov"], ["--nesterov: only for --optimizer"]),
]

DO_NOT_DIVIDE = [
    (
        ["--global_batch_size=7", "--num_towers=2"],
        "--global_batch_size=7 must be divisible by num_microbatches=2",
    ),
    (
        ["--global_batch_size=128", "--num_microbatches=3"],
        "--global_batch_size=128 must be divisible by num_microbatches=3",
    ),
    (
        ["--global_batch_size=12", "--num_microbatches=3", "--num_towers=2"],
        "--num_microbatches=3 must be divisible by num_towers=2",
    ),
]

NOT_A_VALUE = {
    "--model=alexnet": "cifarnet|resnet|fastnet",
    "--compute_dtype=float64": "float32|bfloat16|float16",
    "--gradient_reduction=max": "mean|sum",
    "--batch_norm_statistics=all": "mean|first|last|each",
    "--learning_rate_schedule=step": "exponential|piecewise|cosine|linear|constant",
    "--learning_rate_scaling=cubic": "none|linear|sqrt",
    "--optimizer=adagrad": "sgd|adam|adamw|lion|rmsprop|muon",
    "--weight_decay_filter=all": "kernels|hidden_dense_kernels",
    "--recipe=quick": "tutorial|shapes|fast",
    "--global_batch_size=12.5": "12.5",
    "--learning_rate=fast": "fast",
    "--nesterov=maybe": "maybe",
}

FOR_EVAL = [
    (["--num_towers=0"], 2, "--num_towers=0: must be at least 1"),
    (["--global_batch_size=0"], 2, "--global_batch_size=0: must be at least 1"),
    (["--eval_interval_seconds=0"], 2, "--eval_interval_seconds=0.0: must be above 0"),
    (["--eval_interval_seconds=nan"], 2, "--eval_interval_seconds=nan: must be above 0"),
    (["--checkpoint=5", "--run_once=false"], 2, "--checkpoint=5: names one checkpoint"),
    (["runs/mine"], 2, "unexpected argument 'runs/mine'"),
    (["--split=validation"], 1, "flag --split=validation: value should be one of <test|train>"),
    ([], 1, "there is no run here; train one with python train.py --train_dir="),
]


@pytest.fixture
def nothing_is_left(tmp_path, monkeypatch):
    """A folder for the run, which must not be there afterwards; nor may a cache be."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "new" / "run"
    assert list(tmp_path.iterdir()) == []


def check(done, code: int, *pieces: str) -> None:
    """One line on stderr with all the pieces; nothing else on the terminal."""
    assert done.returncode == code
    for piece in pieces:
        assert piece in done.stderr
    assert done.stderr.count("\n") == 1
    assert ".py: error: " in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("flag", OUT_OF_RANGE)
def test_values_out_of_range(nothing_is_left, flag):
    done = scripts.train(nothing_is_left, flag)
    check(done, 2, f"train.py: error: {flag}: {OUT_OF_RANGE[flag]}")


def test_every_flag_with_a_range_was_tried():
    from towers import settings

    assert set(settings._RANGES) <= {flag.split("=")[0].removeprefix("--") for flag in OUT_OF_RANGE}


@pytest.mark.parametrize(("flags", "pieces"), CONTRADICTORY)
def test_flags_that_contradict(nothing_is_left, flags, pieces):
    check(scripts.train(nothing_is_left, *flags), 2, *pieces)


@pytest.mark.pitfall(26)
@pytest.mark.parametrize(("flags", "message"), DO_NOT_DIVIDE)
def test_sizes_that_do_not_divide(nothing_is_left, flags, message):
    done = scripts.train(nothing_is_left, "--num_microbatches=0", *flags)
    check(done, 2, f"train.py: error: {message}")


@pytest.mark.parametrize("flag", NOT_A_VALUE)
def test_values_that_are_none(nothing_is_left, flag):
    done = scripts.train(nothing_is_left, flag)
    assert done.returncode == 1
    assert f"flag {flag}:" in done.stderr
    assert NOT_A_VALUE[flag] in done.stderr


@pytest.mark.parametrize("argument", ["runs/mine", "False"])
def test_arguments_that_are_no_flags(nothing_is_left, argument):
    """`--nesterov False` ends here too, where argparse would take any text for true."""
    done = scripts.train(nothing_is_left, "--momentum=0.9", "--nesterov", argument)
    check(done, 2, f"train.py: error: unexpected argument '{argument}': flags begin with --")


def test_a_data_folder_that_is_not_there(nothing_is_left):
    done = scripts.train(nothing_is_left, "--dataset=cifar10", "--data_dir=no/such/folder")
    check(done, 1, "train.py: error: --data_dir=", "no/such/folder does not exist")


@pytest.mark.parametrize(("flags", "code", "message"), FOR_EVAL)
def test_bad_input_to_eval(nothing_is_left, flags, code, message):
    done = scripts.run("eval", f"--train_dir={nothing_is_left}", *flags)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("file", "Not a directory"),
        ("file/run", "Not a directory"),
        ("x" * 300, "File name too long"),
    ],
)
def test_a_run_folder_that_cannot_be(tmp_path, path, reason):
    (tmp_path / "file").write_text("mine")
    done = scripts.train(tmp_path / path)
    check(done, 1, f"train.py: error: --train_dir={tmp_path / path}: ", reason)
    assert scripts.contents(tmp_path) == {"file": b"mine"}


def test_a_run_folder_that_cannot_be_made(cache_home, monkeypatch):
    """The kernel's own folder lets nobody, root included, make another."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_home))
    done = scripts.train("/proc/towers/run")
    assert done.returncode == 1
    assert done.stderr.startswith("train.py: error: --train_dir=/proc/towers/run: cannot be writ")
    assert done.stderr.count("\n") == 1


@pytest.mark.pitfall(11)
@pytest.mark.parametrize("name", ["thesis.tex", "config.json"])
def test_a_folder_of_other_files_is_left_alone(tmp_path, name):
    (tmp_path / name).write_text('{"model": "mine"}')
    for done in (scripts.train(tmp_path), scripts.run("eval", f"--train_dir={tmp_path}")):
        assert done.returncode == 1
        assert f"error: --train_dir={tmp_path}: " in done.stderr
        assert done.stderr.count("\n") == 1
    assert scripts.contents(tmp_path) == {name: b'{"model": "mine"}'}


@pytest.mark.whole_program
@pytest.mark.parametrize(
    ("script", "flags", "code", "message"),
    [
        ("train.py", ["--learning_rat=1"], 1, "Unknown command line flag 'learning_rat'"),
        (
            "train.py",
            ["--model=vgg"],
            1,
            "--model=vgg: value should be one of <cifarnet|resnet|fastnet>",
        ),
        ("eval.py", ["--num_gpus=2"], 1, "Unknown command line flag 'num_gpus'"),
    ],
)
def test_flags_that_absl_refuses(command, tmp_path, script, flags, code, message):
    done = command(script, *flags, cwd=tmp_path)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.whole_program
@pytest.mark.parametrize(
    ("script", "flags", "code", "message"),
    [
        ("train.py", ["--seed=-1"], 2, "--seed=-1: must be at least 0 and below 2147483648"),
        (
            "train.py",
            ["--num_towers=3"],
            2,
            "--global_batch_size=128 must be divisible by num_microbatches=3",
        ),
        (
            "eval.py",
            ["--train_dir=runs/a"],
            1,
            "--train_dir=runs/a: there is no run here; "
            "train one with python train.py --train_dir=runs/a",
        ),
    ],
)
def test_a_process_says_one_line_and_nothing_of_tensorflow(
    command, tmp_path, script, flags, code, message
):
    done = command(script, *flags, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(f"{script}: error: {message}")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
