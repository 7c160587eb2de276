"""What towers cannot do, refused before the first step, each with what to do instead."""

import contextlib
import itertools
from collections.abc import Container, Iterable, Iterator, Sequence

import keras
import tensorflow as tf

from towers import cutting

from keras.src.backend.tensorflow.trainer import TensorFlowTrainer  # isort: skip
from tensorflow.python.framework import errors  # isort: skip

_GENERATOR = "keep a keras.random.SeedGenerator in the layer and pass it as seed="
_WEIGHT = "make it with self.add_weight(..., trainable=False)"
_OUTPUT = "return it as an output, or give joined_loss=False if the loss is a mean over examples"


def check_model(model: keras.Model) -> None:
    """Checks what a model shows before it is called.

    Raises:
      ValueError: names the model or the layer, what towers cannot do, and what to do instead.
    """
    name = type(model).__name__
    for method in ("train_step", "test_step", "make_train_function", "make_test_function"):
        # `distribute` sets the latter two on the model itself.
        if is_overridden(model if method.endswith("step") else type(model), method):
            raise ValueError(
                f"{name} has its own {method}, which towers would replace: override compute_loss "
                "or compute_metrics, or use a callback"
            )
    if model.run_eagerly:
        raise ValueError(
            "run_eagerly=True: towers are one graph; compile without it, or debug without towers"
        )
    if tf.distribute.has_strategy() or model._distribute_strategy is not None:
        raise ValueError(
            f"{name} was made in the scope of a tf.distribute strategy, which places variables and "
            "computation itself: make it outside of any scope"
        )
    layers = model._flatten_layers()  # a stateful layer wants the fixed batch size of its inputs
    for layer in sorted(layers, key=lambda layer: isinstance(layer, keras.layers.InputLayer)):
        if reason := _why_not(layer):
            raise ValueError(f"the layer {layer.name} ({type(layer).__name__}) {reason}")


def _why_not(layer: keras.layers.Layer) -> str | None:
    """Why towers cannot have a layer, and what to do; None if they can."""
    is_input = isinstance(layer, keras.layers.InputLayer)
    has_batch_size = is_input and layer.batch_shape[:1] not in ((), (None,))
    is_graph = hasattr(type(layer).call, "get_concrete_function")
    is_synchronized = getattr(layer, "synchronized", False)
    is_float8 = getattr(layer, "quantization_mode", None) == "float8"
    reasons = {
        "has a fixed batch size: leave batch_size out of keras.Input, because microbatches have "
        "fewer examples": has_batch_size,
        "has @tf.function on its call, which keeps the values of its first call: remove it, since "
        "fit makes a graph anyway": is_graph,
        "is stateful: what it remembers of one example would meet another; give each example its "
        "whole sequence": getattr(layer, "stateful", False),
        "has synchronized=True: towers normalize each microbatch by itself; set microbatch_size to "
        "the batch's to normalize the whole batch, or leave it out": is_synchronized,
        "is quantized to float8, whose scales remember the steps before: train it without "
        "quantize, or without towers": is_float8,
        "draws its operations once, when its graph is built: use "
        "keras.layers.RandAugment": isinstance(layer, keras.layers.AugMix),
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def check_outputs(model: keras.Model, outputs: object, x: object) -> None:
    """Checks that outputs can be joined: each has a row for each example, in their order.

    Raises:
      ValueError: one has not, such as one of two views of each example.
    """
    n = cutting.num_examples(x)
    for output in keras.tree.flatten(outputs):
        shape = tf.TensorShape(getattr(output, "shape", ()))
        if output is not None and (shape.rank == 0 or (shape.rank and shape[0] not in (None, n))):
            raise ValueError(
                f"{type(model).__name__} has an output of shape {tuple(shape)} for {n} examples, "
                "which towers cannot join: give each output the examples as first axis"
            )


def check_gradients(model: keras.Model, weights: Sequence[tf.Tensor], results: object) -> None:
    """Checks that gradients reach all weights that a pass, in the present graph, has used.

    A function with a gradient of its own has one of the variables, too, that it uses besides its
    arguments; but in a pass they are tensors, `weights`. A ValueError names one that is lost.
    """
    paths = {w.name: v.path for w, v in zip(weights, model.trainable_variables, strict=True)}
    used = {tensor.name for tensor in tf.nest.flatten(results) if isinstance(tensor, tf.Tensor)}
    operations = tf.compat.v1.get_default_graph().get_operations()
    for op in (one for one in operations if one.type == "IdentityN"):
        is_own = op.node_def.attr["_gradient_op_type"].s.startswith(b"CustomGradient-")
        names = {tensor.name for tensor in op.inputs}  # results, and arguments, which nobody reads
        for value, end in zip(op.inputs, op.outputs, strict=True) if is_own else ():
            is_result = end.consumers() or end.name in used
            if is_result and (lost := source(value, paths, names - {value.name})):
                raise ValueError(
                    f"{paths[lost]} has no gradient within keras.remat, tf.recompute_grad or "
                    "tf.custom_gradient: make it an argument, or use a smaller microbatch_size"
                )


def source(value: tf.Tensor, among: Container[str], ends: Iterable[str] = ()) -> str | None:
    """The name of a tensor `among` some that `value` is computed from, beyond shapes and `ends`."""
    seen, waiting = set(ends), [value]
    while waiting:
        tensor = waiting.pop()
        if tensor.name in among and tensor.name not in seen:
            return tensor.name
        if tensor.name not in seen and tensor.op.type not in ("Shape", "ShapeN", "Size"):
            waiting += tensor.op.inputs
        seen.add(tensor.name)
    return None


def is_overridden(owner: keras.Model | type, name: str) -> bool:
    """Whether a class, or the model itself, has another method than Keras's."""
    method = getattr(owner, name)
    return getattr(method, "__func__", method) is not getattr(TensorFlowTrainer, name)


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
    nodes = (operation.node_def for operation in graph.get_operations()[first:])
    for node in itertools.chain(nodes, *functions):
        if node.op.startswith("Assign") and node.op.endswith("VariableOp"):
            raise ValueError(f"{name} assigns a tf.Variable in a call ({node.name}): {_WEIGHT}")
        draws = "seed2" in node.attr or node.op.startswith(("Rng", "Stateful"))
        if draws and not node.op.startswith(("CudnnRNN", "StatefulPartitionedCall")):
            raise ValueError(
                f"{name} draws random numbers with {node.op} ({node.name}), which depend on what "
                f"was drawn before, and so on the number of towers: {_GENERATOR}"
            )


@contextlib.contextmanager
def no_lost_state(model: keras.Model, scope: keras.StatelessScope) -> Iterator[None]:
    """Checks that what is done within, in `scope`, assigns no variable but the model's state.

    Raises:
      ValueError: it draws by a generator, or assigns a variable, that is not the model's; or it
        reads a tensor of another call.
    """
    before, name = dict(scope.state_mapping), type(model).__name__
    try:
        yield
    except errors.InaccessibleTensorError as error:
        raise ValueError(f"{name} reads a tensor that its call has kept: {_OUTPUT}") from error
    for variable in model.trainable_variables:
        if scope.state_mapping.get(id(variable)) is not before.get(id(variable)):
            raise ValueError(
                f"{name} assigns its trainable weight {variable.path} when it is called, as "
                "SpectralNormalization does, which the update would undo: use a constraint"
            )
    new = [value for key, value in scope.state_mapping.items() if key not in before]
    if any(value.dtype == tf.int64 and value.shape == [2] for value in new):
        raise ValueError(f"{name} would draw the same numbers in every step: {_GENERATOR}")
    if new:
        raise ValueError(f"{name} assigns a variable that is not among its weights: {_WEIGHT}")
