"""Evaluates a run's checkpoints: each example of a split exactly once.

    python eval.py --train_dir=runs/first
    python eval.py --train_dir=runs/first --run_once=false    (follows a run)

Any number of towers will do. Each evaluation adds a line to eval.jsonl in the
run's folder, and to TensorBoard. Once the package is installed, the command is
towers-eval.
"""

from towers_cli import command_line, settings


def command() -> None:
    """Runs the command to its end."""
    command_line.run(settings.EvalSettings, __doc__, main)


def main(chosen: settings.EvalSettings) -> int:
    """The story of an evaluation; returns the exit code."""
    from input_pipeline import datasets, images
    from towers.runs import checkpoints, run_folder
    from towers_cli import build, checkpoint_evaluator

    # The run, and which of its checkpoints.
    folder = run_folder.RunFolder(chosen.train_dir, "--train_dir")
    if chosen.run_once:
        config = checkpoint_evaluator.read_config(folder)
        if chosen.checkpoint is not None:
            checkpoints.find(folder.checkpoints, chosen.checkpoint)  # before the data are read
    else:
        config = checkpoint_evaluator.wait_for_run(folder, chosen.eval_interval_seconds)
    of_run = config["settings"]
    # The same arithmetic as in training, to the last bit.
    build.start_runtime(of_run["intra_op_threads"], of_run["deterministic"])
    devices = build.tower_devices(chosen.num_towers)

    # The data.
    dataset = chosen.dataset or of_run["dataset"]
    others = checkpoint_evaluator.other_pictures(config, dataset, chosen.data_dir)
    split = chosen.split or datasets.default_split(dataset, others, of_run["eval_split"])
    data = datasets.load(
        dataset,
        chosen.data_dir or of_run["data_dir"],
        split,
        image_size=of_run["image_size"],
        class_names=config["resolved"]["class_names"],
        skip_broken=of_run["skip_broken"],
    )
    preprocessing = images.preprocessing(of_run["preprocessing"], data)
    checkpoint_evaluator.check_fits(config, preprocessing.output_shape, data.class_names)
    if dataset == of_run["dataset"] and others is None:
        checkpoint_evaluator.check_same_images(config, split, data.fingerprint)
    batch = chosen.global_batch_size or of_run["global_batch_size"]

    # The evaluation of one checkpoint, or of each that a running training saves.
    evaluator = checkpoint_evaluator.CheckpointEvaluator(
        folder,
        config,
        devices,
        chosen,
        dataset=f"{dataset} {others}" if others else dataset,
        split=split,
        images=data,
        batches=images.evaluated(data, preprocessing, batch),
    )
    if not chosen.run_once:
        return evaluator.follow()
    evaluator.evaluate_one()
    return 0
