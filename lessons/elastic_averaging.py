"""EASGD: workers on springs. How strong may a spring be, and which model is the one to keep?"""

import functools
import statistics
from typing import NamedTuple

from laboratory import problems, rules, simulation, speeds
from lessons import data, lesson, race

QUESTION = "What of elastic averaging? Each worker has a model of its own then: which one counts?"
WORKERS, BATCH, RATE, PERIOD = 16, 16, 0.1, 8
MESSAGE, TIME = 1.0, 250.0
ALPHAS = (0.0, 0.01, 0.05, 0.15, 0.4, 0.8)
IN_SHORT = {"workers": 4, "rate": 0.2, "time": 400.0, "alphas": (0.0, 0.05, 0.2)}
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


def run(setup: lesson.Setup) -> lesson.Finding:
    """Trains with springs of several strengths, and looks for the strength that is too much."""
    images = data.load(setup)
    workers = IN_SHORT["workers"] if setup.short else WORKERS
    rate = IN_SHORT["rate"] if setup.short else RATE
    time = IN_SHORT["time"] if setup.short else TIME
    alphas = IN_SHORT["alphas"] if setup.short else ALPHAS
    problem = problems.Network(race.network, images, BATCH)
    *sprung, synchronous = race.side_by_side(
        [functools.partial(of_spring, problem, workers, rate, time, alpha) for alpha in alphas]
        + [functools.partial(of_synchronous, problem, workers, time)]
    )
    boundary = {eta: unstable_from(eta, ROUND_ROBIN) for eta in ETAS}
    return finding(dict(zip(alphas, sprung, strict=True)), synchronous, boundary, images.name)


def of_spring(problem, workers: int, rate: float, time: float, alpha: float) -> Sprung:
    """What EASGD comes to, with a pull every PERIOD steps."""
    rule = rules.EASGD(rate, alpha, PERIOD)
    done = simulation.run(
        "easgd", rule, problem, speeds.Speeds("constant", workers), until=time, message=MESSAGE
    )
    held = list(rule.cluster.holds.values())
    return Sprung(
        problem.evaluate(done.weights).accuracy,
        [problem.evaluate(weights).accuracy for weights in held],
        problem.evaluate(rules.mean(held)).accuracy,
        done.end.distance,
    )


def of_synchronous(problem, workers: int, time: float) -> float:
    """The accuracy of the synchronous rule after the same time, at the better of two rates."""
    of_workers = speeds.Speeds("constant", workers)
    return max(
        simulation.run(
            "synchronous",
            rules.Synchronous(rate),
            problem,
            of_workers,
            until=time,
            message=MESSAGE,
            measurements=1,
        ).end.accuracy
        for rate in (RATE, 2 * RATE)
    )


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


def finding(sprung: dict, synchronous: float, boundary: dict, name: str) -> lesson.Finding:
    """The table and the claim."""
    rows = [
        [
            f"{alpha:g}" if alpha else "0: no spring",
            f"{one.centre:.1%}" if alpha else "stays where it was",
            f"{statistics.mean(one.workers):.1%}",
            f"{max(one.workers):.1%}",
            f"{one.mean:.1%}",
            f"{one.distance:.2f}",
        ]
        for alpha, one in sprung.items()
    ]
    head = ("α", "the centre", "a worker", "the best worker", "mean of the workers", "distance")
    return lesson.Finding(
        head=head,
        rows=rows,
        claim=claim(sprung, synchronous, boundary),
        numbers={"sprung": sprung, "synchronous": synchronous, "boundary": boundary},
        draw=lambda figure: draw(figure, sprung, synchronous, boundary, name),
        data=name,
    )


def claim(sprung: dict, synchronous: float, boundary: dict) -> str:
    """What the numbers say."""
    alpha = max((a for a in sprung if a), key=lambda a: sprung[a].centre)
    best = sprung[alpha]
    off = max(abs(found / stable_up_to(eta) - 1) for eta, found in boundary.items())
    is_better = "more" if best.centre > max(best.workers) else "not more"
    return (
        f"The centre counts: with α = {alpha:g} it was right on {best.centre:.1%} of the test "
        f"images, {is_better} than the best of {len(best.workers)} workers "
        f"({max(best.workers):.1%}; {statistics.mean(best.workers):.1%} on average). Without a "
        f"spring a worker came to {statistics.mean(sprung[0.0].workers):.1%}. In the same time, "
        "with messages as long as a gradient, the synchronous rule came to "
        f"{synchronous:.1%}. On a parabola the spring that is too strong was found within "
        f"{off:.2%} of the paper's (4 - 2η) / (4 - η), at {len(boundary)} rates."
    )


def draw(figure, sprung: dict, synchronous: float, boundary: dict, name: str) -> None:
    """Accuracies against the spring; and the limit of its strength."""
    left, right = figure.subplots(1, 2)
    alphas = list(sprung)
    places = range(len(alphas))
    left.plot(
        [place for place in places if alphas[place]],
        [sprung[alpha].centre for alpha in alphas if alpha],
        "o-",
        color="#1f6fb4",
        label="the centre",
    )
    for place, alpha in zip(places, alphas, strict=True):
        own = sprung[alpha].workers
        label = "each worker" if place == 0 else None
        left.plot([place] * len(own), own, ".", color="#d9731a", alpha=0.5, label=label)
    left.axhline(synchronous, color="#9a9a9a", linewidth=1, label="synchronous, in the same time")
    left.set_xticks(places, [f"{alpha:g}" for alpha in alphas])
    left.set(xlabel="α, how far a pull goes", title=f"accuracy ({name})")
    left.legend(frameon=False, fontsize=8)
    etas = [step / 50 for step in range(101)]
    right.plot(etas, [stable_up_to(eta) for eta in etas], color="black", label="(4 - 2η) / (4 - η)")
    right.plot(boundary.keys(), boundary.values(), "o", color="#c0392b", label="found by trying")
    right.set(xlabel="η · curvature", ylabel="α", title="the spring that is too strong, on x²/2")
    right.legend(frameon=False, fontsize=8)
    for axes in (left, right):
        axes.title.set(fontsize=9)


LESSON = lesson.Lesson("elastic_averaging", QUESTION, run)
