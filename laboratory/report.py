"""What runs show: a table, and a drawing of what happened in virtual time and by examples."""

import math
import statistics
from collections.abc import Sequence

from laboratory import simulation

HEAD = (
    "rule", "rate", "accuracy", "loss", "examples/s", "updates", "staleness", "dropped",
    "from the model",
)  # fmt: skip


def table(runs: Sequence[simulation.Run]) -> list[list[str]]:
    """A row for each run, under HEAD.

    Staleness is mean and largest; "dropped" counts gradients; "from the model" is the distance of
    what the workers hold at the end.
    """
    return [
        [
            run.rule,
            f"{run.rate:g}",
            "diverged" if run.diverged else f"{final_accuracy(run):.1%}",
            "" if run.diverged else f"{run.end.loss:.3f}",
            f"{run.examples_per_second:,.1f}",
            f"{run.updates:,}",
            shown_staleness(run),
            f"{run.dropped:,}",
            "" if run.diverged else f"{run.end.distance:.3f}",
        ]
        for run in runs
    ]


def shown_staleness(run: simulation.Run) -> str:
    """Mean and largest; empty where nothing was used."""
    total = sum(run.staleness.values())
    if not total:
        return ""
    mean = sum(staleness * count for staleness, count in run.staleness.items()) / total
    return f"{mean:.1f}, {max(run.staleness)}"


def final_accuracy(run: simulation.Run) -> float:
    """The mean of the last three points; 0 where the run diverged."""
    if run.diverged:
        return 0.0
    return statistics.mean(point.accuracy for point in run.points[-3:])


def target(runs: Sequence[simulation.Run]) -> float:
    """An accuracy to race to: three quarters of the best run's, in whole percents."""
    return math.floor(75 * max(final_accuracy(run) for run in runs)) / 100


def as_json(run: simulation.Run) -> dict:
    """All of a run but its weights, whose hash it has."""
    return {
        "rule": run.rule,
        "rate": run.rate,
        "model": run.model,
        "weights_sha256": run.weights_sha256(),
        "accuracy": final_accuracy(run),
        "examples_per_second": run.examples_per_second,
        "diverged": run.diverged,
        "updates": run.updates,
        "gradients": {"began": run.began, "used": run.used, "dropped": run.dropped},
        "staleness": {str(key): run.staleness[key] for key in sorted(run.staleness)},
        "points": [point._asdict() for point in run.points],
    }


def draw(figure, runs: Sequence[simulation.Run], title: str) -> None:
    """Accuracy and loss against virtual time and examples, staleness, and distance."""
    panels = figure.subplots(2, 4)
    colours = [f"C{number % 10}" for number in range(len(runs))]
    curves = (
        (panels[0, 0], "time", "accuracy"),
        (panels[0, 1], "examples", "accuracy"),
        (panels[1, 0], "time", "loss"),
        (panels[1, 1], "examples", "loss"),
        (panels[1, 3], "time", "distance"),
    )
    for run, colour in zip(runs, colours, strict=True):
        for axes, x, y in curves:
            points = [(getattr(point, x), getattr(point, y)) for point in run.points]
            axes.plot(*zip(*points, strict=True), color=colour, label=run.rule)
            if run.diverged:
                axes.plot(*points[-1], "x", color=colour)
    for axes, x, y in curves:
        axes.set(xlabel="virtual time" if x == "time" else "examples in the model", title=y)
    worst = max((run.points[0].loss for run in runs), default=1.0)
    for axes in panels[1, :2]:
        axes.set_ylim(top=1.15 * worst)  # a run that diverges would flatten the others
    panels[1, 3].set_title("distance of the workers from the model")
    for axes in (panels[0, 1], panels[1, 1]):
        axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k")
    draw_times(panels[0, 2], runs, colours)
    draw_staleness(panels[1, 2], runs, colours)
    draw_legend(panels[0, 3], runs, colours)
    figure.suptitle(title, fontsize=10)
    for axes in panels.flat:
        axes.title.set(fontsize=9)
        axes.tick_params(labelsize=8)
        axes.xaxis.label.set(fontsize=8)
        axes.yaxis.label.set(fontsize=8)


def draw_times(axes, runs: Sequence[simulation.Run], colours: Sequence[str]) -> None:
    """Examples needed against examples/s: the step from one to the other is the time."""
    accuracy = target(runs)
    reached = [
        (run, colour, found)
        for run, colour in zip(runs, colours, strict=True)
        if (found := run.first(accuracy)) and found.time
    ]
    for run, colour, found in reached:
        axes.plot(run.examples_per_second, found.examples, "o", color=colour)
    axes.set(
        title=f"to {accuracy:.0%}: time = examples / (examples/s)",
        xlabel="examples in the model per unit of time",
        ylabel="examples needed",
    )
    if reached:
        most = 1.15 * max(run.examples_per_second for run, _, _ in reached)
        axes.set(xlim=(0, most), ylim=(0, 1.25 * max(f.examples for _, _, f in reached)))
        times = [found.examples / run.examples_per_second for run, _, found in reached]
        for time in sorted({min(times), max(times)}):
            axes.plot((0, most), (0, time * most), color="#9a9a9a", linewidth=0.8, zorder=0)
            axes.annotate(
                f"{time:.0f}", (0.55 * most, 0.55 * most * time), fontsize=8, color="#6a6a6a"
            )


def draw_staleness(axes, runs: Sequence[simulation.Run], colours: Sequence[str]) -> None:
    """The share of gradients (or exchanges) by staleness."""
    for run, colour in zip(runs, colours, strict=True):
        total = sum(run.staleness.values())
        if total:
            known = sorted(run.staleness)
            shares = [run.staleness[staleness] / total for staleness in known]
            axes.plot(known, shares, "o-", color=colour, markersize=3, linewidth=1)
    axes.set(
        title="staleness of gradients", xlabel="updates since the weights were read", ylabel="share"
    )
    axes.set_ylim(0, 1.05)


def draw_legend(axes, runs: Sequence[simulation.Run], colours: Sequence[str]) -> None:
    """The runs' names, with their rates."""
    axes.axis("off")
    for run, colour in zip(runs, colours, strict=True):
        name = f"{run.rule}, η = {run.rate:g}" + (" (diverged)" if run.diverged else "")
        axes.plot([], [], color=colour, label=name)
    axes.legend(loc="center", frameon=False, fontsize=8)
