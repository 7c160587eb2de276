"""Runs of several seeds have nothing in common: no kernel's values come back in another one."""

import numpy as np
import pytest

from towers import networks


def drawn(kernel) -> tuple:
    """The first draws of a kernel, at any scale; `fastnet` overwrites those of a diagonal."""
    values = kernel.numpy().ravel().astype(np.float64)
    values = values[~np.isin(values, (0.0, 1.0))][:9]
    return tuple(np.round(values / np.linalg.norm(values), 6))


@pytest.mark.parametrize("name", ["cifarnet", "resnet", "fastnet"])
def test_no_kernel_of_several_seeds_has_the_values_of_another(name):
    kernels = [
        weight
        for seed in range(3)
        for weight in networks.build(name, (32, 32, 3), 10, seed=seed).trainable_variables
        if weight.name == "kernel"
    ]
    draws = [values for values in map(drawn, kernels) if values]
    assert len(set(draws)) == len(draws) >= 9
