"""What a run is: its `config.json`, whether two define the same run, and the table at its start."""

import dataclasses
from collections.abc import Mapping, Sequence

from input_pipeline import datasets
from towers import errors, machine, schedules, worker
from towers.runs import checkpoints, run_folder, warm_start
from towers_cli import command_line, settings

# What may differ between workers: where things are on each machine, how many towers it has, and
# which worker it is.
_PER_WORKER = ("train_dir", "data_dir", "num_towers", "worker_wait_seconds")


def make(
    chosen: settings.TrainSettings,
    last_step: int,
    image_shape: tuple[int, ...],
    training: datasets.Images,
    evaluated: datasets.Images,
) -> dict:
    """What `towers.Run` takes for a command's `config.json`."""
    resolved = {
        "last_step": last_step,
        "examples_per_epoch": training.num_examples,
        "class_names": list(training.class_names),
        "image_shape": list(image_shape),
        "data_source": training.source,
        "data_sha256": training.fingerprint,
        "eval_sha256": evaluated.fingerprint,
    }
    recorded = dataclasses.asdict(chosen)
    definition = settings.run_defining(recorded) | {
        "sha256 of the images": training.fingerprint[:12],
        "names of the classes": list(training.class_names),
    }
    return {"settings": recorded, "resolved": resolved, "definition": definition}


def read(folder: run_folder.RunFolder) -> dict | None:
    """The configuration of the run of `train.py` in `folder`; None where there is none."""
    config = folder.read_config()
    names = {field.name for field in dataclasses.fields(settings.TrainSettings)}
    if config is not None and names != set(config["settings"]):
        raise run_folder.RunFolderError(
            f"{folder.shown}: its config.json is of another program, or of train.py in another "
            "version; continue or evaluate the run with that"
        )
    return config


def check_alike(workers: worker.Workers, chosen: settings.TrainSettings) -> None:
    """Checks that all workers were given the same settings."""
    shared = {k: v for k, v in dataclasses.asdict(chosen).items() if k not in _PER_WORKER}
    worker.check_same(workers, "their settings", shared, settings.label)


def check_beginning(config: Mapping, folder: run_folder.RunFolder) -> None:
    """Checks that a run continues with its own settings, or can begin with `--init_from`."""
    earlier, newest = read(folder), checkpoints.newest(folder.checkpoints)
    if not (newest or (earlier and earlier.get(run_folder.FIRST_CHECKPOINT))):
        # It has nothing to continue from, and starts over with any settings.
        if init_from := config["settings"]["init_from"]:
            warm_start.locate(init_from)
        return
    now = dict(config["definition"])
    began = {name: earlier["defining"].get(name) for name in now}
    before, split = (one["settings"]["eval_split"] for one in (earlier, config))
    if newest and checkpoints.step_of(newest) >= config["resolved"]["last_step"]:  # its end
        began["eval_split"], now["eval_split"] = before, split
    if split == before:
        name = f"sha256 of the {split} images"
        began[name], now[name] = (one["resolved"]["eval_sha256"][:12] for one in (earlier, config))
    if different := errors.differences(began, now, label=settings.label):
        raise run_folder.RunFolderError(
            f"{folder.shown} holds a run with other settings: {'; '.join(different)}. "
            "Give the run's own settings to continue it, or choose another --train_dir"
        )


def start_table(
    config: Mapping,
    tower_devices: Sequence[str],
    towers_of_workers: Sequence[int],
    num_weights: int,
    learning_rate: schedules.LearningRate,
    num_evaluated_examples: int,
) -> str:
    """What a run is, in a few lines; warns where the rate does not decay as it was to."""
    chosen, derived = config["settings"], config["resolved"]
    batch_size, examples = chosen["global_batch_size"], derived["examples_per_epoch"]
    size, threads = chosen["microbatch_size"], chosen["intra_op_threads"]
    count = -(-batch_size // size)
    is_promised = machine.are_cpus(tower_devices) or chosen["deterministic"]
    rows = {
        "data": f"{derived['data_source']}: {examples:,} train, "
                f"{num_evaluated_examples:,} {chosen['eval_split']}, "
                f"{len(derived['class_names'])} classes",
        "model": f"{chosen['model']}, {chosen['compute_dtype']}, {chosen['optimizer']}, "
                 f"weight decay {chosen['weight_decay']:g}",
        "towers": f"{', '.join(map(str, towers_of_workers))} on {', '.join(tower_devices)}",
        "batch": f"{batch_size} global, {count} microbatches of at most {size}",
        "same bits": f"on any number of towers and workers, with --microbatch_size={size} and "
                     f"--intra_op_threads={threads}" if is_promised else
                     "not promised on GPUs without --deterministic",
        "steps": f"{derived['last_step']:,}, {examples / batch_size:.1f} per epoch",
        "learning rate": _describe_rate(chosen, derived, learning_rate),
    }  # fmt: skip
    is_alone = len(towers_of_workers) == 1  # several average on the CPU alone
    if is_alone and not machine.are_cpus(tower_devices) and chosen["parameter_device"] == "cpu":
        rows["averaging"] = (
            f"on the CPU: a step copies {num_weights * 4e-6:.1f} MB of weights to each GPU, and "
            "gradients back; --parameter_device=gpu leaves them on the first"
        )
    lines = [f"  {name:<13}  {value}" for name, value in rows.items()]
    return "\n".join(map(command_line.printable, lines))


def _describe_rate(chosen: Mapping, derived: Mapping, rate: schedules.LearningRate) -> str:
    end = derived["last_step"] * chosen["global_batch_size"]
    epoch, begins = end / derived["examples_per_epoch"], end - chosen["global_batch_size"]
    is_early, last = epoch <= rate.warmup_epochs, rate(begins)  # of the last step
    if rate.schedule in settings.ENDING_SCHEDULES:
        last = rate(end)
        is_early |= last > 0
    elif rate.schedule != "constant":
        is_early |= dataclasses.replace(rate, warmup_epochs=0.0)(begins) == rate.initial
    warm_up = f", after {rate.warmup_epochs:g} epochs of warm-up" if rate.warmup_epochs else ""
    warning = "; WARNING: the run ends before it has decayed" if is_early else ""
    return f"{rate.schedule}, {rate.initial:g} to {last:g} at epoch {epoch:.4g}{warm_up}{warning}"
