"""Bad input gets one line that names the flag, the value and what is allowed, and leaves no trace.

More of what is wrong with data is in tests/input_pipeline, of checkpoints in test_checkpoints.py.
"""

import dataclasses
import json
import os
import pickle
import pwd
import re
import shutil
import subprocess
import sys

import keras
import lighter
import pytest
import scripts
import toys

import towers
from towers.runs import run_folder
from towers_cli import run_config, settings

TOO_LARGE_SEED = 2**31
HUGE = "9" * 4000

OUT_OF_RANGE = {
    "--train_dir=": "must be a local path",
    "--num_towers=0": "must be at least 1 and at most 1024",
    "--worker_index=-1": "must be at least 0",
    "--worker_wait_seconds=0.0": "must be above 0 and at most 1e6",
    "--worker_wait_seconds=inf": "must be above 0 and at most 1e6",
    "--global_batch_size=0": "must be at least 1 and at most 1048576",
    "--microbatch_size=-1": "must be at least 0 and at most 1048576",
    "--microbatch_size=1048577": "must be at least 0 and at most 1048576",
    "--train_epochs=0.0": "must be at least 0.000001 and at most 1e9",
    "--train_epochs=1e+300": "must be at least 0.000001 and at most 1e9",
    "--train_epochs=nan": "must be at least 0.000001 and at most 1e9",
    "--max_steps=0": "must be at least 1",
    "--learning_rate=0.0": "must be above 0",
    "--learning_rate=inf": "must be finite, in float32",
    "--learning_rate=1e+39": "must be finite, in float32",
    "--epochs_per_decay=0.0": "must be at least 0.000001",
    "--decay_factor=0.0": "must be above 0 and at most 1",
    "--warmup_epochs=-1.0": "must be at least 0",
    "--warmup_start_factor=1.0": "must be at least 0 and below 1",
    "--base_batch_size=0": "must be at least 1 and at most 1048576",
    "--momentum=1.0": "must be at least 0 and below 1",
    "--weight_decay=-0.004": "must be at least 0",
    "--weight_decay=inf": "must be finite, in float32",
    "--train_dir=runs/lr?": "must be a local path without the characters * ? [ ] and",
    "--train_dir=runs/[a]": "must be a local path without the characters * ? [ ] and",
    "--train_dir=runs/a\\b": "must be a local path without the characters * ? [ ] and",
    "--train_dir=gs://bucket/run": "must be a local path",
    "--show_batch=sheet.jpg": "must be the path of a .png file",
    "--image_size=0": "must be at least 1 and at most 4096",
    "--init_from=runs/lr?": "must be a local path without the characters * ? [ ] and",
    "--clip_norm=nan": "must be 0, or 1e-30 to 1e30",
    "--clip_norm=1e+38": "must be 0, or 1e-30 to 1e30",
    "--random_erasing=-0.1": "must be at least 0 and at most 1",
    "--mixup_alpha=0.05": "must be 0, or from 0.1 to 100",
    "--cutmix_alpha=-1.0": "must be 0, or from 0.1 to 100",
    "--label_smoothing=1.0": "must be at least 0 and below 1",
    "--moving_average_decay=1.0": "must be at least 0 and below 1",
    "--seed=-1": "must be at least 0 and below 2147483648",
    f"--seed={TOO_LARGE_SEED}": "must be at least 0 and below 2147483648",
    "--log_every_steps=0": "must be at least 1",
    "--summary_every_steps=-1": "must be at least 0",
    "--verify_every_steps=-1": "must be at least 0",
    "--intra_op_threads=0": "must be at least 1 and at most 1024",
    "--checkpoint_every_steps=0": "must be at least 1",
    "--checkpoints_to_keep=0": "must be at least 1",
    "--eval_split=train": "must be another split than the run is trained on",
    "--eval_split=": "must be the name of one whole split",
    "--eval_split=test[:10%]": "must be the name of one whole split",
    "--eval_split=test+train": "must be the name of one whole split",
    "--eval_every_epochs=-1": "must be at least 0",
    "--profile_steps=5": "must be two steps A,B with 0 < A <= B",
    "--profile_steps=0,5": "must be two steps A,B with 0 < A <= B",
    "--profile_steps=1,x": "must be numbers separated by commas",
}

TOO_LONG = {  # a long value is shown without its middle
    f"--seed={HUGE}": "--seed='999999999999...9999999999999': must be at least 0",
    f"--profile_steps={HUGE},1": "--profile_steps='999999999999...99999999999,1': must be two",
    f"--model={'x' * 10_000}": "--model='xxxxxxxxxxxx...xxxxxxxxxxxxx': must be one of cifarnet",
    f"--{'x' * 10_000}": "--flagfile: too many files within each other; or a flag's name is too ",
    f"--decay_epochs={'7,' * 9999}7": "--decay_epochs='7,7,7,7,7,7,...7,7,7,7,7,7,7': only for",
    f"--dataset={'x' * 10_000}": "--dataset='xxxxxxxxxxxx...xxxxxxxxxxxxx': must be text of a",
}

# A terminal, a log and TensorFlow cannot show them, or the system takes no such name.
CONTROL_CHARACTERS = {
    "--train_dir=a\0b": r"--train_dir='a\x00b'",
    "--train_dir=a\nb": r"--train_dir='a\nb'",
    "--train_dir=\udcff": r"--train_dir='\udcff'",  # a byte that is no UTF-8
    "--data_dir=a\nb": r"--data_dir='a\nb'",
    "--dataset=cifar10\n": r"--dataset='cifar10\n'",
    "--dataset=\x1b[2J": r"--dataset='\x1b[2J'",
}

CONTRADICTORY = {
    "--learning_rate_schedule=piecewise": "--learning_rate_schedule=piecewise needs --decay_epochs",
    "--decay_epochs=82,123": "--decay_epochs=82,123: only for --learning_rate_schedule=piecewise",
    "--learning_rate_schedule=piecewise --decay_epochs=123,82": "--decay_epochs=123,82: must be ab",
    "--learning_rate_schedule=piecewise --decay_epochs=0,82": "--decay_epochs=0,82: must be ab",
    "--learning_rate_schedule=piecewise --decay_epochs=82,x": "--decay_epochs=82,x: must be nu",
    "--warmup_start_factor=0.5": "--warmup_start_factor=0.5: only with a warm-up",
    "--learning_rate_schedule=linear --warmup_epochs=5 --train_epochs=5": "--warmup_epochs=5: must",
    "--optimizer=adam --momentum=0.9": "--momentum=0.9: only for --optimizer=sgd or rmsprop or",
    "--nesterov": "--nesterov: only for --optimizer=sgd or muon with --momentum above 0",
    "--optimizer=rmsprop --momentum=0.9 --nesterov": "--nesterov: only for --optimizer=sgd or muon",
}

MODELS = (
    "one of cifarnet, resnet, resnet50, fastnet, or package.module:function, or a network of "
    "keras.applications such as MobileNetV3Small"
)
NOT_A_VALUE = {
    "--model=resnett": MODELS,
    "--compute_dtype=float": "one of float32, bfloat16, float16",
    "--learning_rate_schedule=cosin": "one of exponential, piecewise, cosine, linear, constant",
    "--learning_rate_scaling=cubic": "one of none, linear, sqrt",
    "--optimizer=SGD": "one of sgd, adam, adamw, lion, rmsprop, muon",
    "--weight_decay_filter=kernel": "one of kernels, hidden_dense_kernels",
    "--recipe=tutoral": "one of tutorial, shapes, fast",
    "--global_batch_size=12.5": "an integer",
    "--seed=1e3": "an integer",
    "--seed=": "an integer",
    "--learning_rate=fast": "a number",
    "--nesterov=maybe": "true or false",
    '--decay_epochs="82': "a comma separated list",
}

NOT_A_FLAG = {
    "--learning_rat=1": "Unknown command line flag 'learning_rat'. Did you mean: learning_rate, ",
    "--zzz": "Unknown command line flag 'zzz'",
    "--z\x1bz": r"Unknown command line flag 'z\x1bz'",
    "--nonesterov=1": "--nonesterov=1 does not take an argument",
    "--seed": "Missing value for flag --seed",
}

NOT_A_FLAGFILE = {
    "--flagfile=none": "Unable to open flagfile: [Errno 2] No such file or directory: 'none'",
    "--flagfile=/": "Unable to open flagfile: [Errno 21] Is a directory: '/'",
    f"--flagfile={sys.executable}": "--flagfile: is not text",
    "--flagfile": "--flagfile with no argument",
}

NOT_A_DATA_SET = {
    "cifar1O": "dataset=cifar1O is unknown to TensorFlow Datasets. Did you mean cifar10 or ",
    "shape": "dataset=shape is unknown to TensorFlow Datasets. Did you mean shapes or ",
    "x" * 101: f"dataset={'x' * 100} is not the name of a data set",
    "": "dataset= is not the name of a data set",
    "/etc": "dataset=/etc is not the name of a data set",
    "cifar10/../../etc": "dataset=cifar10/../../etc is not the name of a data set",
    "cifar10:../1.0.0": "dataset=cifar10:../1.0.0 is not the name of a data set",
    "cifar10:9.9.9": "dataset=cifar10:9.9.9: Dataset cifar10 cannot be loaded at version 9.9.9, ",
    "cifar10/large": "dataset=cifar10/large: BuilderConfig large not found",
    "ag_news_subset": "dataset=ag_news_subset cannot be used: it must have `image` ",
}

NOT_A_DATA_FOLDER = {
    "none": "does not exist",
    "dangling": "does not exist",
    "file": "is not a folder",
    "file/data": "is not a folder",
    "fifo": "is not a folder",
    "/dev/null": "is not a folder",
    "loop": "cannot be read (Too many levels of symbolic links)",
    "x" * 300: "cannot be read (File name too long)",
}

FOR_EVAL = [
    (["--num_towers=0"], 2, "--num_towers=0: must be at least 1 and at most 1024"),
    (["--num_towers=two"], 2, "--num_towers=two: must be an integer"),
    (["--global_batch_size=0"], 2, "--global_batch_size=0: must be at least 1 and at most 1048576"),
    (["--eval_interval_seconds=0"], 2, "--eval_interval_seconds=0.0: must be above 0 and at most"),
    (["--eval_interval_seconds=1e300"], 2, "=1e+300: must be above 0 and at most 86400"),
    (["--checkpoint=5", "--run_once=false"], 2, "--checkpoint=5: names one checkpoint"),
    (["--checkpoint=a\nb"], 2, r"--checkpoint='a\nb': must be text"),
    (["--train_dir="], 2, "--train_dir=: must be a local path"),
    (["--split=test[:5]"], 2, "--split=test[:5]: must be the name of one whole split"),
    (["--chekpoint=5"], 2, "Unknown command line flag 'chekpoint'. Did you mean: checkpoint ?"),
    (["--run_once=perhaps"], 2, "--run_once=perhaps: must be true or false"),
    (["runs/mine"], 2, "unexpected argument 'runs/mine'"),
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
    assert done.stderr.count("\n") == 1
    assert re.match("(train|eval).py: error: ", done.stderr)
    for piece in pieces:
        assert piece in done.stderr
    assert len(done.stderr) < 1000
    assert done.stdout == ""


@pytest.mark.parametrize("flag", OUT_OF_RANGE)
def test_values_out_of_range(nothing_is_left, flag):
    done = scripts.train(nothing_is_left, flag)
    check(done, 2, f"train.py: error: {flag}: {OUT_OF_RANGE[flag]}")


def test_every_flag_with_a_range_was_tried():
    tried = {flag.split("=")[0].removeprefix("--") for flag in OUT_OF_RANGE}
    definitions = dataclasses.fields(settings.TrainSettings)
    assert {field.name for field in definitions if field.metadata["allowed"]} <= tried


@pytest.mark.parametrize("flags", CONTRADICTORY)
def test_flags_that_contradict(nothing_is_left, flags):
    done = scripts.train(nothing_is_left, *flags.split())
    check(done, 2, f"train.py: error: {CONTRADICTORY[flags]}")


@pytest.mark.parametrize("flag", NOT_A_VALUE)
def test_values_that_are_none(nothing_is_left, flag):
    said = f"train.py: error: {flag}: must be {NOT_A_VALUE[flag]}\n"
    check(scripts.train(nothing_is_left, flag), 2, said)


@pytest.mark.parametrize("flag", [*NOT_A_FLAG, *NOT_A_FLAGFILE])
def test_flags_that_are_none(nothing_is_left, flag):
    said = (NOT_A_FLAG | NOT_A_FLAGFILE)[flag]
    check(scripts.train(nothing_is_left, flag), 2, f"train.py: error: {said}")


@pytest.mark.parametrize("flag", [*TOO_LONG, *CONTROL_CHARACTERS], ids=lambda flag: flag[:20])
def test_values_that_cannot_be_shown(nothing_is_left, flag):
    said = (TOO_LONG | CONTROL_CHARACTERS)[flag]
    check(scripts.train(nothing_is_left, flag), 2, f"train.py: error: {said}")


@pytest.mark.parametrize("argument", ["runs/mine", "False"])
def test_arguments_that_are_no_flags(nothing_is_left, argument):
    """`--nesterov False` ends here too, where argparse would take any text for true."""
    done = scripts.train(nothing_is_left, "--momentum=0.9", "--nesterov", argument)
    check(done, 2, f"train.py: error: unexpected argument '{argument}': flags begin with --")


@pytest.mark.parametrize("name", NOT_A_DATA_SET, ids=lambda name: name[:20])
def test_names_of_no_data_set(tmp_path, nothing_is_left, name):
    done = scripts.train(nothing_is_left, f"--dataset={name}", f"--data_dir={tmp_path}")
    check(done, 1, f"train.py: error: {NOT_A_DATA_SET[name]}")


@pytest.fixture
def odd_places(tmp_path):
    """Paths of all kinds but a folder; they are still all there is, afterwards."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to("none")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "fifo")
    before = sorted(tmp_path.iterdir())
    yield tmp_path
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100"])
@pytest.mark.parametrize("path", NOT_A_DATA_FOLDER, ids=lambda path: path[:20])
def test_data_folders_that_are_none(odd_places, path, dataset):
    flags = [f"--dataset={dataset}", f"--data_dir={odd_places / path}"]
    done = scripts.train(odd_places / "run", *flags)
    said = f"data_dir={odd_places / path} {NOT_A_DATA_FOLDER[path]}"
    check(done, 1, f"train.py: error: {said}")


@pytest.mark.parametrize(("flags", "code", "message"), FOR_EVAL)
def test_bad_input_to_eval(nothing_is_left, flags, code, message):
    check(scripts.run("eval", f"--train_dir={nothing_is_left}", *flags), code, message)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("file", "Not a directory"),
        ("file/run", "Not a directory"),
        ("fifo", "Not a directory"),
        ("loop", "Too many levels of symbolic links"),
        ("/dev/null", "Not a directory"),
        ("x" * 300, "File name too long"),
    ],
    ids=lambda text: text[:20],
)
@pytest.mark.parametrize("script", ["train", "eval"])
def test_a_run_folder_that_cannot_be(odd_places, script, path, reason):
    done = scripts.run(script, f"--train_dir={odd_places / path}")
    check(done, 1, f"{script}.py: error: --train_dir={odd_places / path}: ", reason)


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
        ("train.py", ["--learning_rat=1"], 2, NOT_A_FLAG["--learning_rat=1"]),
        ("train.py", ["--stderrthreshold=loud"], 2, "--stderrthreshold must be one of "),
        ("eval.py", ["--zzz"], 2, NOT_A_FLAG["--zzz"]),
        pytest.param(
            "train.py",
            ["--parameter_device=gpu"],
            2,
            "--parameter_device=gpu: this machine has no visible GPU",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "eval.py",
            ["--train_dir=runs/a"],
            1,
            "--train_dir=runs/a: there is no run here; "
            "train one with python train.py --train_dir=runs/a",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_process_says_one_line_and_nothing_of_tensorflow(
    command, tmp_path, script, flags, code, message
):
    check(command(script, *flags, cwd=tmp_path), code, f"{script}: error: {message}")
    assert list(tmp_path.iterdir()) == []


# Files of a run that anyone may have edited, or brought from elsewhere.


@pytest.fixture(scope="module")
def finished(cache_home, tmp_path_factory):
    """A run of one step."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache_home))
        done = scripts.train(folder, "--max_steps=1", "--summary_every_steps=0")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def run(finished, tmp_path, cache_home, monkeypatch):
    """A copy of it, to be spoiled."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_home))
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def check_refused(run, *pieces: str, scripts_to_run=("train", "eval")) -> None:
    """Neither command goes on from what is in `run`, nor changes it."""
    before = scripts.contents(run)
    for script in scripts_to_run:
        flags = scripts.small_run(run) if script == "train" else [f"--train_dir={run}"]
        check(scripts.run(script, *flags), 1, f"{script}.py: error: --train_dir={run}: ", *pieces)
    assert scripts.contents(run) == before


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "config.json cannot be read"),
        (b"{", "config.json cannot be read"),
        (b"\xff\xfe{}", "config.json cannot be read: 'utf-8' codec can't decode"),
        (b"[1, 2]", "its config.json is not that of a run"),
        (b"NaN", "its config.json is not that of a run"),
        (b'{"settings": [], "resolved": []}', "settings and resolved must be objects"),
        (b'{"settings": {}, "resolved": {}}', "train_dir is missing"),
    ],
    ids=lambda content: repr(content[:20]),
)
def test_a_configuration_that_is_none(run, content, reason):
    (run / "config.json").write_bytes(content)
    check_refused(run, reason)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("model", "of_tomorrow", "--model=of_tomorrow: must be one of cifarnet, resnet"),
        ("model", ["cifarnet"], "--model=cifarnet: must be of type str"),
        ("dataset", None, "--dataset=None: must be of type str"),
        ("dataset", "a\nb", r"--dataset='a\nb': must be text of at most"),
        ("seed", "0", "--seed=0: must be of type int"),
        ("global_batch_size", 10**12, "must be at least 1 and at most 1048576"),
        ("microbatch_size", 0, "microbatch_size=0"),
        ("intra_op_threads", -1, "--intra_op_threads=-1: must be at least 1 and at most 1024"),
        ("moving_average_decay", float("nan"), "--moving_average_decay=nan: must be at least 0"),
        ("learning_rate", 10**400, "must be finite, in float32"),
        ("decay_epochs", ["82"], "--decay_epochs=82: must be of type tuple"),
        ("class_names", [1, 2], "class_names=1,2"),
        ("image_shape", "24", "image_shape=24"),
        ("preprocessing", "my_own", "--preprocessing=my_own: must be one of crop_flip_colour"),
        ("examples_per_epoch", 0, "examples_per_epoch=0"),
        ("last_step", None, "last_step=None"),
        ("init_from", "runs/first", "init_from=runs/first"),
    ],
)
def test_a_configuration_with_a_value_that_no_run_has(run, name, value, reason):
    config = json.loads((run / "config.json").read_text())
    config["resolved" if name in config["resolved"] else "settings"][name] = value
    (run / "config.json").write_text(json.dumps(config))
    check_refused(run, "its config.json is not that of a run: ", reason)


def test_a_configuration_that_lacks_what_is_read_of_it(run):
    """Every name is left out by itself: it is missed, or both commands do without it."""
    config = json.loads((run / "config.json").read_text())
    read = {
        "settings": settings.recorded_names(),
        "resolved": [
            *run_config._READ_OF_RESOLVED,
            "init_from",
            "layers",
            "places_of_weights",
        ],
    }
    for part, names in read.items():
        for name in config[part]:
            lacking = {**config, part: {k: v for k, v in config[part].items() if k != name}}
            if name in names:
                with pytest.raises(run_folder.RunFolderError, match=name):
                    run_config.check(lacking, run)
            else:
                run_config.check(lacking, run)
    config["resolved"] = {name: config["resolved"][name] for name in read["resolved"]}
    (run / "config.json").write_text(json.dumps(config))
    assert scripts.run("eval", f"--train_dir={run}").returncode == 0
    done = scripts.train(run, "--max_steps=1")
    assert "the run has finished already, at step 1" in done.stdout


class Trap:
    """Makes a file where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


@pytest.fixture(scope="module")
def model_with_a_lambda(tmp_path_factory) -> bytes:
    """A model file with code of its own, which runs where Keras is told to trust it."""
    path = tmp_path_factory.mktemp("model") / "model.keras"
    layers = [keras.Input((24, 24, 3)), keras.layers.Lambda(lambda images: images)]
    keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(10)]).save(path)
    return path.read_bytes()


@pytest.fixture
def no_model_is_loaded(monkeypatch):
    def load_model(*_, **__):
        raise AssertionError("a model file was loaded")

    for module in (keras.saving, keras.models):
        monkeypatch.setattr(module, "load_model", load_model)


def test_a_model_with_a_lambda_is_never_loaded(run, model_with_a_lambda, no_model_is_loaded):
    (run / "final_model.keras").write_bytes(model_with_a_lambda)
    (run / "checkpoints" / "step-9.keras").write_bytes(model_with_a_lambda)
    before = scripts.contents(run)
    for name in ("final_model.keras", f"{run}/final_model.keras", "9", "step-9", "step-9.keras"):
        done = scripts.run("eval", f"--train_dir={run}", f"--checkpoint={name}")
        check(done, 1, f"checkpoint={name}: not found; {run}/checkpoints holds the steps 1")
    done = scripts.train(run, "--max_steps=1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "the run has finished already" in done.stdout
    assert scripts.contents(run) == before
    assert scripts.run("eval", f"--train_dir={run}").returncode == 0


@pytest.mark.parametrize("kind", ["lambda", "pickle", "nothing"])
def test_a_checkpoint_that_is_none(run, tmp_path, model_with_a_lambda, kind):
    pickled = pickle.dumps(Trap(tmp_path / "sprung"))
    content = {"lambda": model_with_a_lambda, "pickle": pickled, "nothing": b""}[kind]
    (run / "checkpoints" / "step-9").mkdir()
    for ending in ("index", "data-00000-of-00001"):
        (run / "checkpoints" / "step-9" / f"state.{ending}").write_bytes(content)
    before = scripts.contents(run)
    done = scripts.run("eval", f"--train_dir={run}", "--checkpoint=9")
    check(done, 1, f"eval.py: error: checkpoint {run}/checkpoints/step-9")
    assert scripts.contents(run) == before
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("name", "spoil", "said"),
    [
        ("cifar-10-batches-bin/test_batch.bin", lambda content: content, "not a multiple of 3,0"),
        (  # as long as two records
            "cifar-10-batches-bin/test_batch.bin",
            lambda content: content.ljust(2 * 3073, b"."),
            "example 0 has label 128; with 10 classes, labels are 0 to 9",
        ),
    ],
)
def test_pickles_where_binary_batches_are_expected(tmp_path, name, spoil, said):
    path = tmp_path / "data" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(spoil(pickle.dumps(Trap(tmp_path / "sprung"))))
    flags = ["--dataset=cifar10", f"--data_dir={tmp_path / 'data'}"]
    check(scripts.train(tmp_path / "run", *flags), 1, f"train.py: error: {path.parent}", said)
    assert os.listdir(tmp_path) == ["data"]
    assert [file for file in (tmp_path / "data").rglob("*") if file.is_file()] == [path]


WATCHED = """
import pickle, sys

unpickled = []
sys.addaudithook(lambda event, of: event == "pickle.find_class" and unpickled.append(of))

def watched(load):
    return lambda *arguments, **options: unpickled.append(load) or load(*arguments, **options)

pickle.load, pickle.loads = watched(pickle.load), watched(pickle.loads)

import towers  # its libraries define flags, which scripts.py tells from the script's
import scripts

run = sys.argv[1]
flags = ("--checkpoint_every_steps=1", "--summary_every_steps=1", "--verify_every_steps=1")
print(scripts.train(run, "--max_steps=1", *flags))
print(scripts.train(run, "--max_steps=2", *flags))
print(scripts.run("eval", f"--train_dir={run}", "--dataset=shapes"))
print("the hook sees:", pickle.loads(pickle.dumps(print)) is print and unpickled)
"""


@pytest.mark.whole_program
@pytest.mark.long
def test_a_training_and_an_evaluation_unpickle_nothing(tmp_path):
    """Not by our code, nor by TensorFlow, Keras or NumPy for us: no call and no audit event."""
    paths = os.pathsep.join([str(scripts.ROOT), str(scripts.ROOT / "tests" / "helpers")])
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(tmp_path / "run")],
        env=os.environ | {"PYTHONPATH": paths, "XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")
    trained, went_on, evaluated, seen = done.stdout.splitlines()
    assert "finished: test accuracy" in trained
    assert "continuing at step 1" in went_on
    assert f"{lighter.TEST_IMAGES} examples, each once" in evaluated
    # What this test unpickled itself, to see that it would be seen.
    assert re.fullmatch(
        r"the hook sees: \[<built-in function loads>, \('builtins', 'print'\)\]", seen
    )


def test_no_code_of_ours_unpickles():
    folders = ("towers", "input_pipeline", "benchmarks")
    paths = [path for folder in folders for path in (scripts.ROOT / folder).rglob("*.py")]
    paths += scripts.ROOT.glob("*.py")
    assert len(paths) > 40
    unpickles = re.compile(
        r"import (pickle|dill|cloudpickle|joblib|shelve|marshal)\b|from (pickle|shelve|marshal)\b|"
        r"allow_pickle=True|unsafe_deserialization|safe_mode=False|torch\.load|(?<!\.)\b(eval|exec)\("
    )
    for path in paths:
        text = path.read_text(encoding="utf-8")
        assert not unpickles.search(text), path
        for call in re.findall(r"np\.load\([^)]*\)+", text):
            assert "allow_pickle=False" in call, path


@pytest.mark.parametrize("name", ["train_dir", "init_from", "data_dir"])
@pytest.mark.parametrize("path", ["~", "~/run", "~nobody-of-this-name/run"])
def test_a_home_folder_that_nobody_knows(nothing_is_left, monkeypatch, name, path):
    """As in a container whose user has no entry and no HOME; a folder `~` would be made here."""

    def no_entry(_):
        raise KeyError

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", no_entry)
    home = path.partition("/")[0]
    said = f"error: --{name}={path}: {home} is no home folder that this system knows (is HOME set?)"
    check(scripts.train(nothing_is_left, f"--{name}={path}"), 2, f"train.py: {said}")
    if name != "init_from":
        done = scripts.run("eval", f"--train_dir={nothing_is_left}", f"--{name}={path}")
        check(done, 2, f"eval.py: {said}")


def test_a_program_s_run_is_not_the_command_s_nor_the_other_way_round(tmp_path, cache):
    def fit(folder):
        model = toys.classifier()
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return towers.Run(folder, model).fit(*toys.batch(8, [3]), verbose=0)

    fit(tmp_path / "program")
    assert scripts.train(tmp_path / "command", "--max_steps=1").returncode == 0
    before = scripts.contents(tmp_path)
    for command in ("train", "eval"):
        done = scripts.run(command, f"--train_dir={tmp_path / 'program'}")
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert f"--train_dir={tmp_path / 'program'}: " in done.stderr
    with pytest.raises(run_folder.RunFolderError, match=str(tmp_path / "command")):
        fit(tmp_path / "command")
    assert scripts.contents(tmp_path) == before
