"""`python -m lessons.recipe`: conversions by hand, the flags it prints, what it says."""

import dataclasses
import re
import shlex

import pytest
import scripts

from lessons import recipe
from towers.networks import optimizers
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
        here = stated(4, optimizer=optimizer)
        there = recipe.converted(here, 1, scaling)
        assert there.learning_rate == pytest.approx(rate)
        assert there.weight_decay == pytest.approx(weight_decay)
        if optimizer in optimizers.DECOUPLED_WEIGHT_DECAY:
            products = [r.learning_rate * r.weight_decay * r.steps for r in (here, there)]
            assert products[0] == pytest.approx(products[1])

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
        authors = stated(3, steps=300, decay_steps=100, warmup_steps=20)
        out = printed(
            capsys, "--from_towers=3", "--to_towers=1", f"--examples={SHAPES}", "--steps=300",
            "--decay_steps=100", "--warmup_steps=20",
        )  # fmt: skip
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
        [flags] = commands(printed(capsys, *TOWERS, "--was=asynchronous"))
        assert {"--learning_rate=0.1", "--num_towers=1", "--global_batch_size=128"} <= set(flags)
        assert "--train_epochs=256" in flags  # 100,000 updates of 128 examples
        four = printed(capsys, "--from_towers=9", "--to_towers=4", "--was=asynchronous")
        assert {"--learning_rate=0.4", "--global_batch_size=512"} <= set(commands(four)[1])


TOWERS = ("--from_towers=9", "--to_towers=1")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--from_towers=0", "--to_towers=1"),
        (*TOWERS, "--learning_rate=nan"),
        (*TOWERS, "--steps=9999999999999"),
        (*TOWERS, "--scaling=cubic"),
        (*TOWERS, "--step=3"),
        (*TOWERS, "--optimizer=adam", "--momentum=0.9"),
        (*TOWERS, "--moving_average_decay=0.9999999"),  # rounds to 1 on one tower
        ("--from_towers=2", "--to_towers=1024", "--per_tower_batch_size=2048"),
    ],
)
def test_what_is_refused_is_named_in_one_line(capsys, arguments):
    assert recipe.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    named = [argument.partition("=")[0].removeprefix("--") for argument in arguments]
    assert any(name in err for name in [*named, "global_batch_size"])
