"""Shows runs: a table, and a drawing of what happened in virtual time and by examples."""

import math
import statistics
from collections.abc import Mapping, Sequence

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
            f"{point.time:.0f} ({point.examples:,})" if point else "",
            f"{run.examples_per_second:,.1f}",
            f"{run.updates:,}",
            shown_staleness(run),
            f"{run.dropped:,}",
            "" if run.diverged else f"{run.end.distance:.3f}",
        ]
        for run in runs
        for point in [reached(run, accuracy)]
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
    point = run.first(accuracy)
    return point if point and point.examples else None


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
    """Accuracy, loss and distance over virtual time, the time to an accuracy, and staleness."""
    panels = figure.subplots(2, 3)
    runs_looks = looks(len(runs))
    curves = ((panels[0, 0], "accuracy"), (panels[0, 1], "loss"), (panels[1, 0], "distance"))
    for run, look in zip(runs, runs_looks, strict=True):
        times = [point.time for point in run.points]
        for axes, of in curves:
            values = [getattr(point, of) for point in run.points]
            axes.plot(times, values, **look, markevery=max(1, len(values) // 5), markersize=4)
            if run.diverged:
                axes.plot(times[-1], values[-1], "x", color=look["color"], markersize=8)
    for axes, of in curves:
        axes.set(xlabel="virtual time", title=of)
    worst = max(run.points[0].loss for run in runs)
    panels[0, 1].set_ylim(top=1.15 * worst)  # a run that diverges would flatten the others
    panels[1, 0].set_title("distance of the workers from the model")
    draw_times(panels[0, 2], runs, runs_looks)
    draw_staleness(panels[1, 1], runs, runs_looks)
    draw_legend(panels[1, 2], runs, runs_looks)
    figure.suptitle(title, fontsize=10)


def looks(count: int) -> list[dict[str, str]]:
    """Colour, line and marker of so many runs: the style's, and then with another line."""
    import matplotlib as mpl

    styles = list(mpl.rcParams["axes.prop_cycle"])
    lines = ("-", "--", "-.", ":")
    return [
        {
            "color": styles[number % len(styles)]["color"],
            "linestyle": lines[(number + number // len(styles)) % len(lines)],
            "marker": "os^Dv<>P*X"[number % 10],
        }
        for number in range(count)
    ]


def draw_times(axes, runs: Sequence[simulation.Run], runs_looks: Sequence[Mapping]) -> None:
    """Examples needed against examples/s until then: each line through 0 stands for one time."""
    accuracy = target(runs)
    first = {run.rule: reached(run, accuracy) for run in runs}
    there = [(run, look) for run, look in zip(runs, runs_looks, strict=True) if first[run.rule]]
    for run, look in there:
        point = first[run.rule]
        axes.plot(point.examples / point.time, point.examples, **look | {"linestyle": "none"})
    axes.set(
        title=f"to {accuracy:.0%}: time = examples / (examples/s)",
        xlabel="examples in the model per unit of time",
        ylabel="examples needed",
    )
    late = [run.rule for run in runs if not first[run.rule]]
    if late:
        axes.text(0.03, 0.98, "\n".join(["not reached:", *late]), fontsize=8, va="top", ha="left",
                  transform=axes.transAxes, color="#5a5a5a")  # fmt: skip
    if there:
        points = [first[run.rule] for run, _ in there]
        most = 1.15 * max(point.examples / point.time for point in points)
        axes.set(xlim=(0, most), ylim=(0, 1.5 * max(point.examples for point in points)))
        for time in sorted({point.time for point in (min(points), max(points))}):
            axes.plot(
                (0, most), (0, time * most), color="#9a9a9a", linestyle="-", linewidth=0.8, zorder=0
            )
            where = (0.5 * most, 0.5 * most * time)
            axes.annotate(f"time {time:.0f}", where, fontsize=8, color="#5a5a5a", clip_on=True)


def draw_staleness(axes, runs: Sequence[simulation.Run], runs_looks: Sequence[Mapping]) -> None:
    """A row for each run: the larger a dot, the more of its gradients were so many updates old."""
    for row, (run, look) in enumerate(zip(runs, runs_looks, strict=True)):
        total = sum(run.staleness.values())
        shares = [count / total for count in run.staleness.values()]
        sizes = [max(4, 120 * share) for share in shares]
        axes.scatter(list(run.staleness), [row] * len(sizes), s=sizes, color=look["color"])
    axes.set(
        title="staleness: dots by their share of the gradients",
        xlabel="updates since the weights were read",
        yticks=range(len(runs)),
        yticklabels=[run.rule for run in runs],
        ylim=(len(runs) - 0.5, -0.5),
    )


def draw_legend(axes, runs: Sequence[simulation.Run], runs_looks: Sequence[Mapping]) -> None:
    """The runs' names, with their rates."""
    axes.axis("off")
    for run, look in zip(runs, runs_looks, strict=True):
        name = f"{run.rule}, η = {run.rate:g}" + (" (diverged)" if run.diverged else "")
        axes.plot([], [], **look, label=name)
    axes.legend(loc="center", handlelength=4)
