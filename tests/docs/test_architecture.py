"""docs/architecture.md and its drawing against the one step that they tell of."""

import functools
import importlib.util
import inspect
import re

import batch
import house
import keras
import lighter
import pytest
import scripts
import tensorflow as tf

from input_pipeline import datasets

PAGE = batch.PAGE.read_text(encoding="utf-8")
EXAMPLES = "[50000"  # of CIFAR-10; `shapes` has 5,000
PACKAGES = [room.package for room in reversed(house.ROOMS)]  # the idea comes first

# | [`function`](file) | in | out |
ROWS = re.findall(r"^\| \[?`([\w.]+)`[^|]* \| ([^|]*)\| ([^|]*)\|$", PAGE, re.M)


def look_up(name: str):
    """The object that a name such as `tower.compute` stands for, with the one that has it."""
    first, *rest = name.split(".")
    owner, thing = None, {"tf": tf, "keras": keras}.get(first)
    if thing is None:
        places = [place for place in PACKAGES if importlib.util.find_spec(f"{place}.{first}")]
        thing = importlib.import_module(f"{(*places, PACKAGES[0])[0]}.{first}")
    for part in rest:
        owner, thing = thing, getattr(thing, part)
    return owner, thing


def described(value) -> list[str]:
    """The tensors in a value, in order, as text such as `float32 [128, 24, 24, 3]`."""
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


def test_every_row_of_the_page_is_a_call_of_the_step(tmp_path):
    """Of `shapes`, whose images have the size and the classes of CIFAR-10's."""
    calls = {}  # what functions got and gave in a step as the page's command makes it

    def watched(name, function):
        @functools.wraps(function)
        def call(*arguments, **options):
            result = function(*arguments, **options)
            given_and_made = described([*arguments, *options.values()]), described(result)
            calls.setdefault(name, []).append(given_and_made)
            return result

        return call

    with pytest.MonkeyPatch.context() as patch, lighter.only(()):
        for name, *_ in ROWS:
            owner, function = look_up(name)
            if inspect.isfunction(function):
                patch.setattr(owner, name.rpartition(".")[2], watched(name, function))
        done = scripts.run(
            "train", "--dataset=shapes", "--num_towers=2", "--microbatch_size=32", "--max_steps=1",
            f"--train_dir={tmp_path}", "--intra_op_threads=1",
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    for name, *cells in ROWS:
        given, made = (set(stated(cell.replace(EXAMPLES, "[5000"))) for cell in cells)
        is_so = [given <= set(got) and made <= set(gave) for got, gave in calls[name]]
        assert any(is_so), (name, calls[name])


def test_the_page_s_text_and_its_drawing_have_no_other_shapes():
    assert len(ROWS) == len(re.findall(r"^\| \[?`", PAGE, re.M))  # none was overlooked
    prose = re.sub(r"```.*?```", "", PAGE, flags=re.S)
    everywhere = {shape for span in re.findall("`(.*?)`", prose) for shape in stated(span)}
    assert everywhere == SHAPES
    texts = [arrow.label for arrow in batch.ARROWS] + [box.notes for box in batch.BOXES.values()]
    assert {shape for text in texts for shape in stated(text)} <= SHAPES


def test_every_function_that_the_page_or_its_drawing_names_exists():
    prose = re.sub(r"```.*?```|<!--.*?-->", "", PAGE, flags=re.S)
    named = set(re.findall(r"`([a-zA-Z_]\w*(?:\.\w+)+)`", prose))
    functions = {name for name in named if not re.search(r"\.(py|json|jsonl|npy)$", name)}
    assert functions
    for name in functions | {box.name for box in batch.BOXES.values()}:
        look_up(name)
