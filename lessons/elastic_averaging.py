"""EASGD: workers on springs. How strong may a spring be, and which model is the one to keep?"""

import functools
import statistics
from typing import NamedTuple

from laboratory import data, findings, network, problems, race, rules, simulation, speeds
from lessons import lesson

QUESTION = "What of elastic averaging? Each worker has a model of its own then: which one counts?"
WORKERS, BATCH, RATE, PERIOD = 16, 16, 0.1, 8
MESSAGE, TIME = 1.0, 250.0
# α in units of the paper's own choice, 0.9 / k.
PULLS = (0, 0.2, 1, 3, 8, 15)
IN_SHORT = {"workers": 4, "rate": 0.2, "time": 400.0, "pulls": (0, 0.2, 1)}
# Of the stability on a parabola. Odd numbers of workers: see `stable_up_to`.
ROUND_ROBIN, ETAS = 3, (0.2, 0.6, 1.0, 1.4, 1.8)
ROUNDS, HALVINGS = 1_500, 12


class Sprung(NamedTuple):
    """Where a spring led to.

    centre: accuracy of the centre.
    workers: accuracy of what each worker held.
    mean: accuracy of the mean of what they held.
    distance: of the workers from the centre.
    """

    centre: float
    workers: list[float]
    mean: float
    distance: float


def run(setup: findings.Setup) -> findings.Finding:
    """Trains with springs of several strengths, and looks for the strength that is too much."""
    images = data.load(setup)
    workers = IN_SHORT["workers"] if setup.short else WORKERS
    rate = IN_SHORT["rate"] if setup.short else RATE
    time = IN_SHORT["time"] if setup.short else TIME
    pulls = IN_SHORT["pulls"] if setup.short else PULLS
    problem = network.Network(race.network, images, BATCH, test_batches=10)
    alphas = [0.9 / workers * pull for pull in pulls]
    *sprung, low, high = race.side_by_side(
        [functools.partial(of_spring, problem, workers, rate, time, alpha) for alpha in alphas]
        + [functools.partial(of_synchronous, problem, workers, r, time) for r in (rate, 2 * rate)]
    )
    boundary = {eta: unstable_from(eta, ROUND_ROBIN) for eta in ETAS}
    of_pull = dict(zip(pulls, sprung, strict=True))
    return finding(of_pull, workers, max(low, high), boundary, images.name)


def of_spring(problem, workers: int, rate: float, time: float, alpha: float) -> Sprung:
    """What EASGD comes to, with a pull every PERIOD steps."""
    rule = rules.EASGD(rate, alpha, PERIOD)
    done = simulation.run(
        "easgd",
        rule,
        problem,
        speeds.Speeds("constant", workers),
        until=time,
        message=MESSAGE,
        measurements=1,
    )
    held = list(rule.cluster.holds.values())
    return Sprung(
        done.end.accuracy,
        [problem.evaluate(weights).accuracy for weights in held],
        problem.evaluate(rules.mean(held)).accuracy,
        done.end.distance,
    )


def of_synchronous(problem, workers: int, rate: float, time: float) -> float:
    """The accuracy of the synchronous rule after the same time."""
    return simulation.run(
        "synchronous",
        rules.Synchronous(rate),
        problem,
        speeds.Speeds("constant", workers),
        until=time,
        message=MESSAGE,
        measurements=1,
    ).end.accuracy


def stable_up_to(rate: float) -> float:
    """The largest α that is stable on x**2 / 2, where workers take turns and pull at every step.

    One worker's turn is linear in (x_i, x~), with the symmetric matrix

        1 - η - α   α
            α     1 - α

    whose smaller eigenvalue is -1 where the determinant of the matrix plus the identity is 0, so
    where α = (4 - 2η) / (4 - η); it is Zhang, Choromanska and LeCun's condition for the round-robin
    scheme (2015, arXiv:1412.6651). Turns of several workers are a product of such matrices, none
    of which makes anything longer below that α. It is also the exact limit where their number is
    odd; with an even number it lies a little higher.

    Args:
      rate: η, in units of the inverse curvature; in [0, 2].
    """
    return (4 - 2 * rate) / (4 - rate)


def unstable_from(rate: float, workers: int) -> float:
    """The α from which on the centre flies off, by trying: halving [0, 1.5] HALVINGS times."""
    low, high = 0.0, 1.5
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if flies_off(rate, middle, workers) else (middle, high)
    return (low + high) / 2


def flies_off(rate: float, alpha: float, workers: int) -> bool:
    """Whether the centre's loss is larger at the end of a run than in its middle."""
    done = simulation.run(
        "easgd",
        rules.EASGD(rate, alpha, period=1),
        problems.Parabola(),
        speeds.Speeds("constant", workers),  # equal workers take turns
        until=ROUNDS,
        measurements=2,
    )
    return done.diverged or done.points[2].loss > done.points[1].loss


def finding(sprung: dict, workers: int, synchronous: float, boundary: dict, name: str):
    """The table and the claim."""
    rows = [
        [
            f"{0.9 / workers * pull:.3f}" if pull else "0: no spring",
            f"{one.centre:.1%}" if pull else "stays where it was",
            f"{statistics.mean(one.workers):.1%}",
            f"{max(one.workers):.1%}",
            f"{one.mean:.1%}",
            f"{one.distance:.2f}",
        ]
        for pull, one in sprung.items()
    ]
    head = ("α", "the centre", "a worker", "the best worker", "mean of the workers", "distance")
    return findings.Finding(
        head=head,
        rows=rows,
        claim=claim(sprung, workers, synchronous, boundary),
        numbers={"sprung": sprung, "synchronous": synchronous, "boundary": boundary},
        draw=lambda figure: draw(figure, sprung, workers, synchronous, boundary, name),
        data=name,
    )


def claim(sprung: dict, workers: int, synchronous: float, boundary: dict) -> str:
    """What the numbers say."""
    papers, apart = sprung[1], sprung[0]
    best = max((pull for pull in sprung if pull), key=lambda pull: sprung[pull].centre)
    off = max(abs(found / stable_up_to(eta) - 1) for eta, found in boundary.items())
    return (
        f"The centre counts. With the paper's α = 0.9 / k it was right on {papers.centre:.1%} of "
        f"the test images, the {workers} workers on {statistics.mean(papers.workers):.1%} on "
        f"average and {max(papers.workers):.1%} at best, and the mean of their weights, taken once "
        f"at the end, on {papers.mean:.1%}. Of the strengths that were tried the best was "
        f"α = {0.9 / workers * best:.2f} ({sprung[best].centre:.1%}). Without a spring the workers "
        f"came to {statistics.mean(apart.workers):.1%} and their mean to {apart.mean:.1%}; the "
        f"synchronous rule, in the same time with messages as long as a gradient, to "
        f"{synchronous:.1%}. On a parabola the spring that is too strong was found within "
        f"{off:.2%} of the paper's (4 - 2η) / (4 - η), at {len(boundary)} rates."
    )


def draw(figure, sprung: dict, workers: int, synchronous: float, boundary: dict, name: str) -> None:
    """Accuracies against the spring; and the limit of its strength."""
    left, right = figure.subplots(1, 2)
    pulls = list(sprung)
    places = range(len(pulls))
    left.plot(
        [place for place in places if pulls[place]],
        [sprung[pull].centre for pull in pulls if pull],
        "o-",
        color="#0072b2",
        label="the centre",
    )
    for place, pull in zip(places, pulls, strict=True):
        own = sprung[pull].workers
        label = "each worker" if place == 0 else None
        left.plot([place] * len(own), own, ".", color="#d55e00", alpha=0.5, label=label)
    means = [sprung[pull].mean for pull in pulls]
    left.plot(places, means, "_", color="black", markersize=14, label="mean of the workers")
    left.axhline(synchronous, color="#9a9a9a", linewidth=1, label="synchronous, in the same time")
    left.set_xticks(places, [f"{0.9 / workers * pull:.2g}" for pull in pulls])
    left.set(xlabel="α, how far a pull goes", title=f"accuracy ({name})")
    left.legend(fontsize=8)
    etas = [step / 50 for step in range(101)]
    right.plot(etas, [stable_up_to(eta) for eta in etas], color="black", label="(4 - 2η) / (4 - η)")
    right.plot(boundary.keys(), boundary.values(), "o", color="#c0392b", label="found by trying")
    right.set(xlabel="η · curvature", ylabel="α", title="the spring that is too strong, on x²/2")
    right.legend(fontsize=8)
    for axes in (left, right):
        axes.title.set(fontsize=9)


LESSON = lesson.Lesson("elastic_averaging", QUESTION, run)
