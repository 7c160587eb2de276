"""Hashes of arrays, by which runs and workers are compared."""

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np


def sha256(values: Iterable) -> str:
    """Hash over the dtype, shape and bytes of arrays, in order; 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for array in map(np.asarray, values):
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.hexdigest()


def sha256_of_parts(parts: Mapping[str, str]) -> str:
    """One hash over those of a state's parts, in their order."""
    return hashlib.sha256("".join(parts.values()).encode()).hexdigest()
