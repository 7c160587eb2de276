"""Hashes of arrays, by which runs and workers are compared."""

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np

_BYTES = 2**24  # hashed at a time


def sha256(values: Iterable) -> str:
    """Hash over the dtype, shape and bytes of arrays, in order; 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for array in map(np.asarray, values):
        digest.update(f"{array.dtype}{array.shape}".encode())
        rows = np.atleast_1d(array)
        count = max(1, _BYTES * len(rows) // max(1, rows.nbytes))
        for first in range(0, len(rows), count):  # a large one is not copied whole
            digest.update(rows[first : first + count].tobytes())
    return digest.hexdigest()


def sha256_of_parts(parts: Mapping[str, str]) -> str:
    """One hash over those of a state's parts, in their order."""
    return hashlib.sha256("".join(parts.values()).encode()).hexdigest()
