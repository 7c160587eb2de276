"""Layers of transformers with fewer passes over their values: attention, layer norm and GELU.

TensorFlow computes layer norm and GELU by single operations on a CPU, each of which goes over all
values; here XLA compiles those of one direction into one loop. On a GPU, where this was not
measured, all three are Keras's own.
"""

import math

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable(package="towers")
def gelu(x: tf.Tensor) -> tf.Tensor:
    """`keras.activations.gelu`: x * P(X <= x) for a standard normal X (Hendrycks and Gimpel 2016).

    Args:
      x: floating-point, of any shape; bfloat16 and float16 are computed in float32.

    Returns:
      A tensor of the same shape and type.
    """
    return keras.activations.gelu(x) if _has_gpu() else _gelu(x)


@tf.custom_gradient
def _gelu(x):
    return _gelu_of(x), lambda upstream: _gelu_gradient(x, upstream)


@tf.function(autograph=False, jit_compile=True)
def _gelu_of(x):
    wide = _wide(x)
    return tf.cast(wide * _normal_distribution(wide), x.dtype)


@tf.function(autograph=False, jit_compile=True)
def _gelu_gradient(x, upstream):
    wide = _wide(x)
    density = tf.exp(-0.5 * tf.square(wide)) / math.sqrt(2.0 * math.pi)
    slope = _normal_distribution(wide) + wide * density
    return tf.cast(_wide(upstream) * slope, x.dtype)


def _normal_distribution(x):
    return 0.5 * tf.math.erfc(x * -math.sqrt(0.5))


@keras.saving.register_keras_serializable(package="towers")
class FusedLayerNormalization(keras.layers.LayerNormalization):
    """`keras.layers.LayerNormalization`, compiled with XLA where it is over the last axis.

    The same arguments, weights and function, up to the rounding of sums. Over other axes, without
    scale or offset, for inputs whose type is neither that of the weights nor half precision, and on
    a GPU it is Keras's layer.
    """

    def call(self, inputs):
        """Normalizes `inputs`, [..., n], over the last axis; returns its shape."""
        inputs = tf.convert_to_tensor(inputs)
        if _has_gpu() or not self._is_plain(inputs):
            return super().call(inputs)
        weights = map(tf.convert_to_tensor, (self.gamma, self.beta))
        outputs = _layer_norm(inputs, *weights, epsilon=self.epsilon)
        return tf.cast(outputs, self.compute_dtype)

    def _is_plain(self, inputs: tf.Tensor) -> bool:
        axes, rank = self.axis if isinstance(self.axis, list) else [self.axis], len(inputs.shape)
        return (
            self.scale
            and self.center
            and not self.rms_scaling
            and [axis % rank for axis in axes] == [rank - 1]
            and inputs.dtype.is_floating
            and _wide(inputs).dtype.name == self.variable_dtype
        )


def _layer_norm(x, gamma, beta, *, epsilon: float):
    """Layer norm (Ba et al. 2016) of `x`, [..., n]; `gamma` and `beta` [n]."""

    @tf.custom_gradient
    def normalized(x, gamma, beta):
        def gradient(upstream):
            return _layer_norm_gradients(x, gamma, upstream, epsilon)

        return _layer_norm_of(x, gamma, beta, epsilon), gradient

    return normalized(x, gamma, beta)


@tf.function(autograph=False, jit_compile=True)
def _layer_norm_of(x, gamma, beta, epsilon):
    outputs, _ = _standardized(_wide(x), epsilon)
    return tf.cast(outputs * gamma + beta, x.dtype)


@tf.function(autograph=False, jit_compile=True)
def _layer_norm_gradients(x, gamma, upstream, epsilon):
    outputs, scale = _standardized(_wide(x), epsilon)
    upstream = _wide(upstream)
    to_outputs = upstream * gamma
    along, across = (
        tf.reduce_mean(values, axis=-1, keepdims=True)
        for values in (to_outputs * outputs, to_outputs)
    )
    of_x = scale * (to_outputs - across - outputs * along)
    rows = list(range(len(x.shape) - 1))
    of_gamma, of_beta = tf.reduce_sum(upstream * outputs, rows), tf.reduce_sum(upstream, rows)
    return tf.cast(of_x, x.dtype), of_gamma, of_beta


def _standardized(x, epsilon):
    """Rows with mean 0 and variance about 1, and what they were multiplied by, [..., 1]."""
    centred = x - tf.reduce_mean(x, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)
    scale = tf.math.rsqrt(variance + epsilon)
    return centred * scale, scale


@keras.saving.register_keras_serializable(package="towers")
class FusedMultiHeadAttention(keras.layers.MultiHeadAttention):
    """`keras.layers.MultiHeadAttention`, whose heads are brought together before the products.

    Keras's `einsum` does that on a CPU within the product, which takes longer. The same arguments,
    weights and function, up to rounding. With a mask, with dropout, where the scores are asked for,
    with more than one axis of attention, and on a GPU it is Keras's layer.
    """

    def _compute_attention(
        self,
        query,
        key,
        value,
        attention_mask=None,
        training=None,
        return_attention_scores=False,
    ):
        """What Keras lets a subclass replace; query [n, time, heads, size], the others likewise.

        A causal mask is in `attention_mask`, as Keras gives it to subclasses.
        """
        is_plain = attention_mask is None and not return_attention_scores
        is_plain = is_plain and not (self._dropout or self._flash_attention)
        if not is_plain or len(query.shape) != 4 or _has_gpu():
            return super()._compute_attention(
                query, key, value, attention_mask, training, return_attention_scores
            )
        query *= tf.cast(self._inverse_sqrt_key_dim, query.dtype)
        query, key, value = (tf.transpose(heads, [0, 2, 1, 3]) for heads in (query, key, value))
        scores = tf.nn.softmax(_wide(tf.matmul(query, key, transpose_b=True)))
        outputs = tf.matmul(tf.cast(scores, value.dtype), value)  # [n, heads, time, size]
        return tf.transpose(outputs, [0, 2, 1, 3]), None


def _wide(values: tf.Tensor) -> tf.Tensor:
    return tf.cast(values, tf.float32) if values.dtype.size < 4 else values


def _has_gpu() -> bool:
    return bool(tf.config.get_visible_devices("GPU"))
