"""Parts of a step's graph that XLA compiles to one program each.

On a GPU, a small operation takes longer to launch than to run; a program is one launch.
"""

import functools
from collections.abc import Callable

import tensorflow as tf


def runner(wanted: bool, given) -> Callable:
    """What runs a function while a graph is built, on the current device, as `run(f, *arguments)`.

    Args:
      wanted: whether XLA compiles the function. The tensors and variables that it uses become
        arguments of its program; the variables are on its device.
      given: the tensors that the function works on, in any structure. With `tf.IndexedSlices` among
        them it is not compiled: the number of their rows differs from step to step, and XLA would
        compile it anew for each number.
    """
    is_sparse = any(isinstance(value, tf.IndexedSlices) for value in tf.nest.flatten(given))
    return _compile if wanted and not is_sparse else _build


def _compile(function: Callable, *arguments):
    name = function.__name__.strip("_")
    with tf.name_scope(name):
        program = functools.partial(function, *arguments)
        return tf.function(program, autograph=False, jit_compile=True)()


def _build(function: Callable, *arguments):
    return function(*arguments)
