"""Converts a training recipe stated for one number of towers (GPUs) into one for another.

    python -m lessons.recipe --from_towers=9 --to_towers=1

Papers and old scripts state a recipe as it was run: a batch for each GPU, durations in steps. There
are two ways to use other towers. A is the same run: only the place where the work is done changes.
B keeps the batch per tower: a step has more or fewer examples, and most of the recipe converts.
Both are printed with train.py's flags. Flags that are left out have the values of the tutorial's
headline run. What no rule converts: the noise of a single step, statistics of batch norm, and how
far a rule for the rate carries (docs/lessons/scaling.md).
"""

import argparse
import dataclasses
import math
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from towers.networks import optimizers
from towers_cli import settings

_RULES = {
    "linear": "by the linear rule (Goyal et al. 2017, arXiv:1706.02677)",
    "sqrt": "by the square-root rule (Krizhevsky 2014, arXiv:1404.5997; for Adam and RMSprop "
    "Malladi et al. 2022, arXiv:2205.10287)",
    "none": "as --scaling=none asks",
}


def _flag(setting: str, default, text: str):
    """A field that is a flag, in the range of a setting of train.py."""
    return dataclasses.field(default=default, metadata={"help": text, "setting": setting})


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How to train on so many towers; durations in steps."""

    num_towers: int
    microbatch_size: int  # for the authors, a tower's batch: that is their unit
    # The mean, if towers have uneven shares.
    per_tower_batch_size: float = _flag("global_batch_size", 128, "examples of a tower in a step")
    learning_rate: float = _flag("learning_rate", 0.1, "before any decay")
    # The tutorial's on one GPU: 256 epochs, and int(50_000 / 128 * 350).
    steps: float = _flag("max_steps", 100_000, "of the whole run")
    decay_steps: float = _flag("summary_every_steps", 136_718, "between two decays; 0: none")
    warmup_steps: float = _flag("summary_every_steps", 0, "of linear warm-up; 0: none")
    momentum: float = _flag("momentum", 0.0, f"for {', '.join(optimizers.WITH_MOMENTUM)}")
    moving_average_decay: float = _flag("moving_average_decay", 0.9999, "per step; 0: no averages")
    weight_decay: float = _flag("weight_decay", 0.004, "in every tower's loss, or decoupled")
    optimizer: str = _flag("optimizer", "sgd", ", ".join(optimizers.OPTIMIZERS))

    @property
    def global_batch_size(self) -> int:
        """Examples of a step."""
        return round(self.num_towers * self.per_tower_batch_size)

    @property
    def num_microbatches(self) -> int:
        """Of a step."""
        return math.ceil(self.global_batch_size / self.microbatch_size)

    @property
    def towers(self) -> str:
        """Their number in words."""
        return f"{self.num_towers} tower{'s' if self.num_towers > 1 else ''}"

    def epochs(self, steps: float, examples: int) -> float:
        """Converts steps into epochs of a training set of so many examples."""
        return steps * self.global_batch_size / examples


WAS = ("synchronous", "asynchronous")  # how the authors' towers updated the weights

_STATED = dataclasses.fields(Recipe)[2:]  # the flags of the command
_OF_ONE_TOWER = ("steps", "decay_steps")  # whose defaults are divided by the towers


def same_run(recipe: Recipe, to_towers: int) -> Recipe:
    """Way A: the same global batch on other towers.

    The microbatches stay the same if there is at least one for each tower; otherwise they are cut.
    """
    batch, size = recipe.global_batch_size, recipe.microbatch_size
    return dataclasses.replace(
        recipe,
        num_towers=to_towers,
        microbatch_size=size
        if recipe.num_microbatches >= to_towers
        else math.ceil(batch / to_towers),
        per_tower_batch_size=batch / to_towers,
    )


# What the learning rate is multiplied by for k times the examples of a step: linear by Goyal et al.
# 2017, the square root by Krizhevsky 2014 (arXiv:1404.5997).
SCALINGS = {"none": lambda k: 1.0, "linear": lambda k: k, "sqrt": math.sqrt}


def converted(recipe: Recipe, to_towers: int, scaling: str) -> Recipe:
    """Way B: the same batch per tower, so that a step has k = to / from times the examples.

      learning rate    * k (linear), * sqrt(k) or unchanged (none): `SCALINGS`
      durations        / k, which is the same in epochs
      moving averages  decay ** k, which has the same half-life in epochs (Busbridge et al. 2023,
                       arXiv:2307.13813)
      weight decay     unchanged in a loss; if decoupled, rate * coefficient * steps stays the same
                       (Wang and Aitchison 2024, arXiv:2405.13698)

    Raises:
      KeyError: `scaling` is not one of `SCALINGS`.
    """
    k = to_towers / recipe.num_towers
    growth = SCALINGS[scaling](k)
    decoupled = recipe.optimizer in optimizers.DECOUPLED_WEIGHT_DECAY
    return dataclasses.replace(
        recipe,
        num_towers=to_towers,
        learning_rate=recipe.learning_rate * growth,
        steps=recipe.steps / k,
        decay_steps=recipe.decay_steps / k,
        warmup_steps=recipe.warmup_steps / k,
        moving_average_decay=recipe.moving_average_decay**k,
        weight_decay=recipe.weight_decay * (k / growth if decoupled else 1),
    )


def train_flags(recipe: Recipe, examples: int) -> list[str]:
    """The recipe as flags of train.py, which counts in epochs; an epoch has so many examples.

    Raises:
      SettingsError: train.py would refuse one of them, or could not tell a decay from 1.
    """
    exponential = {"epochs_per_decay": recipe.epochs(recipe.decay_steps, examples)}
    values = {
        "num_towers": recipe.num_towers,
        "global_batch_size": recipe.global_batch_size,
        "microbatch_size": recipe.microbatch_size,
        "optimizer": recipe.optimizer,
        "learning_rate": recipe.learning_rate,
        "learning_rate_schedule": "exponential" if recipe.decay_steps else "constant",
        **(exponential if recipe.decay_steps else {}),
        "warmup_epochs": recipe.epochs(recipe.warmup_steps, examples),
        "train_epochs": recipe.epochs(recipe.steps, examples),
        "momentum": recipe.momentum,
        "weight_decay": recipe.weight_decay,
        "moving_average_decay": recipe.moving_average_decay,
    }
    try:
        for name, value in values.items():
            settings.check(settings.TrainSettings.__dataclass_fields__[name], value)
        if np.float32(recipe.moving_average_decay) == 1:
            flag = f"--moving_average_decay={recipe.moving_average_decay!r}"
            raise settings.SettingsError(f"{flag}: must be below 1 in float32")
    except settings.SettingsError as error:
        raise settings.SettingsError(f"{recipe.towers} would need {error}") from error
    return [
        f"--{name}={value:.10g}" if isinstance(value, float) else f"--{name}={value}"
        for name, value in values.items()
    ]


def table(columns: Mapping[str, Recipe], examples: int) -> str:
    """Recipes side by side, under their titles; durations also in epochs of so many examples."""
    described = {title: _described(recipe, examples) for title, recipe in columns.items()}
    names = next(iter(described.values()))
    cells = [["", *names], *([title, *rows.values()] for title, rows in described.items())]
    widths = [max(map(len, column)) for column in cells]
    return "\n".join(
        "  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip()
        for row in zip(*cells, strict=True)
        if any(row[1:])
    )


def _described(recipe: Recipe, examples: int) -> dict[str, str]:
    batch, momentum = recipe.global_batch_size, recipe.momentum
    decay = recipe.moving_average_decay

    def duration(steps):
        return f"{steps:,.0f} ({recipe.epochs(steps, examples):,.6g} epochs)" if steps else "none"

    def in_examples(steps):
        return f"{steps * batch:,.0f} examples"

    return {
        "examples in a step": f"{batch:,}",
        "microbatches": f"{recipe.num_microbatches} of {recipe.microbatch_size:,}",
        "learning rate": f"{recipe.learning_rate:.6g}",
        "steps": duration(recipe.steps),
        "steps to a decay": duration(recipe.decay_steps),
        "steps of warm-up": duration(recipe.warmup_steps),
        "momentum": f"{momentum:.6g}" if momentum else "none",
        "  its memory": in_examples(1 / (1 - momentum)) if momentum else "",
        "moving averages": f"{decay:.8g}" if decay else "none",
        "  their half-life": in_examples(math.log(0.5) / math.log(decay)) if decay else "",
        "weight decay": f"{recipe.weight_decay:.6g}",
    }


def notes(authors: Recipe, a: Recipe, b: Recipe, scaling: str) -> Iterator[str]:
    """The rules by which a recipe was converted, and what train.py has no flags for."""
    k = b.num_towers / authors.num_towers
    growth = SCALINGS[scaling](k)
    name, share = authors.optimizer, -(-a.num_microbatches // a.num_towers)
    if a.microbatch_size != authors.microbatch_size:
        yield f"""A: microbatches are cut from {authors.microbatch_size:,} to {a.microbatch_size:,}
        examples, one for each tower: the same update except for rounding, but another model where
        a layer sees a microbatch as a whole, as batch norm does (docs/lessons/batch_norm.md)."""
    if share > 1:
        yield f"""A: on GPUs, a tower's {share} microbatches do not wait for each other: count on
        memory for all, or give --accumulate_gradients."""
    if k == 1:
        return
    derived = {"linear": ("sgd",), "sqrt": ("sgd", "adam", "adamw", "rmsprop")}
    guess = "" if name in derived.get(scaling, name) else f", for {name} a guess"
    yield f"B: rate x {growth:.4g} {_RULES[scaling]}{guess}; steps x {1 / k:.4g}."
    if k > 1 and scaling == "linear" and not authors.warmup_steps:
        yield f"""B: {growth:.4g} times the rate needs a warm-up: Goyal et al. reach theirs
        gradually, over 5 epochs (--warmup_steps)."""
    if authors.moving_average_decay:
        yield f"B: moving averages decay ** {k:.4g} (Busbridge et al. 2023, arXiv:2307.13813)."
    if b.weight_decay != authors.weight_decay:
        yield f"""B: decoupled weight decay x {k / growth:.4g} keeps rate x coefficient x steps
        (Wang and Aitchison 2024, arXiv:2405.13698)."""
    if name in ("adam", "adamw"):
        yield f"""B, by hand: each beta of {name} becomes 1 - {k:.4g} (1 - beta), if that is above
        0, and its epsilon is divided by {math.sqrt(k):.4g} (Malladi et al.)."""


def readings(authors: Recipe, examples: int, was: str | None) -> Iterator[str]:
    """What the authors' towers may have done in more than one way."""
    count, rate = authors.num_towers, authors.learning_rate
    if count == 1:
        return
    if was is None:
        yield f"""Was it asynchronous? If each of the {count} towers applied its own gradient
        without waiting for the others, ask again with --was=asynchronous."""
    if authors.optimizer == "sgd":
        yield f"""Were gradients added up? The sum of {count} at rate {rate:.6g} is their mean at
        --learning_rate={count * rate:.6g} (pitfall 22)."""
    if authors.decay_steps not in (0, Recipe.decay_steps / count):
        meant = authors.epochs(authors.decay_steps, examples) / count
        yield f"""Were the steps of a decay computed from the batch of one tower? Then
        {meant:,.6g} epochs were meant: --epochs_per_decay={meant:.10g} (pitfalls 1, 2)."""


def report(
    authors: Recipe, to_towers: int, scaling: str, examples: int, was: str | None = None
) -> str:
    """All that the command prints.

    Args:
      authors: their recipe. An asynchronous one is that of one tower, whose gradient was an update.
      to_towers: to convert it for.
      scaling: of `SCALINGS`.
      examples: of the training set.
      was: of `WAS`; None assumes synchronous, and says what else it may have been.

    Raises:
      SettingsError: as `train_flags`.
    """
    a, b = same_run(authors, to_towers), converted(authors, to_towers, scaling)
    flags_of_a, flags_of_b = train_flags(a, examples), train_flags(b, examples)
    columns = {f"authors, {authors.towers}": authors, f"A, {a.towers}": a}
    titles = {f"A. The same run: {a.global_batch_size:,} examples in a step": flags_of_a}
    if flags_of_a != flags_of_b:
        columns[f"B, {b.towers}"] = b
        titles[f"B. The same batch per tower: {b.global_batch_size:,} examples"] = flags_of_b
    blocks = [
        table(columns, examples),
        *(_block(title, (), flags) for title, flags in titles.items()),
        _block("How it was converted", notes(authors, a, b, scaling)),
        _block("What the authors may have meant", readings(authors, examples, was)),
        "Set everything that is not named here, such as --model and --decay_factor, as they did.",
    ]
    return "\n\n".join(block for block in blocks if block)


def _block(title: str, notes: Iterable[str], flags: Sequence[str] = ()) -> str:
    """A title, a command if there are flags, and notes; empty if there is neither."""
    command = textwrap.wrap(" ".join(["python train.py", *flags]), 92, break_on_hyphens=False)
    lines = ["  " + " \\\n      ".join(command)] if flags else []
    for note in notes:
        text = " ".join(note.split())
        lines.append(textwrap.fill(text, 98, initial_indent="  - ", subsequent_indent="    "))
    return "\n".join([title, *lines]) if lines else ""


def parse(arguments: Sequence[str]) -> tuple[Recipe, int, str, int, str | None]:
    """The arguments of `report`.

    Raises:
      SettingsError: a flag is unknown, missing, out of its range, or not for the optimizer.
    """
    parser = _Parser(
        "python -m lessons.recipe",
        description=__doc__ and __doc__.splitlines()[0],
        allow_abbrev=False,
    )
    parser.add_argument("--from_towers", required=True, help="towers (GPUs) of the recipe")
    parser.add_argument("--to_towers", required=True, help="towers to convert it for")
    for field in _STATED:
        default = f"{field.default}{' / from_towers' if field.name in _OF_ONE_TOWER else ''}"
        text = f"{field.metadata['help']} (default: {default})"
        parser.add_argument(f"--{field.name}", help=text)
    scalings = f"of the rate: {', '.join(SCALINGS)} (default: linear for sgd, else sqrt)"
    parser.add_argument("--scaling", choices=SCALINGS, help=scalings)
    text = f"how the towers updated the weights: {' or '.join(WAS)} (default: both are answered)"
    parser.add_argument("--was", choices=WAS, help=text)
    parser.add_argument("--examples", default=50_000, help="of the training set (default: 50000)")
    chosen = vars(parser.parse_args(arguments))

    def checked(name, of_type, setting):
        return _checked(name, chosen[name], of_type, setting)

    count, to_towers = (checked(name, int, "num_towers") for name in ("from_towers", "to_towers"))
    count = 1 if chosen["was"] == "asynchronous" else count
    stated = {
        f.name: checked(f.name, type(f.default), f.metadata["setting"])
        for f in _STATED
        if chosen[f.name] is not None
    }
    durations = {f.name: f.default / count for f in _STATED if f.name in _OF_ONE_TOWER}
    authors = Recipe(count, 1, **durations | stated)
    authors = dataclasses.replace(authors, microbatch_size=math.ceil(authors.per_tower_batch_size))
    if authors.momentum and authors.optimizer not in optimizers.WITH_MOMENTUM:
        raise settings.SettingsError(
            f"--momentum={authors.momentum:g}: only for --optimizer="
            f"{' or '.join(optimizers.WITH_MOMENTUM)}, and it is {authors.optimizer}"
        )
    # The linear rule is SGD's; square roots are for optimizers that divide by the gradient's size.
    scaling = chosen["scaling"] or ("linear" if authors.optimizer == "sgd" else "sqrt")
    return authors, to_towers, scaling, checked("examples", int, "max_steps"), chosen["was"]


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise settings.SettingsError(f"{' '.join(message.split())}; --help lists the flags")


def _checked(name: str, text: object, of_type: type, setting: str) -> int | float | str:
    """A flag's value, in the range that a setting of train.py has."""
    flag = f"--{name}={settings.shown(text)}"
    try:
        value = of_type(text)
        settings.check(settings.TrainSettings.__dataclass_fields__[setting], value)
    except settings.SettingsError as error:
        problem = str(error).removeprefix(f"--{setting}={settings.shown(value)}")
        raise settings.SettingsError(f"{flag}{problem}") from error
    except ValueError as error:
        kind = "a whole number" if of_type is int else "a number"
        raise settings.SettingsError(f"{flag}: must be {kind}") from error
    if of_type is int and value > 10**12:  # epochs are quotients of floats
        raise settings.SettingsError(f"{flag}: must be at most 1e12")
    return value


def main(arguments: Sequence[str]) -> int:
    """Prints the recipe for other towers; returns the exit code."""
    try:
        print(report(*parse(arguments)))
    except settings.SettingsError as error:
        print(f"lessons.recipe: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
