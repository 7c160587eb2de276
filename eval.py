"""Evaluates a run's checkpoints: each example of a split exactly once.

    python eval.py --train_dir=runs/first
    python eval.py --train_dir=runs/first --run_once=false    (follows a run)

Any number of towers will do. Each evaluation adds a line to eval.jsonl in the
run's folder, and to TensorBoard.
"""

import os
import sys

from absl import app, flags

if sys.flags.safe_path:  # else Python has added this folder itself
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import command_line

A_DAY = 86_400  # seconds

flags.DEFINE_string("train_dir", "runs/tutorial", "Folder of the run.")
flags.DEFINE_string(
    "checkpoint", None, "Checkpoint to evaluate, by path or step; default: the newest."
)
flags.DEFINE_string("dataset", None, "Data set; default: the run's.")
flags.DEFINE_string("data_dir", None, "Folder of the data; default: the run's.")
flags.DEFINE_string(
    "split", None, "Split to evaluate, such as train; default: the one that the run evaluates."
)
flags.DEFINE_integer("num_towers", None, "Towers; default: one per visible GPU, else 1.")
flags.DEFINE_integer(
    "global_batch_size", None, "Examples at a time, over all towers; default: the run's."
)
flags.DEFINE_bool(
    "test_time_flip", False, "Evaluate the mean of the logits of each image and its mirror image."
)
flags.DEFINE_bool("run_once", True, "Whether to stop after one checkpoint, or follow a training.")
flags.DEFINE_float("eval_interval_seconds", 10.0, "Time between two looks for a new checkpoint.")
flags.declare_key_flag("version")  # of command_line


def main(argv):
    """Evaluates, and returns the exit code."""
    try:
        command_line.provide_limits()
        return run_or_explain(argv)
    except KeyboardInterrupt:
        print("stopped")
        return 130
    except BrokenPipeError:
        return command_line.output_is_gone()
    except ImportError as error:
        if error.name != "towers":  # which says that Keras is not on TensorFlow
            raise
        print(f"eval.py: error: {error}", file=sys.stderr)
        return 1
    except OSError as error:  # such as a full disk
        return command_line.ended_by_system("eval.py", error)


def run_or_explain(argv):
    """Reads the flags and evaluates; an error of the user's becomes one line and an exit code."""
    # Imported here, so that --help answers without waiting for TensorFlow.
    from input_pipeline import datasets
    from towers import checkpoints, console, noise, run_folder, settings, training

    noise.quiet_loggers()
    try:
        check_flags(argv)
        return run(flags.FLAGS)
    except settings.SettingsError as error:
        console.say_error("eval.py", error)
        return 2
    except (
        datasets.DataError,
        run_folder.RunFolderError,
        checkpoints.CheckpointError,
        training.TrainingError,
    ) as error:
        console.say_error("eval.py", error)
        return 1


def check_flags(argv):
    """Checks the flags' values before anything is built."""
    from towers import settings

    given = flags.FLAGS
    if argv[1:]:
        raise settings.SettingsError(f"unexpected argument {argv[1]!r}: flags begin with --")
    for name in ("train_dir", "dataset", "data_dir", "num_towers", "global_batch_size"):
        if given[name].value is not None:
            settings.check_value(name, given[name].value)
    for name in ("train_dir", "data_dir", "checkpoint"):
        settings.check_home(name, given[name].value or "")
    if given.checkpoint is not None:
        settings.check_text("checkpoint", given.checkpoint)
        settings.check_run_path("checkpoint", given.checkpoint)
    if given.split is not None:
        settings.check_split("split", given.split)
    if not 0 < given.eval_interval_seconds <= A_DAY:
        raise settings.SettingsError(
            f"--eval_interval_seconds={given.eval_interval_seconds}: must be above 0 and at most "
            f"{A_DAY}"
        )
    if given.checkpoint is not None and not given.run_once:
        raise settings.SettingsError(
            f"--checkpoint={given.checkpoint}: names one checkpoint, and --run_once=false follows "
            "all of them; give one of the two"
        )


def run(given):
    """The story of an evaluation; returns the exit code."""
    from input_pipeline import batches, datasets, preprocess
    from towers import assessment, run_folder, session

    folder = run_folder.RunFolder(given.train_dir)
    if given.run_once:
        config = assessment.config_of(folder)
        named = assessment.named_checkpoint(folder, given.checkpoint)
    else:
        config = assessment.wait_for_run(folder, given.eval_interval_seconds)
    settings = config["settings"]
    # The same arithmetic as in training, to the last bit.
    session.start_runtime(settings["intra_op_threads"], settings["deterministic"])
    devices = session.tower_devices(given.num_towers)

    split = given.split or settings["eval_split"]
    data = datasets.load(
        given.dataset or settings["dataset"], given.data_dir or settings["data_dir"], split
    )
    preprocessing = preprocess.for_images(
        config["resolved"]["preprocessing"], data.images.shape[1:]
    )
    assessment.check_fits(config, preprocessing.output_shape, data.class_names)
    if given.dataset in (None, settings["dataset"]):
        assessment.check_same_images(config, split, data.fingerprint)

    assess = assessment.Assessment(
        folder,
        config,
        devices,
        dataset=given.dataset or settings["dataset"],
        data_sha256=data.fingerprint,
        split=split,
        count=len(data.images),
        batches=batches.evaluation_batches(
            batches.as_tensor(data.images),
            data.labels,
            global_batch_size=given.global_batch_size or settings["global_batch_size"],
            preprocess=preprocessing.evaluate,
        ),
        test_time_flip=given.test_time_flip,
    )
    if not given.run_once:
        return assessment.follow(assess, folder, given.eval_interval_seconds)
    if named is None:
        assessment.assess_newest(assess, folder)
    else:
        assess(named)
    return 0


if __name__ == "__main__":
    app.run(main, flags_parser=command_line.parse)
