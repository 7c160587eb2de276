"""What a person looks at: a batch as the network sees it, and its answer for each example."""

import csv
import os
from collections.abc import Sequence

import numpy as np

from input_pipeline import contact_sheet, datasets, preprocess
from input_pipeline import images as sources
from towers import worker
from towers.runs import run_folder
from towers_cli import settings, system, tally

_SHOWN = 64  # images of a batch
MOST_CONFUSED = 32  # examples on a sheet


def show_batch(
    chosen: settings.TrainSettings,
    split: datasets.Images,
    prepared: preprocess.Preprocessing,
    workers: worker.Workers,
) -> int:
    """Writes the sheet that `--show_batch` asks for, on the chief; returns the exit code.

    Raises:
      RunFolderError: the file cannot be written.
    """
    if not workers.is_chief:
        return 0
    source = sources.training(split, prepared, chosen.seed)
    images, labels = next(iter(source.batches(0, 1, global_batch_size=chosen.global_batch_size)))
    images, labels = images.numpy()[:_SHOWN], labels.numpy()[:_SHOWN]
    names = [_caption(label, split.class_names) for label in labels]
    with run_folder.writing(chosen.show_batch):
        contact_sheet.sheet(images, names).save(chosen.show_batch)
    augmentation = settings.augmentation(settings.recorded(chosen))
    how = f"{chosen.preprocessing}, {augmentation}" if augmentation else chosen.preprocessing
    of_all = f"{len(images)} of {chosen.global_batch_size} images"
    print(
        system.printable(
            f"{chosen.show_batch}: {of_all} of the first batch, after {how}, each "
            "stretched from its smallest to its largest value"
        )
    )
    return 0


def _caption(label: np.ndarray, class_names: Sequence[str]) -> str:
    """The name of a class; of a mixed image the names of its classes, with their shares."""
    if not label.ndim:
        return class_names[int(label)]
    shares = [(round(100 * label[place]), place) for place in np.argsort(-label, kind="stable")[:2]]
    if shares[0][0] == 100:
        return class_names[shares[0][1]]
    return ", ".join(f"{percent}% {class_names[place]}" for percent, place in shares)


def write_predictions(path: str, examples: tally.Evaluation, split: datasets.Images) -> None:
    """Writes a line for each example: its name, class, predicted class and loss.

    Raises:
      RunFolderError: the file cannot be written.
    """
    partial, names = f"{path}.partial", split.names()
    with run_folder.writing(path):
        with open(partial, "w", newline="", encoding="utf-8", errors="surrogateescape") as file:
            writer = csv.writer(file)
            writer.writerow(["name", "class", "predicted", "correct", "loss"])
            for name, label, predicted, loss in zip(
                names, examples.labels, examples.predicted, examples.losses, strict=True
            ):
                classes = [split.class_names[label], split.class_names[predicted]]
                writer.writerow([name, *classes, int(label == predicted), f"{loss:.6g}"])
        os.replace(partial, path)


def most_confused(examples: tally.Evaluation, split: datasets.Images) -> np.ndarray | None:
    """A sheet of the wrongly classified examples with the largest loss.

    Returns:
      uint8 [height, width, 3]; None where all were right.
    """
    label, predicted = examples.labels, examples.predicted
    wrong = np.flatnonzero(label != predicted)
    if not wrong.size:
        return None
    worst = wrong[np.argsort(-examples.losses[wrong], kind="stable")][:MOST_CONFUSED]
    captions = [
        f"{split.class_names[label[n]]} as {split.class_names[predicted[n]]}" for n in worst
    ]
    return np.asarray(contact_sheet.sheet(split.at(worst), captions))
