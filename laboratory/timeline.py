"""What each worker did and when: a page that plays it, and a still picture.

python -m laboratory.timeline      runs all rules at all speeds, and writes the race of the site
"""

import argparse
import functools
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from laboratory import flags, rules, simulation, speeds

TEMPLATE = Path(__file__).parent / "timeline.html"
PLACE = "/* the data */"
DOCS = Path(__file__).parent.parent / "docs"
RACE = DOCS / "site/race.json"  # of which `make docs` makes the page

# The race of the site.
WORKERS, UNTIL, MESSAGE, BATCH = 8, 60.0, 0.1, 16
RATES = (0.1, 0.3)  # each rule takes the better
DIES_AT, NOTICED_AFTER = 20.5, 5.0
POINTS = 60  # of the loss
DRAWN = (
    ("synchronous", "straggler"),
    ("backup_workers", "straggler"),
    ("asynchronous", "straggler"),
)

_FRESH, _STALE, _DROPPED = "#0072b2", "#e69f00", "#999999"


def main(arguments: Sequence[str]) -> int:
    """Writes the data and the picture; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m laboratory.timeline", description=__doc__)
    parser.add_argument("--data_dir", help=flags.DATA_DIR)
    options = parser.parse_args(arguments)
    import towers  # noqa: F401  before what imports TensorFlow: it sets TensorFlow up
    from laboratory import data, findings, network, race

    findings.start_runtime()
    images = data.load(findings.Setup(data_dir=options.data_dir))
    problem = network.Network(network.MODELS["two_convolutions"], images, BATCH, 0)
    pairs = [(rule, speed) for speed in speeds.SPEEDS for rule in rules.RULES]
    calls = [functools.partial(run, problem, *pair, rate) for rate in RATES for pair in pairs]
    runs = race.side_by_side(calls)
    of_pair = zip(runs[: len(pairs)], runs[len(pairs) :], strict=True)
    raced = {
        pair: as_json(min(both, key=_final_loss)) for pair, both in zip(pairs, of_pair, strict=True)
    }
    rates = " and ".join(f"{rate:g}" for rate in RATES)
    conditions = (
        f"{images.name}, two convolutions, batches of {BATCH}, seed 0; each rule at the better of "
        f"the rates {rates}"
    )
    race = race_of(raced, WORKERS, UNTIL, MESSAGE, conditions)
    text = json.dumps(race, separators=(",", ":"), allow_nan=False)
    RACE.write_text(f"{text}\n", encoding="utf-8")
    finding = findings.Finding((), [], {}, functools.partial(draw, raced=raced), images.name)
    findings.save(finding, DOCS / "figures/race.png", size=(9, 6.5))
    print(RACE, DOCS / "figures/race.png", sep="\n")
    return 0


def run(problem, rule: str, speed: str, rate: float) -> simulation.Run:
    """A run of the race: a rule at a speed."""
    return simulation.run(
        rule,
        rules.RULES[rule](rate),
        problem,
        speeds.Speeds(speed, WORKERS, dies_at=DIES_AT),
        until=UNTIL,
        message=MESSAGE,
        measurements=POINTS,
        noticed_after=NOTICED_AFTER,
    )


def _final_loss(run: simulation.Run) -> float:
    return math.inf if run.diverged else run.end.loss


def as_json(run: simulation.Run) -> dict[str, Any]:
    """What the page shows of a run.

    Returns:
      work: (worker, begin, end, behind): virtual times, and how many updates the model had got when
        the gradient arrived since the worker read its weights; None if it did not arrive, or the
        worker trains weights of its own.
      rate: the learning rate.
      sends: whether workers send gradients of the model, and do not train weights of their own.
      diverged: whether weights or loss were no longer finite, where the run ended.
      drops: whether the rule drops a gradient that others have overtaken.
      updates: virtual times.
      points: (time, loss, accuracy).
    """
    behind = {worker: iter(of_worker) for worker, of_worker in run.behind.items()}
    return {
        "rate": run.rate,
        "sends": issubclass(rules.RULES[run.rule], rules.OfGradients),
        "diverged": run.diverged,
        "drops": rules.RULES[run.rule].drops_late,
        "work": [
            (one.worker, round(one.begin, 3), round(one.end, 3), next(behind[one.worker], None))
            for one in run.work
        ],
        "updates": [round(time, 3) for time in run.updated_at],
        "points": [
            (round(point.time, 2), round(point.loss, 3), round(point.accuracy, 3))
            for point in run.points
        ],
    }


def race_of(
    raced: Mapping[tuple[str, str], Mapping],
    workers: int,
    until: float,
    message: float,
    conditions: str,
) -> dict[str, Any]:
    """What `page` plays, as JSON values.

    Args:
      raced: (rule, speeds) to what `as_json` gives.
      workers: of every run.
      until: virtual time at which every run ended.
      message: virtual time of a message.
      conditions: one line for a person.
    """
    return {
        "workers": workers,
        "until": until,
        "message": message,
        "conditions": conditions,
        "runs": {f"{rule} {speed}": run for (rule, speed), run in raced.items()},
    }


def page(race: Mapping[str, Any]) -> str:
    """A page of its own that plays the runs of `race_of`; nothing is loaded from elsewhere."""
    text = json.dumps(race, separators=(",", ":"), allow_nan=False).replace("</", "<\\/")
    return TEMPLATE.read_text("utf-8").replace(PLACE, f"const DATA = {text};")


def colour(behind: int | None, drops: bool) -> str:
    """Of a gradient that is so many updates behind the model when it arrives."""
    if not behind:
        return _FRESH
    return _DROPPED if drops else _STALE


def draw(figure, raced: Mapping[tuple[str, str], Mapping]) -> None:
    """Three rules with one straggler, the lanes of their workers one above the other."""
    panels = figure.subplots(len(DRAWN), 1, sharex=True)
    for axes, pair in zip(panels, DRAWN, strict=True):
        run = raced[pair]
        for worker, begin, end, behind in run["work"]:
            shade = colour(behind, run["drops"])
            bar = [(begin, end - begin)]
            axes.broken_barh(bar, (worker - 0.4, 0.8), color=shade, edgecolor="white")
        rule, speed = (name.replace("_", " ") for name in pair)
        loss = run["points"][-1][1]
        end = "diverged" if run["diverged"] else f"loss {loss:.2f} at the end"
        axes.set(title=f"{rule}, {speed}, rate {run['rate']:g}: {end}", ylabel="worker")
        axes.set(xlim=(0, UNTIL), yticks=range(0, WORKERS, 2))
        axes.grid(visible=False)
        axes.invert_yaxis()
    panels[-1].set_xlabel("virtual time; a usual gradient takes 1")
    names = ((_FRESH, "gradient of the model as it is"), (_STALE, "stale"), (_DROPPED, "dropped"))
    for shade, name in names:
        panels[-1].broken_barh([], (0, 0), color=shade, label=name)
    panels[-1].legend(loc="upper center", bbox_to_anchor=(0.5, -0.35), ncols=3)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
