"""The next batch made while a step is at work."""

import concurrent.futures
from collections.abc import Iterable, Iterator

from towers.runs import placement

_END = object()


def taken_ahead(batches: Iterable) -> Iterator:
    """The same batches; while one is used, a thread takes the next.

    An error of the batches comes in its place, after those before it.
    """
    source = iter(batches)

    @placement.on_host  # a thread does not inherit it from the one that starts it
    def following():
        return next(source, _END)

    with concurrent.futures.ThreadPoolExecutor(1, "batches") as thread:
        ahead = thread.submit(following)
        while (batch := ahead.result()) is not _END:
            ahead = thread.submit(following)
            yield batch
