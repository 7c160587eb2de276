"""Several workers begin a run: they meet, and check that they are about to do the same."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TypeVar

from towers import container_limits, machine, worker, worker_errors
from towers.multi_worker import cluster, collectives, door, watcher
from towers.runs import run_folder, run_lock, stretches, warm_start
from towers_cli import command_line, run_config, settings

_Made = TypeVar("_Made")


def workers_of(tf_config: str, line: command_line.CommandLine) -> dict:
    """The settings of the workers that the environment variable TF_CONFIG names.

    Args:
      tf_config: its text.
      line: with the flags that were given.

    Returns:
      `workers` and `worker_index`; nothing where it names no others.

    Raises:
      SettingsError: it does not have the right form, or a flag names workers too.
    """
    try:
        members = cluster.from_tf_config(tf_config)
    except ValueError as error:
        raise settings.SettingsError(f"TF_CONFIG: {error}") from error
    if members is None:
        return {}
    given = {"workers": members.addresses, "worker_index": members.index}
    if any(line.is_given(name) for name in given):
        raise settings.SettingsError(
            f"--workers={settings.shown(line.values.workers)}: TF_CONFIG names workers too; give "
            "one of the two"
        )
    return given


def meet_workers(chosen: settings.TrainSettings) -> worker.Workers:
    """Meets the other workers of the run, where there are any; says so if anyone may join.

    Raises:
      SettingsError: an address is wrong, or the environment's secret.
      WorkerError: one does not connect.
    """
    if not chosen.workers:
        return worker.SingleWorker()
    try:
        cluster.check(chosen.workers, chosen.worker_index)
    except ValueError as error:
        given = settings.shown(chosen.workers)
        raise settings.SettingsError(f"--workers={given}: {error}") from error
    try:
        secret = door.secret_of()
    except ValueError as error:
        raise settings.SettingsError(str(error)) from error
    members = cluster.Cluster(chosen.workers, chosen.worker_index, secret)
    workers = collectives.MultiWorker(members, chosen.worker_wait_seconds)
    if workers.is_chief and not secret:
        print(
            "the workers have no TOWERS_SECRET: whoever reaches this worker's port may join",
            flush=True,
        )
    return workers


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

    found = workers.from_chief("what is in the folder", look)
    worker_errors.check_fits(_is_found(found, folder), workers.name(0))
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
            run_config.check(earlier, folder.path)
        except run_folder.RunFolderError:
            return False
    return type(cores) is int and cores > 0


def towers_of_workers(workers: worker.Workers, num_towers: int) -> list[int]:
    """How many towers each worker has.

    Raises:
      WorkerError: another worker is gone or has ended.
    """
    counts = workers.exchange("their numbers of towers", num_towers)
    return worker_errors.counts_of_towers(counts, workers.name)


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


def check_alike(workers: worker.Workers, chosen: settings.TrainSettings) -> None:
    """Checks that all workers were given the same settings, and compute with the same packages.

    Args:
      workers: of the run.
      chosen: resolved.

    Raises:
      WorkerError: names what differs, and on which worker.
    """
    given = settings.recorded(chosen)
    shared = {name: value for name, value in given.items() if name not in _OF_ONE_WORKER}
    versions = {f"version of {name}": text for name, text in stretches.versions().items()}
    kernels = {f"use of {name}": text for name, text in stretches.kernels().items()}
    _check_same(workers, shared | versions | kernels)
    own = ", ".join([machine.processor(), *machine.gpu_names()])
    kinds = workers.exchange("their processors", own)
    for index, kind in enumerate(kinds):
        worker_errors.check_fits(isinstance(kind, str), workers.name(index))
    if workers.is_chief and len(set(kinds)) > 1:
        named = watcher.one_line(", ".join(sorted(set(kinds))))
        print(
            f"the workers have processors of different kinds ({named}): "
            "their arithmetic may differ in its last bits, and a run ends if their weights do",
            flush=True,
        )


def check_same_data(workers: worker.Workers, **sha256: str) -> None:
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


def _check_same(workers: worker.Workers, own: dict) -> None:
    chief, *others = everyone = workers.exchange("what they were given", own)
    for index, message in enumerate(everyone):
        worker_errors.check_fits(isinstance(message, dict), workers.name(index))
    for index, other in enumerate(others, start=1):
        if different := run_folder.differences(chief, other, workers.name(0), settings.label):
            raise worker_errors.WorkerError(
                f"{workers.name(index)} differs from {workers.name(0)}: "
                f"{watcher.one_line('; '.join(different))}"
            )


def chief_first(workers: worker.Workers, what: str, make: Callable[[], _Made]) -> _Made:
    """What `make` returns, which the chief calls before the others do.

    So what it downloads and decodes is there for others that share its files.
    """
    if workers.is_chief:
        made = make()
    workers.from_chief(what, lambda: None)
    return made if workers.is_chief else make()
