"""Evaluating the checkpoints of a run: what `eval.py` does once it has its data."""

import functools
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import towers
from input_pipeline import datasets
from towers.runs import checkpoints, interrupts, run_errors, run_folder, summaries
from towers_cli import build, pictures, run_config, settings, system, tally

_LONGEST_NAME = 100  # of a data set, in the name of a folder


def read_config(folder: run_folder.RunFolder) -> dict:
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
    return read_config(folder)


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
      SettingsError: other image sizes or other classes.
    """
    derived = config["resolved"]
    if list(image_shape) != derived["image_shape"]:
        raise settings.SettingsError(
            f"--dataset: its images are {list(image_shape)} after preprocessing, but the run's "
            f"network takes {derived['image_shape']}"
        )
    if list(class_names) != derived["class_names"]:
        names, of_run = (
            f"{len(names)} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
            for names in (class_names, derived["class_names"])
        )
        raise settings.SettingsError(f"--dataset: its classes are {names}, but the run's {of_run}")


def check_same_images(config: Mapping, split: str, sha256: str) -> None:
    """Checks that a split of the run's own data set is the one that the run was made with.

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
        chosen: settings.EvalSettings,
        *,
        dataset: str,
        split: str,
        images: datasets.Images,
        batches: Iterable,
    ):
        """
        Args:
          folder: of the run.
          config: its `config.json`.
          tower_devices: one device per tower.
          chosen: of the evaluation.
          dataset: name of the data set.
          split: name of the split.
          images: the split.
          batches: (images, labels) that hold each example once, as often as they are iterated over.
        """
        self._folder, self._config, self._chosen = folder, config, chosen
        self._images, self._batches = images, batches
        # What tells one evaluation of a checkpoint from another, as in `eval.jsonl`.
        self._way: dict[str, Any] = {
            "split": split,
            "dataset": dataset,
            "data_sha256": images.fingerprint,
            "test_time_flip": chosen.test_time_flip,
        }
        self._model, of_run = build.build_model(config), config["settings"]
        self._model.compile(jit_compile=of_run["jit_compile"])
        towers.distribute(self._model, tower_devices, microbatch_size=of_run["microbatch_size"])
        self._run = towers.Run(folder, self._model)

    @functools.cached_property
    def _writer(self):
        """Made when there is something to write: an evaluation that fails leaves no file."""
        # Not the training's own eval/: TensorBoard follows one writer in a folder.
        way, name = self._way, ""
        if way["dataset"] != self._config["settings"]["dataset"]:
            name = "_" + re.sub(r"[^\w.-]", "-", way["dataset"])[-_LONGEST_NAME:]
        flip = "_flip" if way["test_time_flip"] else ""
        return summaries.file_writer(self._folder.path / f"eval{name}_{way['split']}{flip}")

    def check_same_run(self) -> None:
        """Checks that the folder still holds the run that this was made for.

        Raises:
          RunFolderError: it holds another one, or none.
        """
        if read_config(self._folder)["run_sha256"] != self._config["run_sha256"]:
            raise run_folder.RunFolderError(
                f"--train_dir={self._folder.path}: another run has begun here since; run the same "
                "command again to follow it"
            )

    def newest_evaluated(self) -> int:
        """The newest step in `eval.jsonl` that was evaluated in this way; -1 if there is none."""
        path = self._folder.evaluations
        lines = run_folder.read_lines(path) if path.exists() else []
        return max(
            (line["step"] for line in lines if self._way.items() <= line.items()), default=-1
        )

    def evaluate(self, path: str) -> None:
        """Evaluates the checkpoint at `path`, prints the result and writes it down.

        Raises:
          CheckpointError: the checkpoint cannot be restored.
          TrainingError: the examples counted are not those of the split.
        """
        self._run.restore(path)
        with run_errors.explained():
            result = tally.evaluate(self._model, self._batches, self._way["test_time_flip"])
        if len(result.labels) != self._images.num_examples:
            raise run_errors.TrainingError(
                f"evaluated {len(result.labels)} of a split of {self._images.num_examples} examples"
            )
        derived, at_step = self._config["resolved"], checkpoints.step_of(path)
        examples_seen = at_step * self._config["settings"]["global_batch_size"]
        line = {
            "step": at_step,
            "epoch": examples_seen / derived["examples_per_epoch"],
            "checkpoint": os.path.abspath(path),
        } | self._way
        class_names = tuple(derived["class_names"])
        print(report(line, result, class_names), flush=True)
        run_folder.append_line(self._folder.evaluations, line | result.as_metrics())
        if self._chosen.write_predictions is not None:
            pictures.write_predictions(self._chosen.write_predictions, result, self._images)
        with summaries.events(self._writer, at_step):
            summaries.scalars(result.as_metrics())
            if (sheet := pictures.most_confused(result, self._images)) is not None:
                tf.summary.image("most_confused", sheet[None])
        with summaries.events(self._writer, examples_seen):
            summaries.scalars({summaries.BY_EXAMPLES + "accuracy": result.accuracy})
            self._writer.flush()

    def evaluate_one(self) -> None:
        """Evaluates the checkpoint that was asked for, or the newest.

        Raises:
          CheckpointError: there is none, or it cannot be read.
        """
        folder = self._folder.checkpoints
        if self._chosen.checkpoint is not None:
            self.evaluate(checkpoints.find(folder, self._chosen.checkpoint))
            return
        while path := checkpoints.newest(folder):
            try:
                self.evaluate(path)
                return
            except checkpoints.CheckpointError:
                if checkpoints.is_checkpoint(path):  # else a training has deleted it
                    raise
        raise checkpoints.CheckpointError(f"{folder} holds no checkpoint yet")

    def follow(self) -> int:
        """Evaluates each new checkpoint of a running training, until that has finished.

        A checkpoint is skipped that the training deletes before its turn comes, that cannot be
        read, or that `eval.jsonl` already has.

        Returns:
          The exit code: 0, or the convention's for a signal.

        Raises:
          RunFolderError: the folder was removed, or holds another run now.
        """
        seen = self.newest_evaluated()
        with interrupts.Interrupts() as asked:
            while True:
                self.check_same_run()
                # Asked before the look for checkpoints: the last one is written before the summary.
                finished = self._has_finished()
                for step, path in checkpoints.by_step(self._folder.checkpoints).items():
                    if step > seen and not asked.received:
                        try:
                            self.evaluate(path)
                        except checkpoints.CheckpointError as error:
                            print(f"skipped: {error}", flush=True)
                        seen = step
                if asked.received:
                    print("stopped following")
                    return asked.exit_code()
                if finished:
                    print("the training has finished")
                    return 0
                _wait(self._chosen.eval_interval_seconds, asked)

    def _has_finished(self) -> bool:
        """Whether the training is at its end, which may have moved since it first finished."""
        summary, config = self._folder.read_final_summary(), read_config(self._folder)
        return summary is not None and summary["step"] >= config["resolved"]["last_step"]


def report(line: Mapping, result: tally.Evaluation, class_names: Sequence[str]) -> str:
    """An evaluation in words: the figures, and the accuracy of each class."""
    flipped, figures = " and mirrored" if line.get("test_time_flip") else "", result.as_metrics()
    head = (
        f"step {line['step']}, epoch {line['epoch']:.2f}, {line['split']} split, "
        f"{figures['count']:,} examples, each once{flipped}: accuracy {result.accuracy:.2%}, "
        f"top-5 {figures['top5_accuracy']:.2%}, cross entropy {figures['cross_entropy']:.4f}"
    )
    class_names = [system.printable(name) for name in class_names]
    width = max(len(name) for name in class_names)
    shares = ["-" if np.isnan(one) else f"{one:.2%}" for one in result.per_class_accuracy()]
    each = zip(class_names, shares, strict=True)
    return "\n".join([head, *(f"  {name:>{width}}  {share:>7}" for name, share in each)])


def _wait(seconds: float, asked: interrupts.Interrupts) -> None:
    until = time.monotonic() + seconds
    while not asked.received and (left := until - time.monotonic()) > 0:
        time.sleep(min(0.2, left))
