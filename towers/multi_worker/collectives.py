"""Several workers make one step: what each has computed becomes what all have.

TensorFlow's own collective operations run between workers, called as raw operations. Those of
`tf.distribute` send W - 1 times the gradients where 2 (W - 1) / W are enough, and TensorFlow 2.21
keeps something from each call (docs/workers.md).
"""

import contextlib
import functools
import json
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from towers import conditions, devices, errors, gradients, machine, packing, shares, worker
from towers.multi_worker import cluster, runtime

_SHORTEST_TEXT = 1024  # bytes of a message
_MARK, _LABEL_BYTES = "workers do different things", 64
_LINGER_SECONDS = 3.0  # after an error: a slower worker would take this one's end for the cause
_GROUP, _KEYS = 7001, range(2**20, 2**31, 2)  # int32; each with the one after it


@contextlib.contextmanager
def meet(
    members: cluster.Cluster | None = None, wait_seconds: float = 300.0
) -> Iterator[worker.Workers]:
    """The workers of a program, while it is within `with`.

    Only `towers.devices` may use TensorFlow before. Where another worker is gone or does not fit,
    the program ends with one line and an exit code that says whether to start all again.

    Args:
      members: who they are; None for those of TF_CONFIG, and for one worker where it names none.
      wait_seconds: how long to wait for the others to start.

    Raises:
      ValueError: TF_CONFIG has another form.
      SystemExit: in place of a WorkerError that was not caught.
    """
    members = members or cluster.from_tf_config()
    if members is None or len(members.addresses) == 1:
        yield worker.Workers()
        return
    try:
        with MultiWorker(members, wait_seconds) as workers:
            yield workers
    except errors.WorkerError as error:
        print(f"{os.path.basename(sys.argv[0])}: error: {error}", file=sys.stderr, flush=True)
        time.sleep(_LINGER_SECONDS)
        sys.exit(error.exit_code)


class MultiWorker(worker.Workers):
    """A run in several processes; `worker.Workers` documents the methods.

    Attributes:
      cluster: who the workers are.
    """

    def __init__(self, members: cluster.Cluster, wait_seconds: float):
        """Meets the others, and checks that all compute with the same software and hardware.

        Raises:
          WorkerError: one does not come, or differs.
        """
        self.cluster = members
        self.count, self.index = len(members.addresses), members.index
        self.is_chief = not self.index
        self._keys: dict[int, str] = {}
        runtime.connect(members, wait_seconds)
        with tf.device(devices.HOST):
            # Instance keys alternate between two sets from one call to the next. Every worker has
            # left a call when any of them is in the next but one, so no two calls can be confused.
            # A new key for each call would be safe too; TensorFlow keeps something for each.
            self._parity, self._asked, self._stop = (
                tf.Variable(0, trainable=False, name=name) for name in ("parity", "asked", "stop")
            )
            rows = tf.zeros([self.count, _LABEL_BYTES // 4 + 1], tf.int32)
            self._doing = tf.Variable(rows, trainable=False, name="doing")
        hardware = {"workers": list(members.addresses), "GPUs": machine.gpu_names()}
        worker.check_same(self, "what they run on", hardware | conditions.environment())

    def __exit__(self, _, error: BaseException | None, __) -> None:
        if error is None:
            self._begin_together("its end")
            # A process that ends cuts off its last answer, so each waits until all have had it.
            with contextlib.suppress(tf.errors.OpError), tf.device(devices.HOST):
                self._all_do("its end", self._next_parity())
            return
        code = error.code if isinstance(error, SystemExit) else getattr(error, "exit_code", 1)
        is_noticed = isinstance(code, int) and code >= 128  # a signal, or another worker's end
        if not (is_noticed or isinstance(error, KeyboardInterrupt)):
            runtime.report(self.index, str(error) or type(error).__name__)
        if isinstance(error, Exception) and not isinstance(error, errors.WorkerError):
            time.sleep(_LINGER_SECONDS)

    def name(self, index: int) -> str:
        return self.cluster.name(index)

    def join(
        self, sums: gradients.Sums, values: Sequence[tf.Tensor], split: shares.Shares
    ) -> tuple[list[gradients.Gradient], list[tf.Tensor]]:
        local_sums = {
            subtree: gradients.add_up(sums, subtree, gradients.add_weight_by_weight)
            for subtree in gradients.subtrees(split.microbatches(), split.num_microbatches)
        }
        packed = [packing.Packed([*map(_known, each)]) for each in local_sums.values()]
        # The rows of each sparse gradient, one after the other.
        totals = functools.reduce(gradients.add_weight_by_weight, local_sums.values())
        sparse = {n: g for n, g in enumerate(totals) if isinstance(g, tf.IndexedSlices)}
        types = packed[0].vectors
        count = sum(vector.shape.num_elements() for vector in types.values())
        parity = self._next_parity()
        # It waits for nothing, and so is done while the towers compute.
        all_do = self._all_do(f"a step with {count:,} gradients", parity)
        with tf.name_scope("workers"), tf.control_dependencies([all_do]):
            vectors = {
                dtype: self._sum([one.vectors[dtype] for one in packed], split, parity)
                for dtype in types
            }
            totals = packing.Packed(totals).unpacked(vectors)
            rows = [values for g in sparse.values() for values in (g.values, g.indices)]
            asked = tf.repeat(self._asked, len(split.microbatches()))
            *results, asked = self._gather_results([*values, *rows, asked], split, parity)
            self._stop.assign(tf.reduce_max(asked))
        gathered = iter(results[len(values) :])
        for n, gradient in sparse.items():
            totals[n] = tf.IndexedSlices(next(gathered), next(gathered), gradient.dense_shape)
        return totals, results[: len(values)]

    def _sum(self, vectors: Sequence[tf.Tensor], split: shares.Shares, parity) -> tf.Tensor:
        """Vectors [n] of this worker's subtrees, added up over all microbatches along the tree.

        Each worker adds up one share of all values, and then all exchange their shares: as few
        bytes as around a ring where a worker has one subtree, and the order of additions is ours.
        """
        worker_shares = map(split.microbatches, range(self.count))
        subtrees = [gradients.subtrees(one, split.num_microbatches) for one in worker_shares]
        most, n = max(map(len, subtrees)), vectors[0].shape.num_elements()
        share = -(-n // self.count)
        rows = tf.stack([tf.pad(vector, [[0, share * self.count - n]]) for vector in vectors])
        rows = tf.pad(rows, [[0, most - len(vectors)], [0, 0]])  # as many from each worker
        # [subtree of this worker, share of worker w] to worker w
        cut = tf.transpose(tf.reshape(rows, [most, self.count, share]), [1, 0, 2])
        group = self._group("shares", cut, parity)
        got = tf.ensure_shape(tf.raw_ops.CollectiveAllToAllV2(input=cut, **group), cut.shape)
        leaves = {
            subtree: vector
            for parts, received in zip(subtrees, tf.unstack(got), strict=True)
            for subtree, vector in zip(parts, tf.unstack(received), strict=False)
        }
        total = gradients.add_up(leaves, (0, split.num_microbatches), tf.add)
        return tf.reshape(self._gather("totals", total, parity), [-1])[:n]

    def _gather(self, use: str, vector: tf.Tensor, parity: tf.Tensor) -> tf.Tensor:
        """[workers, n, ...] of everyone's [n, ...]."""
        group = self._group(use, vector, parity)
        return tf.raw_ops.CollectiveGatherV2(input=vector[tf.newaxis], **group)

    def _group(self, use: str, values: tf.Tensor, parity: tf.Tensor) -> dict:
        """Who takes part, and an instance key that all have for this call and no other.

        A key must always be used with the same type and size, and is made from them.
        """
        wanted = f"{use} {values.dtype.name} {values.shape.num_elements()}"
        key = _KEYS[zlib.crc32(wanted.encode()) % len(_KEYS)]
        if self._keys.setdefault(key, wanted) != wanted:
            raise ValueError(f"{wanted!r} and {self._keys[key]!r} have the same key")
        return {
            "group_size": self.count,
            "group_key": _GROUP,
            "instance_key": key + parity,
            "ordering_token": [],
            "communication_hint": "ring",
        }

    def _next_parity(self) -> tf.Tensor:
        return self._parity.assign(1 - self._parity)

    def _gather_results(self, values, split, parity) -> list[tf.Tensor]:
        """Tensors of this worker's microbatches as those of all; they travel as one.

        Their first axis is the microbatches, or so many rows for each of them.
        """
        values = [tf.convert_to_tensor(value) for value in values]
        counts = [*map(len, map(split.microbatches, range(self.count)))]
        num_local = counts[self.index]
        words = [tf.reshape(_as_words(value), [num_local, -1]) for value in values]
        sent = tf.concat(words, axis=1)
        sent = tf.pad(sent, [[0, max(counts) - num_local], [0, 0]])  # as many from each worker
        got = tf.ensure_shape(self._gather("results", sent, parity), [self.count, *sent.shape])
        rows = zip(tf.unstack(got), counts, strict=True)
        whole = tf.concat([row[:count] for row, count in rows], axis=0)
        pieces = tf.split(whole, [word.shape[1] for word in words], axis=1)
        shapes = [[v.shape[0] // num_local * split.num_microbatches, *v.shape[1:]] for v in values]
        return [
            _from_words(tf.reshape(piece, [-1]), value.dtype, shape)
            for piece, value, shape in zip(pieces, values, shapes, strict=True)
        ]

    def ask_to_stop(self, signal_number: int | None) -> None:
        self._asked.assign(np.int32(signal_number or 0))

    def stop_asked(self) -> int | None:
        return int(self._stop) or None

    def broadcast(self, what: str, variables: Sequence[tf.Variable]) -> None:
        self._begin_together(what)
        with self.watched(), tf.device(devices.HOST):
            pieces = [_as_words(tf.convert_to_tensor(variable)) for variable in variables]
            words = tf.concat(pieces, axis=0)
            group = self._group("state", words, self._next_parity())
            del group["ordering_token"]
            if self.is_chief:
                tf.raw_ops.CollectiveBcastSendV2(input=words, **group)
                return
            words = tf.raw_ops.CollectiveBcastRecvV2(shape=tf.shape(words), T=tf.int32, **group)
            pieces = tf.split(words, [piece.shape[0] for piece in pieces])
            for variable, piece in zip(variables, pieces, strict=True):
                variable.assign(_from_words(piece, variable.dtype, variable.shape))

    def exchange(self, what: str, message: object) -> list:
        text = json.dumps(message).encode()
        longest = self._begin_together(what, len(text))
        # White space up to one of a few lengths: TensorFlow keeps something for each of them.
        text = text.ljust(max(_SHORTEST_TEXT, 1 << (longest - 1).bit_length()))
        with self.watched(), tf.device(devices.HOST):
            words = tf.constant(np.frombuffer(text, np.int32))
            rows = self._gather("texts", words, self._next_parity())
        return [json.loads(row.tobytes()) for row in rows.numpy()]

    def from_chief(self, what: str, make: Callable[[], object]) -> Any:
        self._begin_together(what)
        return self.exchange(what, make() if self.is_chief else None)[0]

    def _begin_together(self, what: str, size: int = 0) -> int:
        """The largest `size`; raises a WorkerError unless all workers are about to do the same."""
        with self.watched(), tf.device(devices.HOST):
            self._all_do(what, self._next_parity(), size)
        return int(self._doing.numpy()[:, -1].max())

    def _all_do(self, what: str, parity: tf.Tensor, size: int = 0) -> tf.Operation:
        """Fails unless all workers do the same; `watched` then names both sides.

        What each does travels in a call that is the same whatever they do; otherwise two would wait
        for each other forever.
        """
        label = np.frombuffer(what.encode().ljust(_LABEL_BYTES)[:_LABEL_BYTES], np.int32)
        rows = self._gather("what", tf.constant([*label, size]), parity)
        with tf.control_dependencies([self._doing.assign(rows)]):
            alike = tf.reduce_all(rows[:, :-1] == label)
            return tf.raw_ops.Assert(condition=alike, data=[_MARK])

    def _at_odds(self) -> errors.WorkerError:
        """What to raise where workers do different things."""
        rows = self._doing.numpy()[:, :-1]
        calls = [row.tobytes().decode(errors="replace").strip() for row in rows]
        other = next(index for index, call in enumerate(calls) if call != calls[self.index])
        return errors.WorkerError(
            f"{self.name(self.index)} is at {calls[self.index]!r}, and {self.name(other)} at "
            f"{calls[other]!r}: every worker must make the same calls in the same order"
        )

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        try:
            yield
        except tf.errors.InvalidArgumentError as error:  # of no other worker's
            if _MARK in error.message:
                raise self._at_odds() from error
            raise
        except tf.errors.OpError as error:
            if because := runtime.explain(error, self.cluster):
                raise because from error
            raise


def _known(values: gradients.Gradient) -> gradients.Gradient:
    if isinstance(values, tf.Tensor) and not values.shape.is_fully_defined():
        raise ValueError(f"{values}: between workers, shapes must be known")
    return values


def _as_words(values: tf.Tensor) -> tf.Tensor:
    """The values' bits, int32 [n]; types narrower than that are widened, which loses nothing."""
    wide = tf.cast(_known(values), _carrier(values.dtype))
    return tf.reshape(tf.bitcast(wide, tf.int32), [-1])


def _from_words(words: tf.Tensor, dtype: tf.DType, shape: Sequence[int]) -> tf.Tensor:
    carrier = _carrier(dtype)
    in_words = [*shape, carrier.size // 4] if carrier.size > 4 else shape
    return tf.cast(tf.bitcast(tf.reshape(words, in_words), carrier), dtype)


def _carrier(dtype: tf.DType) -> tf.DType:
    if dtype.size >= 4:
        return dtype
    return tf.float32 if dtype.is_floating else tf.int32
