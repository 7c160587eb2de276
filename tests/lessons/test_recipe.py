"""`python -m lessons.recipe`: conversions by hand, the flags it prints, what it says."""

import dataclasses
import math
import re
import shlex
import sys

import forked
import numpy as np
import pytest
import scripts

from lessons import recipe
from towers import schedules
from towers.networks import optimizers

pytestmark = pytest.mark.usefixtures("cache")

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
        assert (there.num_towers, there.microbatch_size, there.per_tower_batch_size) == (
            1,
            128,
            128,
        )
        assert (there.steps, there.decay_steps) == pytest.approx((900_000, 9 * 136_718))
        assert there.moving_average_decay == pytest.approx(0.99998888839, abs=1e-11)
        assert (there.weight_decay, there.momentum) == (0.004, 0.0)

    def test_one_tower_to_four(self):
        here = stated(
            1,
            steps=1000,
            decay_steps=400,
            warmup_steps=200,
            moving_average_decay=0.99,
            momentum=0.9,
        )
        expected = recipe.Recipe(
            4, 128, learning_rate=0.4, steps=250, decay_steps=100, warmup_steps=50,
            moving_average_decay=0.96059601, momentum=0.9,
        )  # fmt: skip
        there = dataclasses.asdict(recipe.converted(here, 4, "linear"))
        assert there == pytest.approx(dataclasses.asdict(expected))

    @pytest.mark.parametrize(
        ("scaling", "rate"), [("linear", 0.025), ("sqrt", 0.05), ("none", 0.1)]
    )
    def test_scalings_of_the_rate(self, scaling, rate):
        there = recipe.converted(stated(4), 1, scaling)
        assert there.learning_rate == pytest.approx(rate)
        assert there.steps == 400_000

    def test_the_rate_is_what_train_py_would_make_of_it(self):
        there = recipe.converted(stated(9), 2, "sqrt")
        assert there.learning_rate == pytest.approx(schedules.scaled_rate(0.1, "sqrt", 256, 1152))

    @pytest.mark.parametrize(
        ("optimizer", "scaling", "weight_decay"),
        [
            ("adamw", "sqrt", 0.002),
            ("adamw", "linear", 0.004),
            ("adamw", "none", 0.001),
            ("sgd", "sqrt", 0.004),
            ("adam", "sqrt", 0.004),
        ],
    )
    def test_weight_decay(self, optimizer, scaling, weight_decay):
        here = stated(4, optimizer=optimizer)
        there = recipe.converted(here, 1, scaling)
        assert there.weight_decay == pytest.approx(weight_decay)
        if optimizer in optimizers.DECOUPLED_WEIGHT_DECAY:
            products = [r.learning_rate * r.weight_decay * r.steps for r in (here, there)]
            assert products[0] == pytest.approx(products[1])

    @pytest.mark.parametrize(
        ("per_tower", "here", "there", "size", "of_a_tower"),
        [
            (128, 9, 1, 128, 1152),
            (128, 9, 3, 128, 384),
            (128, 9, 2, 128, 576),  # five microbatches and four
            (128, 9, 7, 128, 1152 / 7),
            (128, 9, 10, 116, 115.2),
            (128, 1, 4, 32, 32),
            (128, 4, 4, 128, 128),
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


@pytest.mark.parametrize("scaling", schedules.SCALINGS)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize(("here", "there"), [(9, 1), (1, 9), (6, 4), (2, 1024)])
def test_there_and_back(here, there, optimizer, scaling):
    authors = stated(here, optimizer=optimizer, warmup_steps=700, momentum=0.9)
    back = recipe.converted(recipe.converted(authors, there, scaling), here, scaling)
    assert dataclasses.asdict(back) == pytest.approx(dataclasses.asdict(authors))
    assert 1 - back.moving_average_decay == pytest.approx(1 - authors.moving_average_decay)


@pytest.mark.parametrize(("here", "there"), [(9, 1), (1, 4), (3, 2)])
def test_half_lives_and_epochs_are_kept(here, there):
    authors = stated(here, moving_average_decay=0.99, warmup_steps=500)
    other = recipe.converted(authors, there, "linear")
    for durations in ("steps", "decay_steps", "warmup_steps"):
        epochs = [r.epochs(getattr(r, durations), 50_000) for r in (authors, other)]
        assert epochs[0] == pytest.approx(epochs[1])
    # What is left of an old value after as many examples.
    examples = 36 * 128 * 10
    left = [r.moving_average_decay ** (examples / r.global_batch_size) for r in (authors, other)]
    assert left[0] == pytest.approx(left[1])


class TestThePrintedFlags:
    @pytest.mark.pitfall(1, 2)
    @pytest.mark.parametrize(("here", "there"), [(3, 1), (1, 2)])
    def test_train_py_takes_them_and_has_the_converted_schedule(
        self, tmp_path, capsys, here, there
    ):
        authors = stated(here, steps=300, decay_steps=100, warmup_steps=20)
        out = printed(
            capsys, f"--from_towers={here}", f"--to_towers={there}", f"--examples={SHAPES}",
            "--steps=300", "--decay_steps=100", "--warmup_steps=20",
        )  # fmt: skip
        ways = [recipe.same_run(authors, there), recipe.converted(authors, there, "linear")]
        for way, flags in zip(ways, commands(out), strict=True):
            done = scripts.run(
                "train", *flags, "--dry_run", "--dataset=shapes", f"--train_dir={tmp_path}",
                "--intra_op_threads=1",  # what this process has started with
            )  # fmt: skip
            assert (done.returncode, done.stderr) == (0, "")
            assert f"{way.global_batch_size} global" in done.stdout
            *_, table = done.stdout.partition("rate of the next update\n")
            rows = [line.replace(",", "").split() for line in table.splitlines()]
            assert int(rows[-1][1]) == round(way.steps)
            for _, step, _, rate in rows:
                decays = int(step) // way.decay_steps
                warm_up = min(1, int(step) / way.warmup_steps)
                expected = way.learning_rate * warm_up * 0.1**decays
                assert float(rate) == pytest.approx(expected, rel=1e-5)  # six digits are shown

    def test_the_rates_are_those_of_the_authors_at_the_same_epoch(self, tmp_path, capsys):
        rates = []
        for flags in commands(printed(capsys, "--from_towers=3", "--to_towers=1")):
            chosen = scripts.settings_of(*flags)
            rates.append((chosen.learning_rate, chosen.epochs_per_decay, chosen.train_epochs))
        assert rates[0] == (0.1, 1049.99424, 768.0)
        assert rates[1] == (pytest.approx(0.1 / 3), 1049.99424, 768.0)

    def test_no_decay_is_a_constant_rate(self):
        flags = recipe.train_flags(stated(2, decay_steps=0), 50_000)
        assert scripts.settings_of(*flags).learning_rate_schedule == "constant"

    @pytest.mark.parametrize("optimizer", optimizers.OPTIMIZERS)
    def test_every_optimizer(self, capsys, optimizer):
        momentum = 0.9 if optimizer in optimizers.WITH_MOMENTUM else 0.0
        out = printed(
            capsys, "--from_towers=8", "--to_towers=2", f"--optimizer={optimizer}",
            f"--momentum={momentum}",
        )  # fmt: skip
        for flags in commands(out):
            chosen = scripts.settings_of(*flags)
            assert (chosen.optimizer, chosen.momentum) == (optimizer, momentum)
        assert ("each beta" in out) == (optimizer in ("adam", "adamw"))
        assert (f"for {optimizer} a guess" in out) == (optimizer in ("lion", "muon"))


@pytest.mark.long
class TestWhatIsSaidOfBits:
    @pytest.mark.parametrize(("here", "there"), [(9, 1), (9, 7), (1, 4)])
    def test_microbatches_are_cut_where_there_are_too_few(self, capsys, here, there):
        out = printed(capsys, f"--from_towers={here}", f"--to_towers={there}")
        assert ("microbatches are cut from" in out) == (here < there)

    @pytest.fixture
    def trained(self, tmp_path):
        """Trains way A of a recipe for 6 examples per tower, on so many towers."""

        def train(authors: recipe.Recipe, there: int, name: str, *flags: str):
            way_a = recipe.train_flags(recipe.same_run(authors, there), SHAPES)
            folder = tmp_path / name
            done = scripts.train(
                folder, *way_a, "--max_steps=3", "--verify_every_steps=1",
                "--summary_every_steps=0", *flags,
            )  # fmt: skip
            assert (done.returncode, done.stderr) == (0, "")
            return folder

        return train

    @pytest.mark.parametrize(
        ("here", "numbers"), [pytest.param(4, (1, 4), marks=pytest.mark.long), (3, (1, 3))]
    )
    def test_so_it_is(self, trained, here, numbers):
        authors = stated(here, per_tower_batch_size=6, momentum=0.9, learning_rate=0.02)
        folders = [trained(authors, there, f"on{there}") for there in numbers]
        hashes = [scripts.hash_lines(folder) for folder in folders]
        assert len(hashes[0]) == 4
        assert all(lines == hashes[0] for lines in hashes)

    def test_nine_parts_on_one_and_on_three_towers_differ_by_rounding(self, trained):
        authors = stated(9, per_tower_batch_size=4, learning_rate=0.02)
        losses = [
            [line["loss"] for line in scripts.training_lines(trained(authors, there, f"on{there}"))]
            for there in (1, 3)
        ]
        assert len(losses[0]) == 3
        np.testing.assert_allclose(*losses, rtol=1e-5)


class TestWhatIsSaid:
    def test_of_nine_towers_on_one(self, capsys):
        out = printed(capsys, "--from_towers=9", "--to_towers=1")
        rows = [re.split(r"  +", line.strip()) for line in out.splitlines()]
        assert ["examples in a step", "1,152", "1,152", "128"] in rows
        assert ["microbatches", "9 of 128", "9 of 128", "1 of 128"] in rows
        assert ["learning rate", "0.1", "0.1", "0.0111111"] in rows
        half_life = f"{1152 * math.log(0.5) / math.log(0.9999):,.0f} examples"
        assert ["their half-life", *[half_life] * 3] in rows
        assert "On GPUs, a tower's 9 microbatches do not wait for each other" in out
        assert "memory for all of its 1,152 examples, or give --accumulate_gradients." in out
        assert "A step's gradient has 3 times the standard deviation" in out
        assert "In an epoch a tower has 9 times the examples of theirs" in out

    @pytest.mark.pitfall(1, 2)
    def test_both_readings_of_decay_steps(self, capsys):
        out = printed(capsys, "--from_towers=4", "--to_towers=1", "--decay_steps=1000")
        assert "1,000 steps of 4 towers are 10.24 epochs, and that is what was run" in out
        assert "2.56 were meant: --epochs_per_decay=2.56 (pitfalls 1, 2)" in out
        assert "Decay." not in printed(
            capsys, "--from_towers=4", "--to_towers=1", "--decay_steps=0"
        )
        assert "Decay." not in printed(capsys, "--from_towers=1", "--to_towers=4")

    @pytest.mark.pitfall(22)
    def test_a_sum_is_a_mean_at_a_higher_rate(self, capsys):
        out = printed(capsys, "--from_towers=4", "--to_towers=1")
        assert "the sum of 4 at rate 0.1 is their mean at --learning_rate=0.4 (pitfall 22)." in out
        out = printed(capsys, "--from_towers=4", "--to_towers=1", "--optimizer=adam")
        assert "Sum." not in out

    @pytest.mark.parametrize(
        ("arguments", "warned"),
        [
            (("--from_towers=1", "--to_towers=4"), True),
            (("--from_towers=1", "--to_towers=4", "--warmup_steps=9"), False),
            (("--from_towers=1", "--to_towers=4", "--scaling=sqrt"), False),
            (("--from_towers=4", "--to_towers=1"), False),
            (("--from_towers=4", "--to_towers=4"), False),
        ],
    )
    def test_a_warning_without_warm_up(self, capsys, arguments, warned):
        assert (
            "Warning: 4 times the rate, and no warm-up." in printed(capsys, *arguments)
        ) == warned

    def test_on_as_many_towers_nothing_converts(self, capsys):
        out = printed(capsys, "--from_towers=2", "--to_towers=2")
        assert "What does not convert" not in out
        ways = commands(out)
        assert ways[0] == ways[1]

    def test_square_roots_with_sgd(self, capsys):
        out = printed(capsys, "--from_towers=9", "--to_towers=1", "--scaling=sqrt")
        assert "Rate x 0.3333 by the square-root rule" in out
        assert "pushes the weights 3 times as far" in out

    def test_adam_s_own_averages(self, capsys):
        out = printed(capsys, "--from_towers=4", "--to_towers=1", "--optimizer=adamw")
        assert "Rate x 0.5 by the square-root rule" in out
        assert "each beta of adamw becomes 1 - 0.25 (1 - beta)" in out
        assert "epsilon is divided by 0.5" in out
        assert "Decoupled weight decay x 0.5 keeps" in out


TOWERS = ("--from_towers=9", "--to_towers=1")
AT_LEAST_0, AT_LEAST_1 = "must be at least 0", "must be at least 1"
SHARE = "must be at least 0 and below 1"


class TestBadInput:
    @pytest.mark.parametrize(
        ("flag", "allowed"),
        [
            ("--from_towers=0", "must be at least 1 and at most 1024"),
            ("--from_towers=x", "must be a whole number"),
            ("--to_towers=1025", "must be at least 1 and at most 1024"),
            ("--to_towers=1.5", "must be a whole number"),
            ("--per_tower_batch_size=0", "must be at least 1 and at most 1048576"),
            ("--learning_rate=0", "must be above 0"),
            ("--learning_rate=nan", "must be above 0"),
            ("--learning_rate=inf", "must be finite, in float32"),
            ("--learning_rate=fast", "must be a number"),
            ("--steps=0", AT_LEAST_1),
            ("--steps=9999999999999", "must be at most 1e12"),
            ("--decay_steps=-1", AT_LEAST_0),
            ("--warmup_steps=-1", AT_LEAST_0),
            ("--momentum=1", SHARE),
            ("--moving_average_decay=1", SHARE),
            ("--weight_decay=-0.1", AT_LEAST_0),
            ("--optimizer=adm", "must be one of sgd, adam, adamw, lion, rmsprop, muon"),
            ("--scaling=cubic", "must be one of none, linear, sqrt"),
            ("--examples=0", AT_LEAST_1),
        ],
    )
    def test_a_flag_out_of_range(self, capsys, flag, allowed):
        assert self.explained(capsys, *TOWERS, flag) == f"{flag}: {allowed}"

    @pytest.mark.parametrize(
        ("arguments", "problem"),
        [
            ([], "the following arguments are required: --from_towers, --to_towers; --help lists"),
            ([*TOWERS, "--step=3"], "unrecognized arguments: --step=3; --help lists the flags"),
            ([*TOWERS, "--steps"], "argument --steps: expected one argument; --help lists the"),
            (
                [*TOWERS, "--optimizer=adam", "--momentum=0.9"],
                "--momentum=0.9: only for --optimizer=sgd or rmsprop or muon, and it is adam",
            ),
            (
                [*TOWERS, "--moving_average_decay=0.9999999"],
                "1 tower would need --moving_average_decay=0.9999999888888",
            ),
            (
                ["--from_towers=2", "--to_towers=1024", "--per_tower_batch_size=2048"],
                "1024 towers would need --global_batch_size=2097152: must be at least 1 and at",
            ),
            (
                [*TOWERS, "--examples=1000000000000", "--steps=1"],
                "1 tower would need --train_epochs=1.152e-09: must be at least 0.000001",
            ),
        ],
    )
    def test_what_does_not_go_together(self, capsys, arguments, problem):
        assert self.explained(capsys, *arguments).startswith(problem)

    @pytest.mark.parametrize("here", ["9", "1000"])
    def test_a_decay_that_rounds_to_1(self, capsys, here):
        decay = f"--moving_average_decay={math.nextafter(1.0, 0.0)!r}"
        said = self.explained(capsys, f"--from_towers={here}", "--to_towers=7", decay)
        assert said.endswith("must be below 1 in float32")

    def explained(self, capsys, *arguments) -> str:
        assert recipe.main(arguments) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("lessons.recipe: error: ")
        assert err.count("\n") == 1
        return err.removeprefix("lessons.recipe: error: ").rstrip("\n")


@pytest.mark.whole_program
def test_as_a_command():
    def run(*arguments):
        call = [sys.executable, "-m", "lessons.recipe", *arguments]
        return forked.run(call, cwd=scripts.ROOT, timeout=120)

    done = run(*TOWERS)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(commands(done.stdout)) == 2
    done = run("--from_towers=9", "--to_towers=none")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "lessons.recipe: error: --to_towers=none: must be a whole number\n"
    done = run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "--moving_average_decay" in done.stdout


class TestAsynchronous:
    """Recipes whose towers applied their gradients one by one."""

    def test_its_rate_stays_on_one_tower(self, capsys):
        out = printed(capsys, "--from_towers=10", "--to_towers=1", "--was=asynchronous")
        for flags in commands(out):
            assert {"--learning_rate=0.1", "--num_towers=1", "--global_batch_size=128"} <= set(
                flags
            )
            assert "--train_epochs=256" in flags  # 100,000 updates of 128 examples
        assert "of weights about 9 updates old" in out
        assert "recipe of one tower at the authors' rate, 0.1: on one tower it stays." in out

    def test_on_several_towers_it_is_scaled_from_one(self, capsys):
        out = printed(capsys, "--from_towers=10", "--to_towers=4", "--was=asynchronous")
        _, same_batch = commands(out)
        assert {"--learning_rate=0.4", "--global_batch_size=512"} <= set(same_batch)

    def test_a_synchronous_one_is_another_recipe(self, capsys):
        out = printed(capsys, "--from_towers=10", "--to_towers=1", "--was=synchronous")
        _, same_batch = commands(out)
        assert "--learning_rate=0.01" in same_batch
        assert "synchronous" not in out.lower()

    def test_who_does_not_say_is_answered_both(self, capsys):
        out = printed(capsys, "--from_towers=10", "--to_towers=1")
        assert "--learning_rate=0.01" in commands(out)[1]
        assert "Was it asynchronous?" in out
        assert "--from_towers=10 --to_towers=1 --was=asynchronous." in out

    def test_one_tower_is_not_asked(self, capsys):
        assert "synchronous" not in printed(capsys, "--from_towers=1", "--to_towers=4").lower()

    def test_another_word_is_refused(self, capsys):
        assert recipe.main(["--from_towers=2", "--to_towers=1", "--was=both"]) == 2
        assert "choose from" in capsys.readouterr().err
