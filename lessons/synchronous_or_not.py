"""Update rules raced on a virtual clock, where workers are equal, jitter, lag, or talk slowly."""

import functools
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from laboratory import cluster, data, findings, network, problems, race, rules, simulation, speeds
from lessons import lesson

QUESTION = "Why not asynchronous SGD? Nobody trains synchronously on tens of GPUs, do they?"
WORKERS, BATCH = 16, 16
ACCURACY, AT_MOST = 0.36, 400.0
EVERY = 1_200  # examples between two evaluations
# Rule to the rates that are tried with equal workers and the first seed; all runs use the best.
RATES = {
    "synchronous": (0.1, 0.2, 0.4),
    "backup_workers": (0.1, 0.2, 0.4),
    "asynchronous": (0.005, 0.01, 0.02, 0.04),
    "staleness_scaled": (0.1, 0.2, 0.4),
    "local_sgd": (0.05, 0.1, 0.2, 0.4),
}
SEEDS = (0, 1, 2)
DRAWN = ("synchronous", "backup_workers", "asynchronous")  # in time lines, of so many workers
LANES, DRAWN_UNTIL = 4, 16.0


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


def run(
    setup: findings.Setup,
    *,
    workers=WORKERS,
    accuracy=ACCURACY,
    at_most=AT_MOST,
    rates=RATES,
    settings=tuple(SETTINGS),
    seeds=SEEDS,
) -> findings.Finding:
    """Finds every rule's rate, then races the rules in every setting with every seed."""
    images = data.load(setup)
    of_seed = {
        seed: network.Network(functools.partial(race.network, seed), images, BATCH, seed=seed)
        for seed in seeds
    }

    def all_of(entries):
        calls = [
            functools.partial(
                one_run, of_seed[seed], workers, setting, rule, rate, accuracy, at_most
            )
            for setting, rule, rate, seed in entries
        ]
        return dict(zip(entries, race.side_by_side(calls), strict=True))

    first = settings[0]
    tried = all_of([(first, rule, rate, seeds[0]) for rule in rates for rate in rates[rule]])
    best = {
        rule: min(
            rates[rule],
            key=lambda rate, rule=rule: arrival(tried[first, rule, rate, seeds[0]], accuracy),
        )
        for rule in rates
    }
    entries = [(s, rule, best[rule], seed) for s in settings for rule in rates for seed in seeds]
    tried |= all_of([entry for entry in entries if entry not in tried])
    raced = {
        (setting, rule): [tried[setting, rule, best[rule], seed] for seed in seeds]
        for setting in settings
        for rule in rates
    }
    on_an_edge = [rule for rule in rates if best[rule] in (rates[rule][0], rates[rule][-1])]
    return finding(raced, on_an_edge, accuracy, images.name)


def one_run(problem, workers: int, setting: str, rule: str, rate: float, accuracy, at_most):
    """Runs a rule in a setting until it reaches the accuracy."""
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
    """Virtual time to the accuracy; infinity if it was not reached."""
    point = run.first(accuracy)
    return point.time if point else float("inf")


class Reached(NamedTuple):
    """When a rule reached the accuracy: means over the seeds, and the extremes of the times."""

    time: float
    examples: float
    soonest: float
    latest: float


def reached_by(runs: list[simulation.Run], accuracy: float) -> Reached | None:
    """When a rule reached the accuracy; None if a seed did not."""
    points = [run.first(accuracy) for run in runs]
    if None in points:
        return None
    times = [point.time for point in points]
    examples = statistics.mean(point.examples for point in points)
    return Reached(statistics.mean(times), examples, min(times), max(times))


def finding(raced: dict, on_an_edge: list[str], accuracy: float, name: str) -> findings.Finding:
    """The table and the answer.

    Args:
      raced: (setting, rule) to a run for each seed.
      on_an_edge: rules whose best rate was the smallest or the largest that was tried.
      accuracy: the target.
      name: of the images.
    """
    settings = list(dict.fromkeys(setting for setting, _ in raced))
    of_rules = list(dict.fromkeys(rule for _, rule in raced))
    reached = {key: reached_by(runs, accuracy) for key, runs in raced.items()}

    def cell(setting, rule):
        point = reached[setting, rule]
        if not point:
            return "not reached"
        return f"{point.time:.0f} ({point.soonest:.0f}–{point.latest:.0f}); {point.examples:,.0f}"

    def rate_of(rule):
        rate = f"{raced[settings[0], rule][0].rate:g}"
        return f"{rate}, on the edge" if rule in on_an_edge else rate

    return findings.Finding(
        head=("rule", "rate", *settings),
        rows=[
            [rule, rate_of(rule), *(cell(setting, rule) for setting in settings)]
            for rule in of_rules
        ],
        answer=answer(reached),
        numbers={
            "time": {key: point and point.time for key, point in reached.items()},
            "examples": {key: point and point.examples for key, point in reached.items()},
        },
        draw=lambda figure: draw(figure, reached, settings, of_rules, accuracy),
        data=name,
        runs=f"{len(next(iter(raced.values())))} seeds",
    )


def answer(reached: dict) -> str:
    """In one sentence, from who gained time by not waiting."""

    def gains(setting: str, rule: str) -> bool:
        """Whether each seed of a rule arrived before every seed of the synchronous one."""
        waiting, other = reached.get((setting, "synchronous")), reached.get((setting, rule))
        return bool(other and (not waiting or other.latest < waiting.soonest))

    with_equal = gains("equal workers", "asynchronous")
    slow = [name for name in ("jitter", "one straggler") if gains(name, "asynchronous")]
    backup = "; so did one backup worker" if gains("one straggler", "backup_workers") else ""
    return (
        "They do, and the largest runs today are synchronous: with equal workers, not waiting "
        f"gained {'time' if with_equal else 'nothing'}; with {' and '.join(slow) or 'slow ones'} "
        f"it gained {'time' if slow else 'nothing either'}{backup}."
    )


def time_line(rule: str) -> Sequence[cluster.Work]:
    """Who computes when, if one of a few workers is slow; on a parabola, which is fast to run."""
    done = simulation.run(
        rule,
        rules.RULES[rule](0.01),
        problems.Parabola(),
        speeds.Speeds("straggler", LANES),
        until=DRAWN_UNTIL,
        message=SETTINGS["one straggler"].message,
        measurements=1,
    )
    return done.work


def draw(figure, reached: dict, settings, of_rules, accuracy: float) -> None:
    """Time to the accuracy in each setting; and who waits for whom if one worker is slow."""
    left, right = figure.subfigures(1, 2, width_ratios=(3, 2))
    axes = left.subplots()
    width = 0.8 / len(of_rules)
    for number, rule in enumerate(of_rules):
        places = [place + width * number for place in range(len(settings))]
        points = [reached[setting, rule] for setting in settings]
        axes.bar(places, [point.time if point else 0 for point in points], width, label=rule)
        for place, point in zip(places, points, strict=True):
            if point is None:
                axes.text(place, 0, "not reached", rotation=90, fontsize=8, ha="center")
            else:
                axes.plot([place] * 2, [point.soonest, point.latest], "k-", linewidth=1)
    middle = 0.8 / 2 - width / 2
    ticks = [place + middle for place in range(len(settings))]
    axes.set_xticks(ticks, [setting.replace(" ", "\n") for setting in settings])
    axes.set(title=f"time to {accuracy:.0%}", ylabel="virtual time; a usual gradient takes 1")
    axes.legend(loc="upper right", fontsize=8)
    panels = right.subplots(len(DRAWN), 1, sharex=True)
    for lanes, rule in zip(panels, DRAWN, strict=True):
        for one in time_line(rule):
            bar = (one.begin, min(one.end, DRAWN_UNTIL) - one.begin)
            colour = "#d55e00" if one.worker == LANES - 1 else "#0072b2"
            lanes.broken_barh([bar], (one.worker - 0.4, 0.8), color=colour, edgecolor="white")
        lanes.set(title=f"{rule}: white is waiting", xlim=(0, DRAWN_UNTIL), ylabel="worker")
        lanes.set_yticks(range(LANES))
        lanes.grid(visible=False)
        lanes.invert_yaxis()
    panels[-1].set_xlabel("virtual time")


LESSON = lesson.Lesson("synchronous_or_not", QUESTION, run)
