"""What a training prints about its run before it starts."""

from collections.abc import Mapping

from towers import machine, schedules, shares
from towers_cli import command_line, settings


def start_table(
    config: Mapping, learning_rate: schedules.LearningRate, num_evaluated_examples: int
) -> str:
    """What a run is, in a few lines; warns where the rate does not decay as it was to."""
    chosen, derived = config["settings"], config["resolved"]
    towers, count = derived["towers_of_workers"], derived["num_microbatches"]
    rows = {
        "run": chosen["train_dir"],
        "weights from": chosen["init_from"],
        "data": f"{derived['data_source']}: "
                f"{derived['examples_per_epoch']:,} train, "
                f"{num_evaluated_examples:,} {chosen['eval_split']}, "
                f"{len(derived['class_names'])} classes",
        "model": f"{chosen['model']}, {chosen['compute_dtype']}, "
                 f"images {' x '.join(map(str, derived['image_shape']))}",
        "workers": ", ".join(derived["workers"]) if len(towers) > 1 else "",
        "towers": f"{', '.join(map(str, towers))} on {', '.join(derived['tower_devices'])}",
        "batch": f"{chosen['global_batch_size']} global, {count} microbatches of at most "
                 f"{chosen['microbatch_size']}, {shares.described(count, sum(towers))}",
        "same bits": _describe_same_bits(chosen, derived),
        "steps": f"{derived['last_step']:,}, {derived['steps_per_epoch']:.1f} per epoch",
        "optimizer": f"{chosen['optimizer']}, weight decay {chosen['weight_decay']:g}",
        "learning rate": _describe_rate(chosen, derived, learning_rate),
    }  # fmt: skip
    lines = [f"  {name:<13}  {value}" for name, value in rows.items() if value]
    return "\n".join(map(command_line.printable, lines))


def _describe_same_bits(chosen: Mapping, derived: Mapping) -> str:
    if not (machine.are_cpus(derived["tower_devices"]) or chosen["deterministic"]):
        return "not promised on GPUs without --deterministic"
    return (
        f"on any number of towers and workers, with --microbatch_size={chosen['microbatch_size']} "
        f"and --intra_op_threads={chosen['intra_op_threads']}"
    )


def _describe_rate(chosen: Mapping, derived: Mapping, rate: schedules.LearningRate) -> str:
    end = derived["last_step"] * chosen["global_batch_size"]
    if rate.schedule in settings.ENDING_SCHEDULES:
        last = rate(end)
        is_early = last > 0
    else:
        last = rate(end - 1)
        is_early = last == rate.initial and rate.schedule != "constant"
    warm_up = f", after {rate.warmup_epochs:g} epochs of warm-up" if rate.warmup_epochs else ""
    warning = "; WARNING: the run ends before it has decayed" if is_early else ""
    epoch = end / derived["examples_per_epoch"]
    return f"{rate.schedule}, {rate.initial:g} to {last:g} at epoch {epoch:.4g}{warm_up}{warning}"
