"""Update rules raced on a virtual clock, where workers are equal, jitter, lag, or talk slowly."""

import functools
from typing import NamedTuple

from laboratory import data, findings, network, race, rules, simulation, speeds
from lessons import lesson

QUESTION = "Why not asynchronous SGD? Nobody trains synchronously on tens of GPUs, do they?"
WORKERS, BATCH = 16, 16
ACCURACY, AT_MOST = 0.37, 500.0
EVERY = 1_200  # examples between two evaluations
# Rule to the rates that are tried; the one with the least time counts.
RATES = {
    "synchronous": (0.1, 0.2),
    "backup_workers": (0.1, 0.2),
    "asynchronous": (0.01, 0.02),
    "staleness_scaled": (0.1, 0.2),
    "local_sgd": (0.1, 0.2),
}
IN_SHORT = {
    "workers": 4,
    "accuracy": 0.4,
    "at_most": 900.0,
    "rates": {
        "synchronous": (0.2,),
        "backup_workers": (0.2,),
        "asynchronous": (0.05,),
        "local_sgd": (0.2,),
    },
    "settings": ("equal workers", "one straggler", "slow messages"),
}


class Setting(NamedTuple):
    """Where the rules are raced.

    speeds: one of speeds.SPEEDS.
    message: virtual time of a message.
    """

    speeds: str
    message: float


SETTINGS = {
    "equal workers": Setting("constant", 0.1),
    "jitter": Setting("jitter", 0.1),
    "one straggler": Setting("straggler", 0.1),
    "slow messages": Setting("constant", 2.0),
}


def run(setup: findings.Setup) -> findings.Finding:
    """Races every rule in every setting, at each of its rates."""
    images = data.load(setup)
    workers = IN_SHORT["workers"] if setup.short else WORKERS
    accuracy = IN_SHORT["accuracy"] if setup.short else ACCURACY
    at_most = IN_SHORT["at_most"] if setup.short else AT_MOST
    rates = IN_SHORT["rates"] if setup.short else RATES
    settings = IN_SHORT["settings"] if setup.short else tuple(SETTINGS)
    problem = network.Network(race.network, images, BATCH)
    entries = [(s, rule, rate) for s in settings for rule in rates for rate in rates[rule]]
    raced = race.side_by_side(
        [
            functools.partial(one_run, problem, workers, *entry, accuracy, at_most)
            for entry in entries
        ]
    )
    best = {}
    for (setting, rule, _), done in zip(entries, raced, strict=True):
        known = best.get((setting, rule))
        if known is None or arrival(done, accuracy) < arrival(known, accuracy):
            best[setting, rule] = done
    return finding(best, accuracy, workers, images.name)


def one_run(problem, workers: int, setting: str, rule: str, rate: float, accuracy, at_most):
    """A rule in a setting, up to the accuracy."""
    of_speeds, message = SETTINGS[setting]
    return simulation.run(
        rule,
        rules.RULES[rule](rate),
        problem,
        speeds.Speeds(of_speeds, workers),
        until=at_most,
        message=message,
        every_examples=EVERY,
        enough=accuracy,
    )


def arrival(run: simulation.Run, accuracy: float) -> float:
    """Virtual time to the accuracy; infinity where it was not reached."""
    found = run.first(accuracy)
    return found.time if found else float("inf")


def finding(best: dict, accuracy: float, workers: int, name: str) -> findings.Finding:
    """The table and the claim."""
    settings = list(dict.fromkeys(setting for setting, _ in best))
    of_rules = list(dict.fromkeys(rule for _, rule in best))
    reached = {key: done.first(accuracy) for key, done in best.items()}

    def cell(setting, rule):
        found, rate = reached[setting, rule], best[setting, rule].rate
        return f"{found.time:.0f} ({found.examples:,}; η {rate:g})" if found else "not reached"

    return findings.Finding(
        head=("rule", *settings),
        rows=[[rule, *(cell(setting, rule) for setting in settings)] for rule in of_rules],
        claim=claim(reached, best, settings, of_rules, accuracy, workers),
        numbers={
            "time": {key: found and found.time for key, found in reached.items()},
            "examples": {key: found and found.examples for key, found in reached.items()},
            "staleness": {key: dict(done.staleness) for key, done in best.items()},
        },
        draw=lambda figure: draw(figure, reached, settings, of_rules, accuracy, name),
        data=name,
    )


def claim(reached: dict, best: dict, settings, of_rules, accuracy: float, workers: int) -> str:
    """What the race says."""
    said = [f"{workers} workers raced to {accuracy:.0%} of the test images."]
    for setting in settings:
        times = {rule: p.time for rule in of_rules if (p := reached[setting, rule])}
        if not times:
            said.append(f"With {setting} no rule came there.")
            continue
        first = together(times, {rule: reached[setting, rule].examples for rule in times})
        low, high = min(times[rule] for rule in first), max(times[rule] for rule in first)
        after = f"after {low:.0f}" if low == high else f"after {low:.0f} to {high:.0f}"
        own = times.get("synchronous")
        shown = f"after {own:.0f}" if own else "not there at the end"
        beside = "" if "synchronous" in first else f" (synchronous: {shown})"
        there = "this one was" if len(first) == 1 else "these were"
        said.append(f"With {setting} {there} there first, {after}: {', '.join(first)}{beside}.")
    spans = []
    for rule in ("synchronous", "asynchronous", "local_sgd"):
        examples = [p.examples for s in settings if (p := reached.get((s, rule)))]
        if examples:
            low, high = min(examples), max(examples)
            spans.append(f"{rule} {low:,}" + ("" if low == high else f" to {high:,}"))
    if spans:
        said.append(f"Examples needed, over all settings: {'; '.join(spans)}.")
    if (equal := best.get(("equal workers", "asynchronous"))) and equal.used:
        staleness, count = equal.staleness.most_common(1)[0]
        said.append(
            f"Of the asynchronous gradients of equal workers {count / equal.used:.0%} had a "
            f"staleness of {staleness}."
        )
    return " ".join(said)


def together(times: dict[str, float], examples: dict[str, int]) -> list[str]:
    """The rules that were there as soon as the first, within an evaluation's distance of it.

    Args:
      times: rule to its virtual time.
      examples: rule to its examples by then; one evaluation comes every EVERY of them.
    """
    soonest = min(times, key=times.get)
    step = times[soonest] * EVERY / examples[soonest]
    return sorted((rule for rule in times if times[rule] <= times[soonest] + step), key=times.get)


def draw(figure, reached: dict, settings, of_rules, accuracy: float, name: str) -> None:
    """Time in bars for each setting, and the examples needed."""
    panels = figure.subplots(1, 2)
    width = 0.8 / len(of_rules)
    for axes, what, title in zip(
        panels, ("time", "examples"), ("virtual time", "examples"), strict=True
    ):
        for number, rule in enumerate(of_rules):
            places = [place + width * number for place in range(len(settings))]
            found = [reached[setting, rule] for setting in settings]
            heights = [getattr(point, what) if point else 0 for point in found]
            axes.bar(places, heights, width, label=rule if axes is panels[0] else None)
            for place, point in zip(places, found, strict=True):
                if point is None:
                    axes.text(place, 0, "×", ha="center", va="bottom", fontsize=9)
        middle = 0.8 / 2 - width / 2
        ticks = [place + middle for place in range(len(settings))]
        axes.set_xticks(ticks, [setting.replace(" ", "\n") for setting in settings], fontsize=8)
        axes.set_title(f"{title} to {accuracy:.0%} ({name})", fontsize=9)
    panels[1].yaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k")
    figure.legend(loc="outside lower center", ncols=5, fontsize=8)


LESSON = lesson.Lesson("synchronous_or_not", QUESTION, run)
