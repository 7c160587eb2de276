"""EASGD: workers on springs. How strong may a spring be, and which model should be kept?"""

import functools
import statistics
from typing import NamedTuple

from laboratory import data, findings, network, problems, race, rules, simulation, speeds
from lessons import lesson

QUESTION = (
    "What about elastic averaging? Each worker then has a model of its own: which one counts?"
)
WORKERS, BATCH, RATE, PERIOD = 16, 16, 0.1, 8
MESSAGE, TIME, SEEDS = 1.0, 320.0, (0, 1, 2)
# α in units of the paper's own choice, 0.9 / k.
PULLS = (0, 0.2, 1, 3, 8)
PERIODS = (1, 8, 32)  # steps between two pulls, with the paper's α
# For the stability on a parabola. Why the number of workers is odd: see `stable_up_to`.
ROUND_ROBIN, ETAS = 3, (0.2, 0.6, 1.0, 1.4, 1.8)
ROUNDS, HALVINGS = 1_500, 12


class Sprung(NamedTuple):
    """What a run with a spring led to; for several seeds, the means.

    centre: accuracy of the centre.
    workers: accuracy of what each worker held.
    mean: accuracy of the mean of what they held.
    distance: of the workers from the centre.
    """

    centre: float
    workers: list[float]
    mean: float
    distance: float


def run(
    setup: findings.Setup,
    *,
    workers=WORKERS,
    rate=RATE,
    time=TIME,
    pulls=PULLS,
    periods=PERIODS,
    seeds=SEEDS,
    etas=ETAS,
) -> findings.Finding:
    """Trains with springs of several strengths, and finds the strength that is too much."""
    images = data.load(setup)
    problem_of = {
        seed: network.Network(
            functools.partial(race.network, seed), images, BATCH, seed=seed, test_batches=10
        )
        for seed in seeds
    }
    springs = [(pull, PERIOD) for pull in pulls]
    springs += [(1, period) for period in periods if period != PERIOD]
    calls = [
        functools.partial(
            of_spring, problem_of[seed], workers, rate, time, 0.9 / workers * pull, period
        )
        for pull, period in springs
        for seed in seeds
    ]
    rates = (rate, 2 * rate)
    calls += [
        functools.partial(of_synchronous, problem_of[seed], workers, one, time)
        for one in rates
        for seed in seeds
    ]
    done = iter(race.side_by_side(calls))
    of_spring_s = {spring: [next(done) for _ in seeds] for spring in springs}
    synchronous = max(statistics.mean(next(done) for _ in seeds) for _ in rates)
    boundary = {eta: unstable_from(eta, ROUND_ROBIN) for eta in etas}
    of_pull = {pull: of_spring_s[pull, PERIOD] for pull in pulls}
    of_period = {period: of_spring_s[1, period] for period in periods}
    return finding(of_pull, of_period, workers, synchronous, boundary, images.name)


def of_spring(problem, workers: int, rate: float, time: float, alpha: float, period: int) -> Sprung:
    """The result of EASGD with a pull every `period` steps."""
    rule = rules.EASGD(rate, alpha, period)
    end = end_of("easgd", rule, problem, workers, time)
    held = list(rule.cluster.holds.values())
    return Sprung(
        end.accuracy,
        [problem.evaluate(weights).accuracy for weights in held],
        problem.evaluate(rules.mean(held)).accuracy,
        end.distance,
    )


def end_of(name: str, rule: rules.Rule, problem, workers: int, time: float) -> simulation.Point:
    """Where a rule is after this time, with equal workers."""
    equal = speeds.Speeds("constant", workers)
    run = simulation.run(name, rule, problem, equal, until=time, message=MESSAGE, measurements=1)
    return run.end


def mean_of(of_seeds: list[Sprung]) -> Sprung:
    """Means over the seeds; for the workers, the mean of each worker."""
    mean = statistics.mean
    return Sprung(
        mean(one.centre for one in of_seeds),
        [mean(of) for of in zip(*(one.workers for one in of_seeds), strict=True)],
        mean(one.mean for one in of_seeds),
        mean(one.distance for one in of_seeds),
    )


def of_synchronous(problem, workers: int, rate: float, time: float) -> float:
    """The accuracy of the synchronous rule after the same time."""
    return end_of("synchronous", rules.Synchronous(rate), problem, workers, time).accuracy


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
    """The α beyond which the centre diverges, found by halving [0, 1.5] HALVINGS times."""
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


def finding(
    of_pull: dict, of_period: dict, workers: int, synchronous: float, boundary: dict, name: str
) -> findings.Finding:
    """The tables and the claim.

    Args:
      of_pull: α in units of the paper's to a `Sprung` for each seed.
      of_period: steps between two pulls to the same, with the paper's α.
      workers: their number.
      synchronous: the synchronous rule's accuracy, at the better rate.
      boundary: η to the α beyond which it is unstable.
      name: of the images.
    """
    sprung = {pull: mean_of(of_seeds) for pull, of_seeds in of_pull.items()}
    better = {pull: centre_against_mean(of_seeds) for pull, of_seeds in of_pull.items() if pull}

    off = max(abs(limit / stable_up_to(eta) - 1) for eta, limit in boundary.items())

    def cells(one: Sprung, of_seeds: list[Sprung], has_spring: bool) -> list[str]:
        against = [100 * (seed.centre - seed.mean) for seed in of_seeds]
        return [
            f"{one.centre:.1%}" if has_spring else "stays where it was",
            f"{statistics.mean(one.workers):.1%}",
            f"{max(one.workers):.1%}",
            f"{one.mean:.1%}",
            f"{min(against):+.1f} to {max(against):+.1f}" if has_spring else "",
            f"{one.distance:.2f}",
        ]

    models = (
        "the centre", "a worker", "the best worker", "mean of the workers",
        "centre minus mean, points", "distance",
    )  # fmt: skip
    return findings.Finding(
        head=(f"α, a pull every {PERIOD} steps", *models),
        rows=[
            [
                f"{0.9 / workers * pull:.3f}" if pull else "0: no spring",
                *cells(one, of_pull[pull], bool(pull)),
            ]
            for pull, one in sprung.items()
        ],
        more=[
            (
                (f"steps between pulls, α = {0.9 / workers:.3f}", *models),
                [
                    [str(period), *cells(mean_of(of_seeds), of_seeds, True)]
                    for period, of_seeds in of_period.items()
                ],
            )
        ],
        answer=answer(sprung, better),
        claim=(
            "The synchronous rule, in the same time with messages as long as a gradient, came to "
            f"{synchronous:.1%}. On a parabola, the α beyond which the spring is too strong was "
            f"within {off:.2%} of the paper's (4 - 2η) / (4 - η), at {len(boundary)} rates."
        ),
        numbers={
            "sprung": sprung,
            "periods": {period: mean_of(of_seeds) for period, of_seeds in of_period.items()},
            "synchronous": synchronous,
        },
        draw=lambda figure: draw(figure, sprung, workers, synchronous, boundary),
        data=name,
        runs=f"{len(next(iter(of_pull.values())))} seeds",
    )


def centre_against_mean(of_seeds: list[Sprung]) -> int:
    """1 where the centre beats the mean of the workers with every seed, -1 where it loses; or 0."""
    signs = {(one.centre > one.mean) - (one.centre < one.mean) for one in of_seeds}
    return signs.pop() if len(signs) == 1 else 0


def answer(sprung: dict, better: dict) -> str:
    """In one sentence, from which model was the most accurate with the paper's spring."""
    papers = sprung[1]
    if min(papers.centre, papers.mean) <= max(papers.workers):
        return "Not to be said here: a worker's own model was as accurate as the averages."
    which = {
        1: "the centre",
        0: "the centre or the mean of the workers' weights",
        -1: "the mean of the workers' weights",
    }[better[1]]
    return f"Export {which}, not a worker's own model."


def draw(figure, sprung: dict, workers: int, synchronous: float, boundary: dict) -> None:
    """Accuracies against the spring; and the limit of its strength."""
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    pulls = list(sprung)
    places = range(len(pulls))
    left.plot(
        [place for place in places if pulls[place]],
        [100 * sprung[pull].centre for pull in pulls if pull],
        "o-",
        color="#0072b2",
        label="the centre",
    )
    for place, pull in zip(places, pulls, strict=True):
        points = [100 * one for one in sprung[pull].workers]
        label = "each worker" if place == 0 else None
        left.plot([place] * len(points), points, ".", color="#d55e00", alpha=0.5, label=label)
    means = [100 * sprung[pull].mean for pull in pulls]
    left.plot(places, means, "s--", color="black", label="mean of the workers")
    left.axhline(100 * synchronous, color="#777777", linewidth=1, label="synchronous, same time")
    left.set_xticks(places, [f"{0.9 / workers * pull:.2g}" for pull in pulls])
    left.set(xlabel="α, how far a pull goes", title="test accuracy, %")
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    etas = [step / 50 for step in range(101)]
    right.plot(etas, [stable_up_to(eta) for eta in etas], color="black", label="(4 - 2η) / (4 - η)")
    right.plot(boundary.keys(), boundary.values(), "o", color="#d55e00", label="found by trying")
    right.set(xlabel="η · curvature", ylabel="α", title="the spring that is too strong, on x²/2")
    right.legend()


LESSON = lesson.Lesson("elastic_averaging", QUESTION, run)
