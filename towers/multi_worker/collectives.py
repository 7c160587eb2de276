"""Several workers make one step: what each has computed becomes what all have.

Between workers run TensorFlow's own collective operations, over the servers that
`tf.distribute.MultiWorkerMirroredStrategy` starts. The strategy's own `all_gather` is not used: it
sends W - 1 times the gradients where 2 (W - 1) / W are enough, and TensorFlow 2.21 keeps something
of each call (docs/workers.md).
"""

import contextlib
import re
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from towers import devices, gradients, tower, worker
from towers.multi_worker import channel, cluster

REDUCTIONS = ("ordered", "ring")

_GROUP, _FIRST_KEY = 7001, 100  # apart from those that the strategy makes
_PEER_FAILURES = (  # what TensorFlow says where another worker is gone
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
    tf.errors.UnknownError,
)
# TensorFlow's heartbeat misses a worker after 10 seconds, and the chief then looks for it.
_PATIENCE_SECONDS, _CHIEF_PATIENCE_SECONDS = 12.0, 3.0


class MultiWorker:
    """A run in several processes, with their connections; `worker.Workers` says what a method is.

    Attributes:
      cluster: who the workers are.
      reduction: one of REDUCTIONS.
    """

    def __init__(self, members: cluster.Cluster, wait_seconds: float):
        """Meets the others; TensorFlow's runtime between them begins with `start`.

        Raises:
          WorkerError: one does not come.
        """
        self.cluster = members
        self.count, self.index = len(members.addresses), members.index
        self._channel = channel.Channel(members, wait_seconds)
        self._strategy: tf.distribute.Strategy | None = None  # kept for what it has started
        self.reduction = "ordered"
        self._keys: dict[tuple, int] = {}

    @property
    def is_chief(self) -> bool:
        return self.index == 0

    def __enter__(self) -> "MultiWorker":
        return self

    def __exit__(self, _, error: BaseException | None, __) -> None:
        if error is None:
            self._channel.end(None)
        elif isinstance(error, SystemExit | KeyboardInterrupt):
            self._channel.end("it was stopped")
        else:
            self._channel.end(str(error) or type(error).__name__)

    def name(self, index: int) -> str:
        return self.cluster.name(index)

    def start(self, reduction: str) -> None:
        self.reduction = reduction
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({"worker": list(self.cluster.addresses)}),
            task_type="worker",
            task_id=self.index,
            # The strategy serves between workers; devices are the towers' affair.
            num_accelerators={"GPU": 0},
        )
        try:
            with self._channel.guarded(), self.watched():
                self._strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver)
        except tf.errors.OpError as error:
            _, port = cluster.host_and_port(self.cluster.addresses[self.index])
            raise worker.WorkerError(
                f"--workers: TensorFlow's server cannot start on port {port}: {error.message}"
            ) from error
        with tf.device(devices.PARAMETER_DEVICE):
            # Instance keys alternate between two sets from one call to the next. Every worker has
            # left a call when any of them is in the next but one, so no two calls can be confused.
            # A new key for each call would be safe too; TensorFlow keeps something of each.
            self._parity = tf.Variable(0, trainable=False, name="parity")
            self._asked = tf.Variable(0, trainable=False, name="asked_to_stop")
            self._stop = tf.Variable(0, trainable=False, name="stop")
        order = [
            int(values[0]) for (values,) in self.all_gather([np.array([self.index], np.int32)])
        ]
        if order != list(range(self.count)):
            raise worker.WorkerError(f"TensorFlow has the workers in the order {order}")

    def join(self, results):
        own = _as_one_tower(results)
        dense = [None if isinstance(g, tf.IndexedSlices) else g for g in own.sum_gradients]
        sparse = [g if isinstance(g, tf.IndexedSlices) else None for g in own.sum_gradients]
        parity = self._next_parity()
        with tf.name_scope("workers"):
            totals = self._totals(dense, parity)
            rest = own._replace(sum_gradients=sparse)
            everything = self._gathered([rest, self._asked], parity)
            self._stop.assign(tf.reduce_max(tf.stack([asked for _, asked in everything])))
        joined = []
        for index, (result, _) in enumerate(everything):
            own_share = [
                (total if index == 0 else None) if slices is None else slices
                for total, slices in zip(totals, result.sum_gradients, strict=True)
            ]
            joined.append(result._replace(sum_gradients=own_share))
        return joined

    def _totals(self, of_worker: Sequence[tf.Tensor | None], parity) -> list[tf.Tensor | None]:
        """The sum over the workers of each gradient; all of one type travel as one vector."""
        totals: list[tf.Tensor | None] = [None] * len(of_worker)
        present = [index for index, gradient in enumerate(of_worker) if gradient is not None]
        dtypes = sorted({of_worker[index].dtype.name for index in present})
        for dtype in dtypes:
            places = [index for index in present if of_worker[index].dtype.name == dtype]
            flat = tf.concat([tf.reshape(of_worker[index], [-1]) for index in places], axis=0)
            summed = self._sum(flat, parity)
            sizes = [of_worker[index].shape.num_elements() for index in places]
            for index, piece in zip(places, tf.split(summed, sizes), strict=True):
                totals[index] = tf.reshape(piece, of_worker[index].shape)
        return totals

    def _sum(self, flat: tf.Tensor, parity: tf.Tensor) -> tf.Tensor:
        """The workers' vectors added up, [n]: along the tree, or around the ring."""
        if self.reduction == "ring":
            return tf.raw_ops.CollectiveReduceV2(
                input=flat, merge_op="Add", final_op="Id", **self._group("sum", flat, parity)
            )
        # Each worker adds up one share of all vectors, and then all give each other their shares:
        # as few bytes as around a ring, and the order of additions is ours.
        n = flat.shape.num_elements()
        share = -(-n // self.count)
        padded = tf.pad(flat, [[0, share * self.count - n]])
        cut = tf.reshape(padded, [self.count, share])
        shares = tf.raw_ops.CollectiveAllToAllV2(input=cut, **self._group("shares", cut, parity))
        shares = tf.ensure_shape(shares, cut.shape)  # [worker, share]
        total = gradients.pairwise_tree(tf.unstack(shares), tf.add)
        return tf.reshape(self._gather_vectors("totals", total, parity), [-1])[:n]

    def _gather_vectors(self, use: str, vector: tf.Tensor, parity: tf.Tensor) -> tf.Tensor:
        """[workers, n] of everyone's [n]."""
        return tf.raw_ops.CollectiveGatherV2(
            input=vector[tf.newaxis], **self._group(use, vector, parity)
        )

    def _group(self, use: str, values: tf.Tensor, parity: tf.Tensor) -> dict:
        """Who takes part, and an instance key that all have for this call and no other.

        A key has to be used with one type and size. Keys are given out in the order in which they
        are first asked for, which is the same on every worker.
        """
        wanted = use, values.dtype, values.shape.num_elements()
        key = self._keys.setdefault(wanted, _FIRST_KEY + 2 * len(self._keys))
        return {
            "group_size": self.count,
            "group_key": _GROUP,
            "instance_key": key + parity,
            "ordering_token": [],
            "communication_hint": "ring",
        }

    def _next_parity(self) -> tf.Tensor:
        return self._parity.assign(1 - self._parity)

    def _gathered(self, structure, parity: tf.Tensor) -> list:
        """Every worker's structure of tensors; they travel as one vector of 32-bit words."""
        leaves = tf.nest.flatten(structure, expand_composites=True)
        present = [tf.convert_to_tensor(leaf) for leaf in leaves if leaf is not None]
        words = [_as_words(leaf) for leaf in present]
        sizes = [word.shape.num_elements() for word in words]
        rows = self._gather_vectors("results", tf.concat(words, axis=0), parity)
        structures = []
        for row in tf.unstack(tf.ensure_shape(rows, [self.count, sum(sizes)])):
            pieces = zip(tf.split(row, sizes), present, strict=True)
            values = iter([_from_words(piece, leaf) for piece, leaf in pieces])
            structures.append(
                tf.nest.pack_sequence_as(
                    structure,
                    [None if leaf is None else next(values) for leaf in leaves],
                    expand_composites=True,
                )
            )
        return structures

    def ask_to_stop(self, signal_number):
        if signal_number is not None:
            self._asked.assign(np.int32(signal_number))

    def stop_asked(self):
        return int(self._stop) or None

    def broadcast(self, variables):
        values = [np.asarray(variable.numpy()) for variable in variables]
        flat = np.frombuffer(b"".join(value.tobytes() for value in values), np.uint8)
        words = np.pad(flat, (0, -len(flat) % 4)).view(np.int32)
        with self.watched(), tf.device(devices.PARAMETER_DEVICE):
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

    def all_gather(self, arrays):
        with self.watched(), tf.device(devices.PARAMETER_DEVICE):
            flat = np.frombuffer(b"".join(a.tobytes() for a in arrays), np.uint8)
            words = tf.constant(np.pad(flat, (0, -len(flat) % 4)).view(np.int32))
            rows = self._gather_vectors("arrays", words, self._next_parity()).numpy()
        everything = []
        for row in rows.view(np.uint8):
            places = np.cumsum([0, *(a.nbytes for a in arrays)])
            everything.append(
                [
                    row[first:last].copy().view(a.dtype).reshape(a.shape)
                    for a, first, last in zip(arrays, places, places[1:], strict=False)
                ]
            )
        return everything

    def exchange(self, message):
        return self._channel.exchange(message)

    def from_chief(self, make):
        return self._channel.from_chief(make)

    def barrier(self):
        self._channel.from_chief(lambda: None)

    @contextlib.contextmanager
    def watched(self):
        try:
            yield
        except _PEER_FAILURES as error:
            reason = self._channel.why(
                _CHIEF_PATIENCE_SECONDS if self.is_chief else _PATIENCE_SECONDS
            )
            if reason is None:
                reason = self._named_by(error)
            if reason is None:
                raise
            raise worker.WorkerError(reason) from error

    def _named_by(self, error: tf.errors.OpError) -> str | None:
        """What TensorFlow says of workers that it does not hear of any more."""
        tasks = {int(task) for task in re.findall(r"/job:worker\S*/task:(\d+)", error.message)}
        names = [self.cluster.name(task) for task in sorted(tasks - {self.index})]
        if names:
            return f"TensorFlow hears nothing of {' and '.join(names)} any more"
        _, is_of_others, why = error.message.partition("Collective ops is aborted by: ")
        if not is_of_others:
            return None
        if not self.is_chief:  # it would have said something
            return f"{self.cluster.name(0)} does not answer"
        first_line = why.split("\n")[0]
        return f"TensorFlow has lost the connection to other workers ({first_line})"


def _as_one_tower(results: Sequence[tower.TowerResult]) -> tower.TowerResult:
    """Several towers' results as those of one tower that had all their microbatches."""
    weights, states = zip(*((r.weights, r.model_states) for r in results), strict=True)
    correct = [result.correct for result in results]
    return tower.TowerResult(
        sum_gradients=gradients.sum_over_parts([result.sum_gradients for result in results]),
        losses={
            term: tf.concat([result.losses[term] for result in results], axis=0)
            for term in results[0].losses
        },
        correct=None if correct[0] is None else tf.concat(correct, axis=0),
        weights=None if weights[0] is None else tf.concat(weights, axis=0),
        model_states=[
            None if parts[0] is None else tf.concat(parts, axis=0)
            for parts in zip(*states, strict=True)
        ],
    )


def _as_words(values: tf.Tensor) -> tf.Tensor:
    """The values' bits, int32 [n]; types narrower than that are widened, which loses nothing."""
    if not values.shape.is_fully_defined():
        raise ValueError(
            f"between workers shapes have to be known, and {values} has {values.shape}"
        )
    wide = tf.cast(values, _carrier(values.dtype))
    return tf.reshape(tf.bitcast(wide, tf.int32), [-1])


def _from_words(words: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    carrier = _carrier(like.dtype)
    shape = [*like.shape, carrier.size // 4] if carrier.size > 4 else like.shape
    return tf.cast(tf.bitcast(tf.reshape(words, shape), carrier), like.dtype)


def _carrier(dtype: tf.DType) -> tf.DType:
    if dtype.size >= 4:
        return dtype
    return tf.float32 if dtype.is_floating else tf.int32
