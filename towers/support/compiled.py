"""Parts of a step's graph that XLA compiles to one program each.

On a GPU, a small operation takes longer to launch than to run; a program is one launch.
"""

from collections.abc import Callable

import tensorflow as tf


def runner(wanted: bool, given) -> Callable[[Callable], object]:
    """What runs a function `f()` while a graph is built, on the current device.

    Args:
      wanted: whether XLA compiles the function. The tensors and variables that it uses become
        arguments of its program; the variables are on its device.
      given: the tensors that the function works on, in any structure. With `tf.IndexedSlices` among
        them it is not compiled: the number of their rows differs from step to step, and XLA would
        compile it anew for each number.
    """
    is_sparse = any(isinstance(value, tf.IndexedSlices) for value in tf.nest.flatten(given))
    return _compile if wanted and not is_sparse else _build


def _compile(function: Callable):
    return tf.function(function, autograph=False, jit_compile=True)()


def _build(function: Callable):
    return function()
