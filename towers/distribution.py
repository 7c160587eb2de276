"""`towers.distribute`: the one line that puts a Keras model on towers."""

import itertools
from collections.abc import Callable, Iterator, Sequence

import keras
import tensorflow as tf
from keras import tree

from towers import (
    cut_check,
    cutting,
    devices,
    hashes,
    refusals,
    separable,
    step,
    updating,
    worker,
)

from keras.src import backend  # isort: skip
from keras.src.trainers.data_adapters import data_adapter_utils  # isort: skip
from keras.src.utils import io_utils  # isort: skip

MOST_MICROBATCHES = 8  # of a batch, by default
STEPS_IN_A_CALL = 16  # at most, with XLA: without it, a graph of several steps is no faster
SMALLEST_MICROBATCH = 16  # by default: batch norm sees at least as many examples of a larger batch


def distribute(
    model: keras.Model,
    towers: int | Sequence[str] | None = None,
    *,
    microbatch_size: int | None = None,
    joined_loss: bool | None = None,
    accumulate_gradients: bool = False,
    workers: worker.Workers | None = None,
) -> keras.Model:
    """Makes `fit`, `evaluate`, `predict` and the `…_on_batch` methods of a model run on towers.

    Call it before or after `compile`; everything else stays Keras. A batch is cut into microbatches
    of `microbatch_size` examples, the last of which may be shorter. Each tower computes a run of
    consecutive ones, and their gradients are added along one fixed tree. So the number of towers
    changes where the work is done, and no bit of the result.

    It turns off TensorFlow's rewriting of graphs for the process
    (`devices.run_graphs_as_written`).

    Args:
      model: any Keras model with Keras's own `train_step` and `test_step`; built or not.
      towers: how many, or the names of their devices; None for one on each GPU, or else 1.
      microbatch_size: examples of a microbatch, at least 1; None for `default_size` of the first
        batch of each call.
      joined_loss: True computes one loss of the joined outputs of all towers, which equals Keras's
        for any loss; False computes the loss of each microbatch on its tower, which equals Keras's
        where the loss is a plain mean over examples; None chooses the latter where it is known to
        be the same (`separable.why_joined`).
      accumulate_gradients: True lets a tower compute its microbatches one after the other, so that
        the activations of one are in memory at a time; otherwise one for each core, or on a GPU
        all. The bits are the same. It saves nothing with a joined loss.
      workers: a `towers.multi_worker.MultiWorker`: those that train the model together.

    Returns:
      The model itself.

    Raises:
      TypeError: `model` is no Keras model, or another argument has the wrong type.
      ValueError: an argument is out of range, or towers cannot train such a model
        (`refusals.check_model`); what can be known only with a batch is raised by the first call
        with one, before its first step.
    """
    if not isinstance(model, keras.Model):
        raise TypeError(f"model is a {type(model).__name__}: must be a keras.Model")
    if microbatch_size is not None and (
        isinstance(microbatch_size, bool) or not isinstance(microbatch_size, int)
    ):
        raise TypeError(f"microbatch_size={microbatch_size!r}: must be an integer or None")
    if microbatch_size is not None and microbatch_size < 1:
        raise ValueError(f"microbatch_size={microbatch_size}: must be at least 1")
    if joined_loss is not None and not isinstance(joined_loss, bool):
        raise TypeError(f"joined_loss={joined_loss!r}: must be True, False or None")
    if isinstance(towers, int) and towers < 1:
        raise ValueError(f"towers={towers}: must be at least 1")
    refusals.check_model(model)
    tower_devices = devices.of_towers(towers)
    devices.run_graphs_as_written()
    Distribution(
        model, tower_devices, microbatch_size, joined_loss, accumulate_gradients, workers
    ).install()
    return model


def default_size(batch_size: int) -> int:
    """Examples of a microbatch by default: an eighth of the batch, but at least 16.

    Example:
      >>> default_size(32), default_size(1024)
      (16, 128)
    """
    return max(SMALLEST_MICROBATCH, -(-batch_size // MOST_MICROBATCHES))


def distribution(model: keras.Model) -> "Distribution":
    """What `distribute` has put between a model and its towers; it is called where it was not."""
    if not hasattr(model, "_towers"):
        distribute(model)
    return model._towers


class Distribution:
    """What stands between a model and its towers.

    Attributes:
      model: whose functions these are.
      tower_devices: one device for each tower.
      microbatch_size, joined_loss: the arguments of `distribute`.
      workers: the workers of the run; one alone by default.
    """

    def __init__(
        self,
        model: keras.Model,
        tower_devices: tuple[str, ...],
        microbatch_size: int | None,
        joined_loss: bool | None,
        accumulate_gradients: bool,
        workers: worker.Workers | None = None,
    ):
        self.model, self.tower_devices = model, tower_devices
        self._accumulate = accumulate_gradients
        self.microbatch_size, self.joined_loss = microbatch_size, joined_loss
        self._sizes: dict[str, int] = {}  # of a microbatch, in the present call of each
        self.workers = workers or worker.Workers()
        self._towers_of_workers = self._agree()
        self._compared: set[str] = set()  # calls whose first batch all workers have
        self._is_told = self._is_shared = False
        self.described_optimizer: dict | None = None  # as a run's config.json has it

    def _agree(self) -> list[int]:
        """How many towers each worker has; all must cut batches in the same way.

        Raises:
          WorkerError: another worker does not.
        """
        own = {"microbatch_size": self.microbatch_size}
        worker.check_same(self.workers, "how models are distributed", own, "{}=".format)
        return self.workers.exchange("numbers of towers", len(self.tower_devices))

    def _check_same_data(self, name: str, batch) -> None:
        """Checks that all workers begin a call with the same batch.

        Raises:
          WorkerError: names a worker that does not.
        """
        if name in self._compared or self.workers.count == 1:
            return
        self._compared.add(name)
        arrays = [tensor.numpy() for tensor in tree.flatten(batch) if tensor is not None]
        name = "first batch, which must be the same and whole on all workers, of sha256"
        worker.check_same(self.workers, "a first batch", {name: hashes.sha256(arrays)[:12]})

    def _share_state(self) -> None:
        """Gives all workers the chief's variables, once they are made."""
        if self.workers.count == 1 or self._is_shared:
            return
        self._is_shared, model = True, self.model
        variables = [*model.variables, *(model.optimizer.variables if model.optimizer else ())]
        self.workers.broadcast("the first weights", [v.value for v in variables])

    def install(self) -> None:
        """Gives the model functions that run on towers, in place of those that Keras would make.

        `compile` forgets the functions, and the next call of the model makes them anew.
        """
        model = self.model
        model._towers = self
        model.train_function = model.test_function = model.predict_function = None
        model.make_train_function = lambda force=False: self._make("train_function", force)
        model.make_test_function = lambda force=False: self._make("test_function", force)
        if refusals.has_own_predict_step(model):
            return  # Keras calls it, without towers
        model.make_predict_function = lambda force=False: self._make("predict_function", force)

    def _make(self, name: str, force: bool) -> None:
        self._compared.discard(name)
        self._sizes.pop(name, None)
        if getattr(self.model, name) is not None and not force:
            return
        refusals.check_model(self.model)
        make = {
            "train_function": lambda: self._over_batches(training=True),
            "test_function": lambda: self._over_batches(training=False),
            "predict_function": self._predict_function,
        }
        setattr(self.model, name, make[name]())

    def _over_batches(self, training: bool) -> Callable[[Iterator], dict[str, tf.Tensor]]:
        """Keras's train or test function: (iterator over batches) to the metrics after them."""
        name = "train_function" if training else "test_function"
        program = None

        def function(iterator: Iterator) -> dict[str, tf.Tensor]:
            nonlocal program
            logs, left = None, self.model.steps_per_execution
            most = STEPS_IN_A_CALL if self.model.jit_compile else 1
            while batches := list(itertools.islice(iterator, min(left, most))):
                left, batches = left - len(batches), list(map(cutting.dense, batches))
                first = batches[0]
                self._check_same_data(name, first)
                size = self._size(name, first)
                if program is None:
                    _build(self.model, first, with_optimizer=training)
                    if training:
                        self._share_state()
                    program = self._program(first, size, training)
                self._tell(first, size, program)
                with self.workers.watched():
                    logs = program.make_steps(batches, size)
            if logs is None:
                raise StopIteration
            return logs

        return function

    def prepare(
        self,
        batch: cutting.Structure,
        take: Callable[[], None],
        after_update: Sequence[Callable[[int], None]] = (),
    ) -> None:
        """Makes the step of a run (`runs.run`) from its first batch, before any is made.

        Args:
          batch: as Keras's adapters yield it.
          take: is called once the model has its weights and before the optimizer has its variables,
            to give the model others.
          after_update: as a `step.Program` takes them.
        """
        refusals.check_model(self.model)
        self._compared.discard("run")
        self._check_same_data("run", batch)
        self._sizes.pop("run", None)
        size = self._size("run", batch)
        _build(self.model, batch, with_optimizer=False)
        take()
        _build(self.model, batch, with_optimizer=True)
        self._share_state()
        self._of_run = self._program(batch, size, True, watched=True, after_update=after_update)
        self._tell(batch, size, self._of_run)

    @property
    def num_towers(self) -> int:
        """Of all workers together."""
        return sum(self._towers_of_workers)

    @property
    def parameter_device(self) -> str:
        """Where the weights of the built model are."""
        return step.parameter_device(self.model)

    @property
    def program(self) -> step.Program:
        """The step of a run, after `prepare`."""
        return self._of_run

    def size_of_run(self) -> int:
        """Examples of a microbatch in a run, after `prepare`."""
        return self._sizes["run"]

    def train_step(self, batch: cutting.Structure) -> tuple[dict[str, tf.Tensor], updating.Watched]:
        """Makes a step of a run, after `prepare`; raises as `step.Program`."""
        with self.workers.watched():
            return self._of_run(batch, self._sizes["run"])

    def _program(
        self, batch, size: int, training: bool, *, watched: bool = False, after_update=()
    ) -> step.Program:
        """The step, with the loss of each tower where that is the same, else with a joined one."""
        reason = separable.why_joined(self.model) if self.joined_loss is None else None
        joined = bool(self.joined_loss) or reason is not None
        while True:
            program = step.Program(
                self.model, self.tower_devices, training, joined, reason, watched,
                self.workers, self._towers_of_workers, self._accumulate, after_update,
            )  # fmt: skip
            try:
                program.trace(batch, size)
            except separable.NotSeparable as error:
                joined, reason = True, str(error)
            else:
                cut_check.check(program.pass_, batch, size)
                return program

    def _predict_function(self) -> Callable[[Sequence], object]:
        program = step.Prediction(self.model, self.tower_devices)

        def function(batches: Sequence):
            outputs = []
            for batch in batches:
                batch = cutting.dense(batch)
                _build(self.model, batch, with_optimizer=False, only_model=True)
                outputs.append(program(batch, self._size("predict_function", batch)))
            return outputs[0] if len(outputs) == 1 else cutting.join(outputs)

        return function

    def _size(self, name: str, batch) -> int:
        if name not in self._sizes:  # the first batch decides where microbatch_size is None
            self._sizes[name] = self.microbatch_size or default_size(cutting.num_examples(batch))
        return self._sizes[name]

    def _tell(self, batch, size: int, program: step.Program) -> None:
        """Says once, at the first batch, how it is computed."""
        if self._is_told:
            return
        self._is_told = True
        count, towers = cutting.num_examples(batch), len(self.tower_devices)
        parts = -(-count // size)
        loss = "one loss of their joined outputs" if program.joined else "a loss for each"
        loss += f" ({program.reason})" if program.reason else ""
        rest = f"; {towers - parts} of {towers} towers rest" if parts < towers else ""
        io_utils.print_msg(
            f"towers: {towers}; a batch of {count} is {parts} "
            f"microbatch{'es' if parts > 1 else ''} of at most {size} examples, with {loss}{rest}"
        )


def _build(model: keras.Model, batch, *, with_optimizer: bool, only_model: bool = False) -> None:
    """Makes the variables of model, loss, metrics and optimizer, as Keras's JAX trainer does."""
    x, y, weight = data_adapter_utils.unpack_x_y_sample_weight(cutting.specs(batch))
    loss, metrics = model._compile_loss, model._compile_metrics
    parts = [loss, metrics] if not only_model else []
    if not all(layer.built for layer in model._flatten_layers()) or any(
        part is not None and not part.built for part in parts
    ):
        with refusals.explained(model):
            outputs = backend.compute_output_spec(model, x, training=False)
            if parts and metrics is not None and not metrics.built:
                backend.compute_output_spec(
                    model.compute_metrics, x, y, outputs, sample_weight=weight
                )
            if parts and loss is not None and not loss.built:
                backend.compute_output_spec(
                    model._compute_loss, x, y, outputs, sample_weight=weight, training=False
                )
    if with_optimizer and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    model._post_build()
