"""Layers that Keras does not have: local response normalization, and a bias with its ReLU.

Local response normalization is that of Krizhevsky, Sutskever and Hinton 2012, section 3.3.
"""

import keras
import numpy as np
import tensorflow as tf


def local_response_normalization(
    inputs: tf.Tensor, depth_radius: int, bias: float, alpha: float, beta: float
) -> tf.Tensor:
    """Divides each channel by a power of the squares of its neighbours.

        outputs[..., c] = inputs[..., c] / d[..., c] ** beta
        d[..., c] = bias + alpha * sum of inputs[..., c'] ** 2 over |c' - c| <= depth_radius

    The same function as `tf.nn.lrn`, made of three things a CPU does fast (docs/speed.md has what
    each of them buys):

    - The sum over a window of channels is a product with a banded matrix, one matrix
      multiplication; alpha is in the matrix.
    - The gradient is written out, because it is that same product once more and nothing else:

          dx = g * d ** -beta - x * ((g * outputs / d) @ (2 * alpha * beta * band))

    - For the exponents that networks use, the power is made of square roots, which the processor
      has an instruction for.

    bfloat16 and float16 are computed in float32, at no cost in time: d is 1 and a little, of which
    8 bits keep next to nothing. (`tf.nn.lrn` takes neither bfloat16 on a CPU nor float64, which the
    tests against NumPy need.)

    Args:
      inputs: floating [..., channels].
      depth_radius: >= 0.
      bias: > 0.
      alpha: >= 0.
      beta: the exponent.

    Returns:
      The shape and dtype of `inputs`.
    """
    channels, dtype = inputs.shape[-1], inputs.dtype
    wide = tf.float64 if dtype == tf.float64 else tf.float32
    index = np.arange(channels)
    band = (np.abs(index[:, None] - index[None, :]) <= depth_radius).astype(np.float64)
    weights = tf.constant(alpha * band, wide)  # [channels, channels], symmetric
    gradient_weights = tf.constant(2.0 * alpha * beta * band, wide)

    @tf.custom_gradient
    def normalize(x):
        x = tf.cast(x, wide)
        divisor = bias + _times(tf.square(x), weights)
        power = _to_minus(beta, divisor)
        outputs = x * power

        def gradient(upstream):
            upstream = tf.cast(upstream, wide)
            inner = _times(upstream * outputs / divisor, gradient_weights)
            return tf.cast(upstream * power - x * inner, dtype)

        return tf.cast(outputs, dtype), gradient

    return normalize(inputs)


def _times(values: tf.Tensor, matrix: tf.Tensor) -> tf.Tensor:
    """The channels of each position, [..., channels], as a row times `matrix`."""
    rows = tf.reshape(values, [-1, matrix.shape[0]])  # [all positions, channels]
    return tf.reshape(tf.matmul(rows, matrix), tf.shape(values))


def _to_minus(beta: float, x: tf.Tensor) -> tf.Tensor:
    """`x ** -beta` for positive `x`."""
    if beta == 0.75:
        inverse_root = tf.math.rsqrt(x)  # x ** -1/2
        return inverse_root * tf.sqrt(inverse_root)
    if beta == 0.5:
        return tf.math.rsqrt(x)
    return x**-beta


@keras.saving.register_keras_serializable(package="towers")
class LocalResponseNormalization(keras.layers.Layer):
    """`local_response_normalization` as a Keras layer; defaults are those of `tf.nn.lrn`."""

    def __init__(self, depth_radius=5, bias=1.0, alpha=1.0, beta=0.5, **kwargs):
        super().__init__(**kwargs)
        self.depth_radius = depth_radius
        self.bias = bias
        self.alpha = alpha
        self.beta = beta

    def call(self, inputs):
        """Normalizes `inputs`, floating [n, height, width, channels]."""
        return local_response_normalization(
            inputs, self.depth_radius, self.bias, self.alpha, self.beta
        )

    def compute_output_shape(self, input_shape):
        """The input's shape."""
        return input_shape

    def get_config(self):
        """The arguments, for `final_model.keras`."""
        return super().get_config() | {
            "depth_radius": self.depth_radius,
            "bias": self.bias,
            "alpha": self.alpha,
            "beta": self.beta,
        }


@keras.saving.register_keras_serializable(package="towers")
class BiasRelu(keras.layers.Layer):
    """Adds a bias to each channel and takes the positive part: max(inputs + bias, 0).

    The end of a convolution with `use_bias=False`, as a layer of its own, so that max pooling can
    stand between them: adding a number and taking the positive part keep the order of values, so
    relu(max_pool(x) + bias) is max_pool(relu(x + bias)), to the last bit, and touches a quarter of
    the values where pooling has a stride of 2. The gradient is the same too, except that adding a
    bias may round two values to one, of which the textbook's pool then takes the first.
    """

    activation = staticmethod(keras.activations.relu)  # what marks a layer as nonlinear

    def __init__(self, bias_initializer="zeros", **kwargs):
        super().__init__(**kwargs)
        self.bias_initializer = keras.initializers.get(bias_initializer)

    def build(self, input_shape):
        """Makes `bias`, float32 [channels]."""
        self.bias = self.add_weight(
            name="bias", shape=(input_shape[-1],), initializer=self.bias_initializer
        )

    def call(self, inputs):
        """Floating [n, ..., channels], the same out."""
        return tf.nn.relu(tf.nn.bias_add(inputs, self.bias))

    def compute_output_shape(self, input_shape):
        """The input's shape."""
        return input_shape

    def get_config(self):
        """The arguments, for `final_model.keras`."""
        return super().get_config() | {
            "bias_initializer": keras.initializers.serialize(self.bias_initializer)
        }
