"""Evaluating the checkpoints of a run: what `eval.py` does once it has its data."""

import csv
import functools
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import keras
import numpy as np

import towers
from input_pipeline import datasets, images
from towers import errors, metrics
from towers.runs import checkpoints, definition, run_errors, run_folder, summaries
from towers_cli import build, run_config, settings, system


def predict(
    model: keras.Model, batches: Iterable, test_time_flip: bool = False
) -> dict[str, np.ndarray]:
    """What the model says of each example, in their order.

    Args:
      model: of images to logits; on towers, each batch is spread over them.
      batches: (images [n, height, width, channels], labels int [n]).
      test_time_flip: takes the mean of the logits of each image and of its mirror image.

    Returns:
      `loss`, the cross entropy in nats, float64; `label` and `predicted`, a class; `in_top`,
      whether the label has one of the five largest logits.
    """
    parts = []
    for pixels, labels in batches:
        logits = model.predict_on_batch(pixels).astype(np.float64)
        if test_time_flip:
            mirrored = model.predict_on_batch(pixels[:, :, ::-1]).astype(np.float64)
            logits = (logits + mirrored) / 2
        in_top = metrics.in_top(labels, logits, k=min(build.TOP, logits.shape[1]))
        # In float64, to which `metrics.cross_entropy` would not keep.
        loss = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        parts.append((loss, labels, logits.argmax(axis=1), in_top))
    columns = map(np.concatenate, zip(*parts, strict=True))
    return dict(zip(("loss", "label", "predicted", "in_top"), columns, strict=True))


def summarize(examples: Mapping[str, np.ndarray]) -> dict[str, float | int]:
    """The figures of an evaluation, under the names of `eval.jsonl`, from what `predict` gives."""
    return {
        "count": len(examples["label"]),
        "accuracy": float((examples["label"] == examples["predicted"]).mean()),
        "top5_accuracy": float(examples["in_top"].mean(dtype=np.float64)),
        "cross_entropy": float(examples["loss"].mean()),
    }


class CheckpointEvaluator:
    """Evaluates one checkpoint after another on one split.

    Attributes:
      folder: of the run.
      checkpoint: the path of the one that was asked for; None for no certain one.
    """

    def __init__(self, chosen: settings.EvalSettings):
        """Reads the run, and the data that it is to be evaluated on."""
        self.folder = run_folder.RunFolder(chosen.train_dir, "--train_dir")
        self.checkpoint, self._chosen = None, chosen
        if self.folder.read_config() is None and not chosen.run_once:
            print(f"waiting for a run in {self.folder.path}", flush=True)
            while self.folder.read_config() is None:
                time.sleep(chosen.eval_interval_seconds)
        self._config: dict = {}
        self._config = self._read_config()
        if chosen.checkpoint is not None:
            self.checkpoint = checkpoints.find(self.folder.checkpoints, chosen.checkpoint)
        of_run, derived = self._config["settings"], self._config["resolved"]
        # The same arithmetic as in training, to the last bit.
        build.start_runtime(of_run["intra_op_threads"], of_run["deterministic"])
        tower_devices = build.tower_devices(chosen.num_towers)

        dataset = chosen.dataset or of_run["dataset"]
        others = self._other_pictures(dataset)
        split = chosen.split or datasets.default_split(dataset, others, of_run["eval_split"])
        self._images = datasets.load(
            dataset,
            chosen.data_dir or of_run["data_dir"],
            split,
            image_size=of_run["image_size"],
            class_names=derived["class_names"],
            skip_broken=of_run["skip_broken"],
        )
        preprocessing = images.preprocessing(of_run["preprocessing"], self._images)
        is_own = dataset == of_run["dataset"] and others is None
        self._check_data(split, preprocessing.output_shape, is_own)
        batch_size = chosen.global_batch_size or of_run["global_batch_size"]
        self._batches = images.evaluated(self._images, preprocessing, batch_size)
        # What tells one evaluation of a checkpoint from another, as in `eval.jsonl`.
        self._way = {
            "split": split,
            "dataset": f"{dataset} {others}" if others else dataset,
            "data_sha256": self._images.fingerprint,
            "test_time_flip": chosen.test_time_flip,
        }

        model = build.build_network(of_run, derived["image_shape"], len(derived["class_names"]))
        is_same_keras = self._config["stretches"][-1]["runs_on"]["keras"] == keras.version()
        layers = definition.describe_model(model)["layers"]
        if is_same_keras and layers != self._config["defining"]["layers"]:
            raise settings.SettingsError(
                f"--model={of_run['model']}: is no longer the network of the run"
            )
        model.compile(jit_compile=of_run["jit_compile"])
        towers.distribute(model, tower_devices, microbatch_size=of_run["microbatch_size"])
        self._model, self._run = model, towers.Run(self.folder, model)

    def _read_config(self) -> dict:
        """The run's `config.json` as it is now, of the same run as before."""
        if (config := self.folder.read_config()) is None:
            raise run_folder.RunFolderError(
                f"{self.folder.shown}: there is no run here; train one with "
                f"python train.py {self.folder.shown}"
            )
        run_config.check(config, self.folder.path)
        if self._config and config["run_sha256"] != self._config["run_sha256"]:
            raise run_folder.RunFolderError(f"{self.folder.shown}: now holds another run")
        return config

    def _other_pictures(self, dataset: str) -> str | None:
        """The folder of pictures that are to be evaluated, where it is another than the run's."""
        of_run, data_dir = self._config["settings"], self._chosen.data_dir
        if data_dir is None or dataset != datasets.FOLDER:
            return None
        here = os.path.realpath(os.path.expanduser(data_dir))
        is_own = of_run["dataset"] == dataset and here == os.path.realpath(of_run["data_dir"] or "")
        return None if is_own else here

    def _check_data(self, split: str, image_shape: Sequence[int], is_own: bool) -> None:
        """Checks that the data fit the run's network; its own, that they have not changed."""
        derived, of_run = self._config["resolved"], self._config["settings"]
        expected = {"image shape": derived["image_shape"], "classes": derived["class_names"]}
        here = {"image shape": image_shape, "classes": self._images.class_names}
        of_split = {
            settings.TRAINING_SPLIT: derived["data_sha256"],
            of_run["eval_split"]: derived["eval_sha256"],
        }
        if is_own and split in of_split:
            expected["sha256"], here["sha256"] = of_split[split], self._images.fingerprint
        if different := errors.differences(expected, here):
            chosen = {"data_dir": self._chosen.data_dir, "dataset": self._chosen.dataset}
            name, value = next((item for item in chosen.items() if item[1]), ("split", split))
            raise settings.SettingsError(
                f"--{name}={value}: its images or labels are not those of the run: "
                f"{'; '.join(different)[:600]}"
            )

    @functools.cached_property
    def _writer(self):
        """Made when there is something to write: an evaluation that fails leaves no file."""
        # Not the training's own eval/: TensorBoard follows one writer in a folder.
        way, name = self._way, "eval"
        if way["dataset"] != self._config["settings"]["dataset"]:
            name += "_" + re.sub(r"[^\w.-]", "-", str(way["dataset"]))[-100:]  # it may hold a path
        flip = "_flip" if self._chosen.test_time_flip else ""
        return summaries.file_writer(self.folder.path / f"{name}_{way['split']}{flip}")

    def evaluate(self, path: str) -> None:
        """Evaluates the checkpoint at `path`, writes the result down and prints it."""
        self._run.restore(path)
        with run_errors.explained():
            examples = predict(self._model, self._batches, self._chosen.test_time_flip)
        self._read_config()  # refuses what another run has put here meanwhile
        figures, derived = summarize(examples), self._config["resolved"]
        at_step = checkpoints.step_of(path)
        examples_seen = at_step * self._config["settings"]["global_batch_size"]
        line = {
            "step": at_step,
            "epoch": examples_seen / derived["examples_per_epoch"],
            "checkpoint": os.path.abspath(path),
            **self._way,
            **figures,
        }
        run_folder.append_line(self.folder.evaluations, line)
        if self._chosen.write_predictions is not None:
            write_predictions(self._chosen.write_predictions, examples, self._images)
        with summaries.events(self._writer, at_step):
            summaries.scalars(figures)
            self._writer.flush()
        print(report(line, examples, derived["class_names"]), flush=True)

    def follow(self) -> None:
        """Evaluates each new checkpoint of a running training, until that has finished.

        A checkpoint is skipped that the training deletes before its turn comes, that cannot be
        read, or that `eval.jsonl` already has.
        """
        evaluations = self.folder.evaluations
        lines = run_folder.read_lines(evaluations) if evaluations.exists() else []
        evaluated = [line["step"] for line in lines if self._way.items() <= line.items()]
        seen = max(evaluated, default=-1)
        has_finished = False
        while not has_finished:
            # Asked before the look for checkpoints: the last one is written before the summary. The
            # end may have moved since the run first finished.
            summary = self.folder.read_final_summary()
            last_step = self._read_config()["resolved"]["last_step"]
            has_finished = summary is not None and summary["step"] >= last_step
            for step, path in checkpoints.by_step(self.folder.checkpoints).items():
                if step > seen:
                    try:
                        self.evaluate(path)
                    except checkpoints.CheckpointError as error:
                        print(f"skipped: {error}", flush=True)
                    seen = step
            if not has_finished:
                time.sleep(self._chosen.eval_interval_seconds)
        print("the training has finished")


def report(line: Mapping, examples: Mapping[str, np.ndarray], class_names: Sequence[str]) -> str:
    """An evaluation in words: a line of `eval.jsonl`, and the accuracy of each class."""
    flipped = " and mirrored" if line["test_time_flip"] else ""
    rows = [
        f"step {line['step']}, epoch {line['epoch']:.2f}, {line['split']} split, "
        f"{line['count']:,} examples, each once{flipped}: accuracy {line['accuracy']:.2%}, "
        f"top-5 {line['top5_accuracy']:.2%}, cross entropy {line['cross_entropy']:.4f}"
    ]
    names = [system.printable(name) for name in class_names]
    for place, name in enumerate(names):
        is_right = examples["predicted"][examples["label"] == place] == place
        share = f"{is_right.mean():.2%}" if is_right.size else "-"
        rows.append(f"  {name:>{max(map(len, names))}}  {share:>7}")
    return "\n".join(rows)


def write_predictions(
    path: str, examples: Mapping[str, np.ndarray], split: datasets.Images
) -> None:
    """Writes a line for each example: its name, class, predicted class and loss."""
    columns = examples["label"], examples["predicted"], examples["loss"]
    with (
        run_folder.replacing(Path(path)) as partial,
        open(partial, "w", newline="", encoding="utf-8", errors="surrogateescape") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(["name", "class", "predicted", "correct", "loss"])
        for name, label, predicted, loss in zip(split.names(), *columns, strict=True):
            classes = [split.class_names[label], split.class_names[predicted]]
            writer.writerow([name, *classes, int(label == predicted), f"{loss:.6g}"])
