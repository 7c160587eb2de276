"""Keras's LSTM with as little as possible inside its loop over time."""

import keras
import tensorflow as tf


@tf.custom_gradient
def lstm_loop(
    projected: tf.Tensor, recurrent: tf.Tensor, h: tf.Tensor, c: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """The steps of an LSTM (Hochreiter and Schmidhuber 1997, with the forget gate of Gers 2000).

        i, f, o, g = split(projected[t] + h @ recurrent)
        c = sigmoid(f) * c + sigmoid(i) * tanh(g)
        h = sigmoid(o) * tanh(c)

    The loop holds one matrix product in each direction. The gradient of `recurrent` is one product
    for all steps together, and the derivatives of the gates are taken for all steps before the loop
    back in time.

    Args:
      projected: float32 [time, n, 4 * units], what the inputs add to the gates i, f, o and g.
      recurrent: float32 [units, 4 * units], for the gates in that order.
      h: float32 [n, units], the output before the first step.
      c: likewise, the cell's state.

    Returns:
      The outputs h and the states c after each step, both float32 [time, n, units].
    """
    steps, units = tf.shape(projected)[0], recurrent.shape[0]
    by_step = tf.TensorArray(tf.float32, steps).unstack(projected)
    kept = [tf.TensorArray(tf.float32, steps) for _ in range(4)]

    def forward(t, h, c, kept):
        z = by_step.read(t) + tf.matmul(h, recurrent)
        ifo, g = tf.split(z, [3 * units, units], axis=1)
        ifo, g = tf.sigmoid(ifo), tf.tanh(g)
        i, f, o = tf.split(ifo, 3, axis=1)
        c = f * c + i * g
        h = o * tf.tanh(c)
        kept = [a.write(t, value) for a, value in zip(kept, (h, c, ifo, g), strict=True)]
        return t + 1, h, c, kept

    *_, kept = tf.while_loop(lambda t, *_: t < steps, forward, [0, h, c, kept])
    # [time, n, units], but [time, n, 3 * units] of ifo
    all_h, all_c, all_ifo, all_g = (array.stack() for array in kept)
    for tensor in (all_h, all_c, all_g):
        tensor.set_shape([projected.shape[0], projected.shape[1], units])
    all_ifo.set_shape([projected.shape[0], projected.shape[1], 3 * units])

    def gradient(dh_of_step, dc_of_step):
        h_before, c_before = (
            tf.concat([first[None], values[:-1]], axis=0)
            for first, values in ((h, all_h), (c, all_c))
        )
        i, f, o = tf.split(all_ifo, 3, axis=2)
        tanh_c = tf.tanh(all_c)
        h_to_c = o * (1.0 - tf.square(tanh_c))
        to_gates = tf.concat(
            [
                all_g * i * (1.0 - i),
                c_before * f * (1.0 - f),
                tanh_c * o * (1.0 - o),
                i * (1.0 - tf.square(all_g)),
            ],
            axis=2,
        )
        dz, dh, dc = _back_in_time(
            recurrent, (dh_of_step, dc_of_step, h_to_c, to_gates, f), tf.zeros_like(h)
        )
        dz.set_shape(projected.shape)
        rows = tf.reshape(h_before, [-1, units]), tf.reshape(dz, [-1, 4 * units])
        return dz, tf.matmul(*rows, transpose_a=True), dh, dc

    return (all_h, all_c), gradient


def _back_in_time(recurrent, of_all_steps, zeros):
    """The gradients of what came to the gates, [time, n, 4 * units], and of the first h and c."""
    steps = tf.shape(of_all_steps[0])[0]
    by_step = [tf.TensorArray(tf.float32, steps).unstack(values) for values in of_all_steps]

    def backward(t, dh, dc, dz):
        dh_here, dc_here, h_to_c, to_gates, f = (array.read(t) for array in by_step)
        dh = dh + dh_here
        dc = dc + dc_here + dh * h_to_c
        dz_here = tf.concat([dc, dc, dh, dc], axis=1) * to_gates
        dh = tf.matmul(dz_here, recurrent, transpose_b=True)
        return t - 1, dh, dc * f, dz.write(t, dz_here)

    begin = [steps - 1, zeros, zeros, tf.TensorArray(tf.float32, steps)]
    _, dh, dc, dz = tf.while_loop(lambda t, *_: t >= 0, backward, begin)
    return dz.stack(), dh, dc


@keras.saving.register_keras_serializable(package="towers")
class FusedLSTM(keras.layers.LSTM):
    """`keras.layers.LSTM`, whose inputs are multiplied by the kernel before the loop, all at once.

    The same arguments, weights and function, up to the rounding of sums; bfloat16 and float16 are
    computed in float32 between inputs and outputs. Where something is asked for that `lstm_loop`
    does not have (a mask, dropout in training, other activations, `unroll`), and where there is a
    GPU, for which Keras has cuDNN's LSTM, it is Keras's layer.
    """

    def inner_loop(self, sequences, initial_state, mask, training=False):
        """What Keras calls within `call`: the last output, all outputs, the states."""
        if mask is not None or tf.config.get_visible_devices("GPU") or not self._is_plain(training):
            return super().inner_loop(sequences, initial_state, mask, training)
        kernel, recurrent = _wide(self.cell.kernel), _wide(self.cell.recurrent_kernel)
        inputs = tf.transpose(_wide(sequences), [1, 0, 2])  # [time, n, features]
        if self.go_backwards:
            inputs = tf.reverse(inputs, [0])
        projected = tf.tensordot(inputs, _gates(kernel), 1)
        if self.use_bias:
            projected += _gates(_wide(self.cell.bias))
        h, c = (_wide(state) for state in initial_state)
        all_h, all_c = lstm_loop(projected, _gates(recurrent), h, c)
        return all_h[-1], tf.transpose(all_h, [1, 0, 2]), [all_h[-1], all_c[-1]]

    def _is_plain(self, training) -> bool:
        return (
            self.activation is keras.activations.tanh
            and self.recurrent_activation is keras.activations.sigmoid
            and not self.unroll
            and not (training and (self.dropout or self.recurrent_dropout))
            and self.variable_dtype == "float32"
        )


def _wide(value) -> tf.Tensor:
    return tf.cast(keras.ops.convert_to_tensor(value), tf.float32)


def _gates(values: tf.Tensor) -> tf.Tensor:
    """Keras's order of gates, i, f, g, o, as i, f, o, g."""
    i, f, g, o = tf.split(values, 4, axis=-1)
    return tf.concat([i, f, o, g], axis=-1)
