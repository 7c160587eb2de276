"""Several workers make one step: what each has computed becomes what all have.

TensorFlow's own collective operations run between workers, over the servers that
`tf.distribute.MultiWorkerMirroredStrategy` starts. The strategy's own `all_gather` is not used: it
sends W - 1 times the gradients where 2 (W - 1) / W are enough, and TensorFlow 2.21 keeps something
from each call (docs/workers.md).
"""

import contextlib
import functools
import json
import math
import re
import zlib
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from towers import devices, gradients, worker_errors
from towers.multi_worker import channel, cluster

_SHORTEST_TEXT = 1024  # bytes of a message
# Of gradients of one type. Messages of less than that take longer than their bytes.
_MOST_PARTS, _LEAST_BYTES_OF_A_PART = 8, 2**20
_MARK, _LABEL_BYTES = "workers do different things", 64
# Apart from those that the strategy makes, and below 2 ** 31.
_GROUP, _FIRST_KEY, _KEYS = 7001, 2**20, 2**29
_PEER_FAILURES = (  # what TensorFlow raises where another worker is gone
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
    tf.errors.UnknownError,
)
# TensorFlow's heartbeat notices a missing worker after 10 seconds, and the chief then looks for it;
# for a shorter time where TensorFlow says which it is.
_PATIENCE_SECONDS, _CHIEF_PATIENCE_SECONDS, _PATIENCE_IF_NAMED = 12.0, 3.0, 0.5


class MultiWorker:
    """A run in several processes, with their connections; `worker.Workers` documents the methods.

    Attributes:
      cluster: who the workers are.
    """

    def __init__(self, members: cluster.Cluster, wait_seconds: float):
        """Meets the others; TensorFlow's runtime between them begins with `start`.

        Raises:
          WorkerError: one does not connect.
        """
        self.cluster = members
        self.count, self.index = len(members.addresses), members.index
        self._channel = channel.Channel(members, wait_seconds)
        self._strategy: tf.distribute.Strategy | None = None  # kept for what it has started
        self._unheard: set[int] = set()
        self._keys: dict[int, str] = {}

    @property
    def is_chief(self) -> bool:
        return self.index == 0

    def __enter__(self) -> "MultiWorker":
        return self

    def __exit__(self, _, error: BaseException | None, __) -> None:
        if error is not None:
            self._channel.end(*_last_word(error))
            return
        try:
            self._begin_together("its end")
        except BaseException as problem:
            self._channel.end(*_last_word(problem))
            raise
        self._channel.end(None)

    def name(self, index: int) -> str:
        return self.cluster.name(index)

    def start(self) -> None:
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({"worker": list(self.cluster.addresses)}),
            task_type="worker",
            task_id=self.index,
            # The strategy only connects workers; devices are up to the towers.
            num_accelerators={"GPU": 0},
        )
        self._channel.exchange("the start of TensorFlow's servers", None)  # all start them soon
        try:
            with self._channel.guarded(), self.watched():
                self._strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver)
        except tf.errors.OpError as error:
            _, port = cluster.host_and_port(self.cluster.addresses[self.index])
            raise worker_errors.WorkerError(
                f"workers: TensorFlow's server cannot start on port {port}: {error.message}"
            ) from error
        with tf.device(devices.HOST):
            # Instance keys alternate between two sets from one call to the next. Every worker has
            # left a call when any of them is in the next but one, so no two calls can be confused.
            # A new key for each call would be safe too; TensorFlow keeps something for each.
            self._parity = tf.Variable(0, trainable=False, name="parity")
            self._asked = tf.Variable(0, trainable=False, name="asked_to_stop")
            self._stop = tf.Variable(0, trainable=False, name="stop")
            rows = tf.zeros([self.count, _LABEL_BYTES // 4], tf.int32)
            self._doing = tf.Variable(rows, trainable=False, name="doing")
        own = [np.array([self.index], np.int32)]
        order = [int(values[0]) for (values,) in self.all_gather("their order", own)]
        if order != list(range(self.count)):
            raise worker_errors.WorkerError(f"TensorFlow has the workers in the order {order}")

    def join(self, sums, values, of):
        sums = {
            subtree: gradients.add_up(sums, subtree, gradients.add_weight_by_weight)
            for subtree in gradients.subtrees(of.microbatches(), of.num_microbatches)
        }
        sparse = _joined_rows(sums)
        parity = self._next_parity()
        # It waits for nothing, and so is done while the towers compute.
        all_do = self._all_do(_described_step(sums), parity)
        with tf.name_scope("workers"), tf.control_dependencies([all_do]):
            totals = self._totals(sums, of, parity)
            rows = [None if s is None else (s.values, s.indices) for s in sparse]
            asked = tf.repeat(self._asked, len(of.microbatches()))
            values, rows, asked = self._gathered([list(values), rows, asked], of, parity)
            self._stop.assign(tf.reduce_max(asked))
        for place, slices in enumerate(sparse):
            if slices is not None:
                totals[place] = tf.IndexedSlices(*rows[place], slices.dense_shape)
        return totals, values

    def _totals(self, sums, of, parity) -> list[tf.Tensor | None]:
        """The sum of each dense gradient over all microbatches.

        They travel in parts, those of the last weights first: the backward pass of the worker's
        last microbatch computes them first, and they travel while it computes the others.
        """
        first = next(iter(sums.values()))
        totals: list[tf.Tensor | None] = [None] * len(first)
        for number, places in enumerate(_in_parts(first)):
            flat = {
                subtree: tf.concat([tf.reshape(of_all[place], [-1]) for place in places], axis=0)
                for subtree, of_all in sums.items()
            }
            summed = self._sum(flat, of, parity, number)
            sizes = [first[place].shape.num_elements() for place in places]
            for place, piece in zip(places, tf.split(summed, sizes), strict=True):
                totals[place] = tf.reshape(piece, first[place].shape)
        return totals

    def _sum(self, flat, of, parity, part: int) -> tf.Tensor:
        """All workers' vectors, [n] for each of a worker's subtrees, added up along the tree.

        Each worker adds up one share of all vectors, and then all exchange their shares: as few
        bytes as around a ring where a worker has one subtree, and the order of additions is ours.
        """
        subtrees = [
            gradients.subtrees(of.microbatches(worker), of.num_microbatches)
            for worker in range(self.count)
        ]
        most = max(map(len, subtrees))
        vectors = list(flat.values())
        n = vectors[0].shape.num_elements()
        share = -(-n // self.count)
        rows = tf.stack([tf.pad(vector, [[0, share * self.count - n]]) for vector in vectors])
        rows = tf.pad(rows, [[0, most - len(vectors)], [0, 0]])  # as many from each worker
        # [subtree of this worker, share of worker w] to worker w
        cut = tf.transpose(tf.reshape(rows, [most, self.count, share]), [1, 0, 2])
        group = self._group(f"shares {part}", cut, parity)
        got = tf.raw_ops.CollectiveAllToAllV2(input=cut, **group)
        sums = {
            subtree: vector
            for own, of_worker in zip(
                subtrees, tf.unstack(tf.ensure_shape(got, cut.shape)), strict=True
            )
            for subtree, vector in zip(own, tf.unstack(of_worker), strict=False)
        }
        total = gradients.add_up(sums, (0, of.num_microbatches), tf.add)
        return tf.reshape(self._gather_vectors(f"totals {part}", total, parity), [-1])[:n]

    def _gather_vectors(self, use: str, vector: tf.Tensor, parity: tf.Tensor) -> tf.Tensor:
        """[workers, n, ...] of everyone's [n, ...]."""
        return tf.raw_ops.CollectiveGatherV2(
            input=vector[tf.newaxis], **self._group(use, vector, parity)
        )

    def _group(self, use: str, values: tf.Tensor, parity: tf.Tensor) -> dict:
        """Who takes part, and an instance key that all have for this call and no other.

        A key must always be used with the same type and size, and is made from them.
        """
        wanted = f"{use} {values.dtype.name} {values.shape.num_elements()}"
        key = _FIRST_KEY + 2 * (zlib.crc32(wanted.encode()) % _KEYS)
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

    def _gathered(self, structure, of, parity):
        """Tensors of this worker's microbatches as those of all; they travel as one.

        Their first axis is the microbatches, or so many rows for each of them.
        """
        leaves = tf.nest.flatten(structure)
        present = [tf.convert_to_tensor(leaf) for leaf in leaves if leaf is not None]
        counts = [len(of.microbatches(worker)) for worker in range(self.count)]
        own = counts[self.index]
        words = [tf.reshape(_as_words(leaf), [own, -1]) for leaf in present]
        sent = tf.concat(words, axis=1)
        sent = tf.pad(sent, [[0, max(counts) - own], [0, 0]])  # as many from each worker
        got = tf.ensure_shape(
            self._gather_vectors("results", sent, parity), [self.count, *sent.shape]
        )
        rows = zip(tf.unstack(got), counts, strict=True)
        whole = tf.concat([row[:count] for row, count in rows], axis=0)
        pieces = tf.split(whole, [word.shape[1] for word in words], axis=1)
        values = iter(
            [
                _from_words(
                    tf.reshape(piece, [-1]),
                    leaf.dtype,
                    [leaf.shape[0] // own * of.num_microbatches, *leaf.shape[1:]],
                )
                for piece, leaf in zip(pieces, present, strict=True)
            ]
        )
        return tf.nest.pack_sequence_as(
            structure, [None if leaf is None else next(values) for leaf in leaves]
        )

    def ask_to_stop(self, signal_number):
        self._asked.assign(np.int32(signal_number or 0))

    def stop_asked(self):
        return int(self._stop) or None

    def broadcast(self, what, variables):
        self._begin_together(what)
        values = [np.asarray(variable.numpy()) for variable in variables]
        flat = np.frombuffer(b"".join(value.tobytes() for value in values), np.uint8)
        words = np.pad(flat, (0, -len(flat) % 4)).view(np.int32)
        with self.watched(), tf.device(devices.HOST):
            words = tf.constant(words)
            group = self._group("state", words, self._next_parity())
            del group["ordering_token"]
            if self.is_chief:
                tf.raw_ops.CollectiveBcastSendV2(input=words, **group)
                return
            shape = tf.constant(words.shape, tf.int32)
            received = tf.raw_ops.CollectiveBcastRecvV2(shape=shape, T=tf.int32, **group).numpy()
        received, place = received.view(np.uint8), 0
        for variable, value in zip(variables, values, strict=True):
            own = received[place : place + value.nbytes]
            variable.assign(own.view(value.dtype).reshape(value.shape))
            place += value.nbytes

    def all_gather(self, what, arrays):
        self._begin_together(what)
        return self._all_gathered(arrays)

    def _all_gathered(self, arrays: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
        own = np.array([len(array) for array in arrays], np.int64)
        lengths = self._gather_bytes("lengths", own.tobytes()).view(np.int64)  # [workers, arrays]
        bytes_of_rows = [array.dtype.itemsize * math.prod(array.shape[1:]) for array in arrays]
        sizes = lengths * bytes_of_rows
        data = b"".join(array.tobytes() for array in arrays)
        rows = self._gather_bytes("arrays", data.ljust(sizes.sum(axis=1).max(), b"\0"))
        everything = []
        for row, own_lengths, own_sizes in zip(rows, lengths, sizes, strict=True):
            ends = np.cumsum(own_sizes)
            cut = [row[end - size : end].copy() for size, end in zip(own_sizes, ends, strict=True)]
            everything.append(
                [
                    part.view(array.dtype).reshape(length, *array.shape[1:])
                    for part, array, length in zip(cut, arrays, own_lengths, strict=True)
                ]
            )
        return everything

    def _gather_bytes(self, use: str, data: bytes) -> np.ndarray:
        """uint8 [workers, n or a little more] of everyone's n bytes."""
        words = np.frombuffer(data.ljust(-(-len(data) // 4) * 4, b"\0"), np.int32)
        with self.watched(), tf.device(devices.HOST):
            rows = self._gather_vectors(use, tf.constant(words), self._next_parity())
        return rows.numpy().view(np.uint8)

    def exchange(self, what, message):
        self._begin_together(what)
        return self._exchanged(what, message)

    def from_chief(self, what, make):
        self._begin_together(what)
        return self._exchanged(what, make() if self.is_chief else None)[0]

    def _exchanged(self, what: str, message: object) -> list:
        """The messages of all: by TensorFlow once started, because it notices one that hangs."""
        if self._strategy is None:
            return self._channel.exchange(what, message)
        text = json.dumps(message).encode()
        # White space up to one of a few lengths: TensorFlow keeps something for each of them.
        text = text.ljust(max(_SHORTEST_TEXT, 1 << (len(text) - 1).bit_length()))
        gathered = self._all_gathered([np.frombuffer(text, np.uint8)])
        return [json.loads(of_worker.tobytes()) for (of_worker,) in gathered]

    def _begin_together(self, what: str) -> None:
        """Raises a WorkerError unless all workers are about to do the same."""
        if self._strategy is not None:  # before, messages alone say what they are
            with self.watched(), tf.device(devices.HOST):
                self._all_do(what, self._next_parity())

    def _all_do(self, what: str, parity: tf.Tensor) -> tf.Operation:
        """Fails unless all workers do the same; `watched` then names both sides.

        What each does travels in a call that is the same whatever they do; otherwise two would wait
        for each other forever.
        """
        label = np.frombuffer(what.encode().ljust(_LABEL_BYTES)[:_LABEL_BYTES], np.int32)
        rows = self._gather_vectors("what", tf.constant(label), parity)
        with tf.control_dependencies([self._doing.assign(rows)]):
            return tf.raw_ops.Assert(condition=tf.reduce_all(rows == label), data=[_MARK])

    def _at_odds(self) -> worker_errors.WorkerError:
        """What to raise where workers do different things."""
        rows = self._doing.numpy()
        said = [bytes(row).decode(errors="replace").strip() for row in rows]
        other = next(index for index, text in enumerate(said) if text != said[self.index])
        return worker_errors.WorkerError(
            f"{self.name(self.index)} is at {said[self.index]!r}, and {self.name(other)} at "
            f"{said[other]!r}: every worker must make the same calls in the same order"
        )

    @contextlib.contextmanager
    def watched(self):
        try:
            yield
        except _PEER_FAILURES as error:
            self._unheard = self._unheard_by(error)
            patience = _PATIENCE_SECONDS
            if self.is_chief:
                patience = _PATIENCE_IF_NAMED if self._unheard else _CHIEF_PATIENCE_SECONDS
            because = self._channel.why(patience)
            if because is None and (missed := self._said_by(error)):
                because = worker_errors.GoneError(missed)
            if because is None:
                raise
            raise because from error
        except tf.errors.InvalidArgumentError as error:
            if _MARK not in error.message:
                raise
            raise self._at_odds() from error

    def _unheard_by(self, error: tf.errors.OpError) -> set[int]:
        """The workers that TensorFlow says it no longer hears from."""
        tasks = {int(task) for task in re.findall(r"/job:worker\S*/task:(\d+)", error.message)}
        return tasks - {self.index}

    def _said_by(self, error: tf.errors.OpError) -> str | None:
        """What TensorFlow reports about workers that it no longer hears from."""
        if names := [self.cluster.name(index) for index in sorted(self._unheard)]:
            return f"TensorFlow no longer hears from {' and '.join(names)}"
        _, is_of_others, why = error.message.partition("Collective ops is aborted by: ")
        if not is_of_others:
            return None
        if not self.is_chief:  # it would have said something
            return f"{self.cluster.name(0)} does not answer"
        first_line = why.split("\n")[0]
        return f"TensorFlow has lost the connection to other workers ({first_line})"


def _last_word(error: BaseException) -> tuple[str, bool]:
    """Why a worker ends, and whether starting all of them again may help."""
    if isinstance(error, SystemExit) and not _is_signals(error.code):
        cause = error.__context__
        return str(cause) if isinstance(cause, Exception) else f"exit code {error.code}", False
    if isinstance(error, SystemExit | KeyboardInterrupt):
        return "it was stopped", True
    return str(error) or type(error).__name__, isinstance(error, worker_errors.GoneError)


def _is_signals(code: object) -> bool:
    """Whether an exit code is one of those that stand for a signal: 128 and above."""
    return isinstance(code, int) and code >= 128


def _described_step(sums: gradients.Sums) -> str:
    """What must be the same on all workers for their steps to be one step."""
    first = next(iter(sums.values()))
    dense = [g for g in first if g is not None and not isinstance(g, tf.IndexedSlices)]
    return f"a step with {sum(g.shape.num_elements() for g in dense):,} gradients"


def _in_parts(sums: Sequence[gradients.Gradient]) -> list[list[int]]:
    """The places of the dense gradients that travel together; those of the last weights first."""
    of_types: dict[str, list[int]] = {}
    for place, gradient in reversed(list(enumerate(sums))):
        if gradient is not None and not isinstance(gradient, tf.IndexedSlices):
            of_types.setdefault(gradient.dtype.name, []).append(place)
    parts = []
    for _, places in sorted(of_types.items()):
        sizes = [sums[place].shape.num_elements() * sums[place].dtype.size for place in places]
        full = max(_LEAST_BYTES_OF_A_PART, sum(sizes) / _MOST_PARTS)
        of_type, size_of_last = [[]], 0
        for place, size in zip(places, sizes, strict=True):
            if size_of_last >= full:
                of_type.append([])
                size_of_last = 0
            of_type[-1].append(place)
            size_of_last += size
        if len(of_type) > 1 and size_of_last < full / 8:  # not worth messages of its own
            of_type[-2:] = [of_type[-2] + of_type[-1]]
        parts += of_type
    return parts


def _joined_rows(sums: gradients.Sums) -> list[tf.IndexedSlices | None]:
    """The rows of each sparse gradient, one after the other; None for one that is not sparse."""
    joined = functools.reduce(gradients.add_weight_by_weight, sums.values())
    return [total if isinstance(total, tf.IndexedSlices) else None for total in joined]


def _as_words(values: tf.Tensor) -> tf.Tensor:
    """The values' bits, int32 [n]; types narrower than that are widened, which loses nothing."""
    if not values.shape.is_fully_defined():
        raise ValueError(
            f"{values} has shape {values.shape}: between workers, shapes must be known"
        )
    wide = tf.cast(values, _carrier(values.dtype))
    return tf.reshape(tf.bitcast(wide, tf.int32), [-1])


def _from_words(words: tf.Tensor, dtype: tf.DType, shape: Sequence[int]) -> tf.Tensor:
    carrier = _carrier(dtype)
    in_words = [*shape, carrier.size // 4] if carrier.size > 4 else shape
    return tf.cast(tf.bitcast(tf.reshape(words, in_words), carrier), dtype)


def _carrier(dtype: tf.DType) -> tf.DType:
    if dtype.size >= 4:
        return dtype
    return tf.float32 if dtype.is_floating else tf.int32
