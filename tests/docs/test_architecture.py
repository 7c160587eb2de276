"""docs/architecture.md and its drawing against the one step that they tell of."""

import functools
import importlib
import importlib.util
import inspect
import itertools
import json
import re
import shutil
import subprocess
import sys
import types
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import NamedTuple

import keras
import lighter
import numpy as np
import pytest
import scripts
import tensorflow as tf

from input_pipeline import batches, datasets, decoded, shapes, tfds_source
from lessons import drawing
from towers import moving_averages, networks, weight_decay
from towers.runs import run_folder

PAGE = drawing.PAGE.read_text(encoding="utf-8")
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

# What shows a shape that a box states of its function.
SHOWN_BY = {
    "microbatch.Backward": "microbatch.Microbatch._backward",
    "step.Watched": "distribution.Distribution.train_step",
}


class Call(NamedTuple):
    """What a function got and gave: tensors as text such as `float32 [128, 24, 24, 3]`."""

    given: list[str]
    made: list[str]


class Told(NamedTuple):
    """The step as it was made, and what it left behind."""

    calls: dict[str, list[Call]]  # by the function's name
    folder: run_folder.RunFolder
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
    calls, batch = {}, []

    def watched(name, function):
        @functools.wraps(function)
        def call(*arguments, **options):
            result = function(*arguments, **options)
            given = described([*arguments, *options.values()])
            calls.setdefault(name, []).append(Call(given, described(result)))
            if name == "distribution.Distribution.train_step":
                batch.extend(arguments[1])
            return result

        return call

    with pytest.MonkeyPatch.context() as patch, lighter.only(()):
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setattr(tfds_source, "open_prepared", lambda *_: builder)
        patch.setattr(tfds_source, "identity", lambda builder, split: {"split": split})
        patch.setattr(tfds_source, "class_names", lambda builder: shapes.CLASS_NAMES)
        patch.setattr(tfds_source, "read", lambda builder, split: decoded.Decoded(*whole[split]))
        for name in {name for name, *_ in ROWS} | {box.name for box in drawing.BOXES.values()}:
            owner, function = found(name)
            if inspect.isfunction(function):
                patch.setattr(owner, name.rpartition(".")[2], watched(name, function))
        done = scripts.run(
            "train", "--num_towers=2", "--microbatch_size=32", "--max_steps=1",
            f"--train_dir={folder / 'run'}", f"--data_dir={folder}", "--intra_op_threads=1",
        )  # fmt: skip
    shutil.rmtree(folder / "cache")  # 200 MB
    assert (done.returncode, done.stderr) == (0, "")
    run = run_folder.RunFolder(str(folder / "run"))
    return Told(calls, run, whole["train"][1], tuple(batch))


def is_among(texts: list[str], those: list[str]) -> bool:
    return set(texts) <= set(those)


class TestTheStep:
    @pytest.mark.parametrize("name, given, made", ROWS, ids=[name for name, *_ in ROWS])
    def test_a_row_of_the_page_is_a_call(self, told, name, given, made):
        assert any(
            is_among(stated(given), call.given) and is_among(stated(made), call.made)
            for call in told.calls[name]
        ), told.calls[name]

    def test_the_page_s_text_has_no_other_shapes(self):
        in_rows = {shape for _, *cells in ROWS for cell in cells for shape in stated(cell)}
        assert len(in_rows) > 12
        assert len(ROWS) == len(re.findall(r"^\| \[?`", PAGE, re.M))  # none was overlooked
        prose = re.sub(r"```.*?```", "", PAGE, flags=re.S)
        everywhere = {shape for span in re.findall("`(.*?)`", prose) for shape in stated(span)}
        assert everywhere == in_rows

    def test_every_station_of_the_drawing_is_passed(self, told):
        functions = {SHOWN_BY.get(box.name, box.name) for box in drawing.BOXES.values()}
        # Of the step that is made, what 500 steps come before is not reached.
        reached = functions - {"callbacks.Histograms.on_train_batch_end"}
        assert reached <= set(told.calls) and len(functions) > 15
        # Built once, before the first step, for all four.
        assert len(told.calls["microbatch.Microbatch._backward"]) == 1

    def test_arrows_carry_what_they_say(self, told):
        labelled = [arrow for arrow in drawing.ARROWS if stated(arrow.label)]
        assert len(labelled) == 12
        for arrow in labelled:
            start, end = (
                SHOWN_BY.get(name, name)
                for name in (drawing.BOXES[key].name for key in (arrow.start, arrow.end))
            )
            shapes_of_calls = [call.made for call in told.calls[start]]
            shapes_of_calls += [call.given for call in told.calls[end]]
            label = stated(arrow.label)
            assert any(is_among(label, texts) for texts in shapes_of_calls), arrow

    def test_boxes_hold_what_they_say(self, told):
        said = {box.name: stated(box.notes) for box in drawing.BOXES.values() if stated(box.notes)}
        assert set(said) == set(SHOWN_BY)
        for name, texts in said.items():
            assert any(is_among(texts, call.made) for call in told.calls[SHOWN_BY[name]])
        said = " ".join(box.notes for box in drawing.BOXES.values())
        for number in ("127,872", "0.1", "0.9911", "128,000", "10 gradients"):
            assert number in said  # checked below

    def test_the_examples_are_those_of_the_page(self, told):
        ids = batches.example_ids(
            STEP - 1, num_examples=EXAMPLES, global_batch_size=BATCH, seed=0
        ).numpy()
        made = batches.example_ids(0, num_examples=EXAMPLES, global_batch_size=BATCH, seed=0)
        first, second, third, fourth = (f"{number:,}" for number in ids[:4])
        words = " ".join(PAGE.split())
        assert f"the examples {first}, {second}, {third} and {fourth}" in words
        first_position, end = (STEP - 1) * BATCH, STEP * BATCH
        assert f"the positions {first_position:,} to {end - 1:,}" in words
        assert (first_position // EXAMPLES, (end - 1) // EXAMPLES) == (2, 2)  # the third epoch
        assert f"its places {first_position % EXAMPLES:,} to {(end - 1) % EXAMPLES:,}" in words
        np.testing.assert_array_equal(told.batch[1], told.labels[made.numpy()])

    def test_its_numbers_are_those_of_the_page(self, told):
        decay = float(moving_averages.warm_decay(0.9999, tf.constant(STEP - 1)))
        assert f"{decay:.4f}" == "0.9911"
        model = networks.build("cifarnet", (24, 24, 3), 10)
        assert len(model.trainable_variables) == 10
        assert sum(v.shape.num_elements() for v in map(tf.convert_to_tensor, model.weights)) == (
            1_068_298
        )
        assert "1,068,298 numbers" in PAGE
        assert len(weight_decay.hidden_dense_kernels(model)) == 2  # terms beside cross entropy
        config = json.loads(told.folder.config.read_text())
        assert config["resolved"]["tower_devices"] == ["/CPU:0", "/CPU:1"]
        assert config["resolved"]["num_microbatches"] == 4
        every = ("log_every_steps", "summary_every_steps", "checkpoint_every_steps")
        assert [config["settings"][name] for name in every] == [20, 500, 500]


class TestThePage:
    def test_code_and_lines_are_those_of_the_source(self):
        assert drawing.refreshed(PAGE) == PAGE  # `python -m lessons.drawing` writes it
        assert len(re.findall("```python", PAGE)) > 10
        assert PAGE.count("<!-- end -->") == PAGE.count("<!-- code ") + 2

    def test_stale_parts_are_rewritten(self):
        old = "<!-- reading_order -->\nold\n<!-- end -->\nkept\n"
        assert drawing.refreshed(old) == (
            f"<!-- reading_order -->\n{drawing.reading_order()}<!-- end -->\nkept\n"
        )

    def test_every_function_it_names_exists(self):
        prose = re.sub(r"```.*?```|<!--.*?-->", "", PAGE, flags=re.S)
        named = {name for name in re.findall(r"`([a-zA-Z_]\w*(?:\.\w+)+)`", prose)}
        files = {name for name in named if re.search(r"\.(py|json|jsonl|npy)$", name)}
        assert len(named - files) > 30
        for name in named - files:
            found(name)

    def test_links_lead_to_files_that_have_the_function(self):
        links = re.findall(r"\[([^\]]*)\]\(([^)]*)\)", PAGE)
        assert len(links) > 60
        for words, target in links:
            path = (drawing.PAGE.parent / target.partition("#")[0]).resolve()
            assert target.startswith("#") or path.is_file(), target
            if words.startswith("`"):
                _, function = found(words.strip("`"))
                assert Path(inspect.getsourcefile(function)) == path, words

    def test_each_station_says_what_went_wrong_there_and_with_the_museum_s_numbers(self):
        stations = re.split(r"^### \d+\. ", PAGE, flags=re.M)[1:]
        rows = (drawing.ROOT / "docs/pitfalls.md").read_text(encoding="utf-8")
        museum = (drawing.ROOT / "docs/lessons/museum.md").read_text(encoding="utf-8")
        exhibits = re.findall(r"^\| (\d+)(?:, \d+)? +\|(.*)\|$", museum, re.M)
        compared = 0
        for station in stations:
            _, wrong = station.split("> **What went wrong here:** ")
            said = " ".join(wrong.split("\n\n")[0].replace("\n> ", " ").split())
            source = re.search(r"\(\[(pitfalls|museum)\]\([^)]*\), row (\d+)\)", said)
            page, row = source.groups()
            assert f"\n| {row} | " in rows, said
            if page == "museum" and row != "9":  # row 9 is of a time, which is another in each run
                numbers = set(re.findall(r"\d[\d,.]*\d|\d", said[: source.start()]))
                pairs = [cells.split("|")[-2:] for number, cells in exhibits if number == row]
                assert any({cell.strip() for cell in pair} <= numbers for pair in pairs), said
                compared += 1
        assert len(stations) == 14 and compared > 8

    def test_decisions_and_headings_it_points_to_exist(self):
        design = (drawing.PAGE.parent / "design.md").read_text(encoding="utf-8")
        decisions = re.findall(r"^(\d+)\. ", design, re.M)
        pointed_to = " ".join(re.findall(r"\[decisions? ([^\]]*)\]\(design.md#decisions\)", PAGE))
        numbers = re.findall(r"\d+", pointed_to)
        assert len(numbers) > 10 and set(numbers) <= set(decisions)
        assert "\n## Decisions\n" in design and "\n## Words\n" in design
        assert "\n## Reading order\n" in PAGE

    def test_reading_takes_an_evening(self):
        assert f"estimate of {drawing.LINES_PER_MINUTE} lines each" in PAGE
        (total,) = re.findall(r"^\| \| together \| \| ([\d,]+) \| (\d+) \|$", PAGE, re.M)
        lines, minutes = (int(text.replace(",", "")) for text in total)
        texts = [(drawing.ROOT / path).read_text() for path in drawing.READING_ORDER]
        assert lines == sum(len(text.splitlines()) for text in texts)
        assert minutes == round(lines / drawing.LINES_PER_MINUTE)
        assert minutes + drawing.MINUTES_FOR_THE_PAGE <= drawing.EVENING_MINUTES


class TestTheDrawing:
    def test_is_what_the_script_draws(self):
        assert drawing.DRAWING.read_text(encoding="utf-8") == drawing.svg()
        assert "](figures/architecture.svg)" in PAGE

    def test_is_drawn_without_tensorflow(self):
        program = (
            "import sys\nfrom lessons import drawing\ndrawing.svg()\n"
            "sys.exit('tensorflow' in sys.modules)"
        )
        assert subprocess.run([sys.executable, "-c", program], cwd=drawing.ROOT).returncode == 0

    def test_is_whole_and_has_every_station(self):
        image = ElementTree.fromstring(drawing.svg())
        texts = [text.text for text in image.iter("{http://www.w3.org/2000/svg}text")]
        for box in drawing.BOXES.values():
            assert {box.name, *box.notes.split("\n")} <= set(texts)
            found(box.name)
        for arrow in drawing.ARROWS:
            assert set(arrow.label.split("\n")) <= {*texts, "", None}

    def test_boxes_stand_apart_and_in_one_lane(self):
        for box in drawing.BOXES.values():
            assert sum(is_inside(box, lane) for lane in drawing.LANES) == 1, box
        for areas in (drawing.BOXES.values(), drawing.LANES):
            for a, b in itertools.combinations(areas, 2):
                assert not meet(a, b), (a, b)

    def test_arrows_go_forward_from_edge_to_edge_and_cross_no_box(self):
        for arrow in drawing.ARROWS:
            x1, y1, x2, y2 = drawing.ends(arrow)
            assert (x1 == x2 and y2 - y1 >= 16) or (y1 == y2 and x2 - x1 >= 16), arrow
            assert is_on_the_edge(drawing.BOXES[arrow.start], x1, y1), arrow
            assert is_on_the_edge(drawing.BOXES[arrow.end], x2, y2), arrow
            for key in set(drawing.BOXES) - {arrow.start, arrow.end}:
                box = drawing.BOXES[key]
                assert not (
                    x1 < box.x + box.width and x2 > box.x
                    and y1 < box.y + box.height and y2 > box.y
                ), (arrow, key)  # fmt: skip

    def test_words_fit_into_their_boxes(self):
        for box in drawing.BOXES.values():  # a wide sans-serif's mean letters, in their heights
            assert 0.67 * 12 * len(box.name) < box.width, box.name
            for note in box.notes.split("\n"):
                assert 0.55 * 11 * len(note) < box.width, note


def is_inside(box, lane) -> bool:
    return (
        lane.x < box.x and box.x + box.width < lane.x + lane.width
        and lane.y < box.y and box.y + box.height < lane.y + lane.height
    )  # fmt: skip


def meet(a, b) -> bool:
    return (
        a.x < b.x + b.width and b.x < a.x + a.width
        and a.y < b.y + b.height and b.y < a.y + a.height
    )  # fmt: skip


def is_on_the_edge(box, x, y) -> bool:
    on_side = x in (box.x, box.x + box.width) and box.y < y < box.y + box.height
    return on_side or (y in (box.y, box.y + box.height) and box.x < x < box.x + box.width)
