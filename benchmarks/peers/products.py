"""Products of large matrices, as fast as TensorFlow computes them: what a processor can do.

python -m benchmarks.peers.products COMPUTE_DTYPE

Its "images" are 10^6 multiplications, each with an addition.
"""

import argparse

import towers  # noqa: F401  before TensorFlow: it turns oneDNN on
from benchmarks.peers import counter
from towers import networks

import tensorflow as tf  # isort: skip

SIZE = 2048  # of the square matrices: 8 to 16 MB each


def main():
    """Multiplies until nobody listens."""
    parser = argparse.ArgumentParser()
    parser.add_argument("compute_dtype", choices=list(networks.DTYPE_POLICIES))
    options = parser.parse_args()
    a, b = (
        tf.cast(tf.random.stateless_normal([SIZE, SIZE], seed=[0, seed]), options.compute_dtype)
        for seed in (0, 1)
    )
    product = tf.function(tf.matmul)
    turn = counter.Counter()
    while True:
        product(a, b)
        turn.step_done(SIZE**3 // 10**6)


if __name__ == "__main__":
    main()
