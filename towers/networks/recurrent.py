"""Keras's LSTM with as little as possible inside its loop over time."""

import keras
import tensorflow as tf

from towers.support import machine

AT_ONCE = 4  # steps in one iteration of a loop, at most: an iteration has a cost of its own


@tf.custom_gradient
def lstm_loop(
    inputs: tf.Tensor,
    kernel: tf.Tensor,
    recurrent: tf.Tensor,
    bias: tf.Tensor,
    h: tf.Tensor,
    c: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """An LSTM (Hochreiter and Schmidhuber 1997, with the forget gate of Gers 2000).

        i, f, o, g = split(kernel @ inputs[t] + recurrent @ h + bias)
        c = sigmoid(f) * c + sigmoid(i) * tanh(g)
        h = sigmoid(o) * tanh(c)

    In the loop, a step has one matrix product in each direction. The inputs of all steps are
    multiplied before it, and so are the gradients of `kernel` and `recurrent`, after it; the
    derivatives of the gates are taken for all steps before the loop back in time. The features of a
    step come before its sequences: so a step, and a gate of it, is one block of memory, which
    TensorFlow reads without a copy.

    Args:
      inputs: [time, n, features], in the type in which matrices are multiplied.
      kernel: [4 * units, features] in that type, for the gates i, f, o and g.
      recurrent: [4 * units, units] in that type, likewise.
      bias: float32 [4 * units], likewise.
      h: [units, n] in that type, the output before the first step.
      c: float32 [units, n], the cell's state before it.

    Returns:
      After each step, the outputs h, [time, units, n] in the type of `inputs`, and the states c,
      float32 of that shape.
    """
    units, dtype = recurrent.shape[1], recurrent.dtype
    of_inputs = tf.matmul(kernel, inputs, transpose_b=True)
    time = _Time(of_inputs)
    by_step = time.filled(of_inputs)
    biases = tf.repeat(bias[:, None], tf.shape(h)[1], axis=1)

    def forward(t, h, c, kept):
        for of_inputs_here in time.read(by_step, t):
            z = tf.add_n([_wide(of_inputs_here), _wide(tf.matmul(recurrent, h)), biases])
            ifo, g = tf.split(z, [3 * units, units])
            ifo, g = tf.sigmoid(ifo), tf.tanh(g)
            i, f, o = tf.split(ifo, 3)
            c = f * c + i * g
            h = tf.cast(o * tf.tanh(c), dtype)
            kept = [a.write(t, value) for a, value in zip(kept, (h, c, ifo, g), strict=True)]
            t += 1
        return t, h, c, kept

    kept = [tf.TensorArray(value.dtype, time.steps) for value in (h, c, c, c)]
    *_, kept = tf.while_loop(lambda t, *_: t < time.steps, forward, [0, h, c, kept])
    all_h, all_c, all_ifo, all_g = map(time.stacked, kept, [units, units, 3 * units, units])

    def gradient(dh_of_step, dc_of_step):
        h_before, c_before = (
            tf.concat([first[None], values[:-1]], axis=0)
            for first, values in ((h, all_h), (c, all_c))
        )
        of_gates = _derivatives(all_ifo, all_g, all_c, c_before)
        of_all_steps = _wide(dh_of_step), dc_of_step, *of_gates
        dz, dh, dc = _back_in_time(recurrent, time, of_all_steps, tf.zeros_like(c))
        dz, h_before = (tf.transpose(values, [0, 2, 1]) for values in (dz, h_before))
        dz, x, h_before = (
            tf.reshape(values, [-1, values.shape[2]]) for values in (dz, inputs, h_before)
        )
        of_weights = [  # a product is a faster sum than tf.reduce_sum here
            tf.matmul(dz, of, transpose_a=True) for of in (x, h_before, tf.ones_like(dz[:, :1]))
        ]
        dx = tf.reshape(tf.matmul(dz, kernel), tf.shape(inputs))
        return dx, *of_weights[:2], _wide(of_weights[2][:, 0]), tf.cast(dh, dtype), dc

    return (all_h, all_c), gradient


def _derivatives(ifo, g, c, c_before) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """In each step: of h by c; of c by z of i, f and g, and of h by z of o; of c by the c before.

    [time, units, n], [time, 4 * units, n] and [time, units, n].
    """
    i, f, o = tf.split(ifo, 3, axis=1)
    tanh_c = tf.tanh(c)
    h_to_c = o * (1.0 - tf.square(tanh_c))
    to_gates = tf.concat(
        [
            g * i * (1.0 - i),
            c_before * f * (1.0 - f),
            tanh_c * o * (1.0 - o),
            i * (1.0 - tf.square(g)),
        ],
        axis=1,
    )
    return h_to_c, to_gates, f


def _back_in_time(recurrent, time: "_Time", of_all_steps, zeros):
    """The gradients of what came to the gates, [time, 4 * units, n], and of the first h and c."""
    by_step = [time.filled(values) for values in of_all_steps]
    back = tf.transpose(recurrent)

    def backward(t, dh, dc, dz):
        read = (reversed(time.read(values, t - time.at_once + 1)) for values in by_step)
        for dh_here, dc_here, h_to_c, to_gates, f in zip(*read, strict=True):
            dh = dh + dh_here
            dc = dc + dc_here + dh * h_to_c
            dz_here = tf.cast(tf.concat([dc, dc, dh, dc], axis=0) * to_gates, back.dtype)
            dh, dc = _wide(tf.matmul(back, dz_here)), dc * f
            dz = dz.write(t, dz_here)
            t -= 1
        return t, dh, dc, dz

    begin = [time.steps - 1, zeros, zeros, tf.TensorArray(back.dtype, time.steps)]
    _, dh, dc, dz = tf.while_loop(lambda t, *_: t >= 0, backward, begin)
    return time.stacked(dz, recurrent.shape[0]), dh, dc


class _Time:
    """The steps of sequences, filled up to a multiple of those in one iteration of a loop.

    What is filled up is 0 and comes last, so it changes no output, and its gradients are 0.

    Attributes:
      at_once: steps in one iteration.
      steps: of all iterations, an integer or an int32 tensor.
    """

    def __init__(self, sequences: tf.Tensor):
        """`sequences`: [time, features, n]."""
        self._known, self._n = sequences.shape[0], sequences.shape[2]
        self._given = tf.shape(sequences)[0] if self._known is None else self._known
        known = self._known or AT_ONCE
        self.at_once = -(-known // -(-known // AT_ONCE))  # which fills up as little as possible
        self.steps = -(-self._given // self.at_once) * self.at_once

    def filled(self, values: tf.Tensor) -> tf.Tensor:
        """`values`, [time, features, n], filled up."""
        if not self._is_filled():
            return values
        return tf.pad(values, [[0, self.steps - self._given], [0, 0], [0, 0]])

    def read(self, values: tf.Tensor, begin) -> list[tf.Tensor]:
        """The steps of the iteration that begins there, each [features, n], of filled ones."""
        size = [self.at_once, values.shape[1], tf.shape(values)[2]]
        return tf.unstack(tf.slice(values, [begin, 0, 0], size), num=self.at_once)

    def stacked(self, by_step: tf.TensorArray, features: int) -> tf.Tensor:
        """[time, features, n] of an array."""
        values = by_step.stack()
        values = values[: self._given] if self._is_filled() else values
        values.set_shape([self._known, features, self._n])
        return values

    def _is_filled(self) -> bool:
        return self._known is None or self._known % self.at_once > 0


@keras.saving.register_keras_serializable(package="towers")
class FusedLSTM(keras.layers.LSTM):
    """`keras.layers.LSTM`, whose inputs are multiplied by the kernel before the loop, all at once.

    The same arguments, weights and function, up to the rounding of sums. In float16 and bfloat16 it
    computes in float32 between inputs and outputs, with one exception: in bfloat16 it multiplies
    matrices in bfloat16, if the processor has AMX and XLA does not compile the layer. Where
    something is asked for that `lstm_loop` does not have (a mask, dropout in training, other
    activations, `unroll`), and where there is a GPU, for which Keras has cuDNN's LSTM, it is
    Keras's layer.
    """

    def inner_loop(self, sequences, initial_state, mask, training=False):
        """What Keras calls within `call`: the last output, all outputs, the states."""
        if mask is not None or tf.config.get_visible_devices("GPU") or not self._is_plain(training):
            return super().inner_loop(sequences, initial_state, mask, training)
        is_fast = self.compute_dtype == "bfloat16" and machine.multiplies_bfloat16()
        dtype = tf.bfloat16 if is_fast else tf.float32
        kernel, recurrent = (
            tf.cast(tf.transpose(_gates(_wide(matrix))), dtype)
            for matrix in (self.cell.kernel, self.cell.recurrent_kernel)
        )
        bias = _gates(_wide(self.cell.bias)) if self.use_bias else tf.zeros([4 * self.units])
        inputs = tf.transpose(tf.cast(sequences, dtype), [1, 0, 2])  # [time, n, features]
        if self.go_backwards:
            inputs = tf.reverse(inputs, [0])
        h, c = (tf.transpose(_wide(state)) for state in initial_state)
        all_h, all_c = lstm_loop(inputs, kernel, recurrent, bias, tf.cast(h, dtype), c)
        states = [tf.transpose(values[-1]) for values in (all_h, all_c)]
        return states[0], tf.transpose(all_h, [2, 0, 1]), states

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
