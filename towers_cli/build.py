"""From settings to the objects of a run: data, network, optimizer, callbacks."""

import math
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from input_pipeline import datasets, images, mixing, preprocess, raw_images
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
    # Where a module of --model has made a tensor as it was imported, TensorFlow has started.
    with own_model.errors_explained(chosen.model, "starting TensorFlow after it"):
        devices.use_intra_op_threads(chosen.intra_op_threads)
    if chosen.deterministic:
        devices.run_deterministically()
    with settings.as_flags("--"):
        if chosen.gpu_defaults and machine.num_devices("GPU"):
            devices.keep_kernel_choices()
        return devices.choose(chosen.num_towers)


def load_split(
    chosen: settings.TrainSettings, split: str, class_names: Sequence[str] | None = None
) -> datasets.Images:
    """A split of a run's data set; `class_names` are those of a folder, in the run's order."""
    return datasets.load(
        chosen.dataset,
        chosen.data_dir,
        split,
        image_size=chosen.image_size,
        class_names=class_names,
        read_only=chosen.dry_run,
    )


def load_data(
    chosen: settings.TrainSettings, workers: worker.Workers
) -> tuple[datasets.Images, datasets.Images]:
    """The splits that a run is trained on and evaluated on, the same on all workers."""
    # First the split whose name may be wrong: decoding the other may take minutes.
    names = (chosen.eval_split, settings.TRAINING_SPLIT)
    # First the chief: what it downloads is there for others that share its files.
    for is_turn in (workers.is_chief, not workers.is_chief):
        if is_turn:
            evaluated, training = (load_split(chosen, name) for name in names)
        workers.from_chief("that images are there", lambda: None)
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
        classes = len(training.class_names)
        mixed = mixing.Mixing(chosen.mixup_alpha, chosen.cutmix_alpha, classes)
        how = chosen.augment, chosen.random_erasing, mixed
        prepared = preprocess.for_images(chosen.preprocessing, training.image_shape, *how)
        images.check_fits(training, prepared)
        return prepared


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
    decayed = network.decayed(model)
    if chosen.weight_decay and not decayed:
        raise settings.SettingsError(
            f"--weight_decay={chosen.weight_decay}: must be 0, as {chosen.model} has no kernel"
        )
    if chosen.optimizer not in optimizers.DECOUPLED_WEIGHT_DECAY:
        with settings.as_flags("--"):
            weight_decay.regularize(decayed, chosen.weight_decay)
    return model


def build_model(
    chosen: settings.TrainSettings,
    training: datasets.Images,
    prepared: preprocess.Preprocessing,
    parameter_device: str,
    one_hot: bool,
) -> keras.Model:
    """The network at its initial weights, compiled as the settings say.

    `one_hot`: whether a label is the share of each class, and not the number of one.
    """
    network, num_classes = own_model.network(chosen.model), len(training.class_names)
    model = build_network(chosen, prepared.output_shape, num_classes, parameter_device)
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
        decayed=network.decayed(model),
        loss_scaling=chosen.compute_dtype == "float16",
        parameter_device=parameter_device,
    )
    loss: keras.losses.Loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if one_hot:
        smoothing = chosen.label_smoothing
        loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=smoothing)
    with tf.device(parameter_device):
        figures = make_metrics(num_classes, one_hot)
        model.compile(optimizer, loss, metrics=figures, jit_compile=chosen.jit_compile)
    return model


def make_metrics(
    num_classes: int, one_hot: bool = False, dtype: str | None = None
) -> list[keras.metrics.Metric]:
    """Accuracy, top-5 accuracy, and cross entropy in nats, of logits; kept in `dtype`."""
    accuracy, mean = keras.metrics.SparseCategoricalAccuracy, keras.metrics.MeanMetricWrapper
    if one_hot:
        accuracy = keras.metrics.CategoricalAccuracy
    top = min(TOP, num_classes)
    return [
        accuracy("accuracy", dtype),
        mean(metrics.in_top, f"top{TOP}_accuracy", dtype, k=top),
        mean(metrics.cross_entropy, "cross_entropy", dtype),
    ]


def make_callbacks(
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
