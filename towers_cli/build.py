"""From a run's `config.json` to the objects that train it."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from input_pipeline import datasets, images, preprocess, raw_images
from towers import devices, losses, networks, schedules, trainer, worker
from towers.networks import layers, optimizers
from towers.runs import definition, run_plan
from towers.support import checks, machine, weight_filters
from towers_cli import agreement, own_model, settings

IMAGES_TO_ADAPT_TO = 5000  # at most, for a network that looks at some before its first step
BYTES_TO_ADAPT_TO = 2**28  # likewise: 445 images of 224 x 224


def start_runtime(intra_op_threads: int, deterministic: bool) -> None:
    """Sets what TensorFlow's runtime fixes when it starts, as `TrainSettings` has it.

    What Keras has read from `~/.keras/keras.json` does not affect a run: it is set to its defaults.

    Raises:
      SettingsError: the runtime has started already, with another number of threads.
    """
    keras.config.set_floatx("float32")
    keras.config.set_image_data_format("channels_last")
    keras.config.set_epsilon(1e-7)
    try:
        devices.use_intra_op_threads(intra_op_threads)
    except ValueError as error:
        raise settings.SettingsError(f"--{error}") from error
    if deterministic:
        devices.run_deterministically()


def tower_devices(num_towers: int | None) -> tuple[str, ...]:
    """One device per tower; None means one per visible GPU, else 1.

    Raises:
      SettingsError: `--num_towers` does not fit the machine.
    """
    try:
        return devices.choose(num_towers)
    except ValueError as error:
        raise settings.SettingsError(f"--{error}") from error


def parameter_device(
    chosen: settings.TrainSettings, tower_devices: Sequence[str], workers: worker.Workers
) -> str:
    """Where the weights and the optimizer's state are.

    Raises:
      SettingsError: `--parameter_device` asks for a GPU, and the first tower has none, or there are
        several workers.
    """
    if chosen.parameter_device == "cpu":
        return devices.HOST
    if machine.are_cpus(tower_devices):
        raise settings.SettingsError(
            "--parameter_device=gpu: this machine has no visible GPU; use cpu"
        )
    if workers.count > 1:
        raise settings.SettingsError(
            "--parameter_device=gpu: several workers exchange their gradients on the CPU; use cpu"
        )
    return tower_devices[0]


def load_data(
    chosen: settings.TrainSettings, workers: worker.Workers
) -> tuple[datasets.Images, datasets.Images]:
    """The splits that a run is trained on and evaluated on, the same on all workers.

    Raises:
      DataError: they cannot be loaded.
      WorkerError: another worker has other images.
    """

    def load(split: str) -> datasets.Images:
        return datasets.load(
            chosen.dataset,
            chosen.data_dir,
            split,
            image_size=chosen.image_size,
            store_dir=chosen.store_dir,
            read_only=chosen.dry_run,
        )

    # First the split whose name may be wrong: decoding the other may take minutes.
    splits = (chosen.eval_split, settings.TRAINING_SPLIT)
    evaluated, training = agreement.chief_first(
        workers, "the images", lambda: [load(split) for split in splits]
    )
    agreement.check_same_data(
        workers, training=training.fingerprint, evaluation=evaluated.fingerprint
    )
    return training, evaluated


def preprocessing(
    chosen: settings.TrainSettings, training: datasets.Images
) -> preprocess.Preprocessing:
    """What happens to the images before the network.

    Raises:
      DataError: the preprocessing cuts pictures as they are decoded, and these already are.
      SettingsError: it does not take such images.
    """
    try:
        return images.preprocessing(
            chosen.preprocessing,
            training,
            augmentation=chosen.augment,
            random_erasing=chosen.random_erasing,
            mixup_alpha=chosen.mixup_alpha,
            cutmix_alpha=chosen.cutmix_alpha,
        )
    except ValueError as error:
        raise settings.SettingsError(f"--dataset={chosen.dataset}: {error}") from error


def images_to_adapt_to(training: datasets.Images, prepared: preprocess.Preprocessing) -> np.ndarray:
    """What a network that looks at some images before its first step is shown."""
    most = BYTES_TO_ADAPT_TO // (math.prod(training.image_shape) * np.dtype(np.float32).itemsize)
    return prepared.evaluate(training.some(min(IMAGES_TO_ADAPT_TO, max(most, 1)))).numpy()


def exported(
    model: keras.Model, prepared: preprocess.Preprocessing, class_names: Sequence[str]
) -> keras.Model:
    """The network as a model of raw images, which a run writes at its end."""
    with tf.device(devices.HOST):
        return raw_images.classifier(
            model,
            image_shape=prepared.raw_shape,
            class_names=class_names,
            prepare=prepared.in_keras,
        )


def plan(
    chosen: settings.TrainSettings, last: int, training: datasets.Images, exported: keras.Model
) -> run_plan.Plan:
    """When the run ends, and what it does along the way.

    Args:
      chosen: resolved.
      last: step of the run.
      training: the images.
      exported: the model that is saved.
    """
    return run_plan.Plan(
        last_step=last,
        examples_per_epoch=training.num_examples,
        class_names=tuple(training.class_names),
        log_every_steps=chosen.log_every_steps,
        summary_every_steps=chosen.summary_every_steps,
        verify_every_steps=chosen.verify_every_steps,
        checkpoint_every_steps=chosen.checkpoint_every_steps,
        checkpoints_to_keep=chosen.checkpoints_to_keep,
        eval_every_epochs=chosen.eval_every_epochs,
        profile_steps=chosen.profile_steps,
        eval_of_workers=chosen.eval_of_workers,
        exported=exported,
    )


def build_trainer(
    chosen: settings.TrainSettings,
    tower_devices: tuple[str, ...],
    model: keras.Model,
    learning_rate: schedules.LearningRate,
    training_images: Callable[[], np.ndarray],
    workers: worker.Workers | None = None,
    device: str | None = None,
) -> trainer.Trainer:
    """Builds the optimizer and the trainer of a run.

    Args:
      chosen: resolved.
      tower_devices: one per tower.
      model: from `network_to_train`.
      learning_rate: of the run.
      training_images: () to some preprocessed training images, [n, height, width, channels], for a
        network that looks at them before its first step.
      workers: of the run; None for one.
      device: from `parameter_device`; None for the CPU.

    Raises:
      SettingsError: no weight decays.
    """
    decayed = weight_filters.FILTERS[chosen.weight_decay_filter](model)
    if chosen.weight_decay and not decayed:
        raise settings.SettingsError(
            f"--weight_decay_filter={chosen.weight_decay_filter}: no weight of --model="
            f"{chosen.model} matches; choose another filter, or --weight_decay=0"
        )
    adapt = own_model.network(chosen.model).adapt
    if adapt is not None:
        adapt(model, training_images())
    decoupled = chosen.optimizer in optimizers.DECOUPLED_WEIGHT_DECAY
    optimizer = optimizers.make(
        chosen.optimizer,
        momentum=chosen.momentum,
        nesterov=chosen.nesterov,
        clip_norm=chosen.clip_norm,
        weight_decay=chosen.weight_decay if decoupled else 0.0,
        model=model,
        decayed=decayed,
        loss_scaling=chosen.compute_dtype == "float16",
        parameter_device=device,
    )
    made = functools.partial(
        trainer.Trainer,
        model,
        optimizer,
        towers=tower_devices,
        workers=workers,
        global_batch_size=chosen.global_batch_size,
        num_microbatches=chosen.num_microbatches,
        learning_rate=learning_rate,
        loss=functools.partial(losses.cross_entropy, label_smoothing=chosen.label_smoothing),
        evaluation_loss=losses.cross_entropy,
        weight_decay=0.0 if decoupled else chosen.weight_decay,
        weight_filter=chosen.weight_decay_filter,
        gradient_reduction=chosen.gradient_reduction,
        batch_norm_statistics=chosen.batch_norm_statistics,
        moving_average_decay=chosen.moving_average_decay,
        jit_compile=chosen.jit_compile,
        accumulate_gradients=chosen.accumulate_gradients,
        parameter_device=device,
    )
    with own_model.faults_in_training(chosen.model):
        return made()


def build_model(config: Mapping) -> keras.Model:
    """The network that a `config.json` describes, at its initial weights.

    Raises:
      SettingsError: as `build_network`; or the network is another one now.
    """
    chosen, derived = config["settings"], config["resolved"]
    model = build_network(chosen, derived["image_shape"], len(derived["class_names"]))
    if definition.are_others(definition.layers(model), derived.get("layers")):
        raise settings.SettingsError(
            f"--model={chosen['model']}: is no longer the network of the run"
        )
    return model


def network_to_train(
    chosen: settings.TrainSettings,
    prepared: preprocess.Preprocessing,
    training: datasets.Images,
    parameter_device: str | None = None,
) -> keras.Model:
    """The network of a run, at its initial weights.

    Args:
      chosen: resolved.
      prepared: from `preprocessing`.
      training: the images.
      parameter_device: of its variables; None for the CPU.

    Raises:
      SettingsError: as `build_network` and `check_has_kernels`.
    """
    given, num_classes = settings.recorded(chosen), len(training.class_names)
    model = build_network(given, prepared.output_shape, num_classes, parameter_device)
    check_has_kernels(chosen, model)
    return model


def check_has_kernels(chosen: settings.TrainSettings, model: keras.Model) -> None:
    """Checks that TensorFlow can compute the model as it is asked to.

    Raises:
      SettingsError: names the layer whose gradient it has no kernel for.
    """
    if not chosen.deterministic:
        return
    if chosen.jit_compile:
        try:
            checks.compiled_deterministically(model)
        except ValueError as error:
            raise settings.SettingsError(f"--jit_compile with --deterministic: {error}") from error
    for layer in model._flatten_layers(include_self=False):
        is_frozen = isinstance(layer, layers.FusedBatchNormalization)
        if is_frozen and not layer.trainable and machine.num_devices("GPU"):
            raise settings.SettingsError(
                f"--deterministic: the layer {layer.name} is a frozen FusedBatchNormalization, "
                "which has no deterministic gradient on GPUs; use keras.layers."
                "BatchNormalization, or leave the flag out"
            )


def build_network(
    chosen: Mapping,
    image_shape: Sequence[int],
    num_classes: int,
    parameter_device: str | None = None,
) -> keras.Model:
    """The network that settings describe, at its initial weights.

    Args:
      chosen: resolved settings, by name.
      image_shape: (height, width, channels) after preprocessing.
      num_classes: number of logits.
      parameter_device: of its variables; None for the CPU.

    Raises:
      SettingsError: the images are too small for it, or it is not a network.
    """
    try:
        return networks.build(
            own_model.network(chosen["model"]),
            tuple(image_shape),
            num_classes,
            compute_dtype=chosen["compute_dtype"],
            seed=chosen["seed"],
            parameter_device=parameter_device,
        )
    except settings.SettingsError:  # which names the flag
        raise
    except ValueError as error:
        raise settings.SettingsError(f"--dataset={chosen['dataset']}: {error}") from error
