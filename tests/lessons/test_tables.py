"""Each lesson's tables and plot, of parts made by hand: beside its page, and number by number."""

import dataclasses
import importlib
import math
import re

import numpy as np
import plots
import pytest

import towers  # noqa: F401  before Keras: it sets TensorFlow up
from laboratory import problems, rules, simulation, speeds
from lessons import graph, learning_rate, losses, museum

HALF, MOST = np.arange(400) < 200, np.arange(400) < 300  # of the test images


# Each takes its lesson and returns a finding; for each table, how many first columns are the same
# in every run; and a row of it by hand, up to the interval of a difference.
def averaging_parts(averaging):
    compared = [name for name, way in averaging.ways().items() if way.right]
    gaps = {name: [0.5 * n] * (averaging.STEPS - 1) + [9.0] for n, name in enumerate(compared, 1)}
    right = dict.fromkeys(averaging.AT_EQUAL_EPOCHS, [HALF, MOST, MOST]) | {"1 GPU": [HALF] * 3}
    rows = "sum instead of mean | mean of two equal halves | 2 | 9"
    of_epochs = "4 GPUs, 4 times the rate | 128 | 0.2 | 66.7% (50.0% to 75.0%) | +16.7 "
    return averaging.finding(True, gaps, right, ""), (2, 3), (rows, of_epochs)


def batch_norm_parts(batch_norm):
    """A feature: means off by 1 to 4 deviations of 2, variances of twice as much, or half."""
    named = {f"tower {k}'s": (2.0 * k + 2, 8.0) for k in range(4)}
    named |= {batch_norm.MEAN: (1.0, 2.0), batch_norm.REESTIMATED: (0.0, 4.0)}
    named |= {batch_norm.WIDER: (1.0, 4.0)}
    right = dict.fromkeys(named, HALF) | {"tower 0's": MOST}
    named = {name: [np.full(1, of) for of in pair] for name, pair in named.items()}
    row = "tower 0's | 100.0% | 2.000 | 75.00% | +25.0 "
    return batch_norm.finding(right, named, {"gradients": True}, ""), (1,), (row,)


def batch_size_parts(batch_size):
    needed = {batch: [1_000.0 * batch * n for n in (1, 2, 6)] for batch in batch_size.RATES}
    needed[4096] = [1_000.0, None, None]
    runs = batch_size.Stopped(200, 0.5, HALF), batch_size.Stopped(900, 0.25, MOST)
    small, large = (entry.global_batch_size for entry in batch_size.GAP_ENTRIES)
    stopped = {small: [runs[0]] * 3, large: [runs[1]] * 3}
    # Batches of 16 need 48,000 on average; without noise it would be 48,000 / (1 + 16 / 600).
    noise, per_second = {0: 400.0, 32_000: math.inf, 96_000: 900.0}, dict.fromkeys(needed, 500.0)
    finding = batch_size.finding(needed, per_second, noise, stopped, batch_size.ACCURACY, "")
    rows = "64 | 500 | 192,000 (64,000–384,000) | 51,740 | 3,000 | 384.0"
    return finding, (1, 1), (rows, "1,024 | 900 | 0.25 | 75.0% | +25.0 ")


def elastic_averaging_parts(elastic_averaging):
    late = elastic_averaging.Sprung(0.75, [0.5, 0.375], 0.25, 4.0)
    seeds = [elastic_averaging.Sprung(0.5, [0.25, 0.375], 0.375, 2.0), late, late]
    pulls = {p: [s._replace(mean=s.mean - p / 64) for s in seeds] for p in elastic_averaging.PULLS}
    periods = dict.fromkeys(elastic_averaging.PERIODS, seeds)
    limits = {eta: elastic_averaging.stable_up_to(eta) for eta in elastic_averaging.ETAS}
    limits = {eta: 1.0002 * limit for eta, limit in limits.items()}
    finding = elastic_averaging.finding(pulls, periods, elastic_averaging.WORKERS, 0.38, limits, "")
    row = "66.7% | 39.6% | 41.7% | 29.2% | +12.5 to +50.0 | 3.33"
    strong = "0.169 | 66.7% | 39.6% | 41.7% | 24.5% | +17.2 to +54.7 | 3.33"
    return finding, (1, 1), (strong, f"32 | {row}")


def final_model_parts(final_model):
    right = np.arange(10_000) % 2 == 0
    of_nodes = {nodes: final_model.shares(right, nodes) for nodes in final_model.NODES}
    right_of_nodes = (0.25, 0.51) * (final_model.SORTED_NODES // 2)
    of_sorted = [final_model.Share(1_250, of) for of in right_of_nodes]
    finding = final_model.finding(final_model.share(right), of_nodes, of_sorted, "")
    row = "8, sorted by class | 1,250 | 25.00% | 51.00% | 17.69% | 1.32% | 4 of 8 | 38.00%"
    return finding, (2,), (row,)


def memory_parts(memory):
    counted = {point: memory.count(memory.make_pass(*point)) for point in memory.POINTS}
    measured = dict.fromkeys(counted, memory.Measured(3 * memory.MB, 4.0 * memory.MB))
    cosines = {128: {"a": 0.12, "b": 0.96}, 2_048: {"a": 0.16, "b": 0.73}}
    curves = {memory.GRADIENT: [9.0] * 190 + [1.69] * 10, memory.AT_MEAN: [2.3] * memory.STEPS}
    finding = memory.finding(counted, measured, cosines, curves, "")
    return finding, (4,), ("training | 1,024 | 479 | 544 | 3 | 4",)


def scaling_parts(scaling):
    of_k = {k: [1_000.0 * k, None, 500.0] for k in scaling.TOWERS} | {1: [100.0, 200.0, 300.0]}
    needed = {rule: of_k | {2: [1_000.0 * n] * 3} for n, rule in enumerate(scaling.RULES, 1)}
    finding = scaling.finding(needed, scaling.ACCURACY, 3, "")
    row = "linear | 200 (100–300) | 3,000 (3,000–3,000)" + " | 2 of 3 reached it" * 4
    return finding, (1,), (row,)


def synchronous_or_not_parts(synchronous_or_not):
    rule, of_workers = rules.Synchronous(0.2), speeds.Speeds()
    made = simulation.run("", rule, problems.Parabola(), of_workers, until=1)

    def run(time):
        """Is right from twice the time on, and has ten more examples at each time."""
        points = [simulation.Point(t, 10 * t, 1.0, t >= 2 * time, 0.0) for t in range(90)]
        return dataclasses.replace(made, points=points)

    keys = [(to, of) for to in synchronous_or_not.SETTINGS for of in synchronous_or_not.RATES]
    raced = dict.fromkeys(keys, [run(20), run(40), run(25)])
    raced["one straggler", "synchronous"] = [run(20), run(50), run(20)]
    row = "synchronous | 0.2 | 57 (40–80); 567 | 57 (40–80); 567 | not reached | 57 (40–80); 567"
    return synchronous_or_not.finding(raced, ["local_sgd"], 0.5, ""), (1,), (row,)


def train_and_test_loss_parts(train_and_test_loss):
    seen, averaged = problems.Measured(1.5, 0.25), problems.Measured(1.25, 0.375)
    points = [train_and_test_loss.Point(epoch, 0.5, seen, averaged) for epoch in (2, 4)]
    one = train_and_test_loss.Run(points, problems.Measured(0.75, 0.625), HALF)
    low = [points[0], points[1]._replace(shown=0.4)]
    runs = dict.fromkeys(train_and_test_loss.RUNS, [one] * len(train_and_test_loss.SEEDS))
    runs |= {"plain": [one._replace(points=low)] * 3, "distortions": [one._replace(right=MOST)] * 3}
    finding = train_and_test_loss.finding(runs, "")
    assert (finding.numbers["lowest"], finding.numbers["best"]) == ("plain", "distortions")
    assert finding.numbers["apart"].mean == 0.25
    row = "both | 0.50 | 0.75 | 62.5% | 1.50 | 25.0% | 1.25 | 37.5%"
    return finding, (1,), (row,)


def where_time_goes_parts(where_time_goes):
    step = where_time_goes.Step(1.0, compute=2.0, rest=1.0)
    launches = where_time_goes.Launches(4_879, 1.0, 15.7)
    inputs = where_time_goes.AHEAD, where_time_goes.SINGLE, where_time_goes.NONE_AHEAD
    behind = dict.fromkeys(inputs, {9.0: (step, 0.5), 11_016.0: (step, 0.5)})
    timed = dict.fromkeys(where_time_goes.TRAINED, where_time_goes.Timed(1, 4, 1.5))
    steps = {key: step._replace(update=float(n)) for n, key in enumerate(timed)}
    of_launches = dict.fromkeys(where_time_goes.SMALL_NETWORKS, launches)
    rates = dict(zip(inputs, (500.0, 400.0, 300.0), strict=True))
    finding = where_time_goes.finding(rates, behind, timed, steps, step, of_launches, "")
    row = "1 tower, one fixed batch | 1.0 | 2.0 | 1.0 | 4.0 | 50% | 150%"
    return finding, (1, 1), (row, "one time step after the other | 4,879 | 1 | 15.7")


def cells(line):
    return [re.sub(r"[\d,]+ images/s", "", cell).strip() for cell in line.strip("| ").split("|")]


def without_numbers(text):
    return re.sub(r"-?([\d.,]*\d|inf\b)", "", text)


@pytest.mark.parametrize("parts", [of for name, of in [*globals().items()] if "_parts" in name])
def test_tables_and_plot(parts):
    name = parts.__name__.removesuffix("_parts")
    finding, columns, rows = parts(lesson := importlib.import_module(f"lessons.{name}"))
    page = lesson.LESSON.page.read_text(encoding="utf-8")
    assert f"; {finding.runs}; " in page and without_numbers(finding.claim) in without_numbers(page)
    on_page = page.split("<!-- table -->\n")[1].split("\n<!-- end -->")[0].split("\n\n")
    tables = finding.table().split("\n\n")
    for table, shown, count, row in zip(tables, on_page, columns, rows, strict=True):
        (head, _, *lines), (head_shown, _, *lines_shown) = table.splitlines(), shown.splitlines()
        assert cells(head) == cells(head_shown)
        assert [cells(of)[:count] for of in lines] == [cells(of)[:count] for of in lines_shown]
        assert any(" | ".join(cells(line)).startswith(row) for line in lines)
    plots.check(name, finding.draw)


EVENTS = [graph.Event(*span) for span in ((0, 4, 0), (3, 6, 0), (8, 9, 1), (1, 2, None))]
EXHIBITS = [museum.Exhibit([n], "did", f"symptom {n}", "it", 1.0 * n, 2.0) for n in (1, 4, 8)]
PLOTS = {
    "graph": lambda figure: graph.draw(figure, EVENTS, EVENTS[::-2]),
    "learning_rate": learning_rate.draw,
    "losses": lambda figure: losses.draw(figure, np.arange(3), np.full(3, 0.5), np.arange(4, 7)),
    "museum": lambda figure: museum.draw(figure, EXHIBITS),
}


@pytest.mark.parametrize("name", PLOTS)
def test_plot(name):
    plots.check(name, PLOTS[name])
