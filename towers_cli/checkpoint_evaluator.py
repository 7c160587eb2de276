"""Evaluating the checkpoints of a run: what `eval.py` does once it has its data."""

import functools
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import tensorflow as tf

import towers
from input_pipeline import datasets
from towers.runs import checkpoints, console, interrupts, run_errors, run_folder, summaries
from towers_cli import build, run_config, settings, tally

_LONGEST_NAME = 100  # of a data set, in the name of a folder


def config_of(folder: run_folder.RunFolder) -> dict:
    """The configuration of the run in `folder`.

    Raises:
      RunFolderError: there is no run, or its `config.json` is not one.
    """
    config = folder.read_config()
    if config is None:
        raise run_folder.RunFolderError(
            f"--train_dir={folder.path}: there is no run here; train one with "
            f"python train.py --train_dir={folder.path}"
        )
    run_config.check(config, folder.path)
    return config


def wait_for_run(folder: run_folder.RunFolder, interval_seconds: float) -> dict:
    """The configuration of the run in `folder`, as soon as a training has begun one there.

    Raises:
      RunFolderError: what is there is not a run.
    """
    if folder.read_config() is None:
        print(f"waiting for a run in {folder.path}", flush=True)
    while folder.read_config() is None:
        time.sleep(interval_seconds)
    return config_of(folder)


def named_checkpoint(folder: run_folder.RunFolder, name: str | None) -> str | None:
    """The checkpoint of that name; None without a name, which stands for the newest.

    Raises:
      CheckpointError: there is no such checkpoint.
    """
    if name is not None:
        return checkpoints.find(folder.checkpoints, name)
    if checkpoints.newest(folder.checkpoints) is None:
        raise checkpoints.CheckpointError(f"{folder.checkpoints} holds no checkpoint yet")
    return None


def other_pictures(config: Mapping, dataset: str, data_dir: str | None) -> str | None:
    """The folder of pictures that are to be evaluated, where it is another than the run's."""
    of_run = config["settings"]
    if data_dir is None or dataset != datasets.FOLDER:
        return None
    here = os.path.realpath(os.path.expanduser(data_dir))
    of_the_run = of_run["dataset"] == dataset and os.path.realpath(of_run["data_dir"] or "")
    return None if here == of_the_run else here


def check_fits(config: Mapping, image_shape: Sequence[int], class_names: Sequence[str]) -> None:
    """Checks that the data are of the kind that the run's network was built for.

    Raises:
      SettingsError: other image sizes or another number of classes.
    """
    derived = config["resolved"]
    if list(image_shape) != list(derived["image_shape"]):
        raise settings.SettingsError(
            f"--dataset: its images are {list(image_shape)} after preprocessing, but the run's "
            f"network takes {derived['image_shape']}"
        )
    if list(class_names) != derived["class_names"]:
        raise settings.SettingsError(
            f"--dataset: its classes are {_few(class_names)}, but the run's "
            f"{_few(derived['class_names'])}"
        )


def _few(names: Sequence[str]) -> str:
    return f"{len(names)} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"


def check_same_images(config: Mapping, split: str, sha256: str) -> None:
    """Checks that a split of the run's own data set is the one that the run was made with.

    Args:
      config: of the run.
      split: its name.
      sha256: of its images and labels.

    Raises:
      SettingsError: it is another one.
    """
    of_split = {
        settings.TRAINING_SPLIT: config["resolved"]["data_sha256"],
        config["settings"]["eval_split"]: config["resolved"]["eval_sha256"],
    }
    if of_split.get(split, sha256) != sha256:
        raise settings.SettingsError(
            f"--split={split}: its images or labels are not those of the run (sha256 {sha256[:12]},"
            f" and the run's {of_split[split][:12]}); restore the data"
        )


class CheckpointEvaluator:
    """Evaluates one checkpoint after another on one split."""

    def __init__(
        self,
        folder: run_folder.RunFolder,
        config: Mapping,
        tower_devices: Sequence[str],
        *,
        dataset: str,
        data_sha256: str,
        split: str,
        count: int,
        batches: Iterable,
        test_time_flip: bool = False,
        looks_at: Callable[[tally.Seen], np.ndarray | None] = lambda _: None,
    ):
        """
        Args:
          folder: of the run.
          config: its `config.json`.
          tower_devices: one device per tower.
          dataset: name of the data set.
          data_sha256: of its images and labels in this split.
          split: name of the split.
          count: examples in the split.
          batches: (images, labels, mask) that hold each example once, as often as they are
            iterated over.
          test_time_flip: evaluates the mean of the logits of each image and of its mirror image.
          looks_at: called with the examples of each evaluation; what it returns, an image uint8
            [height, width, 3] or None, is for TensorBoard.
        """
        self._folder, self._config = folder, config
        self._dataset, self._data_sha256 = dataset, data_sha256
        self._split, self._count, self._batches = split, count, batches
        self._test_time_flip, self._looks_at = test_time_flip, looks_at
        self._model, chosen = build.build_model(config), config["settings"]
        self._model.compile(jit_compile=chosen["jit_compile"])
        towers.distribute(self._model, tower_devices, microbatch_size=chosen["microbatch_size"])
        self._run = towers.Run(folder, self._model)

    @functools.cached_property
    def _writer(self):
        """Made when there is something to write: an evaluation that fails leaves no file."""
        # Not the training's own eval/: TensorBoard follows one writer in a folder.
        own_data = self._dataset == self._config["settings"]["dataset"]
        of_data = "" if own_data else "_" + re.sub(r"[^\w.-]", "-", self._dataset)[-_LONGEST_NAME:]
        flip = "_flip" if self._test_time_flip else ""
        return summaries.file_writer(self._folder.path / f"eval{of_data}_{self._split}{flip}")

    def check_same_run(self) -> None:
        """Checks that the folder still holds the run that this was made for.

        Raises:
          RunFolderError: it holds another one, or none.
        """
        if config_of(self._folder)["run_sha256"] != self._config["run_sha256"]:
            raise run_folder.RunFolderError(
                f"--train_dir={self._folder.path}: another run has begun here since; run the same "
                "command again to follow it"
            )

    def newest_evaluated(self) -> int:
        """The newest step in `eval.jsonl` that was evaluated in this way; -1 if there is none."""
        if not self._folder.evaluations.exists():
            return -1
        lines = run_folder.read_lines(self._folder.evaluations)
        this_way = self._way()
        return max((line["step"] for line in lines if this_way.items() <= line.items()), default=-1)

    def _way(self) -> dict:
        """What tells one evaluation of a checkpoint from another, as in `eval.jsonl`."""
        return {
            "split": self._split,
            "dataset": self._dataset,
            "data_sha256": self._data_sha256,
            "test_time_flip": self._test_time_flip,
        }

    def __call__(self, path: str) -> tally.Evaluation:
        """Evaluates the checkpoint at `path`, prints the result and writes it down.

        Raises:
          CheckpointError: the checkpoint cannot be restored.
          TrainingError: the examples counted are not those of the split.
        """
        self._run.restore(path)
        with run_errors.explained():
            result = tally.evaluate(self._model, self._batches, self._test_time_flip)
        if result.count != self._count:
            raise run_errors.TrainingError(
                f"evaluated {result.count} examples of a split of {self._count}"
            )
        derived, at_step = self._config["resolved"], checkpoints.step_of(path)
        examples_seen = at_step * self._config["settings"]["global_batch_size"]
        line = {
            "step": at_step,
            "epoch": examples_seen / derived["examples_per_epoch"],
            "checkpoint": os.path.abspath(path),
        } | self._way()
        class_names = tuple(derived["class_names"])
        print(report(line, result, class_names), flush=True)
        run_folder.append_line(self._folder.evaluations, line | result.as_metrics())
        sheet = self._looks_at(result.examples)
        with summaries.events(self._writer, at_step):
            summaries.scalars(result.as_metrics())
            summaries.write_confusion(result.confusion, class_names)
            if sheet is not None:
                tf.summary.image("most_confused", sheet[None])
        with summaries.events(self._writer, examples_seen):
            summaries.scalars({summaries.BY_EXAMPLES + "accuracy": result.accuracy})
            self._writer.flush()
        return result


def report(line: Mapping, result: tally.Evaluation, class_names: Sequence[str]) -> str:
    """An evaluation in words: the figures, accuracy per class, and the confusion matrix."""
    flipped = " and mirrored" if line.get("test_time_flip") else ""
    head = (
        f"step {line['step']}, epoch {line['epoch']:.2f}, {line['split']} split, "
        f"{result.count:,} examples, each once{flipped}: accuracy {result.accuracy:.2%}, "
        f"top-5 {result.top5_accuracy:.2%}, cross entropy {result.loss:.4f}"
    )
    per_class = ["-" if np.isnan(of) else f"{of:.2%}" for of in result.per_class_accuracy()]
    class_names = [console.printable(name) for name in class_names]
    name_width = max(len(name) for name in class_names)
    if len(class_names) > 20:  # a matrix this wide cannot be read on a terminal
        rows = [
            f"  {name:>{name_width}}  {share:>7}"
            for name, share in zip(class_names, per_class, strict=True)
        ]
        return "\n".join([head, *rows])
    width = max(5, len(str(int(np.max(result.confusion)))) + 1)
    columns = "".join(f"{index:>{width}}" for index in range(len(class_names)))
    rows = [
        f"  {name:>{name_width}}  {share:>8}  {index:>2}"
        + "".join(f"{count:>{width}}" for count in result.confusion[index])
        for index, (name, share) in enumerate(zip(class_names, per_class, strict=True))
    ]
    title = f"  {'class':>{name_width}}  accuracy  predicted as:"
    return "\n".join([head, title, f"  {'':>{name_width}}            {columns}", *rows])


def evaluate_newest(evaluate: CheckpointEvaluator, folder: run_folder.RunFolder) -> None:
    """Evaluates the newest checkpoint; the next one where a training deletes it meanwhile.

    Raises:
      CheckpointError: there is none, or it cannot be read.
    """
    while path := checkpoints.newest(folder.checkpoints):
        try:
            evaluate(path)
            return
        except checkpoints.CheckpointError:
            if checkpoints.is_checkpoint(path):
                raise
    raise checkpoints.CheckpointError(f"{folder.checkpoints} holds no checkpoint any more")


def follow(
    evaluate: CheckpointEvaluator, folder: run_folder.RunFolder, interval_seconds: float
) -> int:
    """Evaluates each new checkpoint of a running training, until that training has finished.

    A checkpoint is skipped that the training deletes before its turn comes, that cannot be read, or
    that `eval.jsonl` already has.

    Returns:
      The exit code: 0, or the convention's for a signal.

    Raises:
      RunFolderError: the folder was removed, or holds another run now.
    """
    seen = evaluate.newest_evaluated()
    with interrupts.Interrupts() as asked:
        while True:
            evaluate.check_same_run()
            # Asked before the look for checkpoints: the last one is written before the summary.
            finished = _has_finished(folder)
            for step, path in checkpoints.by_step(folder.checkpoints).items():
                if asked.received:
                    break
                if step > seen:
                    try:
                        evaluate(path)
                    except checkpoints.CheckpointError as error:
                        print(f"skipped: {error}", flush=True)
                    seen = step
            if asked.received:
                print("stopped following")
                return asked.exit_code()
            if finished:
                print("the training has finished")
                return 0
            _wait(interval_seconds, asked)


def _has_finished(folder: run_folder.RunFolder) -> bool:
    """Whether the training is at its end, which may have moved since it first finished."""
    summary = folder.read_final_summary()
    return summary is not None and summary["step"] >= config_of(folder)["resolved"]["last_step"]


def _wait(seconds: float, asked: interrupts.Interrupts) -> None:
    until = time.monotonic() + seconds
    while not asked.received and (left := until - time.monotonic()) > 0:
        time.sleep(min(0.2, left))
