"""docs/architecture.md and its drawing against the one step that they tell of."""

import functools
import importlib
import importlib.util
import inspect
import re
import shutil
import types
from typing import NamedTuple

import batch
import keras
import lighter
import numpy as np
import pytest
import scripts
import tensorflow as tf

from input_pipeline import datasets, shapes, tfds_source

PAGE = batch.PAGE.read_text(encoding="utf-8")
STEP, BATCH, EXAMPLES = 1000, 128, 50_000
PACKAGES = (
    "towers",
    "towers.networks",
    "towers.multi_worker",
    "towers.runs",
    "input_pipeline",
    "lessons",
)

# | [`function`](file) | in | out |
ROWS = [
    (name, given, made)
    for name, given, made in re.findall(
        r"^\| \[?`([\w.]+)`[^|]* \| ([^|]*)\| ([^|]*)\|$", PAGE, re.M
    )
]


class Call(NamedTuple):
    """What a function got and gave: tensors as text such as `float32 [128, 24, 24, 3]`."""

    given: list[str]
    made: list[str]


class Told(NamedTuple):
    """The step as it was made."""

    calls: dict[str, list[Call]]  # by the function's name
    labels: np.ndarray  # of the training split
    batch: tuple  # (images, labels) of the step


def found(name: str):
    """The object that a name such as `tower.compute` stands for, with the one that has it.

    Raises:
      AttributeError, ModuleNotFoundError: there is none.
    """
    first, *rest = name.split(".")
    owner, thing = None, {"tf": tf, "keras": keras}.get(first)
    if thing is None:
        places = [place for place in PACKAGES if importlib.util.find_spec(f"{place}.{first}")]
        thing = importlib.import_module(f"{(*places, PACKAGES[0])[0]}.{first}")
    for part in rest:
        owner, thing = thing, getattr(thing, part)
    return owner, thing


def described(value) -> list[str]:
    """The tensors in a value, in order."""
    if isinstance(value, datasets.ImageArrays):
        return described([value.images, value.labels])
    if isinstance(value, tf.data.Dataset):
        return described(tf.nest.flatten(value.element_spec))
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return [f"{tf.as_dtype(value.dtype).name} {list(value.shape)}"]
    parts = value.values() if isinstance(value, dict) else value
    if not isinstance(value, (dict, list, tuple)):
        return []
    return [text for part in parts for text in described(part)]


def stated(text: str) -> list[str]:
    """The shapes that a text states; `float32 [5] … [10]` states two of one type."""
    kind, shapes_in_text = "", []
    for new_kind, shape in re.findall(r"\b((?:u?int|float)\d+)|(\[[\d, ]*\])", text):
        kind = new_kind or kind
        if shape:
            shapes_in_text.append(f"{kind} {shape}")
    return shapes_in_text


SHAPES = {shape for _, *cells in ROWS for cell in cells for shape in stated(cell)}


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """The first step of the page's command, with all its functions watched.

    50,000 images of `shapes` stand for those of CIFAR-10: a shape does not depend on them.
    """
    folder = tmp_path_factory.mktemp("architecture")
    images, labels = shapes.make("train")
    whole = {
        "train": (np.resize(images, (EXAMPLES, *images.shape[1:])), np.resize(labels, EXAMPLES)),
        "test": shapes.make("test"),
    }
    builder = types.SimpleNamespace(
        info=types.SimpleNamespace(
            full_name="cifar10", features={"image": types.SimpleNamespace(shape=(32, 32, 3))}
        ),
        data_dir_root=folder,
        data_path=folder,
    )
    calls, taken = {}, []

    def watched(name, function):
        @functools.wraps(function)
        def call(*arguments, **options):
            result = function(*arguments, **options)
            given = described([*arguments, *options.values()])
            calls.setdefault(name, []).append(Call(given, described(result)))
            if name == "distribution.Distribution.train_step":
                taken.extend(arguments[1])
            return result

        return call

    with pytest.MonkeyPatch.context() as patch, lighter.only(()):
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setattr(tfds_source, "open_prepared", lambda *_: builder)
        patch.setattr(tfds_source, "identity", lambda builder, split: {"split": split})
        patch.setattr(tfds_source, "class_names", lambda builder: shapes.CLASS_NAMES)
        patch.setattr(tfds_source, "read", lambda builder, split: whole[split])
        for name, *_ in ROWS:
            owner, function = found(name)
            if inspect.isfunction(function):
                patch.setattr(owner, name.rpartition(".")[2], watched(name, function))
        done = scripts.run(
            "train", "--num_towers=2", "--microbatch_size=32", "--max_steps=1",
            f"--train_dir={folder / 'run'}", f"--data_dir={folder}", "--intra_op_threads=1",
        )  # fmt: skip
    shutil.rmtree(folder / "cache")  # 200 MB
    assert (done.returncode, done.stderr) == (0, "")
    return Told(calls, whole["train"][1], tuple(taken))


def is_among(texts: list[str], those: list[str]) -> bool:
    return set(texts) <= set(those)


class TestTheStep:
    def test_every_row_of_the_page_is_a_call(self, told):
        for name, given, made in ROWS:
            assert any(
                is_among(stated(given), call.given) and is_among(stated(made), call.made)
                for call in told.calls[name]
            ), (name, told.calls[name])

    def test_the_page_s_text_has_no_other_shapes(self):
        assert len(ROWS) == len(re.findall(r"^\| \[?`", PAGE, re.M))  # none was overlooked
        prose = re.sub(r"```.*?```", "", PAGE, flags=re.S)
        everywhere = {shape for span in re.findall("`(.*?)`", prose) for shape in stated(span)}
        assert everywhere == SHAPES


class TestThePage:
    def test_code_and_lines_are_those_of_the_source(self):
        assert batch.refreshed(PAGE) == PAGE, "python docs/drawings/pages.py writes them"

    def test_every_function_it_names_exists(self):
        prose = re.sub(r"```.*?```|<!--.*?-->", "", PAGE, flags=re.S)
        named = set(re.findall(r"`([a-zA-Z_]\w*(?:\.\w+)+)`", prose))
        functions = {name for name in named if not re.search(r"\.(py|json|jsonl|npy)$", name)}
        assert functions
        for name in functions:
            found(name)


def test_the_drawing_is_what_the_script_draws_with_functions_and_shapes_of_the_page():
    assert batch.DRAWING.read_text(encoding="utf-8") == batch.svg()
    texts = [arrow.label for arrow in batch.ARROWS] + [box.notes for box in batch.BOXES.values()]
    assert {shape for text in texts for shape in stated(text)} <= SHAPES
    for box in batch.BOXES.values():
        found(box.name)
