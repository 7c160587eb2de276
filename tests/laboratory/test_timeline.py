"""What the page of a race shows of each gradient, by hand; and that it is a page of its own."""

import json

import pytest

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


@pytest.mark.parametrize("name", rules.RULES)
def test_every_rule_has_a_time_line(name):
    result = run(name, until=10.0)
    shown = timeline.as_json(result)
    assert len(shown["work"]) == result.began
    assert len(shown["updates"]) == result.updates
    late = [behind for *_, behind in shown["work"]]
    assert (any(behind is not None for behind in late)) == shown["sends"]
    assert sum(behind is not None and behind > 0 for behind in late) >= result.dropped


def test_the_race_of_the_site_has_every_rule_at_every_speed():
    race = json.loads(timeline.RACE.read_text("utf-8"))
    pairs = {f"{rule} {speed}" for rule in rules.RULES for speed in speeds.SPEEDS}
    assert set(race["runs"]) == pairs
    assert set(race) == set(timeline.race_of({}, 2, 3.0, 0.1, ""))
    expected = set(timeline.as_json(run("synchronous")))
    assert all(set(shown) == expected for shown in race["runs"].values())


def test_a_page_has_its_data_and_a_colour_for_late_gradients():
    race = timeline.race_of({("easgd", "jitter"): {}}, 2, 3.0, 0.1, "</script>")
    text = timeline.page(race)
    data = text.split("const DATA = ")[1].split(";")[0]
    assert "</script>" not in data and json.loads(data) == race
    fresh = {timeline.colour(behind, drops) for behind in (None, 0) for drops in (True, False)}
    assert len(fresh | {timeline.colour(1, True), timeline.colour(1, False)}) == len(fresh) + 2 == 3
