"""A model's activations in the coming step, for TensorBoard's histograms."""

import keras
import tensorflow as tf

from towers import model_state, trainer
from towers.support import stateless, structures


def with_activations(model: keras.Model) -> keras.Model | None:
    """The model with the activation of each nonlinear layer as an output, beside its own.

    None for a subclassed model, which has no graph of layers to look into.
    """
    if not getattr(model, "inputs", None):
        return None
    outputs = {  # of an LSTM with its states, the sequence or the last output
        layer.name: tf.nest.flatten(layer.output)[0]
        for layer in model.layers
        if _is_nonlinear(layer)
    }
    own = {output._keras_history.operation.name: output for output in model.outputs}
    inputs = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    try:
        return keras.Model(inputs, outputs | own)
    except ValueError:
        # A layer that was first called in another model has its `output` there.
        return keras.Model(inputs, own)


class Activations:
    """Those of a functional model, without touching its state; a subclassed model has none."""

    def __init__(self, tower_trainer: trainer.Trainer):
        self._trainer = tower_trainer
        self._model = with_activations(tower_trainer.state.model)
        self._call = tf.function(self._build, autograph=False)

    def __call__(self, inputs: structures.Structure) -> dict[str, tf.Tensor]:
        """Layer to its activation for this worker's first microbatch of the coming step.

        The same weights, inputs and draws as `train_step(inputs, ...)` will use if it comes next,
        so these are that step's own values, though a separate forward pass computes them. They are
        not outputs of the step because fetching them could change how TensorFlow fuses its
        operations, and with that the last bits of its result.

        Returns:
          [microbatch, ...] for each layer with a nonlinearity, and the model's output.
        """
        if self._model is None:
            return {}
        of, microbatch = self._trainer, self._trainer.shares.microbatch_size
        first = of.shares.microbatches().start
        draw_index = of.state.step * of.num_microbatches + first
        with tf.device(of.tower_devices[0]):
            own = tf.nest.map_structure(lambda x: tf.convert_to_tensor(x)[:microbatch], inputs)
            return self._call(own, draw_index)

    def _build(self, inputs, draw_index):
        weights = [variable.value for variable in self._model.trainable_variables]
        state = [variable.value for variable in self._model.non_trainable_variables]
        drawn_state = model_state.with_draw_index(self._model, state, draw_index)
        return stateless.call(self._model, weights, drawn_state, inputs, training=True)[0]


def _is_nonlinear(layer: keras.layers.Layer) -> bool:
    if isinstance(layer, (keras.layers.ReLU, keras.layers.Activation)):
        return True
    return getattr(layer, "activation", None) not in (None, keras.activations.linear)
