"""`python -m lessons.recipe`: conversions by hand, the flags it prints, what it says."""

import dataclasses
import re
import shlex

import pytest
import scripts

from lessons import recipe
from towers_cli import resolve

SHAPES = 5000  # training examples of the embedded data set


def stated(towers: int, **values) -> recipe.Recipe:
    """A recipe as authors state it."""
    return recipe.Recipe(towers, values.get("per_tower_batch_size", 128), **values)


def printed(capsys, *arguments: str) -> str:
    """What the command prints, in one line for each paragraph or note."""
    assert recipe.main(arguments) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return re.sub(r"\n    (?=\S)", " ", out)


def commands(out: str) -> list[list[str]]:
    """The flags of each train.py that is printed."""
    blocks = re.findall(r"^  python train\.py ((?:.*\\\n)*.*)", out, re.M)
    return [shlex.split(block.replace("\\\n", " ")) for block in blocks]


class TestByHand:
    def test_nine_towers_to_one(self):
        there = recipe.converted(stated(9), 1, "linear")
        assert there.learning_rate == pytest.approx(0.1 / 9)
        assert (there.num_towers, there.microbatch_size) == (1, 128)
        assert (there.steps, there.decay_steps) == pytest.approx((900_000, 9 * 136_718))
        assert there.moving_average_decay == pytest.approx(0.99998888839, abs=1e-11)
        assert (there.weight_decay, there.momentum) == (0.004, 0.0)

    @pytest.mark.parametrize(
        ("optimizer", "scaling", "rate", "weight_decay"),
        [
            ("adamw", "sqrt", 0.05, 0.002),
            ("adamw", "none", 0.1, 0.001),
            ("sgd", "linear", 0.025, 0.004),
        ],
    )
    def test_scalings(self, optimizer, scaling, rate, weight_decay):
        there = recipe.converted(stated(4, optimizer=optimizer), 1, scaling)
        assert there.learning_rate == pytest.approx(rate)
        assert there.weight_decay == pytest.approx(weight_decay)
        assert there.steps == pytest.approx(4 * 100_000)  # decoupled, the decay adds up to the same

    @pytest.mark.parametrize(
        ("per_tower", "here", "there", "size", "of_a_tower"),
        [
            (128, 9, 1, 128, 1152),
            (128, 9, 2, 128, 576),  # five microbatches and four
            (128, 9, 10, 116, 115.2),
            (128, 1, 4, 32, 32),
            (3, 2, 7, 1, 6 / 7),  # one tower rests
        ],
    )
    def test_the_same_run(self, per_tower, here, there, size, of_a_tower):
        authors = stated(here, per_tower_batch_size=per_tower)
        expected = dataclasses.replace(
            authors, num_towers=there, microbatch_size=size, per_tower_batch_size=of_a_tower
        )
        assert recipe.same_run(authors, there) == expected
        assert expected.global_batch_size == authors.global_batch_size


class TestThePrintedFlags:
    @pytest.mark.pitfall(1, 2)
    def test_train_py_takes_them_and_has_the_converted_schedule(self, tmp_path, capsys):
        values = {"steps": 300, "decay_steps": 100, "warmup_steps": 20}
        authors = stated(3, **values)
        asked = [f"--{name}={value}" for name, value in values.items()]
        out = printed(capsys, "--from_towers=3", "--to_towers=1", f"--examples={SHAPES}", *asked)
        ways = [recipe.same_run(authors, 1), recipe.converted(authors, 1, "linear")]
        for way, flags in zip(ways, commands(out), strict=True):
            done = scripts.run(
                "train", *flags, "--dry_run", "--dataset=shapes", f"--train_dir={tmp_path}",
                "--intra_op_threads=1",  # what this process has started with
            )  # fmt: skip
            assert (done.returncode, done.stderr) == (0, "")
            assert f"{way.global_batch_size} global" in done.stdout
            chosen = scripts.settings_of(*flags)
            assert resolve.last_step(chosen, SHAPES) == round(way.steps)
            rate = resolve.learning_rate(chosen, SHAPES)
            for step in range(round(way.steps)):
                warm_up = min(1, step / way.warmup_steps)
                expected = way.learning_rate * warm_up * 0.1 ** (step // way.decay_steps)
                assert rate(step * way.global_batch_size) == pytest.approx(expected)

    def test_an_asynchronous_recipe_is_that_of_one_tower(self, capsys):
        [flags] = commands(printed(capsys, *TOWERS, "--was=asynchronous", "--momentum=0.9"))
        assert {"--learning_rate=0.1", "--num_towers=1", "--global_batch_size=128"} <= set(flags)
        assert {"--train_epochs=256", "--momentum=0.9"} <= set(flags)  # 100,000 updates of 128
        four = printed(capsys, "--from_towers=9", "--to_towers=4", "--was=asynchronous")
        assert {"--learning_rate=0.4", "--global_batch_size=512"} <= set(commands(four)[1])


class TestWhatItSays:
    @pytest.mark.parametrize(
        ("here", "there", "scaling", "stated_values", "notes", "readings"),
        [
            (1, 1, "linear", {}, 0, 0),
            (2, 2, "linear", {"decay_steps": 0}, 0, 2),  # asynchronous? added up?
            (2, 1, "linear", {"decay_steps": 68_359.0}, 3, 2),  # the share, the rate, the averages
            (2, 1, "linear", {"decay_steps": 100}, 3, 3),  # and whose batch the decay is of
            (2, 1, "linear", {"optimizer": "momentum", "moving_average_decay": 0.0}, 2, 2),
            (1, 2, "linear", {}, 4, 0),  # cut in two, and a warm-up
            (1, 2, "linear", {"warmup_steps": 9}, 3, 0),
            (1, 2, "sqrt", {}, 3, 0),
            (1, 2, "sqrt", {"optimizer": "adam"}, 4, 0),  # betas, by hand
            (1, 2, "sqrt", {"optimizer": "adamw"}, 5, 0),  # and weight decay
        ],
    )
    def test_notes(self, here, there, scaling, stated_values, notes, readings):
        authors = stated(here, **stated_values)
        ways = recipe.same_run(authors, there), recipe.converted(authors, there, scaling)
        assert len([*recipe.notes(authors, *ways, scaling)]) == notes
        assert len([*recipe.readings(authors, SHAPES, None)]) == readings
        asked = [*recipe.readings(authors, SHAPES, "synchronous")]
        assert len(asked) == max(0, readings - 1)

    def test_the_table(self):
        authors = stated(2, momentum=0.9, moving_average_decay=0.5, warmup_steps=10)
        lines = recipe.table({"x": authors}, examples=2_560).splitlines()
        result = dict(re.split("  +", line.strip(), maxsplit=1) for line in lines[1:])
        expected = {"examples in a step": "256", "microbatches": "2 of 128", "momentum": "0.9"}
        expected |= {"its memory": "2,560 examples", "their half-life": "256 examples"}
        expected["steps of warm-up"] = "10 (1 epochs)"
        assert expected.items() <= result.items()
        plain = recipe.table({"x": stated(2, moving_average_decay=0.0)}, examples=2_560)
        assert "memory" not in plain and "half-life" not in plain


TOWERS = ("--from_towers=9", "--to_towers=1")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--from_towers=0", "--to_towers=1"), (*TOWERS, "--learning_rate=nan"),
        (*TOWERS, "--steps=9999999999999"), (*TOWERS, "--scaling=cubic"), (*TOWERS, "--step=3"),
        (*TOWERS, "--optimizer=adam", "--momentum=0.9"),
        (*TOWERS, "--moving_average_decay=0.9999999"),  # rounds to 1 on one tower
        ("--from_towers=2", "--to_towers=1024", "--per_tower_batch_size=2048"),
    ],
)  # fmt: skip
def test_what_is_refused_is_named_in_one_line(capsys, arguments):
    assert recipe.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    named = [argument.partition("=")[0].removeprefix("--") for argument in arguments]
    assert any(name in err for name in [*named, "global_batch_size"])
