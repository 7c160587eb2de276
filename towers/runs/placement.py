"""Where operations go that have no device of their own."""

import functools
from collections.abc import Callable

import tensorflow as tf

from towers import devices


def on_host(function: Callable) -> Callable:
    """A function whose operations are on the CPU where they have no device of their own.

    TensorFlow gives such an operation the first GPU, if there is one. What a run reads, counts and
    writes lies on the CPU, and would travel through that GPU and back.
    """

    @functools.wraps(function)
    def placed(*args, **kwargs):
        with tf.device(devices.HOST):
            return function(*args, **kwargs)

    return placed
