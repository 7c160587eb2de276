"""Parameters of tests that have many: every session takes some combinations, a long one all."""

import itertools
from collections.abc import Collection, Iterable

import pytest


def crossed(*choices: Iterable, often: Collection[tuple]) -> list:
    """Every combination of the choices, for `parametrize`; those not in `often` are long."""
    combinations = list(itertools.product(*choices))
    unknown = [combination for combination in often if combination not in combinations]
    assert not unknown, unknown
    return [
        pytest.param(*combination, marks=() if combination in often else pytest.mark.long)
        for combination in combinations
    ]
