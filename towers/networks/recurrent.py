"""Keras's LSTM with as little as possible inside its loop over time."""

import keras
import tensorflow as tf

AT_ONCE = 4  # steps in one iteration of a loop, at most: an iteration has a cost of its own


@tf.custom_gradient
def lstm_loop(
    projected: tf.Tensor, recurrent: tf.Tensor, h: tf.Tensor, c: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """The steps of an LSTM (Hochreiter and Schmidhuber 1997, with the forget gate of Gers 2000).

        i, f, o, g = split(projected[t] + h @ recurrent)
        c = sigmoid(f) * c + sigmoid(i) * tanh(g)
        h = sigmoid(o) * tanh(c)

    A step has one matrix product in each direction. The gradient of `recurrent` is one product
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
    units, time = recurrent.shape[0], _Time(projected)

    def forward(t, h, c, kept):
        for _ in range(time.at_once):
            z = by_step.read(t) + tf.matmul(h, recurrent)
            ifo, g = tf.split(z, [3 * units, units], axis=1)
            ifo, g = tf.sigmoid(ifo), tf.tanh(g)
            i, f, o = tf.split(ifo, 3, axis=1)
            c = f * c + i * g
            h = o * tf.tanh(c)
            kept = [a.write(t, value) for a, value in zip(kept, (h, c, ifo, g), strict=True)]
            t += 1
        return t, h, c, kept

    by_step = time.array(projected)
    kept = [time.array() for _ in range(4)]
    *_, kept = tf.while_loop(lambda t, *_: t < time.steps, forward, [0, h, c, kept])
    all_h, all_c, all_ifo, all_g = map(time.stacked, kept, [units, units, 3 * units, units])

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
        of_all_steps = dh_of_step, dc_of_step, h_to_c, to_gates, f
        dz, dh, dc = _back_in_time(recurrent, time, of_all_steps, tf.zeros_like(h))
        rows = tf.reshape(h_before, [-1, units]), tf.reshape(dz, [-1, 4 * units])
        return dz, tf.matmul(*rows, transpose_a=True), dh, dc

    return (all_h, all_c), gradient


def _back_in_time(recurrent, time: "_Time", of_all_steps, zeros):
    """The gradients of what came to the gates, [time, n, 4 * units], and of the first h and c."""
    by_step = [time.array(values) for values in of_all_steps]

    def backward(t, dh, dc, dz):
        for _ in range(time.at_once):
            dh_here, dc_here, h_to_c, to_gates, f = (array.read(t) for array in by_step)
            dh = dh + dh_here
            dc = dc + dc_here + dh * h_to_c
            dz_here = tf.concat([dc, dc, dh, dc], axis=1) * to_gates
            dh, dc = tf.matmul(dz_here, recurrent, transpose_b=True), dc * f
            dz = dz.write(t, dz_here)
            t -= 1
        return t, dh, dc, dz

    begin = [time.steps - 1, zeros, zeros, time.array()]
    _, dh, dc, dz = tf.while_loop(lambda t, *_: t >= 0, backward, begin)
    return time.stacked(dz, recurrent.shape[1]), dh, dc


class _Time:
    """The steps of sequences, filled up to a multiple of those in one iteration of a loop.

    What is filled up is 0 and comes last, so it changes no output, and its gradients are 0.

    Attributes:
      at_once: steps in one iteration.
      steps: of all iterations, an integer or an int32 tensor.
    """

    def __init__(self, sequences: tf.Tensor):
        """`sequences`: [time, n, features]."""
        self._known, self._n = sequences.shape[0], sequences.shape[1]
        self._given = tf.shape(sequences)[0] if self._known is None else self._known
        known = self._known or AT_ONCE
        self.at_once = -(-known // -(-known // AT_ONCE))  # which fills up as little as possible
        self.steps = -(-self._given // self.at_once) * self.at_once

    def array(self, values: tf.Tensor | None = None) -> tf.TensorArray:
        """Of each step: of `values`, [time, n, features]; or empty."""
        empty = tf.TensorArray(tf.float32, self.steps)
        if values is None:
            return empty
        if self._is_filled():
            values = tf.pad(values, [[0, self.steps - self._given], [0, 0], [0, 0]])
        return empty.unstack(values)

    def stacked(self, by_step: tf.TensorArray, features: int) -> tf.Tensor:
        """[time, n, features] of an array."""
        values = by_step.stack()
        values = values[: self._given] if self._is_filled() else values
        values.set_shape([self._known, self._n, features])
        return values

    def _is_filled(self) -> bool:
        return self._known is None or self._known % self.at_once > 0


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
