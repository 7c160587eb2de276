"""Runs of several seeds have nothing in common: no kernel's values come back in another one."""

import hashlib
import itertools

import numpy as np
import pytest

from towers import networks
from towers.networks import seeds

SHAPES = {
    "cifarnet": (24, 24, 3),
    "resnet": (32, 32, 3),
    "fastnet": (32, 32, 3),
    "resnet50": (32, 32, 3),
}
VALUES = 2000  # of each kernel at most


def drawn_values(model) -> dict[str, np.ndarray]:
    """The first values of each kernel in the order they were drawn in; NaN at those that were not.

    `fastnet` writes zeros and ones over some filters, and over all of a kernel's where it has no
    more filters than channels: such a kernel is left out.
    """
    kernels = {v.path: v.numpy() for v in model.trainable_variables if v.name == "kernel"}
    flat = {path: kernel.ravel()[:VALUES].astype(np.float64) for path, kernel in kernels.items()}
    drawn = {path: np.where(np.isin(v, (0.0, 1.0)), np.nan, v) for path, v in flat.items()}
    return {path: values for path, values in drawn.items() if not np.isnan(values).all()}


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Of the places where both have drawn values; the same draws at another scale give 1."""
    length = min(len(a), len(b))
    a, b = a[:length], b[:length]
    both = ~(np.isnan(a) | np.isnan(b))
    assert both.sum() >= 100
    return abs(np.corrcoef(a[both], b[both])[0, 1])


def assert_nothing_shared(values: dict) -> None:
    for one, other in itertools.combinations(values, 2):
        assert correlation(values[one], values[other]) < 0.5, f"{one} and {other} share draws"


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n == "cifarnet" else pytest.mark.long) for n in networks.NETWORKS],
)
def test_no_kernel_of_ten_seeds_has_the_values_of_another(name):
    values = {
        (seed, path): drawn
        for seed in range(10)
        for path, drawn in drawn_values(networks.build(name, SHAPES[name], 10, seed=seed)).items()
    }
    assert len(values) == 10 * {"cifarnet": 5, "resnet": 22, "fastnet": 3, "resnet50": 54}[name]
    assert_nothing_shared(values)


def test_a_layers_seed_is_31_bits_of_a_hash_of_seed_and_name():
    digest = hashlib.sha256(b"3/conv1").hexdigest()
    assert seeds.of_layer(3, "conv1") == int(digest[:8], 16) // 2
    assert len({seeds.of_layer(s, f"layer{n}") for s in range(10) for n in range(100)}) == 1000
