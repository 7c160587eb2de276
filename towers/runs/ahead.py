"""Batches made while steps are at work."""

import collections
import concurrent.futures
from collections.abc import Iterable, Iterator

from towers.runs import placement

_END = object()
# A copy to a GPU waits for all that the GPU was given to compute before (TensorFlow 2.21,
# gpu_util.cc), so a batch whose copy begins during one step can be there for the second after it.
_BATCHES_AHEAD = 2


def taken_ahead(batches: Iterable) -> Iterator:
    """The same batches; while one is used, a thread takes the next two.

    An error of the batches comes in its place, after those before it.
    """
    source = iter(batches)

    @placement.on_host  # a thread does not inherit it from the one that starts it
    def following():
        return next(source, _END)

    thread = concurrent.futures.ThreadPoolExecutor(1, "batches")
    try:
        ahead = collections.deque(thread.submit(following) for _ in range(_BATCHES_AHEAD))
        while (batch := ahead.popleft().result()) is not _END:
            ahead.append(thread.submit(following))
            yield batch
    finally:
        thread.shutdown(cancel_futures=True)
