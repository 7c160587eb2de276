"""Several workers begin a run: they meet, and check that they are about to do the same."""

import contextlib
from collections.abc import Callable, Mapping
from typing import TypeVar

from towers import container_limits, machine, multi_worker, worker
from towers.runs import run_folder, warm_start
from towers_cli import resolve, run_config, settings

_Made = TypeVar("_Made")

# What may differ between workers: where things are on each machine, how many towers it has, and
# which worker it is.
_PER_WORKER = ("train_dir", "data_dir", "init_from", "num_towers", "worker_wait_seconds")


def members() -> multi_worker.Cluster | None:
    """The workers of the run, as the environment variable TF_CONFIG names them; None for one.

    Raises:
      SettingsError: it does not have the right form.
    """
    try:
        return multi_worker.from_tf_config()
    except ValueError as error:
        raise settings.SettingsError(str(error)) from error


def intra_op_threads(
    chosen: settings.TrainSettings, folder: run_folder.RunFolder, is_chief: bool
) -> int:
    """The threads for one operation, which are fixed before workers meet.

    A run that continues keeps its number, which only the chief knows; others that have another one
    are refused when they meet.
    """
    earlier = None
    if is_chief:
        # `find` raises it again, and tells all workers.
        with contextlib.suppress(run_folder.RunFolderError):
            earlier = run_config.earlier_run(folder)
    gpus, cores = machine.num_devices("GPU"), container_limits.available_cores()
    return resolve.resolved(chosen, earlier, gpus, cores).intra_op_threads


def find(workers: worker.Workers, folder: run_folder.RunFolder) -> tuple[dict | None, int]:
    """Looks into the run's folder, on the chief, for all workers.

    Returns:
      The configuration of the run that continues, if one does; and the cores that the chief may
      use.

    Raises:
      RunFolderError: the folder holds something other than a run.
      WorkerError: another worker is gone or has ended.
    """

    def look():
        return [run_config.earlier_run(folder), container_limits.available_cores()]

    earlier, cores = workers.from_chief("what is in the folder", look)
    return earlier, cores


def check_alike(workers: worker.Workers, chosen: settings.TrainSettings) -> None:
    """Checks that all workers were given the same settings.

    Raises:
      WorkerError: names what differs, and on which worker.
    """
    shared = settings.recorded(chosen)
    shared = {name: value for name, value in shared.items() if name not in _PER_WORKER}
    worker.check_same(workers, "their settings", shared, settings.label)


def check_beginning(workers: worker.Workers, config: Mapping, folder: run_folder.RunFolder) -> None:
    """Checks that a run continues with its own settings, or can begin with `--init_from`.

    Raises:
      RunFolderError: the settings are not those of the run that continues.
      WarmStartError: `--init_from` names no weights.
      WorkerError: another worker is gone or has ended.
    """

    def check():
        earlier = run_config.earlier_run(folder)
        if earlier is not None:
            run_config.check_same_run(earlier, config, folder.path)
        elif init_from := config["settings"]["init_from"]:
            warm_start.locate(init_from)

    workers.from_chief("what it begins with", check)


def chief_first(workers: worker.Workers, what: str, make: Callable[[], _Made]) -> _Made:
    """What `make` returns, which the chief calls before the others do.

    So what it downloads and decodes is there for others that share its files.
    """
    if workers.is_chief:
        made = make()
    workers.from_chief(what, lambda: None)
    return made if workers.is_chief else make()
