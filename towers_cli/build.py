"""From settings to the objects of a run: data, network, optimizer, callbacks."""

import math
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from input_pipeline import datasets, images, preprocess, raw_images
from towers import devices, machine, metrics, networks, schedules, weight_decay, worker
from towers.networks import optimizers
from towers.runs import callbacks
from towers_cli import own_model, settings

IMAGES_TO_ADAPT_TO = 5000  # at most, for a network that looks at some before its first step
BYTES_TO_ADAPT_TO = 2**28  # likewise: 445 images of 224 x 224
TOP = 5  # the label is among so many largest logits


def start_runtime(chosen: settings.TrainSettings) -> tuple[str, ...]:
    """Sets what TensorFlow's runtime fixes when it starts; returns one device per tower.

    Nothing of `~/.keras/keras.json` is left.
    """
    keras.config.set_floatx("float32")
    keras.config.set_image_data_format("channels_last")
    keras.config.set_epsilon(1e-7)
    try:
        devices.use_intra_op_threads(chosen.intra_op_threads)
    except RuntimeError as error:
        raise settings.SettingsError(
            f"--intra_op_threads={chosen.intra_op_threads}: TensorFlow has started with another "
            "number; a module of --model must make no tensor when it is imported"
        ) from error
    if chosen.deterministic:
        devices.run_deterministically()
    with settings.as_flags("--"):
        if chosen.gpu_defaults and machine.num_devices("GPU"):
            devices.keep_kernel_choices()
        return devices.choose(chosen.num_towers)


def parameter_device(
    chosen: settings.TrainSettings, tower_devices: Sequence[str], workers: worker.Workers
) -> str:
    """Where the weights and the optimizer's state are."""
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
    """The splits that a run is trained on and evaluated on, the same on all workers."""

    def load() -> list[datasets.Images]:
        # First the split whose name may be wrong: decoding the other may take minutes.
        return [
            datasets.load(
                chosen.dataset,
                chosen.data_dir,
                split,
                image_size=chosen.image_size,
                skip_broken=chosen.skip_broken,
                read_only=chosen.dry_run,
            )
            for split in (chosen.eval_split, settings.TRAINING_SPLIT)
        ]

    # First the chief: what it downloads and decodes is there for others that share its files.
    loaded = load() if workers.is_chief else None
    workers.from_chief("the images", lambda: None)
    evaluated, training = loaded or load()
    hashes = {"training": training.fingerprint[:12], "evaluation": evaluated.fingerprint[:12]}
    worker.check_same(workers, "their images", hashes, "sha256 of the {} images ".format)
    if chosen.global_batch_size > training.num_examples:
        raise settings.SettingsError(
            f"--global_batch_size={chosen.global_batch_size}: must be at most the "
            f"{training.num_examples} examples of {settings.TRAINING_SPLIT}"
        )
    return training, evaluated


def preprocessing(
    chosen: settings.TrainSettings, training: datasets.Images
) -> preprocess.Preprocessing:
    """What happens to the images before the network."""
    with settings.as_flags(f"--dataset={chosen.dataset}: "):
        return images.preprocessing(
            chosen.preprocessing,
            training,
            augmentation=chosen.augment,
            random_erasing=chosen.random_erasing,
            mixup_alpha=chosen.mixup_alpha,
            cutmix_alpha=chosen.cutmix_alpha,
        )


def takes_shares(chosen: settings.TrainSettings) -> bool:
    """Whether the loss takes the share of each class in place of a label."""
    return bool(chosen.label_smoothing or chosen.mixup_alpha or chosen.cutmix_alpha)


def export(
    model: keras.Model, prepared: preprocess.Preprocessing, class_names: Sequence[str]
) -> keras.Model:
    """The model of raw images that a run writes at its end."""
    model.compiled = False  # else Keras would need this package to read it
    return raw_images.classifier(
        model, image_shape=prepared.raw_shape, class_names=class_names, prepare=prepared.evaluate
    )


def build_network(
    chosen: settings.TrainSettings,
    image_shape: tuple[int, int, int],
    num_classes: int,
    parameter_device: str | None = None,
) -> keras.Model:
    """The network that settings describe, at its initial weights, with its weight decay."""
    network = own_model.network(chosen.model)
    with settings.as_flags(f"--dataset={chosen.dataset}: "):
        model = networks.build(
            network,
            image_shape,
            num_classes,
            compute_dtype=chosen.compute_dtype,
            seed=chosen.seed,
            parameter_device=parameter_device,
        )
    decayed = weight_decay.FILTERS[network.weight_filter](model)
    if chosen.weight_decay and not decayed:
        raise settings.SettingsError(
            f"--weight_decay={chosen.weight_decay}: --model={chosen.model} has no kernel to decay; "
            "must be 0"
        )
    if chosen.optimizer not in optimizers.DECOUPLED_WEIGHT_DECAY:
        weight_decay.regularize(decayed, chosen.weight_decay)
    return model


def compile_model(
    chosen: settings.TrainSettings,
    model: keras.Model,
    training: datasets.Images,
    prepared: preprocess.Preprocessing,
    parameter_device: str,
) -> None:
    """Compiles the network with what the settings say."""
    network = own_model.network(chosen.model)
    if network.adapt is not None:
        size = math.prod(training.image_shape) * np.dtype(np.float32).itemsize
        count = min(IMAGES_TO_ADAPT_TO, max(BYTES_TO_ADAPT_TO // size, 1))
        network.adapt(model, prepared.evaluate(training.some(count)).numpy())
    decouples = chosen.optimizer in optimizers.DECOUPLED_WEIGHT_DECAY
    optimizer = optimizers.make(
        chosen.optimizer,
        momentum=chosen.momentum,
        nesterov=chosen.nesterov,
        clip_norm=chosen.clip_norm,
        weight_decay=chosen.weight_decay if decouples else 0.0,
        model=model,
        decayed=weight_decay.FILTERS[network.weight_filter](model),
        loss_scaling=chosen.compute_dtype == "float16",
        parameter_device=parameter_device,
    )
    num_classes = len(training.class_names)
    if takes_shares(chosen):
        smoothing = chosen.label_smoothing
        loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=smoothing)
        accuracy = keras.metrics.CategoricalAccuracy
    else:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        accuracy = keras.metrics.SparseCategoricalAccuracy
    with tf.device(parameter_device):
        in_top = keras.metrics.MeanMetricWrapper(
            metrics.in_top, f"top{TOP}_accuracy", k=min(TOP, num_classes)
        )
        cross_entropy = keras.metrics.MeanMetricWrapper(metrics.cross_entropy, "cross_entropy")
        model.compile(
            optimizer,
            loss,
            metrics=[accuracy("accuracy"), in_top, cross_entropy],
            jit_compile=chosen.jit_compile,
        )


def callbacks_of(
    chosen: settings.TrainSettings,
    model: keras.Model,
    learning_rate: schedules.LearningRate,
    last_step: int,
) -> list[keras.callbacks.Callback]:
    """What a run does along the way."""
    chain: list[keras.callbacks.Callback] = [callbacks.LearningRate(learning_rate)]
    if chosen.moving_average_decay:
        chain.append(callbacks.MovingAverages(model, chosen.moving_average_decay))
    show = callbacks.printer(last_step, chosen.eval_split)
    chain.append(callbacks.Log(chosen.log_every_steps, show=show))
    if chosen.summary_every_steps:
        chain.append(callbacks.Histograms(chosen.summary_every_steps))
    if chosen.verify_every_steps:
        chain.append(callbacks.Verify(chosen.verify_every_steps))
    return chain
