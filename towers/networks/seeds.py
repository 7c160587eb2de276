"""A seed for each layer of a network, so that no two layers of any two runs begin alike.

A Keras initializer with an integer seed is a pure function of that seed. Seeds that count up from
the run's would give layer 2 of run 0 the values of layer 1 of run 1, and runs of several seeds
would not be independent.
"""

import hashlib


def derive(seed: int, layer: str) -> int:
    """The seed of a layer's initial values, in [0, 2**31): a hash of the run's and its name."""
    digest = hashlib.sha256(f"{seed}/{layer}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
