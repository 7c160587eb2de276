"""Evaluates a run's checkpoints: each example of a split exactly once.

    python eval.py --train_dir=runs/first
    python eval.py --train_dir=runs/first --run_once=false    (follows a run)

Any number of towers will do. Each evaluation adds a line to eval.jsonl in the
run's folder, and to TensorBoard. Once the package is installed, the command is
towers-eval.
"""

import functools

from towers_cli import command_line, ending, settings


def command() -> None:
    """Runs the command to its end."""
    command_line.run(settings.EvalSettings, __doc__, main)


def main(line: command_line.CommandLine, rest: list[str]) -> int:
    """Evaluates; returns the exit code."""
    return ending.explained(rest[0], lambda: line.settings(rest), run, stopped)


def stopped(number: int) -> int:
    """Says that Ctrl-C has ended it; returns the shell's exit code for a signal."""
    print("stopped")
    return 128 + number


def run(given: settings.EvalSettings) -> int:
    """The story of an evaluation; returns the exit code."""
    from input_pipeline import datasets, images
    from towers.runs import run_folder
    from towers_cli import build, checkpoint_evaluator, pictures

    # The run, and which of its checkpoints.
    folder = run_folder.RunFolder(given.train_dir, "--train_dir")
    if given.run_once:
        config = checkpoint_evaluator.config_of(folder)
        named = checkpoint_evaluator.named_checkpoint(folder, given.checkpoint)
    else:
        config = checkpoint_evaluator.wait_for_run(folder, given.eval_interval_seconds)
    of_run = config["settings"]
    # The same arithmetic as in training, to the last bit.
    build.start_runtime(of_run["intra_op_threads"], of_run["deterministic"])
    devices = build.tower_devices(given.num_towers)

    # The data.
    dataset = given.dataset or of_run["dataset"]
    others = checkpoint_evaluator.other_pictures(config, dataset, given.data_dir)
    split = given.split or datasets.default_split(dataset, others, of_run["eval_split"])
    data = datasets.load(
        dataset,
        given.data_dir or of_run["data_dir"],
        split,
        image_size=of_run["image_size"],
        class_names=config["resolved"]["class_names"],
        skip_broken=of_run["skip_broken"],
    )
    preprocessing = images.preprocessing(of_run["preprocessing"], data)
    checkpoint_evaluator.check_fits(config, preprocessing.output_shape, data.class_names)
    if dataset == of_run["dataset"] and others is None:
        checkpoint_evaluator.check_same_images(config, split, data.fingerprint)

    # The evaluation of one checkpoint, or of each that a running training saves.
    evaluate = checkpoint_evaluator.CheckpointEvaluator(
        folder,
        config,
        devices,
        dataset=f"{dataset} {others}" if others else dataset,
        data_sha256=data.fingerprint,
        split=split,
        count=data.num_examples,
        batches=images.evaluated(
            data, preprocessing, given.global_batch_size or of_run["global_batch_size"]
        ),
        test_time_flip=given.test_time_flip,
        looks_at=functools.partial(pictures.look_at, data, given.write_predictions),
    )
    if not given.run_once:
        return checkpoint_evaluator.follow(evaluate, folder, given.eval_interval_seconds)
    if named is None:
        checkpoint_evaluator.evaluate_newest(evaluate, folder)
    else:
        evaluate(named)
    return 0
