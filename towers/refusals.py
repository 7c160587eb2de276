"""What towers cannot do, refused before the first step, each with what to do instead."""

import contextlib
import itertools
from collections.abc import Iterator

import keras
import tensorflow as tf

from keras.src.backend.tensorflow.trainer import TensorFlowTrainer  # isort: skip

_GENERATOR = "keep a keras.random.SeedGenerator in the layer and pass it as seed="


def check_model(model: keras.Model) -> None:
    """Checks what a model shows before it is called.

    Raises:
      ValueError: names the model or the layer, what towers cannot do, and what to do instead.
    """
    name = type(model).__name__
    for step in ("train_step", "test_step"):
        if _is_overridden(model, step):
            raise ValueError(
                f"{name} has its own {step}, which towers cannot cut: override compute_loss or "
                "compute_metrics instead"
            )
    for function in ("make_train_function", "make_test_function"):
        if getattr(type(model), function) is not getattr(TensorFlowTrainer, function):
            raise ValueError(
                f"{name} has its own {function}, which towers would replace: use a callback, "
                "compute_loss or compute_metrics instead"
            )
    if model.run_eagerly:
        raise ValueError(
            "run_eagerly=True: towers are one graph; compile without it, or debug the model before "
            "towers.distribute"
        )
    if tf.distribute.has_strategy() or model._distribute_strategy is not None:
        raise ValueError(
            f"{name} was made in the scope of a tf.distribute strategy, which places variables and "
            "computation itself: make it outside of any scope"
        )
    layers = model._flatten_layers()  # a stateful layer wants the fixed batch size of its inputs
    for layer in sorted(layers, key=lambda layer: isinstance(layer, keras.layers.InputLayer)):
        _check_layer(layer)


def _check_layer(layer: keras.layers.Layer) -> None:
    name = f"the layer {layer.name}"
    if isinstance(layer, keras.layers.InputLayer) and layer.batch_shape[:1] not in ((), (None,)):
        raise ValueError(
            f"{name} has a fixed batch size, {layer.batch_shape[0]}: leave batch_size out of "
            "keras.Input, because microbatches have fewer examples"
        )
    if hasattr(type(layer).call, "get_concrete_function"):
        raise ValueError(
            f"{name} ({type(layer).__name__}) has @tf.function on its call, which keeps the values "
            "of its first call: remove it, since fit makes a graph anyway"
        )
    if getattr(layer, "stateful", False):
        raise ValueError(
            f"{name} is stateful: what it remembers of one example would meet another; give each "
            "example its whole sequence"
        )
    if getattr(layer, "synchronized", False):
        raise ValueError(
            f"{name} has synchronized=True: towers normalize each microbatch by itself; set "
            "microbatch_size to the batch's to normalize the whole batch, or leave it out"
        )
    if getattr(layer, "quantization_mode", None) == "float8":
        raise ValueError(
            f"{name} is quantized to float8, whose scales remember the steps before: train it "
            "without quantize, or without towers"
        )
    if isinstance(layer, keras.layers.AugMix):
        raise ValueError(
            f"{name} is an AugMix, which draws its operations once, when its graph is built: use "
            "keras.layers.RandAugment"
        )


def check_outputs(model: keras.Model, outputs: object, x: object) -> None:
    """Checks that outputs can be joined: each is of the examples of a microbatch, in their order.

    Raises:
      ValueError: one has no axis for them.
    """
    n = next(part.shape[0] for part in keras.tree.flatten(x) if part is not None)
    for output in keras.tree.flatten(outputs):
        rows = output.shape[0] if output.shape.rank else None
        if output.shape.rank == 0 or (rows is not None and rows % n):
            raise ValueError(
                f"{type(model).__name__} has an output of shape {tuple(output.shape)} for {n} "
                "examples, which towers cannot join: give each output the examples as first axis"
            )


def has_own_predict_step(model: keras.Model) -> bool:
    """Whether a model predicts in its own way, which Keras then runs as it is."""
    return _is_overridden(model, "predict_step")


def _is_overridden(model: keras.Model, name: str) -> bool:
    """Whether a model's class, or the model itself, has another method than Keras's."""
    return getattr(getattr(model, name), "__func__", None) is not getattr(TensorFlowTrainer, name)


@contextlib.contextmanager
def explained(model: keras.Model) -> Iterator[None]:
    """Says what to do where the model makes variables while it is called."""
    try:
        yield
    except ValueError as error:
        if "create a variable" not in str(error).lower():
            raise
        raise ValueError(
            f"{type(model).__name__} makes a variable each time it is called: make it in __init__ "
            "or build"
        ) from error


@contextlib.contextmanager
def no_hidden_state(model: keras.Model, scope: keras.StatelessScope) -> Iterator[None]:
    """Checks that what is traced within draws and assigns only by the state that it is given.

    Raises:
      ValueError: it draws random numbers that depend on what was drawn before, or assigns a weight
        that would be lost.
    """
    graph = tf.compat.v1.get_default_graph()
    first, name = len(graph.get_operations()), type(model).__name__
    with no_lost_state(model, scope):
        yield
    functions = (one.node_def for one in graph.as_graph_def().library.function)
    own = (operation.node_def for operation in graph.get_operations()[first:])
    for node in itertools.chain(own, *functions):
        if node.op.startswith("Assign") and node.op.endswith("VariableOp"):
            raise ValueError(
                f"{name} assigns a tf.Variable when it is called ({node.name}): make it with "
                "self.add_weight(..., trainable=False)"
            )
        if _draws_by_state(node):
            raise ValueError(
                f"{name} draws random numbers with {node.op} ({node.name}), which depend on what "
                f"was drawn before, and so on the number of towers: {_GENERATOR}"
            )


@contextlib.contextmanager
def no_lost_state(model: keras.Model, scope: keras.StatelessScope) -> Iterator[None]:
    """Checks that what is done within, in `scope`, assigns no variable but the model's state.

    Raises:
      ValueError: it draws by a generator, or assigns a variable, that is not the model's.
    """
    before = dict(scope.state_mapping)
    yield
    name = type(model).__name__
    for variable in model.trainable_variables:
        if scope.state_mapping.get(id(variable)) is not before.get(id(variable)):
            raise ValueError(
                f"{name} assigns its trainable weight {variable.path} when it is called, as "
                "SpectralNormalization does, which the update would undo: use a constraint"
            )
    new = [value for key, value in scope.state_mapping.items() if key not in before]
    if any(value.dtype == tf.int64 and value.shape == [2] for value in new):
        raise ValueError(
            f"{name} draws random numbers without a generator of its own, so that every step would "
            f"draw the same: {_GENERATOR}"
        )
    if new:
        raise ValueError(
            f"{name} assigns a variable that is not among its weights, so that its value would be "
            "lost: make it with self.add_weight(..., trainable=False)"
        )


def _draws_by_state(node: tf.compat.v1.NodeDef) -> bool:
    if node.op.startswith("CudnnRNN") or node.op == "StatefulPartitionedCall":
        return False
    return "seed2" in node.attr or node.op.startswith(("Rng", "Stateful"))
