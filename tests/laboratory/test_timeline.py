"""What the page of a race shows of each gradient, by hand; and that it is a page of its own."""

import itertools
import json

import plots

from laboratory import problems, rules, simulation, speeds, timeline


def run(name, until=3.0):
    rule, two = rules.RULES[name](rate=0.1), speeds.Speeds("constant", 2)
    return simulation.run(name, rule, problems.Parabola(), two, until=until, message=0.1)


def test_how_far_gradients_are_behind():
    """Both arrive at 1.2, one after the other; then each reads after its own update."""
    shown = timeline.as_json(run("asynchronous"))
    assert shown["updates"] == [1.2, 1.2, 2.4, 2.4]
    arrived = [(0, 0.1, 1.1, 0), (1, 0.1, 1.1, 1), (0, 1.3, 2.3, 1), (1, 1.3, 2.3, 1)]
    assert shown["work"] == [*arrived, (0, 2.5, 3.5, None), (1, 2.5, 3.5, None)]


def test_the_race_of_the_site_is_that_of_every_rule_at_every_speed():
    """Times do not depend on gradients: a parabola, which is fast to run, has the same."""
    race = json.loads(timeline.RACE.read_text("utf-8"))
    rates = " and ".join(map(str, timeline.RATES))
    assert f"batches of {timeline.BATCH}" in race["conditions"] and rates in race["conditions"]
    raced, parabola = {}, problems.Parabola(0.01)
    parabola.batch = timeline.BATCH
    for pair in itertools.product(rules.RULES, speeds.SPEEDS):
        raced[pair] = shown = race["runs"][" ".join(pair)]
        run = json.loads(json.dumps(timeline.as_json(timeline.run(parabola, *pair, shown["rate"]))))
        times = [[time for time, *_ in one["points"]] for one in (run, shown)]
        if not shown["diverged"]:  # a parabola does not
            assert times[0] == times[1] and run | {"points": 0} == shown | {"points": 0}
    settings = timeline.WORKERS, timeline.UNTIL, timeline.MESSAGE, race["conditions"]
    assert timeline.race_of(raced, *settings) == race
    plots.check("race", lambda figure: timeline.draw(figure, raced))


def test_a_page_has_its_data_and_a_colour_for_late_gradients():
    race = timeline.race_of({("easgd", "jitter"): {}}, 2, 3.0, 0.1, "</script>")
    text = timeline.page(race)
    data = text.split("const DATA = ")[1].split(";")[0]
    assert "</script>" not in data and json.loads(data) == race
    fresh = {timeline.colour(behind, drops) for behind in (None, 0) for drops in (True, False)}
    assert len(fresh | {timeline.colour(1, True), timeline.colour(1, False)}) == len(fresh) + 2 == 3
