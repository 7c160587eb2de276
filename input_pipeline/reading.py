"""Reading ahead, and when it ends."""

import atexit
import weakref

import tensorflow as tf


class Reading:
    """An iterator over a data set that calls Python; it ends before Python does.

    A TensorFlow thread that reads ahead, and calls Python while Python ends, aborts the process or
    waits forever, even if the program stopped reading long before.
    """

    def __init__(self, dataset: tf.data.Dataset):
        self._iterator = iter(dataset)
        _open.add(self)

    def __iter__(self) -> "Reading":
        return self

    def __next__(self):
        return next(self._iterator)


_open: weakref.WeakSet[Reading] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for reading in list(_open):
        reading._iterator = iter(())  # lets the data set go, and ends its threads
