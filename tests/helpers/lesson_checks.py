"""What holds of every lesson's finding, and findings that are there in a few seconds."""

import importlib
from pathlib import Path

import pytest

from laboratory import findings

# Smaller numbers for the constants that take most of the time of a lesson's short version. They
# show that the lesson runs; its claims need the short version's own numbers (`make test-all`).
GLANCES = {
    "averaging": {
        "IN_SHORT": {"steps": 2, "epochs": 1, "examples": 128},
        "SEEDS": (0,),
    },
    "batch_size": {
        "IN_SHORT": {
            "accuracy": 0.5,
            "at_most": 3_000,
            "rates": {128: (0.2,), 1024: (0.4,)},
            "steps_before_noise": 6,
            "gap": {"examples": 100, "loss": 2.4, "at_most": 2_000},
        },
        "SEEDS": (0,),
        "BATCHES_FOR_NOISE": 1,
        "TURNS": 1,
    },
    "elastic_averaging": {
        "IN_SHORT": {
            "workers": 2,
            "rate": 0.2,
            "time": 12.0,
            "pulls": (0, 1),
            "periods": (8,),
            "seeds": (0,),
        },
        "ETAS": (0.6, 1.0),
        "HALVINGS": 2,
    },
    "memory": {"IN_SHORT": {"steps": 10}, "BATCH": 8},
    "scaling": {
        "IN_SHORT": {
            "towers": (1, 4),
            "rules": ("fixed", "linear"),
            "accuracy": 0.6,
            "at_most": 2_100,
        },
        "SEEDS": (0,),
    },
    "synchronous_or_not": {
        "IN_SHORT": {
            "workers": 2,
            "accuracy": 0.4,
            "at_most": 5.0,
            "rates": {"synchronous": (0.2,), "asynchronous": (0.05,)},
            "settings": ("equal workers", "one straggler"),
            "seeds": (0,),
        }
    },
    "train_and_test_loss": {
        "IN_SHORT": {"examples": 64, "epochs": 4, "between_evaluations": 2},
        "TEST_EXAMPLES": 100,
        "SEEDS": (0,),
    },
    "where_time_goes": {"BATCH": 8, "DEVICE_BATCH": 32},
}


def glance(name: str) -> findings.Finding:
    """What a lesson finds where it does as little as it can."""
    lesson = importlib.import_module(f"lessons.{name}")
    with pytest.MonkeyPatch.context() as patch:
        for constant, value in GLANCES.get(name, {}).items():
            patch.setattr(lesson, constant, value)
        return lesson.LESSON.run(findings.Setup(short=True))


def check_finding(finding: findings.Finding, folder: Path) -> None:
    """Tables whose rows are as long as their heads, an answer, a claim, a plot that is drawn."""
    given = ((finding.head, finding.rows), *finding.more)
    for (head, rows), text in zip(given, finding.table().split("\n\n"), strict=True):
        lines = text.splitlines()
        assert len(lines) == len(rows) + 2
        assert {line.count("|") for line in lines} == {len(head) + 1}
    assert len(finding.claim) > 100
    assert len(finding.answer) > 40 and finding.answer.endswith(".")
    findings.save(finding, folder / "plot.png")
    assert (folder / "plot.png").stat().st_size > 10_000
