"""From checked settings to a run: what is derived from them, said about them and built of them."""

import contextlib
import dataclasses
import functools
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from towers import (
    begin_from,
    channel,
    checkpoints,
    cluster,
    collectives,
    console,
    devices,
    losses,
    models,
    optimizers,
    run_folder,
    run_lock,
    schedules,
    settings,
    sizes,
    start_table,
    stretches,
    trainer,
    training,
    watcher,
)

CPU_MICROBATCHES = 4
IMAGES_TO_ADAPT_TO = 5000  # for a network that looks at some before its first step


def start_runtime(intra_op_threads: int, deterministic: bool) -> None:
    """Sets what TensorFlow's runtime fixes when it starts, as `TrainSettings` has it.

    What Keras has read in `~/.keras/keras.json` does not decide a run: it is set to its defaults.

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
        tf.config.experimental.enable_op_determinism()


def meet_workers(chosen: settings.TrainSettings) -> collectives.Workers:
    """Meets the other workers of the run, where there are any.

    Raises:
      WorkerError: one does not come.
    """
    if not chosen.workers:
        return collectives.Workers()
    members = cluster.Cluster(chosen.workers, chosen.worker_index)
    return collectives.SeveralWorkers(members, chosen.worker_wait_seconds)


@dataclasses.dataclass(frozen=True)
class Found:
    """What a run starts from, as its chief finds it.

    Attributes:
      earlier: the configuration of the run that goes on, if one does.
      cores: that the chief may use.
    """

    earlier: dict | None
    cores: int


def find(workers: collectives.Workers, folder: run_folder.RunFolder) -> Found:
    """Looks into the run's folder, on the chief, for all workers.

    Raises:
      RunFolderError: the folder holds something else than a run, or one that is being trained.
      WorkerError: another worker is gone or has ended.
    """

    def look():
        earlier = earlier_run(folder)
        run_lock.RunLock(folder).check_free()
        return [earlier, devices.available_cores()]

    found = workers.from_chief(look)
    channel.check_fits(_is_found(found, folder), workers.name(0))
    return Found(*found)


def _is_found(found: object, folder: run_folder.RunFolder) -> bool:
    """Whether what came from the chief is what `find` looks for."""
    if not (isinstance(found, list) and len(found) == 2):
        return False
    earlier, cores = found
    if earlier is not None:
        if not (isinstance(earlier, dict) and {"settings", "resolved"} <= earlier.keys()):
            return False
        try:
            check_config(earlier, folder.path)
        except run_folder.RunFolderError:
            return False
    return type(cores) is int and cores > 0


def earlier_run(folder: run_folder.RunFolder) -> dict | None:
    """The configuration of the run that goes on in `folder`.

    None where there is no run, or where it never came to a checkpoint: it then has nothing to go on
    from, and begins anew with any settings.

    Raises:
      RunFolderError: the folder holds something else than a run.
    """
    config = folder.read_config()
    if config is None:
        return None
    check_config(config, folder.path)
    is_begun = (
        run_folder.FIRST_CHECKPOINT in config
        or checkpoints.by_step(folder.checkpoints)
        or folder.final_summary.exists()
    )
    return config if is_begun else None


# What may differ between workers: where things are on each machine, and which worker it is.
_OF_ONE_WORKER = ("train_dir", "data_dir", "begin_from", "worker_index", "worker_wait_seconds")


def check_alike(workers: collectives.Workers, chosen: settings.TrainSettings) -> None:
    """Checks that all workers were given the same settings, and have the same packages.

    Args:
      workers: of the run.
      chosen: resolved.

    Raises:
      WorkerError: names what differs, and on which worker.
    """
    given = dataclasses.asdict(chosen)
    shared = {name: value for name, value in given.items() if name not in _OF_ONE_WORKER}
    versions = {f"version of {name}": text for name, text in stretches.versions().items()}
    _check_same(workers, shared | versions)
    kinds = workers.exchange(devices.processor())
    for index, kind in enumerate(kinds):
        channel.check_fits(isinstance(kind, str), workers.name(index))
    if workers.is_chief and len(set(kinds)) > 1:
        named = watcher.one_line(", ".join(sorted(set(kinds))))
        print(
            f"the workers have processors of different kinds ({named}): "
            "their arithmetic may differ in its last bits, and a run ends where their weights do",
            flush=True,
        )


def check_same_data(workers: collectives.Workers, **sha256: str) -> None:
    """Checks that all workers read the same images.

    Args:
      workers: of the run.
      **sha256: split to the hash of its images and labels.

    Raises:
      WorkerError: names what differs, and on which worker.
    """
    _check_same(
        workers, {f"sha256 of the {split} images": text[:12] for split, text in sha256.items()}
    )


def _check_same(workers: collectives.Workers, own: dict) -> None:
    chief, *others = everyone = workers.exchange(own)
    for index, message in enumerate(everyone):
        channel.check_fits(isinstance(message, dict), workers.name(index))
    for index, other in enumerate(others, start=1):
        if different := run_folder.differences(chief, other, workers.name(0)):
            raise channel.WorkerError(
                f"{workers.name(index)} does not fit {workers.name(0)}: "
                f"{watcher.one_line('; '.join(different))}"
            )


def tower_devices(num_towers: int | None) -> tuple[str, ...]:
    """One device per tower; None means one per visible GPU, else 1.

    Raises:
      SettingsError: `--num_towers` does not fit the machine.
    """
    try:
        return devices.choose(num_towers)
    except ValueError as error:
        raise settings.SettingsError(f"--{error}") from error


def resolved(
    chosen: settings.TrainSettings, earlier: Mapping | None, num_gpus: int, cores: int
) -> settings.TrainSettings:
    """The settings with every default filled in; does not start TensorFlow's runtime.

    Where the number of microbatches or of intra-op threads, or what the run began from, is left
    open, a run that goes on keeps its own: they are part of the arithmetic, and the number of
    towers is not.

    Args:
      chosen: as asked for.
      earlier: the configuration of the run that goes on, if one does.
      num_gpus: how many the process may use.
      cores: how many the chief may use.

    Raises:
      SettingsError: sizes that do not divide.
    """
    network, num_towers = models.NETWORKS[chosen.model], chosen.num_towers or max(1, num_gpus)
    num_microbatches, kept = chosen.num_microbatches, ""
    num_workers = len(chosen.workers) or 1
    if not num_microbatches and earlier is None:
        num_microbatches = _default_microbatches(
            chosen.global_batch_size, num_towers * num_workers, num_gpus
        )
    elif not num_microbatches:
        num_microbatches = earlier["settings"]["num_microbatches"]
        kept = f"; the run in {chosen.train_dir} began with {num_microbatches} microbatch(es)"
    try:
        trainer.check_sizes(chosen.global_batch_size, num_microbatches, num_towers, num_workers)
    except ValueError as error:
        advice = _advice(chosen, earlier, num_towers, num_workers, num_gpus)
        raise settings.SettingsError(f"--{error}{kept}{advice}") from error
    reduction = chosen.worker_reduction or default_reduction(num_microbatches, num_workers)
    threads = chosen.intra_op_threads or (earlier and earlier["settings"]["intra_op_threads"])
    beginning = chosen.begin_from and os.path.abspath(os.path.expanduser(chosen.begin_from))
    return dataclasses.replace(
        chosen,
        begin_from=beginning or (earlier and earlier["settings"]["begin_from"]),
        # eval.py reads it from config.json, perhaps in another working folder.
        data_dir=chosen.data_dir and os.path.abspath(os.path.expanduser(chosen.data_dir)),
        num_towers=num_towers,
        num_microbatches=num_microbatches,
        worker_reduction=reduction,
        intra_op_threads=threads or default_threads(num_microbatches, num_gpus, cores),
        weight_decay=_default(chosen.weight_decay, network.weight_decay),
        weight_decay_filter=_default(chosen.weight_decay_filter, network.weight_filter),
    )


def _advice(
    chosen: settings.TrainSettings,
    earlier: Mapping | None,
    num_towers: int,
    num_workers: int,
    num_gpus: int,
) -> str:
    """What to give in place of sizes that do not fit together, as the end of a sentence."""
    asked = (
        chosen.global_batch_size,
        chosen.num_microbatches,
        num_towers,
        num_workers,
        num_gpus or sizes.MOST_PARTS,
    )
    if earlier is None:
        ways = sizes.ways_out(*asked)
    else:
        ways = sizes.ways_to_go_on(earlier["settings"], *asked)
    return f"; give {sizes.as_flags(ways)}" if ways else ""


def _default_microbatches(global_batch_size: int, num_towers: int, num_gpus: int) -> int:
    """On CPUs 4: fast there (docs/speed.md), and the same bits on 1, 2 and 4 towers.

    On GPUs, where that was not measured, and where 4 does not divide, one per tower.
    """
    divides = CPU_MICROBATCHES % num_towers == 0 == global_batch_size % CPU_MICROBATCHES
    return CPU_MICROBATCHES if divides and not num_gpus else num_towers


def default_reduction(num_microbatches: int, num_workers: int) -> str:
    """`ordered`, but where it could not give the bits of one worker: there `ring`, one call less.

    Where a worker's share of the microbatches is no power of two, it is no part of the tree. Two
    workers' sums are the same both ways.
    """
    is_subtree = (num_microbatches // num_workers).bit_count() == 1
    return "ordered" if is_subtree or num_workers <= 2 else "ring"


def default_threads(num_microbatches: int, num_gpus: int, cores: int) -> int:
    """Threads for one operation: the cores divided by the microbatches, at least 1.

    Microbatches run side by side. A core that has one to itself is never waited for in the midst of
    an operation, which is why one thread each is faster than several for all (docs/speed.md). With
    GPUs the CPU has no microbatches, and all its cores have the reduction and the update. Several
    workers have the chief's: threads show in the bits, and workers must not.
    """
    return cores if num_gpus else max(1, cores // num_microbatches)


def _default(value, default):
    return default if value is None else value


def learning_rate(
    chosen: settings.TrainSettings, examples_per_epoch: int
) -> schedules.LearningRate:
    """The schedule that the settings describe."""
    return schedules.LearningRate(
        schedule=chosen.learning_rate_schedule,
        initial=schedules.scaled_rate(
            chosen.learning_rate,
            chosen.learning_rate_scaling,
            chosen.global_batch_size,
            chosen.base_batch_size,
        ),
        examples_per_epoch=examples_per_epoch,
        epochs_per_decay=chosen.epochs_per_decay,
        decay_factor=chosen.decay_factor,
        decay_epochs=chosen.decay_epochs,
        warmup_epochs=chosen.warmup_epochs,
        total_epochs=chosen.train_epochs,
    )


def plan(
    chosen: settings.TrainSettings, examples_per_epoch: int, class_names: tuple[str, ...]
) -> training.Plan:
    """When the run ends, and what it does on the way.

    Raises:
      SettingsError: the steps to profile lie past the end.
    """
    last_step = training.last_step(
        chosen.train_epochs, chosen.max_steps, examples_per_epoch, chosen.global_batch_size
    )
    if chosen.profile_steps and chosen.profile_steps[1] > last_step:
        raise settings.SettingsError(
            f"--profile_steps={settings.shown(chosen.profile_steps)}: must end by the last step, "
            f"{last_step}"
        )
    return training.Plan(
        last_step=last_step,
        examples_per_epoch=examples_per_epoch,
        class_names=class_names,
        log_every_steps=chosen.log_every_steps,
        summary_every_steps=chosen.summary_every_steps,
        verify_every_steps=chosen.verify_every_steps,
        checkpoint_every_steps=chosen.checkpoint_every_steps,
        checkpoints_to_keep=chosen.checkpoints_to_keep,
        eval_every_epochs=chosen.eval_every_epochs,
        profile_steps=chosen.profile_steps,
        eval_of_workers=chosen.eval_of_workers,
    )


def config(
    chosen: settings.TrainSettings,
    tower_devices: tuple[str, ...],
    plan: training.Plan,
    **data: object,
) -> dict:
    """What `config.json` holds: settings, what follows from them, and what the run runs on.

    Args:
      chosen: resolved.
      tower_devices: one per tower.
      plan: of the run.
      **data: what is known of the data and its preprocessing.
    """
    num_workers = len(chosen.workers) or 1
    return {
        "settings": dataclasses.asdict(chosen),
        "resolved": {
            "tower_devices": list(tower_devices),
            "num_workers": num_workers,
            "per_tower_batch_size": chosen.global_batch_size // (len(tower_devices) * num_workers),
            "microbatch_size": chosen.global_batch_size // chosen.num_microbatches,
            "steps_per_epoch": plan.examples_per_epoch / chosen.global_batch_size,
            "last_step": plan.last_step,
            "examples_per_epoch": plan.examples_per_epoch,
            "class_names": list(plan.class_names),
            **data,
        },
        "stretches": stretches.extended(
            [], 0, stretches.environment() | _arithmetic(chosen, tower_devices)
        ),
    }


def _arithmetic(chosen: settings.TrainSettings, tower_devices: tuple[str, ...]) -> dict[str, str]:
    """What computes and how it is added up, as far as it shows in the last bits."""
    num_workers = len(chosen.workers) or 1
    num_towers = len(tower_devices) * num_workers
    in_tree = num_towers in start_table.same_bits(chosen.num_microbatches)
    if chosen.worker_reduction == "ring" and num_workers > 2:
        order = f"around a ring of {num_workers} workers"
    else:
        order = "along the tree" if in_tree else f"by {num_towers} towers that are no part of it"
    return {"devices": devices.kinds(tower_devices), "order of additions": order}


# What a run that goes on, or an evaluation, reads of a config.json beside the settings.
_READ_OF_RESOLVED = {
    "examples_per_epoch": int,
    "last_step": int,
    "class_names": tuple[str, ...],
    "image_shape": tuple[int, ...],
    "preprocessing": str,
    "data_sha256": str,
    "eval_sha256": str,
    "num_workers": int,
    "tower_devices": tuple[str, ...],
}


def check_config(config: Mapping, train_dir: str | Path) -> None:
    """Checks what was read from a `config.json`, which anyone may have edited.

    Raises:
      RunFolderError: names the first value that is missing, or that no run has.
    """
    chosen, derived = config["settings"], config["resolved"]
    try:
        if not (isinstance(chosen, dict) and isinstance(derived, dict)):
            raise ValueError("settings and resolved have to be objects")
        for name in settings.names():
            if name not in chosen:
                raise ValueError(f"{name} is missing; another version of towers may have made it")
            settings.check_value(name, chosen[name])
        trainer.check_sizes(chosen["global_batch_size"], chosen["num_microbatches"], num_towers=1)
        for name, of_type in _READ_OF_RESOLVED.items():
            if not settings.is_of(derived.get(name), of_type):
                raise ValueError(f"{name}={settings.shown(derived.get(name))}")
        if derived["examples_per_epoch"] < 1:
            raise ValueError(f"examples_per_epoch={derived['examples_per_epoch']}")
        if not begin_from.is_valid(begins := derived.get("begins_from", "missing")):
            raise ValueError(f"begins_from={settings.shown(begins)}")
        if not stretches.are_valid(config.get("stretches")):
            raise ValueError("stretches has to be a list of what the run ran on")
        if derived["preprocessing"] not in {net.preprocessing for net in models.NETWORKS.values()}:
            raise ValueError(f"preprocessing={settings.shown(derived['preprocessing'])}")
    except ValueError as error:
        raise run_folder.RunFolderError(
            f"--train_dir={train_dir}: its config.json is not that of a run: {error}"
        ) from error


def check_same_run(earlier: Mapping, config: Mapping) -> None:
    """Checks that the settings which define a run are those that it began with.

    Raises:
      RunFolderError: names each setting that differs.
    """
    # What it began from is the earlier run's, whether or not it is still there.
    config = _with_begins(config, earlier["resolved"]["begins_from"])
    splits = {one["settings"]["eval_split"] for one in (earlier, config)}
    # Another split may be evaluated from now on; the same one has to have the same images.
    began, now = (_fixed(one, same_split=len(splits) == 1) for one in (earlier, config))
    different = run_folder.differences(began, now)
    if different:
        raise run_folder.RunFolderError(
            f"--train_dir={config['settings']['train_dir']} holds a run with other settings: "
            f"{'; '.join(different)}. Give the run's own settings to continue it, or choose "
            "another --train_dir"
        )


def _fixed(config: Mapping, *, same_split: bool) -> dict:
    """What a run that goes on keeps: what defines it, and what its logs are about."""
    chosen, derived = config["settings"], config["resolved"]
    kept = {"begin_from": chosen["begin_from"]} | settings.defining(config)
    kept["names of the classes"] = derived["class_names"]
    if same_split:
        kept[f"sha256 of the {chosen['eval_split']} images"] = derived["eval_sha256"][:12]
    return kept


def with_beginning(workers: collectives.Workers, config: Mapping, earlier: Mapping | None) -> dict:
    """The configuration with the checkpoint that the run begins from, where there is one.

    Args:
      workers: of the run.
      config: as it is now.
      earlier: the configuration of the run that goes on, if one does.

    Raises:
      RunFolderError: the settings are not those of the run that goes on.
      SettingsError: the run cannot begin from what `--begin_from` names.
    """

    def look():
        if earlier is not None:
            check_same_run(earlier, config)
            return earlier["resolved"]["begins_from"]
        given = config["settings"]["begin_from"]
        return given and begin_from.look(given, config, check_config)

    begins = workers.from_chief(look)
    channel.check_fits(begin_from.is_valid(begins), workers.name(0))
    return _with_begins(config, begins)


def _with_begins(config: Mapping, begins: Mapping | None) -> dict:
    return dict(config) | {"resolved": config["resolved"] | {"begins_from": begins}}


def build_trainer(
    chosen: settings.TrainSettings,
    tower_devices: tuple[str, ...],
    config: Mapping,
    learning_rate: schedules.LearningRate,
    training_images: Callable[[], np.ndarray],
    workers: collectives.Workers | None = None,
) -> trainer.Trainer:
    """Builds the network, its optimizer and the trainer of a run.

    Args:
      chosen: resolved.
      tower_devices: one per tower.
      config: its `config.json`.
      learning_rate: of the run.
      training_images: () to some preprocessed training images, [n, height, width, channels], for a
        network that looks at them before its first step.
      workers: of the run; None for one.

    Raises:
      SettingsError: the images are too small for the network, or no weight decays.
    """
    model = build_model(config)
    decayed = losses.WEIGHT_FILTERS[chosen.weight_decay_filter](model)
    if chosen.weight_decay and not decayed:
        raise settings.SettingsError(
            f"--weight_decay_filter={chosen.weight_decay_filter}: no weight of --model="
            f"{chosen.model} is one; choose another filter, or --weight_decay=0"
        )
    adapt = models.NETWORKS[chosen.model].adapt
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
    )
    return trainer.Trainer(
        model,
        optimizer,
        tower_devices=tower_devices,
        workers=workers,
        global_batch_size=chosen.global_batch_size,
        num_microbatches=chosen.num_microbatches,
        learning_rate=learning_rate,
        loss_fn=functools.partial(losses.cross_entropy, label_smoothing=chosen.label_smoothing),
        evaluation_loss_fn=losses.cross_entropy,
        weight_decay=0.0 if decoupled else chosen.weight_decay,
        weight_filter=chosen.weight_decay_filter,
        gradient_reduction=chosen.gradient_reduction,
        batch_norm_statistics=chosen.batch_norm_statistics,
        moving_average_decay=chosen.moving_average_decay,
        jit_compile=chosen.jit_compile,
    )


def build_model(config: Mapping) -> keras.Model:
    """The network that a `config.json` describes, at its initial weights.

    Raises:
      SettingsError: the images are too small for it.
    """
    chosen, derived = config["settings"], config["resolved"]
    try:
        return models.build(
            chosen["model"],
            tuple(derived["image_shape"]),
            len(derived["class_names"]),
            compute_dtype=chosen["compute_dtype"],
            seed=chosen["seed"],
        )
    except ValueError as error:
        raise settings.SettingsError(f"--dataset={chosen['dataset']}: {error}") from error


def train(run: training.Run, config: Mapping) -> int:
    """Trains or continues a run and says how it ended; returns the exit code.

    Raises:
      RunFolderError: another training is at work in the folder, it cannot be written, or it was
        taken away.
      WorkerError: another worker is gone or has ended.
      CheckpointError: no checkpoint can be restored, or one cannot be written.
      TrainingError: a loss, a gradient or a weight is not finite, or the run is past its end.
    """
    if not run.workers.is_chief:
        return _train_with_chief(run, config)
    with run.lock.held():
        earlier = earlier_run(run.folder)  # perhaps begun only since this process first looked
        if earlier is not None:
            check_same_run(earlier, config)
        return _train_as_chief(run, config, earlier)


def _train_with_chief(run: training.Run, config: Mapping) -> int:
    if run.workers.from_chief(lambda: None) is not None:
        print("the run had finished already")
        return 0
    run.trainer.broadcast_state()
    outcome = run.train(config)
    how = "stopped" if outcome.final is None else "finished"
    print(f"{how} at step {outcome.step}; {run.workers.name(0)} has the run")
    return outcome.exit_code


def _train_as_chief(run: training.Run, config: Mapping, earlier: Mapping | None) -> int:
    folder, last_step = run.folder, run.plan.last_step
    finished = folder.read_final_summary()
    if finished and finished["step"] >= last_step:
        run.workers.from_chief(lambda: finished)
        print(f"the run had finished already, at step {finished['step']}")
        _say_finished(folder, finished)
        return 0
    restored = run.restore(earlier and earlier.get(run_folder.FIRST_CHECKPOINT))
    for damage in run.damaged_checkpoints:
        print(f"passed over: {damage}", flush=True)
    begins = config["resolved"]["begins_from"]
    if restored is None and begins:
        begin_from.restore(run.trainer.state, begins)
    at_step = int(run.trainer.state.step)
    if at_step > last_step:
        raise training.TrainingError(
            f"the run is at step {at_step}, past the end that was asked for, step {last_step}; "
            "give a later --train_epochs or --max_steps"
        )
    if earlier is None:
        _say_begins_anew(folder, config)
    config = _with_stretches(config, earlier, restored, at_step)
    run.drop_later_metrics(anew=restored is None)
    folder.create(config)
    run.workers.from_chief(lambda: None)
    run.trainer.broadcast_state()
    if restored:
        print(f"continuing at step {at_step}", flush=True)
    outcome = run.train(config)
    if outcome.final is None:
        print(
            f"stopped at step {outcome.step} of {last_step}; checkpoint saved, the same command "
            "goes on from there"
        )
        return outcome.exit_code
    _say_finished(folder, outcome.final)
    return 0


def _say_begins_anew(folder: run_folder.RunFolder, config: Mapping) -> None:
    """Says that what is in the folder never came to a checkpoint, and what is changed of it."""
    before = folder.read_config()
    if before is None:
        return
    changed = run_folder.differences(
        settings.defining(before), settings.defining(config), "so far it"
    )
    anew = f"the run in {folder.path} has no checkpoint yet and begins anew"
    changes = f": {'; '.join(changed)}" if changed else ""
    print(console.printable(anew + changes), flush=True)


def _with_stretches(
    config: Mapping, earlier: Mapping | None, restored: str | None, at_step: int
) -> dict:
    """The configuration with what the run ran on so far; says what has changed."""
    so_far = earlier["stretches"] if earlier and restored else []
    now = stretches.extended(so_far, at_step, config["stretches"][-1]["runs_on"])
    if so_far and now[-1]["first_step"] == at_step:
        for change in stretches.changes(now[-2:]):
            said = f"{change}: the last bits may not be those of a run without this"
            print(console.printable(said), flush=True)
    if not restored:
        return dict(config) | {"stretches": now}
    first = earlier.get(run_folder.FIRST_CHECKPOINT, checkpoints.step_of(restored))
    return dict(config) | {"stretches": now, run_folder.FIRST_CHECKPOINT: first}


def _say_finished(folder: run_folder.RunFolder, final: Mapping) -> None:
    known = None not in (final.get("accuracy"), final.get("split"))
    accuracy = f"{final['split']} accuracy {final['accuracy']:.2%}, " if known else ""
    print(
        f"finished: {accuracy}{folder.final_model}, weights sha256 {final['weights_sha256'][:16]}\n"
        f"watch it: {_tensorboard()} --logdir {folder.path}"
    )


def _tensorboard() -> str:
    """The command that opens TensorBoard, from wherever this Python has it."""
    beside_python = Path(sys.executable).with_name("tensorboard")
    if shutil.which("tensorboard") or not beside_python.exists():
        return "tensorboard"
    with contextlib.suppress(ValueError):  # not below the current folder
        return str(beside_python.relative_to(Path.cwd()))
    return str(beside_python)
