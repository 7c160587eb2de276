"""Four rules for the rate of a larger batch, each raced to an accuracy."""

from laboratory import data, findings, race
from lessons import lesson
from towers import schedules

import numpy as np  # isort: skip

QUESTION = "How do I change the rate with the number of GPUs?"
PER_TOWER, RATE, WARM_UP = 32, 0.05, 8_000
TOWERS = (1, 2, 4, 8, 16, 32)
ACCURACY, AT_MOST = 0.40, 80_000
IN_SHORT = {
    "towers": (1, 4, 16), "rules": ("fixed", "linear"), "accuracy": 0.60, "at_most": 60_000,
}  # fmt: skip
# Name to (scaling of `schedules.scaled_rate`, examples of warm-up).
RULES = {
    "fixed": ("none", 0),
    "sqrt": ("sqrt", 0),
    "linear": ("linear", 0),
    "linear with warm-up": ("linear", WARM_UP),
}


def run(setup: findings.Setup) -> findings.Finding:
    """Races every rule at every number of towers, and checks that a sum is the linear rule."""
    images = data.load(setup)
    towers = IN_SHORT["towers"] if setup.short else TOWERS
    rules = IN_SHORT["rules"] if setup.short else tuple(RULES)
    accuracy = IN_SHORT["accuracy"] if setup.short else ACCURACY
    at_most = IN_SHORT["at_most"] if setup.short else AT_MOST
    entries = {(rule, k): entry(rule, k) for rule in rules for k in towers}
    distinct = sorted(set(entries.values()))  # the smallest batches take longest: they begin
    needed = race.examples_needed(distinct, images, accuracy, at_most)
    of_entry = dict(zip(distinct, needed, strict=True))
    examples = {rule: {k: of_entry[entries[rule, k]] for k in towers} for rule in rules}
    same = {k: sum_is_linear(images, k) for k in towers}
    return findings.Finding(
        head=("rule", *(f"{k} × {PER_TOWER}" for k in towers)),
        rows=[[rule, *map(shown, of_k.values())] for rule, of_k in examples.items()]
        + [["sum of the gradients", *["as linear" if same[k] else "another" for k in towers]]],
        claim=claim(examples, accuracy, same),
        numbers={"examples": examples, "sum_is_linear": same},
        draw=lambda figure: draw(figure, examples, accuracy, images.name),
        data=images.name,
    )


def entry(rule: str, num_towers: int) -> race.Entry:
    """One tower's rate, scaled by a rule to the batch of so many towers."""
    scaling, warm_up = RULES[rule]
    batch = num_towers * PER_TOWER
    rate = schedules.scaled_rate(RATE, scaling, batch, PER_TOWER)
    return race.Entry(batch, rate, warm_up if num_towers > 1 else 0)


def sum_is_linear(images: data.Images, num_towers: int, steps: int = 5) -> bool:
    """Whether the sum of k parts' gradients gives the weights of the mean at a rate times k.

    For SGD, and to the last bit where k is a power of two, by which a number can be multiplied
    without rounding.
    """
    batch = num_towers * PER_TOWER
    weights = []
    for reduction, scaling in (("sum", "none"), ("mean", "linear")):
        rate = schedules.scaled_rate(RATE, scaling, batch, PER_TOWER)
        trainer = race.trainer(
            race.Entry(batch, rate),
            len(images.train.images),
            gradient_reduction=reduction,
            num_microbatches=num_towers,  # each stands for a tower
        )
        trainer.fit(images.training_batches(batch, steps, distorted=False))
        weights.append([v.numpy() for v in trainer.state.model.trainable_variables])
    return all(np.array_equal(a, b) for a, b in zip(*weights, strict=True))


def shown(examples: float | None) -> str:
    """As the table has it."""
    return f"{examples:,.0f}" if examples else "not reached"


def holds_up_to(of_k: dict[int, float | None]) -> int:
    """The most towers up to which a rule needs at most twice the examples of one tower; or 0."""
    if of_k[1] is None:
        return 0
    good = [k for k, examples in of_k.items() if examples and examples <= 2 * of_k[1]]
    return max((k for k in good if all(j in good for j in of_k if j <= k)), default=0)


def claim(examples: dict, accuracy: float, same: dict[int, bool]) -> str:
    """What the race says."""
    carried = {rule: holds_up_to(of_k) for rule, of_k in examples.items()}
    most = max(max(of_k) for of_k in examples.values())
    reach = []
    for k in sorted(set(carried.values()), reverse=True):
        rules = ", ".join(rule for rule in carried if carried[rule] == k)
        reach.append(f"up to {k} tower{'' if k == 1 else 's'}: {rules}")
    end = f"None carries to {most}." if max(carried.values()) < most else ""
    return (
        f"Allowed twice the examples that one tower of {PER_TOWER} needs for {accuracy:.0%} of the "
        f"test images, the rules carry so far: {'; '.join(reach)}. {end} "
        f"Adding the gradients up is {'' if all(same.values()) else 'not '}the linear rule, to the "
        "last bit."
    )


def draw(figure, examples: dict, accuracy: float, name: str) -> None:
    """Examples needed against the batch; what was not reached stands at the top."""
    axes = figure.subplots()
    top = 1.25 * AT_MOST
    for rule, of_k in examples.items():
        batches = [k * PER_TOWER for k in of_k]
        values = [needed or top for needed in of_k.values()]
        axes.loglog(batches, values, "o-", label=rule, alpha=0.85)
    axes.axhline(AT_MOST, color="#9a9a9a", linewidth=1)
    axes.text(PER_TOWER, 1.03 * AT_MOST, "not reached", color="#6a6a6a", fontsize=9, va="bottom")
    axes.set(
        xlabel=f"global batch: towers × {PER_TOWER}",
        ylabel="examples",
        title=f"Examples needed for {accuracy:.0%} of the test images ({name})",
    )
    axes.title.set(fontsize=10)
    ticks = [k * PER_TOWER for k in TOWERS]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    counts = [10_000, 20_000, 40_000, 80_000]
    axes.set_yticks(counts, [f"{count:,}" for count in counts])
    figure.legend(loc="outside right center", frameon=False, fontsize=9)


LESSON = lesson.Lesson("scaling", QUESTION, run)
