"""Trains an image classifier on towers: several devices, one set of weights.

    python train.py --train_dir=runs/first --num_towers=2
    python train.py --recipe=shapes          (nothing to download)
    tensorboard --logdir=runs/first

The same command continues a run that was stopped.
`python eval.py --train_dir=...` evaluates it.
Once the package is installed, they are towers-train and towers-eval.
"""

import functools
import os

from towers_cli import command_line, ending, settings


def command() -> None:
    """Runs the command to its end."""
    command_line.run(settings.TrainSettings, __doc__, main)


def main(line: command_line.CommandLine, rest: list[str]) -> int:
    """Trains; returns the exit code."""
    ending.end_at_once_on_signals()  # until the training takes them over, and saves first
    if line.values.dry_run:
        ending.keep_libraries_from_writing()
    return ending.explained(rest[0], lambda: settings_of(line, rest), run, ending.stopped_at_once)


def settings_of(line: command_line.CommandLine, rest: list[str]) -> settings.TrainSettings:
    """The settings that the flags, or TF_CONFIG in place of two of them, give."""
    if not os.environ.get("TF_CONFIG"):
        return line.settings(rest)
    from towers_cli import agreement

    return line.settings(rest, **agreement.workers_of(os.environ["TF_CONFIG"], line))


def run(chosen: settings.TrainSettings) -> int:
    """The story of a training; returns the exit code."""
    from towers_cli import agreement

    with agreement.meet_workers(chosen) as workers:  # most often there is one
        return train(chosen, workers)


def train(chosen: settings.TrainSettings, workers) -> int:
    """The story, once all workers are there."""
    from input_pipeline import images
    from towers.runs import definition, resuming, run_folder, run_plan, warm_start
    from towers.support import machine
    from towers_cli import (  # isort: skip
        agreement, build, own_model, pictures, resolve, run_config, start_table,
    )  # fmt: skip

    # What the run is, as its folder and this machine have it.
    folder = run_folder.RunFolder(chosen.train_dir, "--train_dir")
    found = agreement.find(workers, folder)
    gpus = machine.num_devices("GPU")
    towers_of_workers = agreement.towers_of_workers(workers, chosen.num_towers or max(1, gpus))
    chosen = resolve.resolved(chosen, found.earlier, gpus, found.cores, towers_of_workers)
    build.start_runtime(chosen.intra_op_threads, chosen.deterministic)
    tower_devices = build.tower_devices(chosen.num_towers)
    parameter_device = build.parameter_device(chosen, tower_devices, workers)
    agreement.check_alike(workers, chosen)
    workers.start()

    # The data.
    training, evaluated = build.load_data(chosen, workers)
    preprocessing = build.preprocessing(chosen, training)
    if chosen.show_batch:
        return pictures.show_batch(chosen, training, preprocessing, workers)

    # The model.
    model = build.network_to_train(chosen, preprocessing, training, parameter_device)
    of_model = definition.of_model(model)
    agreement.check_same_model(workers, chosen.model, of_model["layers"])

    # The plan, written down and shown.
    learning_rate = resolve.learning_rate(chosen, training.num_examples)
    last_step = resolve.last_step(chosen, training.num_examples)
    config = run_config.make(
        chosen, tower_devices, last_step, preprocessing.output_shape, training, evaluated,
        of_model, towers_of_workers, parameter_device,
    )  # fmt: skip
    agreement.check_beginning(workers, config, found.earlier)
    if workers.is_chief:
        start_table.show(config, learning_rate, evaluated.num_examples, found.cores, chosen.dry_run)
    if chosen.dry_run:
        return 0

    # The trainer: one tower for each device.
    to_adapt_to = functools.partial(build.images_to_adapt_to, training, preprocessing)
    trainer = build.build_trainer(
        chosen, tower_devices, model, learning_rate, to_adapt_to, workers, parameter_device
    )

    # The run, from its beginning or from where it stands.
    batch, share = chosen.global_batch_size, trainer.shares.examples
    source = images.training(training, preprocessing, chosen.seed)
    data = run_plan.Data(
        training=functools.partial(source.batches, global_batch_size=batch, share=share),
        evaluation=images.evaluated(evaluated, preprocessing, batch, share),
        evaluation_count=evaluated.num_examples,
        evaluation_split=chosen.eval_split,
    )
    try:
        with own_model.faults_in_training(chosen.model):
            exported = build.exported(model, preprocessing, training.class_names)
            plan = build.plan(chosen, last_step, training, exported)
            defined = run_config.CommandsRun(config)
            outcome = resuming.train(trainer, folder, plan, data, defined, chosen.init_from)
    except warm_start.WarmStartError as error:
        raise settings.SettingsError(f"--{error}") from error
    return outcome.exit_code
