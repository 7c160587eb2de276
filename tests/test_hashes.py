"""What a hash of arrays tells apart."""

import numpy as np

from towers import hashes


def test_hash_is_of_values_types_shapes_and_order():
    a, b = np.arange(4, dtype=np.float32), np.ones(2, np.float32)
    different = [[a, b], [b, a], [a], [a[None], b], [a.view(np.int32), b], [np.nextafter(a, 9), b]]
    result = [hashes.sha256(values) for values in different]
    assert len(set(result)) == len(result) and len(result[0]) == 64
    assert hashes.sha256([a[::-1][::-1], b.copy()]) == result[0]
    combined = [hashes.sha256_of_parts({"a": x, "b": y}) for x, y in ("12", "21", "11")]
    assert len(set(combined)) == 3 and len(combined[0]) == 64
