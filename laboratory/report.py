"""Shows runs: a table, and a drawing of what happened in virtual time and by examples."""

import math
import statistics
from collections.abc import Sequence

from laboratory import simulation


def table(runs: Sequence[simulation.Run]) -> tuple[list[str], list[list[str]]]:
    """Head and rows, one for each run.

    Accuracy is the mean of the last three points; the column of the target says when it was reached
    and with how many examples; staleness is given as mean and largest; "dropped" counts gradients;
    "distance" is that of the workers from the model at the end.
    """
    accuracy = target(runs)
    head = ["rule", "rate", "accuracy", f"to {accuracy:.0%}: time (examples)", "examples/s"]
    head += ["updates", "staleness", "dropped", "distance"]
    return head, [
        [
            run.rule,
            f"{run.rate:g}",
            "diverged" if run.diverged else f"{final_accuracy(run):.1%}",
            f"{found.time:.0f} ({found.examples:,})" if found else "",
            f"{run.examples_per_second:,.1f}",
            f"{run.updates:,}",
            shown_staleness(run),
            f"{run.dropped:,}",
            "" if run.diverged else f"{run.end.distance:.3f}",
        ]
        for run in runs
        for found in [reached(run, accuracy)]
    ]


def shown_staleness(run: simulation.Run) -> str:
    """Mean and largest; empty if no gradient was used."""
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


def reached(run: simulation.Run, accuracy: float) -> simulation.Point | None:
    """Where a run reached the accuracy by training; None if it never did."""
    found = run.first(accuracy)
    return found if found and found.examples else None


def as_json(run: simulation.Run) -> dict:
    """All of a run, with a hash for its weights; `accuracy` is the saved model's."""
    return {
        "rule": run.rule,
        "rate": run.rate,
        "model": run.model,
        "weights_sha256": run.weights_sha256(),
        "accuracy": None if run.diverged else run.end.accuracy,
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
            axes.plot(*zip(*points, strict=True), color=colour)
            if run.diverged:
                axes.plot(*points[-1], "x", color=colour)
    for axes, x, y in curves:
        axes.set(xlabel="virtual time" if x == "time" else "examples in the model", title=y)
    worst = max(run.points[0].loss for run in runs)
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
    """Examples needed against examples/s until then: each line through 0 stands for one time."""
    accuracy = target(runs)
    found = {run.rule: reached(run, accuracy) for run in runs}
    there = [(run, colour) for run, colour in zip(runs, colours, strict=True) if found[run.rule]]
    for run, colour in there:
        point = found[run.rule]
        axes.plot(point.examples / point.time, point.examples, "o", color=colour)
    axes.set(
        title=f"to {accuracy:.0%}: time = examples / (examples/s)",
        xlabel="examples in the model per unit of time",
        ylabel="examples needed",
    )
    late = [run.rule for run in runs if not found[run.rule]]
    if late:
        axes.text(0.02, 0.98, "\n".join(["not reached:", *late]), fontsize=7, va="top", ha="left",
                  transform=axes.transAxes, color="#6a6a6a")  # fmt: skip
    if there:
        points = [found[run.rule] for run, _ in there]
        most = 1.15 * max(point.examples / point.time for point in points)
        axes.set(xlim=(0, most), ylim=(0, 1.5 * max(point.examples for point in points)))
        for time in sorted({point.time for point in (min(points), max(points))}):
            axes.plot((0, most), (0, time * most), color="#9a9a9a", linewidth=0.8, zorder=0)
            where = (0.5 * most, 0.5 * most * time)
            axes.annotate(f"time {time:.0f}", where, fontsize=8, color="#6a6a6a", clip_on=True)


def draw_staleness(axes, runs: Sequence[simulation.Run], colours: Sequence[str]) -> None:
    """A histogram for each run: the share of gradients (or exchanges) by staleness."""
    width = 0.8 / len(runs)
    for number, (run, colour) in enumerate(zip(runs, colours, strict=True)):
        total = sum(run.staleness.values())
        places = [staleness + width * (number - len(runs) / 2) for staleness in run.staleness]
        shares = [count / total for count in run.staleness.values()]
        axes.vlines(places, 0, shares, color=colour, linewidth=1)
        axes.plot(places, shares, "o", color=colour, markersize=3)
    axes.set(
        title="staleness of gradients",
        xlabel="updates since the weights were read",
        ylabel="share",
        ylim=(0, 1.05),
    )


def draw_legend(axes, runs: Sequence[simulation.Run], colours: Sequence[str]) -> None:
    """The runs' names, with their rates."""
    axes.axis("off")
    for run, colour in zip(runs, colours, strict=True):
        name = f"{run.rule}, η = {run.rate:g}" + (" (diverged)" if run.diverged else "")
        axes.plot([], [], color=colour, label=name)
    axes.legend(loc="center", fontsize=8)
