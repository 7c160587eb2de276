"""`towers.distribute`: the one line that puts a Keras model on towers."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence

import keras
import tensorflow as tf

from towers import cut_check, cutting, devices, hashes, refusals, separable, step, updating, worker

from keras.src import backend  # isort: skip
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
    if microbatch_size is not None and (type(microbatch_size) is not int or microbatch_size < 1):
        raise ValueError(f"microbatch_size={microbatch_size!r}: must be an integer from 1, or None")
    if joined_loss is not None and type(joined_loss) is not bool:
        raise TypeError(f"joined_loss={joined_loss!r}: must be True, False or None")
    refusals.check_model(model)
    tower_devices = devices.choose(towers)
    devices.run_graphs_as_written()
    workers = workers or worker.Workers()
    Distribution(model, tower_devices, microbatch_size, joined_loss, accumulate_gradients, workers)
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


@dataclasses.dataclass(eq=False)
class Distribution:
    """What stands between a model and its towers.

    It gives the model functions that run on towers, in place of those that Keras would make.
    `compile` forgets the functions, and the next call of the model makes them anew.

    Attributes:
      model: whose functions these are.
      tower_devices: one device for each tower.
      microbatch_size, joined_loss, accumulate_gradients: the arguments of `distribute`.
      workers: the workers of the run, maybe one alone.
      num_towers: of all workers together.
      program: the step of a run (`runs.run`), after `prepare`.

    Raises:
      WorkerError: another worker would cut batches in another way.
    """

    model: keras.Model
    tower_devices: tuple[str, ...]
    microbatch_size: int | None
    joined_loss: bool | None
    accumulate_gradients: bool
    workers: worker.Workers
    program: step.Program = dataclasses.field(init=False)

    def __post_init__(self):
        size = {"microbatch_size": self.microbatch_size}
        worker.check_same(self.workers, "how models are distributed", size, "{}=".format)
        towers = len(self.tower_devices)
        self._towers_of_workers = self.workers.exchange("numbers of towers", towers)
        self.num_towers = sum(self._towers_of_workers)
        self._sizes: dict[str, int] = {}  # of a microbatch, in the present call of each
        self._is_told = self._is_shared = False
        self.described_optimizer: dict | None = None  # as a run's config.json has it
        model = self.model
        model._towers = self
        model.train_function = model.test_function = model.predict_function = None
        model.make_train_function = lambda force=False: self._make("train_function", force)
        model.make_test_function = lambda force=False: self._make("test_function", force)
        if not refusals.is_overridden(model, "predict_step"):  # else Keras calls it, without towers
            model.make_predict_function = lambda force=False: self._make("predict_function", force)

    def _make(self, name: str, force: bool) -> None:
        self._sizes.pop(name, None)
        if getattr(self.model, name) is None or force:
            refusals.check_model(self.model)
            is_predict = name == "predict_function"
            function = self._predict_function() if is_predict else self._over_batches(name)
            setattr(self.model, name, function)

    def _over_batches(self, name: str) -> Callable[[Iterator], dict[str, tf.Tensor]]:
        """Keras's train or test function: (iterator over batches) to the metrics after them."""
        program = None

        def function(iterator: Iterator) -> dict[str, tf.Tensor]:
            nonlocal program
            logs, left = None, self.model.steps_per_execution
            most = STEPS_IN_A_CALL if self.model.jit_compile else 1
            while batches := list(itertools.islice(iterator, min(left, most))):
                left, batches = left - len(batches), list(map(cutting.dense, batches))
                size = self._size(name, batches[0])
                if program is None:
                    program = self._program(batches[0], size, name == "train_function")
                with self.workers.watched():
                    logs = program.make_steps(batches, size)
            if logs is None:
                raise StopIteration
            return logs

        return function

    def _predict_function(self) -> Callable[[Sequence], object]:
        program = step.Prediction(self.model, self.tower_devices)

        def function(batches: Sequence):
            outputs = []
            for batch in map(cutting.dense, batches):
                _build(self.model, batch, only_model=True)
                outputs.append(program(batch, self._size("predict_function", batch)))
            return cutting.join(outputs)

        return function

    def prepare(
        self,
        batch: cutting.Structure,
        take: Callable[[], None],
        after_update: Sequence[Callable[[int], None]] = (),
    ) -> None:
        """Makes the step of a run from its first batch, before any is made.

        Args:
          batch: as Keras's adapters yield it.
          take: is called once the model has its weights and before the optimizer has its variables,
            to give the model others.
          after_update: as a `step.Program` takes them.
        """
        refusals.check_model(self.model)
        self._sizes.pop("run", None)
        options = {"watched": True, "after_update": after_update}
        self.program = self._program(batch, self._size("run", batch), True, take, **options)

    def size_of_run(self) -> int:
        """Examples of a microbatch in a run, after `prepare`."""
        return self._sizes["run"]

    def train_step(self, batch: cutting.Structure) -> tuple[dict[str, tf.Tensor], updating.Watched]:
        """Makes a step of a run, after `prepare`; raises as `step.Program`."""
        with self.workers.watched():
            return self.program(batch, self._sizes["run"])

    def _size(self, name: str, batch) -> int:
        """Examples of a microbatch in a call, which its first batch decides.

        Raises:
          WorkerError: names a worker that does not have the same first batch.
        """
        if name not in self._sizes:
            self._sizes[name] = self.microbatch_size or default_size(cutting.num_examples(batch))
            if self.workers.count > 1 and name != "predict_function":
                arrays = [tensor.numpy() for tensor in cutting.tensors(batch)]
                what = "first batch, which must be the same and whole on all workers, of sha256"
                digest = {what: hashes.sha256(arrays)[:12]}
                worker.check_same(self.workers, "a first batch", digest)
        return self._sizes[name]

    def _program(
        self, batch, size: int, training: bool, take: Callable[[], None] | None = None, **options
    ) -> step.Program:
        """The step, with the loss of each tower where that is the same, else with a joined one."""
        model = self.model
        _build(model, batch)
        if take is not None:
            take()
        if training and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        if training:
            self._share_state()
        reason = separable.why_joined(model) if self.joined_loss is None else None
        joined = bool(self.joined_loss) or reason is not None
        options |= {
            "workers": self.workers,
            "towers_of_workers": self._towers_of_workers,
            "accumulate_gradients": self.accumulate_gradients,
        }
        while True:
            program = step.Program(model, self.tower_devices, training, joined, reason, **options)
            try:
                program.trace(batch, size)
            except separable.NotSeparable as error:
                joined, reason = True, str(error)
            else:
                cut_check.check(program.pass_, batch, size)
                self._tell(batch, size, program)
                return program

    def _share_state(self) -> None:
        """Gives all workers the chief's variables, once they are made."""
        if not self._is_shared:
            self._is_shared = True
            variables = [*self.model.variables, *self.model.optimizer.variables]
            self.workers.broadcast("the first weights", [v.value for v in variables])

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


def _build(model: keras.Model, batch, only_model: bool = False) -> None:
    """Makes the variables of model, loss and metrics, as Keras's JAX trainer does."""
    x, y, weight = keras.utils.unpack_x_y_sample_weight(cutting.specs(batch))
    parts = () if only_model else (model._compile_metrics, model._compile_loss)
    unbuilt = [part for part in parts if part is not None and not part.built]
    if unbuilt or not all(layer.built for layer in model._flatten_layers()):
        outputs = backend.compute_output_spec(model, x, training=False)
        if model._compile_metrics in unbuilt:
            backend.compute_output_spec(model.compute_metrics, x, y, outputs, weight)
        if model._compile_loss in unbuilt:
            backend.compute_output_spec(model._compute_loss, x, y, outputs, weight, training=False)
    model._post_build()
