"""One model's accuracy on each node's share of the test images: how far apart chance puts them."""

import math
from typing import NamedTuple

import towers  # noqa: F401  before Keras: it sets TensorFlow up
from laboratory import data, findings, race
from lessons import lesson

import numpy as np  # isort: skip

QUESTION = "Each node reports a different validation accuracy"
NODES = (2, 4, 8, 16)
BATCH = 800  # of an evaluation; the last one is not full, so nodes have unequal shares
EXAMPLES = 150_000
SORTED_NODES = 8
Z = 1.96  # standard deviations on each side that hold 95 % of a normal distribution


class Share(NamedTuple):
    """What one node reports: how many examples it evaluated, and the share that was right."""

    count: int
    accuracy: float


def run(setup: findings.Setup, *, examples=EXAMPLES) -> findings.Finding:
    """Trains one model and evaluates it as a whole and by shares."""
    images = data.load(setup)
    model = race.model(race.Entry(64, 0.05))
    model.fit(images.training_batches(64, examples // 64), shuffle=False, verbose=0)
    right, labels = race.right(model, images), images.test.labels
    whole = share(right)
    of_nodes = {nodes: shares(right, nodes) for nodes in NODES}
    in_a_row = np.array_split(right[np.argsort(labels, kind="stable")], SORTED_NODES)
    return finding(whole, of_nodes, list(map(share, in_a_row)), images.name)


def shares(right: np.ndarray, nodes: int) -> list[Share]:
    """Each node's accuracy on its own part of every batch."""
    of_nodes = np.arange(len(right)) % BATCH * nodes // BATCH
    return [share(right[of_nodes == node]) for node in range(nodes)]


def share(right: np.ndarray) -> Share:
    """The share of the examples that is right, and their number."""
    return Share(len(right), float(right.mean()))


def interval(share: Share) -> tuple[float, float]:
    """Where the accuracy on unlimited images of this kind lies, with 95 % confidence.

    Wilson 1927 (Journal of the American Statistical Association 22, page 209); unlike the
    textbook's `p +- z sqrt(p (1 - p) / n)` it never leaves [0, 1].
    """
    n, p = share
    middle = (p + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * math.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
    return middle - half, middle + half


def spread_by_chance(of_nodes: list[Share], whole: Share) -> float:
    """The standard deviation of the nodes' accuracies if examples are dealt out at random.

    `sqrt(p (1 - p) / n)` for n examples, times `sqrt((N - n) / (N - 1))`, because they are drawn
    from N without replacement.
    """
    variances = [
        whole.accuracy * (1 - whole.accuracy) / n * (whole.count - n) / (whole.count - 1)
        for n, _ in of_nodes
    ]
    return math.sqrt(sum(variances) / len(variances))


def spread(of_nodes: list[Share], whole: Share) -> float:
    """The root mean square of the nodes' distances from the overall accuracy."""
    squares = [(share.accuracy - whole.accuracy) ** 2 for share in of_nodes]
    return math.sqrt(sum(squares) / len(squares))


def together(of_nodes: list[Share]) -> float:
    """The accuracy of all nodes together: right answers divided by answers."""
    return sum(n * p for n, p in of_nodes) / sum(n for n, _ in of_nodes)


def finding(whole: Share, of_nodes: dict, of_sorted: list[Share], name: str) -> findings.Finding:
    """The table and the answer."""
    most = max(of_nodes)
    held, chance = spread(of_nodes[most], whole), spread_by_chance(of_nodes[most], whole)
    rows = [
        row(f"{nodes}, examples mixed", shares, whole) for nodes, shares in of_nodes.items()
    ] + [row(f"{len(of_sorted)}, sorted by class", of_sorted, whole)]
    return findings.Finding(
        head=(
            "nodes", "examples per node", "lowest", "highest", "spread", "spread by chance",
            "intervals that contain the overall accuracy", "overall accuracy",
        ),
        rows=rows,
        answer=answer(held, chance),
        numbers={"whole": whole, "of_nodes": of_nodes, "of_sorted": of_sorted},
        draw=lambda figure: draw(figure, whole, of_nodes, of_sorted),
        data=name,
    )  # fmt: skip


def answer(held: float, chance: float) -> str:
    """In one sentence, from how far nodes are apart, and how far chance puts them."""
    if held < 2 * chance:
        return (
            "Because each node evaluates different images: it is one model, measured on several "
            "small samples, and the accuracy to report is the right answers of all nodes divided "
            "by all their answers."
        )
    return "Not by chance alone: the nodes were farther apart than samples from one model are."


def row(what: str, shares: list[Share], whole: Share) -> list[str]:
    """One row of the table."""
    fewest, most = (extreme(n for n, _ in shares) for extreme in (min, max))
    return [
        what,
        f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}",
        f"{min(share.accuracy for share in shares):.2%}",
        f"{max(share.accuracy for share in shares):.2%}",
        f"{spread(shares, whole):.2%}",
        f"{spread_by_chance(shares, whole):.2%}",
        f"{covering(shares, whole)} of {len(shares)}",
        f"{together(shares):.2%}",
    ]


def covering(shares: list[Share], whole: Share) -> int:
    """How many nodes' intervals contain the overall accuracy."""
    return sum(low <= whole.accuracy <= high for low, high in map(interval, shares))


def draw(figure, whole: Share, of_nodes: dict, of_sorted: list[Share]) -> None:
    """Each node's accuracy with its interval, in groups, and a line for the overall accuracy."""
    axes = figure.subplots()
    groups = [(f"{nodes} nodes", shares) for nodes, shares in of_nodes.items()]
    groups.append((f"{len(of_sorted)} nodes,\nsorted by class", of_sorted))
    place, middles = 0, []
    for _, shares in groups:
        places = range(place, place + len(shares))
        bars = np.array([[p - interval(s)[0], interval(s)[1] - p] for s in shares for p in [s[1]]])
        colour = "#d55e00" if shares is of_sorted else "#0072b2"
        axes.errorbar(
            places, [100 * s.accuracy for s in shares], 100 * bars.T, fmt="o", color=colour,
            capsize=2, markersize=4,
        )  # fmt: skip
        middles.append(place + (len(shares) - 1) / 2)
        place += len(shares) + 2
    axes.axhline(100 * whole.accuracy, color="black", linewidth=1)
    axes.set_xticks(middles, [name for name, _ in groups])
    axes.tick_params(axis="x", length=0)
    axes.set(
        ylabel="accuracy, %",
        title="One model on each node's share of the test images, with 95 % intervals "
        "(line: on all of them)",
    )


LESSON = lesson.Lesson("final_model", QUESTION, run)
