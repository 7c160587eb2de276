"""Layers that Keras does not have, or not in a form that is fast on a CPU.

Local response normalization (Krizhevsky, Sutskever and Hinton 2012, section 3.3), a bias with its
ReLU, a whitening convolution, and batch norm in TensorFlow's one fused operation.
"""

import keras
import numpy as np
import tensorflow as tf


@keras.saving.register_keras_serializable(package="towers")
class LocalResponseNormalization(keras.layers.Layer):
    """Divides each channel by a power of the squares of its neighbours.

        outputs[..., c] = inputs[..., c] / d[..., c] ** beta
        d[..., c] = bias + alpha * sum of inputs[..., c'] ** 2 over |c' - c| <= depth_radius

    The function and the defaults of `tf.nn.lrn`, as a CPU computes it fast (docs/speed.md): the sum
    over a window is a product with a banded matrix, and the gradient is that product once more,

        dx = g * d ** -beta - x * ((g * outputs / d) @ (2 * alpha * beta * band))

    bfloat16 and float16 are computed in float32: d is 1 and a little, and 8 bits keep next to
    nothing of that. (`tf.nn.lrn` takes neither bfloat16 on a CPU nor float64.)
    """

    def __init__(self, depth_radius=5, bias=1.0, alpha=1.0, beta=0.5, **kwargs):
        super().__init__(**kwargs)
        self.options = {"depth_radius": depth_radius, "bias": bias, "alpha": alpha, "beta": beta}

    def call(self, inputs):
        """Normalizes `inputs`, floating [n, ..., channels]; returns its shape and dtype."""
        radius, bias, alpha, beta = self.options.values()
        index, dtype = np.arange(inputs.shape[-1]), inputs.dtype
        wide = tf.float64 if dtype == tf.float64 else tf.float32
        band = (np.abs(index[:, None] - index[None, :]) <= radius).astype(np.float64)
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

    def get_config(self):
        return super().get_config() | self.options


def _times(values: tf.Tensor, matrix: tf.Tensor) -> tf.Tensor:
    """The channels of each position, [..., channels], as a row times `matrix`."""
    rows = tf.reshape(values, [-1, matrix.shape[0]])  # [all positions, channels]
    return tf.reshape(tf.matmul(rows, matrix), tf.shape(values))


def _to_minus(beta: float, x: tf.Tensor) -> tf.Tensor:
    if beta == 0.75:
        inverse_root = tf.math.rsqrt(x)  # x ** -1/2
        return inverse_root * tf.sqrt(inverse_root)
    return x**-beta


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

    def get_config(self):
        return super().get_config() | {
            "bias_initializer": keras.initializers.serialize(self.bias_initializer)
        }


@keras.saving.register_keras_serializable(package="towers")
class FusedBatchNormalization(keras.layers.BatchNormalization):
    """Keras's batch norm over the channels of images, by TensorFlow's one operation for it.

    Keras 3 builds batch norm from single operations in float32, each of which goes over all values
    (docs/speed.md has the times of both). The same function, for float32, bfloat16 or float16
    [n, height, width, channels], without masks.

    Raises:
      ValueError: an option that the operation does not have.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        if self.axis not in (-1, 3) or self.renorm or self.synchronized:
            raise ValueError(
                f"axis={self.axis}, renorm={self.renorm}, synchronized={self.synchronized}: fused "
                "batch norm needs -1 or 3, False and False; use Keras's layer"
            )

    def call(self, inputs, training=None, mask=None):
        """Normalizes `inputs`, [n, height, width, channels]; returns its shape and dtype.

        Raises:
          ValueError: there is a mask, which the operation does not have.
        """
        if mask is not None:
            raise ValueError(f"{self.name}: fused batch norm takes no mask; use Keras's layer")
        moments = [self.moving_mean, self.moving_variance]
        scale = self.gamma if self.scale else tf.ones_like(self.moving_mean)
        offset = self.beta if self.center else tf.zeros_like(self.moving_mean)
        in_training = bool(training and self.trainable)
        others = [scale, offset, *([] if in_training else moments)]
        outputs, mean, variance = tf.compat.v1.nn.fused_batch_norm(
            inputs,  # whatever its type, the operation has the others in float32
            *(tf.cast(other, tf.float32) for other in others),
            epsilon=self.epsilon,
            is_training=in_training,
        )
        if in_training:
            # TensorFlow hands out the unbiased variance.
            values = tf.cast(tf.size(inputs) / inputs.shape[-1], variance.dtype)
            for moving, value in zip(moments, (mean, variance * (1 - 1 / values)), strict=True):
                value = tf.cast(value, moving.dtype)
                moving.assign(moving * self.momentum + value * (1.0 - self.momentum))
        return outputs


@keras.saving.register_keras_serializable(package="towers")
class Whitening(keras.layers.Layer):
    """A convolution whose outputs are uncorrelated and of mean square 1 on the images it has seen.

    Its filters are the eigenvectors v of the mean product of all patches with themselves, each as
    v / sqrt(eigenvalue + epsilon), and the negatives of these, so that a ReLU after it loses
    nothing. `adapt` sets them, and nothing is trained, which spares a backward pass over the
    largest of the activations. Page 2019 ("How to train your ResNet 8") has it as a first layer;
    this form, with its negatives, is that of Jordan 2024 (arXiv:2404.00498), without the bias.
    """

    def __init__(self, kernel_size=2, epsilon=5e-4, **kwargs):
        super().__init__(**kwargs)
        self.kernel_size = kernel_size
        self.epsilon = epsilon

    def build(self, input_shape):
        """Makes `kernel`, float32 [size, size, channels, filters], all 0 until `adapt`."""
        channels, size = input_shape[-1], self.kernel_size
        shape = (size, size, channels, 2 * channels * size**2)
        self.kernel = self.add_weight(shape, "zeros", trainable=False, name="kernel")

    def adapt(self, images: np.ndarray) -> None:
        """Sets the filters, from all patches of `images`, floating [n, height, width, channels].

        What is decomposed is summed in float64 and rounded to float32, which hides the order of
        the sums, and so the number of threads that made them. Each eigenvector has the sign that
        makes its largest entry positive.
        """
        images, size = np.asarray(images), self.kernel_size
        rows, columns = (length - size + 1 for length in images.shape[1:3])
        length = size * size * images.shape[-1]  # values of a patch
        products, count = np.zeros([length, length]), len(images) * rows * columns
        for first in range(0, len(images), 100):  # a patch for each pixel takes memory
            part = images[first : first + 100].astype(np.float64)
            patches = np.stack(
                [part[:, y : y + rows, x : x + columns] for y in range(size) for x in range(size)],
                axis=-2,
            ).reshape(-1, length)  # [patches, length]
            products += patches.T @ patches
        values, vectors = np.linalg.eigh((products / count).astype(np.float32).astype(np.float64))
        largest = np.take_along_axis(vectors, np.abs(vectors).argmax(axis=0)[np.newaxis], axis=0)
        filters = vectors * np.sign(largest) / np.sqrt(np.maximum(values, 0.0) + self.epsilon)
        filters = np.concatenate([filters, -filters], axis=1)
        self.kernel.assign(filters.reshape(self.kernel.shape))

    def call(self, inputs):
        """[n, height, width, channels] to [n, height - size + 1, width - size + 1, filters]."""
        return tf.nn.conv2d(inputs, self.kernel, strides=1, padding="VALID")

    def get_config(self):
        return super().get_config() | {"kernel_size": self.kernel_size, "epsilon": self.epsilon}
