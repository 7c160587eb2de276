"""The benchmark of microbatches at a time."""

import argparse

from benchmarks import at_once
from benchmarks.peers import task_sizes


def test_a_row(monkeypatch):
    monkeypatch.setitem(task_sizes.BATCHES, "cifarnet", 8)
    limits = []
    new = at_once.towers.Trainer

    def trainer(*arguments, **options):
        limits.append(new(*arguments, **options))
        return limits[-1]

    monkeypatch.setattr(at_once.towers, "Trainer", trainer)
    row = at_once.measure("cifarnet", "float32", argparse.Namespace(rounds=2, seconds=0.01))
    without, limited = (each.program.tower_program.at_once for each in limits)
    assert without is None
    assert limited >= 1
    assert len(row["every_round"]) == 2
    assert min(row["every_round"]) > 0.0
    given = {"images_per_second": {"all": 1234, "some": 2468}, "to_all": 2.0}
    assert at_once.as_row(row | given | {"every_round": [1.9, 2.1]}) == (
        "| cifarnet | float32 | 1,234 | 2,468 | 2.00 (1.90–2.10) |"
    )
