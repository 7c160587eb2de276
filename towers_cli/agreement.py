"""Several workers begin a run: they meet, and check that they are about to do the same."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import TypeVar

from towers import container_limits, machine, worker
from towers.multi_worker import cluster, collectives
from towers.runs import run_folder, run_lock, warm_start
from towers_cli import command_line, resolve, run_config, settings

_Made = TypeVar("_Made")

# What may differ between workers: where things are on each machine, how many towers it has, and
# which worker it is.
_OF_ONE_WORKER = (
    "train_dir",
    "data_dir",
    "init_from",
    "num_towers",
    "worker_index",
    "worker_wait_seconds",
)


def workers_of(line: command_line.CommandLine) -> dict:
    """The settings of the workers that the environment variable TF_CONFIG names.

    Args:
      line: with the flags that were given.

    Returns:
      `workers` and `worker_index`; nothing where it names no others.

    Raises:
      SettingsError: it does not have the right form, or a flag names workers too.
    """
    try:
        members = cluster.from_tf_config()
    except ValueError as error:
        raise settings.SettingsError(str(error)) from error
    if members is None:
        return {}
    if line.is_given("workers") or line.is_given("worker_index"):
        raise settings.SettingsError(
            f"--workers={settings.shown(line.values.workers)}: TF_CONFIG names workers too; give "
            "one of the two"
        )
    return {"workers": members.addresses, "worker_index": members.index}


def intra_op_threads(chosen: settings.TrainSettings, folder: run_folder.RunFolder) -> int:
    """The threads for one operation, which are fixed before workers meet.

    A run that continues keeps its own, which only the chief knows; others that have another number
    are refused when they meet.
    """
    earlier = None
    if not chosen.worker_index:
        # `find` raises it again, and tells all workers.
        with contextlib.suppress(run_folder.RunFolderError):
            earlier = run_config.earlier_run(folder)
    gpus, cores = machine.num_devices("GPU"), container_limits.available_cores()
    return resolve.resolved(chosen, earlier, gpus, cores).intra_op_threads


def meet_workers(chosen: settings.TrainSettings) -> worker.Workers:
    """Meets the other workers of the run, where there are any.

    Raises:
      SettingsError: an address is wrong.
      WorkerError: one does not connect, or runs on something else.
    """
    if not chosen.workers:
        return worker.SingleWorker()
    try:
        cluster.check(chosen.workers, chosen.worker_index)
    except ValueError as error:
        addresses = settings.shown(chosen.workers)
        raise settings.SettingsError(f"--workers={addresses}: {error}") from error
    members = cluster.Cluster(chosen.workers, chosen.worker_index)
    return collectives.MultiWorker(members, chosen.worker_wait_seconds)


@dataclasses.dataclass(frozen=True)
class Found:
    """What a run starts from, as its chief finds it.

    Attributes:
      earlier: the configuration of the run that continues, if one does.
      cores: that the chief may use.
    """

    earlier: dict | None
    cores: int


def find(workers: worker.Workers, folder: run_folder.RunFolder) -> Found:
    """Looks into the run's folder, on the chief, for all workers.

    Raises:
      RunFolderError: the folder holds something other than a run, or one that is being trained.
      WorkerError: another worker is gone or has ended.
    """

    def look():
        earlier = run_config.earlier_run(folder)
        run_lock.RunLock(folder).check_free()
        return [earlier, container_limits.available_cores()]

    return Found(*workers.from_chief("what is in the folder", look))


def check_alike(workers: worker.Workers, chosen: settings.TrainSettings) -> None:
    """Checks that all workers were given the same settings.

    Args:
      workers: of the run.
      chosen: resolved.

    Raises:
      WorkerError: names what differs, and on which worker.
    """
    shared = settings.recorded(chosen)
    shared = {name: value for name, value in shared.items() if name not in _OF_ONE_WORKER}
    worker.check_same(workers, "their settings", shared, settings.label)


def check_beginning(workers: worker.Workers, config: Mapping, folder: run_folder.RunFolder) -> None:
    """Checks that a run continues with its own settings, or can begin with `--init_from`.

    Args:
      workers: of the run.
      config: as it is now.
      folder: of the run, which may have begun only since `find`.

    Raises:
      RunFolderError: the settings are not those of the run that continues.
      SettingsError: `--init_from` names no weights.
      WorkerError: another worker is gone or has ended.
    """

    def check():
        earlier = run_config.earlier_run(folder)
        if earlier is not None:
            run_config.check_same_run(earlier, config)
        elif init_from := config["settings"]["init_from"]:
            try:
                warm_start.locate(init_from)
            except warm_start.WarmStartError as error:
                raise settings.SettingsError(f"--{error}") from error

    workers.from_chief("what it begins with", check)


def chief_first(workers: worker.Workers, what: str, make: Callable[[], _Made]) -> _Made:
    """What `make` returns, which the chief calls before the others do.

    So what it downloads and decodes is there for others that share its files.
    """
    if workers.is_chief:
        made = make()
    workers.from_chief(what, lambda: None)
    return made if workers.is_chief else make()
