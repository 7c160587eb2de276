"""Evaluating the checkpoints of a run: what `eval.py` does once its flags are parsed."""

import dataclasses
import functools
import os
import time
from collections.abc import Iterable, Sequence

import keras
import numpy as np
import tensorflow as tf

import towers
from input_pipeline import datasets, images
from towers import errors
from towers.runs import checkpoints, definition, run_errors, run_folder, summaries
from towers_cli import build, command_line, run_config, settings


def evaluate(
    model: keras.Model, batches: Iterable, num_classes: int, test_time_flip: bool = False
) -> tuple[dict[str, float], np.ndarray]:
    """Evaluates a model of logits on batches of (images, labels).

    `test_time_flip` takes the mean of the logits of each image and of its mirror image.

    Returns:
      The count of the examples and `build.make_metrics` by name; and the accuracy of each class,
      float64 [num_classes], NaN for a class without an example.
    """
    metrics = build.make_metrics(num_classes, dtype="float64")
    confusion = np.zeros([num_classes, num_classes], np.int64)
    for pixels, labels in batches:
        logits = model.predict_on_batch(pixels).astype(np.float64)
        if test_time_flip:
            logits = (logits + model.predict_on_batch(pixels[:, :, ::-1]).astype(np.float64)) / 2
        for metric in metrics:
            metric.update_state(labels, logits)
        confusion += tf.math.confusion_matrix(labels, logits.argmax(axis=1), num_classes).numpy()
    figures = {metric.name: float(metric.result()) for metric in metrics}
    with np.errstate(invalid="ignore"):
        accuracies = confusion.diagonal() / confusion.sum(axis=1)
    return {"count": int(confusion.sum())} | figures, accuracies


class CheckpointEvaluator:
    """Evaluates one checkpoint after another on one split of the run's data."""

    def __init__(self, chosen: settings.EvalSettings):
        """Reads the run and its data, and builds its network."""
        self._chosen = chosen
        self._folder = run_folder.RunFolder(chosen.train_dir, "--train_dir")
        if self._folder.read_config() is None and not chosen.run_once:
            print(f"waiting for a run in {self._folder.path}", flush=True)
            while self._folder.read_config() is None:
                time.sleep(chosen.eval_interval_seconds)
        self._config: dict = {}
        self._config = self._read_config()
        run = settings.TrainSettings(**self._config["settings"])
        data_dir = chosen.data_dir or run.data_dir
        run = dataclasses.replace(run, num_towers=chosen.num_towers, data_dir=data_dir)
        # The same arithmetic as in training, to the last bit.
        tower_devices = build.start_runtime(run)

        split, names = chosen.split or run.eval_split, self._config["resolved"]["class_names"]
        loaded = build.load_split(run, split, names)
        preprocessing = build.preprocessing(run, loaded)
        self._check_data(split, loaded, preprocessing.output_shape)
        batch_size = chosen.global_batch_size or run.global_batch_size
        self._batches = images.evaluated(loaded, preprocessing, batch_size)
        # What tells one evaluation of a checkpoint from another, as in `eval.jsonl`.
        self._way = {
            "split": split,
            "data_sha256": loaded.fingerprint,
            "test_time_flip": chosen.test_time_flip,
        }

        model = build.build_network(run, preprocessing.output_shape, len(names))
        is_same_keras = self._config["runs_on"]["keras"] == keras.version()
        layers = definition.describe_model(model)["layers"]
        if is_same_keras and layers != self._config["defining"]["layers"]:
            raise settings.SettingsError(f"--model={run.model}: no longer the run's network")
        model.compile(jit_compile=run.jit_compile)
        towers.distribute(model, tower_devices, microbatch_size=run.microbatch_size)
        self._model, self._run = model, towers.Run(self._folder, model)

    def _read_config(self) -> dict:
        """The run's `config.json` as it is now, of the same run as before."""
        if (config := run_config.read(self._folder)) is None:
            raise run_folder.RunFolderError(
                f"{self._folder.shown}: there is no run here; train one with "
                f"python train.py {self._folder.shown}"
            )
        if self._config and config["run_sha256"] != self._config["run_sha256"]:
            raise run_folder.RunFolderError(f"{self._folder.shown}: now holds another run")
        return config

    def _check_data(self, split: str, loaded: datasets.Images, image_shape: Sequence[int]) -> None:
        """Checks that the data fit the run's network, and are those of the run's splits."""
        derived, sha256 = self._config["resolved"], loaded.fingerprint
        recorded = {
            settings.TRAINING_SPLIT: derived["data_sha256"],
            self._config["settings"]["eval_split"]: derived["eval_sha256"],
        }
        here = {"image_shape": image_shape, "class_names": loaded.class_names, "sha256": sha256}
        expected = derived | {"sha256": recorded.get(split, sha256)}
        if different := errors.differences({name: expected[name] for name in here}, here):
            data_dir = self._chosen.data_dir
            flag = f"--data_dir={data_dir}" if data_dir else f"--split={split}"
            raise settings.SettingsError(
                f"{flag}: its images or labels are not those of the run: "
                f"{'; '.join(different)[:600]}"
            )

    @functools.cached_property
    def _writer(self) -> tf.summary.SummaryWriter:
        """Made when there is something to write: an evaluation that fails leaves no file."""
        # Not the training's own eval/: TensorBoard follows one writer in a folder.
        flip = "_flip" if self._chosen.test_time_flip else ""
        return summaries.file_writer(self._folder.path / f"eval_{self._way['split']}{flip}")

    def evaluate(self, path: str) -> None:
        """Evaluates the checkpoint at `path`, writes the result down and prints it."""
        self._run.restore(path)
        names, is_flipped = self._config["resolved"]["class_names"], self._chosen.test_time_flip
        with run_errors.explained():
            figures, accuracies = evaluate(self._model, self._batches, len(names), is_flipped)
        self._read_config()  # refuses what another run has put here meanwhile
        step, way = checkpoints.step_of(path), self._way
        examples_seen = step * self._config["settings"]["global_batch_size"]
        epoch = examples_seen / self._config["resolved"]["examples_per_epoch"]
        line = {"step": step, "epoch": epoch, "checkpoint": os.path.abspath(path), **way, **figures}
        run_folder.append_line(self._folder.evaluations, line)
        with summaries.events(self._writer, step):
            summaries.scalars(figures)
        print(
            f"step {step}, epoch {epoch:.2f}, {way['split']} split, {figures['count']:,} examples, "
            f"each once{' and mirrored' if is_flipped else ''}: "
            f"accuracy {figures['accuracy']:.2%}, top-5 {figures['top5_accuracy']:.2%}, "
            f"cross entropy {figures['cross_entropy']:.4f}"
        )
        for name, accuracy in zip(names, accuracies, strict=True):
            shown = "-" if np.isnan(accuracy) else f"{accuracy:.2%}"
            print(f"  {shown:>7}  {command_line.printable(name)}", flush=True)

    def evaluate_once(self) -> None:
        """Evaluates the checkpoint that was asked for, or the newest."""
        folder, name = self._folder.checkpoints, self._chosen.checkpoint
        while path := checkpoints.find(folder, name) if name else checkpoints.newest(folder):
            try:
                return self.evaluate(path)
            except checkpoints.CheckpointError:
                # A training that goes on may have deleted it, and saved another.
                if name or checkpoints.is_checkpoint(path):
                    raise
        raise checkpoints.CheckpointError(f"{folder} holds no checkpoint yet")

    def follow(self) -> None:
        """Evaluates each new checkpoint of a running training, until that has finished.

        A checkpoint is skipped that the training deletes before its turn comes, that cannot be
        read, or that `eval.jsonl` already has.
        """
        evaluations = self._folder.evaluations
        lines = run_folder.read_lines(evaluations) if evaluations.exists() else []
        done = {line["step"] for line in lines if self._way.items() <= line.items()}
        has_finished = False
        while not has_finished:
            # Asked before the look for checkpoints: the last one is written before the summary. The
            # end may have moved since the run first finished.
            summary = self._folder.read_final_summary()
            last_step = self._read_config()["resolved"]["last_step"]
            has_finished = summary is not None and summary["step"] >= last_step
            for step, path in checkpoints.by_step(self._folder.checkpoints).items():
                if step not in done:
                    try:
                        self.evaluate(path)
                    except checkpoints.CheckpointError as error:
                        print(f"skipped: {error}", flush=True)
                    done.add(step)
            if not has_finished:
                time.sleep(self._chosen.eval_interval_seconds)
        print("the training has finished")
