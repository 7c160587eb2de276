"""Trains an image classifier on towers: several devices, one set of weights.

    python train.py --train_dir=runs/first --num_towers=2
    python train.py --recipe=shapes          (nothing to download)
    tensorboard --logdir=runs/first

The same command continues a run that was stopped.
`python eval.py --train_dir=...` evaluates it.
Once the package is installed, they are towers-train and towers-eval.
"""

import math
import os
import sys

from towers_cli import command_line, settings


def command() -> int:
    """Runs the command; returns the exit code."""
    return command_line.run(settings.TrainSettings, __doc__, main)


def main(chosen: settings.TrainSettings) -> int:
    """Trains; returns the exit code."""
    from towers import machine, multi_worker
    from towers.runs import run_folder
    from towers_cli import build, resolve, run_config

    # What TensorFlow's runtime fixes when it starts, and workers meet through it.
    with settings.as_flags():
        members = multi_worker.from_tf_config()
    folder = run_folder.RunFolder(chosen.train_dir, "--train_dir")
    is_chief = members is None or not members.index
    earlier = (run_config.read(folder) if is_chief else None) or {"settings": {}}
    chosen = resolve.resolved(
        chosen,
        num_gpus=machine.num_devices("GPU"),
        cores=machine.available_cores(),
        num_workers=len(members.addresses) if members else 1,
        threads=earlier["settings"].get("intra_op_threads"),
    )
    tower_devices = build.start_runtime(chosen)
    with multi_worker.meet(members, chosen.worker_wait_seconds) as workers:  # most often one
        return train(chosen, folder, tower_devices, workers)


def train(chosen: settings.TrainSettings, folder, tower_devices, workers) -> int:
    """The story of a training, once all workers are there; returns the exit code."""
    import tensorflow as tf

    import towers
    from input_pipeline import images
    from towers_cli import build, own_model, resolve, run_config

    # The data, and the model at its initial weights.
    run_config.check_alike(workers, chosen)
    training, evaluated = build.load_data(chosen, workers)
    preprocessing = build.preprocessing(chosen, training)
    parameter_device = tower_devices[0] if chosen.parameter_device == "gpu" else towers.devices.HOST
    one_hot = bool(chosen.label_smoothing or chosen.mixup_alpha or chosen.cutmix_alpha)
    model = build.build_model(chosen, training, preprocessing, parameter_device, one_hot)

    # What the run is to do, checked against what is in the folder, and shown.
    learning_rate = resolve.learning_rate(chosen, training.num_examples)
    last_step = resolve.last_step(chosen, training.num_examples)
    config = run_config.make(chosen, last_step, preprocessing.output_shape, training, evaluated)
    workers.from_chief("what it begins with", lambda: run_config.check_beginning(config, folder))
    towers_of_workers = workers.exchange("their numbers of towers", len(tower_devices))
    if workers.is_chief:
        table = run_config.start_table(
            config, tower_devices, towers_of_workers, model.count_params(), learning_rate,
            evaluated.num_examples,
        )  # fmt: skip
        print(table, flush=True)
    if chosen.dry_run:
        return 0
    finished = workers.from_chief("whether the run has finished", folder.read_final_summary)
    if finished and finished["step"] >= last_step:
        print(f"the run has finished already, at step {finished['step']}")
        return 0

    # The run: Keras's fit on towers, from its beginning or from where it stands.
    batch_size = chosen.global_batch_size
    # What names no device is on the CPU: TensorFlow would put it on the first GPU.
    explained = own_model.errors_explained(chosen.model, "training it")
    with explained, tf.device(towers.devices.HOST):
        towers.distribute(
            model,
            tower_devices,
            microbatch_size=chosen.microbatch_size,
            accumulate_gradients=chosen.accumulate_gradients,
            workers=workers,
        )
        run = towers.Run(
            folder,
            model,
            init_from=chosen.init_from,
            **config,
            export=lambda model: build.export(model, preprocessing, training.class_names),
        )
        try:
            end = run.fit(
                images.training(training, preprocessing, chosen.seed, one_hot),
                batch_size=batch_size,
                epochs=math.ceil(chosen.train_epochs),
                max_steps=last_step,
                validation_data=images.evaluated(evaluated, preprocessing, batch_size, one_hot),
                validation_freq=resolve.evaluated_epochs(chosen, last_step, training.num_examples),
                callbacks=build.make_callbacks(chosen, model, learning_rate, last_step),
                verbose=0,
                checkpoint_every_steps=chosen.checkpoint_every_steps,
                checkpoints_to_keep=chosen.checkpoints_to_keep,
            )
        except towers.Stopped as stopped:
            return stopped.code
    if workers.is_chief:
        accuracy, python = end.history["val_accuracy"][-1], os.path.relpath(sys.executable)
        print(
            f"finished: {chosen.eval_split} accuracy {accuracy:.2%}, {folder.final_model}, "
            f"weights sha256 {end.weights_sha256[:16]}\n"
            f"watch it: {python} -m tensorboard.main --logdir {folder.path}"
        )
    return 0
