"""Local response normalization (Krizhevsky, Sutskever and Hinton 2012, section 3.3)."""

import keras
import numpy as np
import tensorflow as tf


def local_response_normalization(
    inputs: tf.Tensor, depth_radius: int, bias: float, alpha: float, beta: float
) -> tf.Tensor:
    """Divides each channel by a power of the squares of its neighbours.

        outputs[..., c] = inputs[..., c] / d[..., c] ** beta
        d[..., c] = bias + alpha * sum of inputs[..., c'] ** 2 over |c' - c| <= depth_radius

    The sum over a window of channels is a product with a banded matrix of ones: one matrix
    multiplication, in any floating type (`tf.nn.lrn` has no float64, which the tests against NumPy
    need). The gradient is written out because it is that same product once more and nothing else:

        dx = g * d ** -beta - 2 * alpha * beta * x * ((g * x * d ** (-beta - 1)) @ band)

    Args:
      inputs: floating [..., channels].
      depth_radius: >= 0.
      bias: > 0.
      alpha: >= 0.
      beta: the exponent.

    Returns:
      The shape and dtype of `inputs`.
    """
    channels = inputs.shape[-1]
    index = np.arange(channels)
    ones_in_band = np.abs(index[:, None] - index[None, :]) <= depth_radius
    band = tf.constant(ones_in_band, dtype=inputs.dtype)  # [channels, channels], symmetric

    @tf.custom_gradient
    def normalize(x):
        divisor = bias + alpha * _times_band(tf.square(x), band)
        power = divisor**-beta

        def gradient(upstream):
            inner = _times_band(upstream * x * power / divisor, band)
            return upstream * power - (2.0 * alpha * beta) * x * inner

        return x * power, gradient

    return normalize(inputs)


def _times_band(values: tf.Tensor, band: tf.Tensor) -> tf.Tensor:
    rows = tf.reshape(values, [-1, band.shape[0]])  # [all positions, channels]
    return tf.reshape(tf.matmul(rows, band), tf.shape(values))


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
