"""Rules for the rate of a larger batch, each trained to the same accuracy."""

from typing import NamedTuple

from laboratory import data, findings, race
from lessons import lesson, recipe

QUESTION = "How do I change the rate with the number of GPUs?"
PER_TOWER, RATE, ADAM_RATE = 32, 0.05, 1e-3
TOWERS = (1, 2, 4, 8, 16, 32)
ACCURACY, AT_MOST = 0.36, 60_000
WARM_UP = 3_000  # examples: a twentieth of the longest run
SEEDS = (0, 1, 2)


class Rule(NamedTuple):
    """How the rate follows the number of towers.

    scaling: of `recipe.SCALINGS`.
    warm_up: examples over which the rate rises from that of one tower (Goyal et al. 2017).
    optimizer: of `race.OPTIMIZERS`.
    """

    scaling: str
    warm_up: int = 0
    optimizer: str = "sgd"


RULES = {
    "fixed": Rule("none"),
    "sqrt": Rule("sqrt"),
    "linear": Rule("linear"),
    "linear with warm-up": Rule("linear", WARM_UP),
    "Adam, fixed": Rule("none", optimizer="adam"),
    "Adam, sqrt": Rule("sqrt", optimizer="adam"),
}

# Rule to number of towers to the examples that each seed needed; None if it did not get there.
Needed = dict[str, dict[int, list[float | None]]]


def run(
    setup: findings.Setup,
    *,
    towers=TOWERS,
    rules=tuple(RULES),
    accuracy=ACCURACY,
    at_most=AT_MOST,
    seeds=SEEDS,
) -> findings.Finding:
    """Races every rule at every number of towers."""
    images = data.load(setup)
    entries = {
        (rule, k, seed): entry(rule, k, seed) for rule in rules for k in towers for seed in seeds
    }
    distinct = sorted(set(entries.values()))  # the smallest batches take longest, so they begin
    needed = race.examples_needed(distinct, images, accuracy, at_most)
    of_entry = dict(zip(distinct, needed, strict=True))
    of_seeds: Needed = {
        rule: {k: [of_entry[entries[rule, k, seed]] for seed in seeds] for k in towers}
        for rule in rules
    }
    return finding(of_seeds, accuracy, len(seeds), images.name)


def finding(of_seeds: Needed, accuracy: float, seeds: int, name: str) -> findings.Finding:
    """The table and the answer."""
    examples = {
        rule: {k: race.mean_needed(of) for k, of in of_k.items()} for rule, of_k in of_seeds.items()
    }
    towers = next(iter(examples.values()))
    return findings.Finding(
        head=("rule", *(f"{k} × {PER_TOWER}" for k in towers)),
        rows=[[rule, *map(shown, of_k.values())] for rule, of_k in of_seeds.items()],
        answer=answer(examples),
        numbers={"examples": examples},
        draw=lambda figure: draw(figure, examples, accuracy),
        data=name,
        runs=f"{seeds} seeds",
    )


def entry(rule: str, num_towers: int, seed: int) -> race.Entry:
    """One tower's rate, scaled by a rule to the batch of so many towers."""
    how = RULES[rule]
    batch = num_towers * PER_TOWER
    base = ADAM_RATE if how.optimizer == "adam" else RATE
    rate = base * recipe.SCALINGS[how.scaling](num_towers)
    return race.Entry(
        batch,
        rate,
        how.warm_up if num_towers > 1 else 0,
        start_factor=base / rate if how.warm_up and num_towers > 1 else 0.0,
        optimizer=how.optimizer,
        seed=seed,
    )


def shown(of_seeds: list[float | None]) -> str:
    """As in the table: the mean, smallest and largest; or how many seeds reached the accuracy."""
    reached = [one for one in of_seeds if one]
    if len(reached) < len(of_seeds):
        return f"{len(reached)} of {len(of_seeds)} reached it" if reached else "not reached"
    return f"{race.mean_needed(of_seeds):,.0f} ({min(reached):,.0f}–{max(reached):,.0f})"


def holds_up_to(of_k: dict[int, float | None]) -> int:
    """The most towers up to which a rule needs at most twice the examples of one tower; or 0."""
    if of_k[1] is None:
        return 0
    good = [k for k, examples in of_k.items() if examples and examples <= 2 * of_k[1]]
    return max((k for k in good if all(j in good for j in of_k if j <= k)), default=0)


def answer(examples: dict[str, dict[int, float | None]]) -> str:
    """In one sentence, from how far the rules carry."""
    carried = {rule: holds_up_to(of_k) for rule, of_k in examples.items()}
    of_sgd = {"linear": "k", "sqrt": "√k"}
    farthest = max(carried.get(rule, 0) for rule in of_sgd)
    best = [factor for rule, factor in of_sgd.items() if carried.get(rule) == farthest]
    rates = f"that of SGD by {' or '.join(best)}"
    if farthest <= carried["fixed"]:
        rates = "no rate"
    if carried.get("Adam, sqrt", 0) > carried.get("Adam, fixed", 0):
        rates += " and that of Adam by √k"
    most = max(examples["linear"])
    end = "one carried to all" if most in carried.values() else f"no rule carried to {most}"
    return (
        "With the same global batch, keep the rate; with k times the batch, multiply "
        f"{rates}, and test it: {end} GPUs here."
    )


def draw(figure, examples: dict, accuracy: float) -> None:
    """Examples needed against the batch; runs that did not reach the accuracy are at the top."""
    axes = figure.subplots()
    top = 1.25 * AT_MOST
    for rule, of_k in examples.items():
        batches = [k * PER_TOWER for k in of_k]
        values = [needed or top for needed in of_k.values()]
        axes.loglog(batches, values, marker="o", label=rule, alpha=0.85)
    first = next(iter(examples.values()))[1]
    if first:
        axes.axhline(first, color="#777777", linewidth=1, linestyle=":")
        axes.text(
            32 * PER_TOWER, 0.95 * first, "ideal for SGD", color="#555555", va="top", ha="right"
        )
    axes.axhline(AT_MOST, color="#777777", linewidth=1, linestyle="-")
    axes.text(PER_TOWER, 1.03 * AT_MOST, "not reached", color="#555555", va="bottom")
    axes.set(
        xlabel=f"global batch: towers × {PER_TOWER}",
        ylabel="examples",
        title=f"examples needed for {accuracy:.0%} of the test images",
    )
    ticks = [k * PER_TOWER for k in TOWERS]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    counts = [5_000, 10_000, 20_000, 40_000]
    axes.set_yticks(counts, [f"{count:,}" for count in counts])
    figure.legend(loc="outside right center")


LESSON = lesson.Lesson("scaling", QUESTION, run)
