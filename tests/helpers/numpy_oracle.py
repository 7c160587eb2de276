"""One training step of the tutorial's network in float64 NumPy, without TensorFlow.

The tests compare the real model's loss terms, gradients and updates with these.  Every size comes
from the shapes of the weights and images, so the tests can use a network of a few units.
"""

import numpy as np

Arrays = dict[str, np.ndarray]

POOL_WINDOW = 3
POOL_STRIDE = 2
LRN_RADIUS = 4
LRN_BIAS = 1.0
LRN_ALPHA = 0.001 / 9.0
LRN_BETA = 0.75

DECAYED_LAYERS = ("local3", "local4")


def loss_and_gradients(
    weights: Arrays, images: np.ndarray, labels: np.ndarray, weight_decay: float
) -> tuple[dict[str, float], Arrays]:
    """Loss terms of one batch, and the gradient of their total for every weight.

    weights: dict of arrays, "conv1/kernel" and so on; images: [n, h, w, c]; labels: int [n].
    """
    weights = {name: np.asarray(weight, np.float64) for name, weight in weights.items()}
    labels = np.asarray(labels)

    activations = forward(weights, np.asarray(images, np.float64))
    terms = loss_terms(weights, activations["logits"], labels, weight_decay)

    d_logits = cross_entropy_backward(activations["logits"], labels)
    gradients = backward(weights, activations, d_logits)
    for layer in DECAYED_LAYERS:
        gradients[f"{layer}/kernel"] += weight_decay * weights[f"{layer}/kernel"]
    return terms, gradients


def forward(weights: Arrays, images: np.ndarray) -> Arrays:
    """Every activation of the network by name, from "images" [n, h, w, c] to "logits" [n, k]."""
    a = {"images": images}
    a["conv1"] = relu(conv(a["images"], weights["conv1/kernel"]) + weights["conv1/bias"])
    a["pool1"] = max_pool(a["conv1"])
    a["norm1"] = lrn(a["pool1"])
    a["conv2"] = relu(conv(a["norm1"], weights["conv2/kernel"]) + weights["conv2/bias"])
    a["norm2"] = lrn(a["conv2"])
    a["pool2"] = max_pool(a["norm2"])
    a["flat"] = a["pool2"].reshape(len(images), -1)
    a["local3"] = relu(a["flat"] @ weights["local3/kernel"] + weights["local3/bias"])
    a["local4"] = relu(a["local3"] @ weights["local4/kernel"] + weights["local4/bias"])
    a["logits"] = a["local4"] @ weights["softmax_linear/kernel"] + weights["softmax_linear/bias"]
    return a


def backward(weights: Arrays, activations: Arrays, d_logits: np.ndarray) -> Arrays:
    """Gradient for every weight, given `d_logits` [n, k], the gradient for the logits."""
    a = activations
    gradients = {}

    def dense_layer(layer, inputs, d_outputs):
        kernel = weights[f"{layer}/kernel"]
        gradients[f"{layer}/kernel"] = inputs.T @ d_outputs
        gradients[f"{layer}/bias"] = d_outputs.sum(axis=0)
        return d_outputs @ kernel.T

    def conv_layer(layer, inputs, d_outputs):
        kernel = weights[f"{layer}/kernel"]
        gradients[f"{layer}/kernel"] = conv_backward_kernel(inputs, kernel.shape, d_outputs)
        gradients[f"{layer}/bias"] = d_outputs.sum(axis=(0, 1, 2))
        return conv_backward_input(kernel, d_outputs)

    d = dense_layer("softmax_linear", a["local4"], d_logits)
    d = dense_layer("local4", a["local3"], relu_backward(a["local4"], d))
    d = dense_layer("local3", a["flat"], relu_backward(a["local3"], d))
    d = max_pool_backward(a["norm2"], d.reshape(a["pool2"].shape))
    d = lrn_backward(a["conv2"], d)
    d = conv_layer("conv2", a["norm1"], relu_backward(a["conv2"], d))
    d = lrn_backward(a["pool1"], d)
    d = max_pool_backward(a["conv1"], d)
    conv_layer("conv1", a["images"], relu_backward(a["conv1"], d))
    return {name: gradients[name] for name in weights}


def loss_terms(
    weights: Arrays, logits: np.ndarray, labels: np.ndarray, weight_decay: float
) -> dict[str, float]:
    """Each loss term by name, and their sum as "total"."""
    terms = {"cross_entropy": cross_entropy(logits, labels)}
    for layer in DECAYED_LAYERS:
        squares = np.sum(weights[f"{layer}/kernel"] ** 2)
        terms[f"weight_decay/{layer}"] = float(weight_decay * squares / 2)
    terms["total"] = sum(terms.values())
    return terms


def cross_entropy(logits, labels):
    """Mean over the examples of the softmax cross entropy; logits [n, k], labels int [n]."""
    return float(-np.mean(log_softmax(logits)[np.arange(len(labels)), labels]))


def cross_entropy_backward(logits, labels):
    """Gradient of `cross_entropy` for the logits, [n, k]."""
    d_logits = np.exp(log_softmax(logits))
    d_logits[np.arange(len(labels)), labels] -= 1
    return d_logits / len(labels)


def log_softmax(logits):
    """Logarithm of the softmax over the last axis of [n, k]."""
    # Shifting by the maximum keeps exp from overflowing and does not change the softmax.
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def relu(x):
    """Positive part of x, any shape."""
    return np.maximum(x, 0)


def relu_backward(outputs, d_outputs):
    """Gradient for the input of `relu`, which is zero where the output is zero."""
    return np.where(outputs > 0, d_outputs, 0)


def same_padding(size, window, stride):
    """TensorFlow's SAME padding (before, after) along one axis; an odd one goes after."""
    outputs = -(-size // stride)
    total = max((outputs - 1) * stride + window - size, 0)
    return total // 2, total - total // 2


def pad_same(x, window, stride, value):
    """x [n, h, w, c] padded over h and w with `value` for a (height, width) window."""
    rows = same_padding(x.shape[1], window[0], stride)
    columns = same_padding(x.shape[2], window[1], stride)
    return np.pad(x, ((0, 0), rows, columns, (0, 0)), constant_values=value)


def unpad_same(padded, shape, window, stride):
    """The part of `padded` that `pad_same` took from an array of `shape` [n, h, w, c]."""
    top, _ = same_padding(shape[1], window[0], stride)
    left, _ = same_padding(shape[2], window[1], stride)
    return padded[:, top : top + shape[1], left : left + shape[2]]


def windows(padded, window, stride):
    """Every window of padded [n, h, w, c], as [n, rows, columns, c, height, width]."""
    views = np.lib.stride_tricks.sliding_window_view(padded, window, axis=(1, 2))
    return views[:, ::stride, ::stride]


def conv(x, kernel):
    """SAME convolution of stride 1: x [n, h, w, c], kernel [kh, kw, c, f] -> [n, h, w, f]."""
    patches = windows(pad_same(x, kernel.shape[:2], 1, 0), kernel.shape[:2], 1)
    return np.tensordot(patches, kernel, axes=((4, 5, 3), (0, 1, 2)))


def conv_backward_kernel(x, kernel_shape, d_outputs):
    """Gradient for the kernel [kh, kw, c, f], given d_outputs [n, h, w, f]."""
    patches = windows(pad_same(x, kernel_shape[:2], 1, 0), kernel_shape[:2], 1)
    by_channel = np.tensordot(patches, d_outputs, axes=((0, 1, 2), (0, 1, 2)))
    return by_channel.transpose(1, 2, 0, 3)


def conv_backward_input(kernel, d_outputs):
    """Gradient for the input [n, h, w, c], given d_outputs [n, h, w, f]."""
    kernel_rows, kernel_columns, channels, _ = kernel.shape
    n, h, w, _ = d_outputs.shape
    d_padded = np.zeros((n, h + kernel_rows - 1, w + kernel_columns - 1, channels))
    for i in range(kernel_rows):
        for j in range(kernel_columns):
            d_padded[:, i : i + h, j : j + w] += d_outputs @ kernel[i, j].T
    return unpad_same(d_padded, (n, h, w, channels), kernel.shape[:2], 1)


def max_pool(x):
    """3x3 SAME max pool of stride 2: [n, h, w, c] -> [n, ceil(h / 2), ceil(w / 2), c]."""
    return pool_windows(x).max(axis=-1)


def max_pool_backward(x, d_outputs):
    """Gradient for the input of `max_pool`, given d_outputs [n, ceil(h / 2), ceil(w / 2), c]."""
    # argmax takes the first maximum of a tie, in row-major order, as TensorFlow does.
    winners = pool_windows(x).argmax(axis=-1)
    window = (POOL_WINDOW, POOL_WINDOW)
    d_padded = np.zeros_like(pad_same(x, window, POOL_STRIDE, 0))
    rows, columns = (POOL_STRIDE * (size - 1) + 1 for size in d_outputs.shape[1:3])
    for position, (i, j) in enumerate(np.ndindex(window)):
        share = np.where(winners == position, d_outputs, 0)
        d_padded[:, i : i + rows : POOL_STRIDE, j : j + columns : POOL_STRIDE] += share
    return unpad_same(d_padded, x.shape, window, POOL_STRIDE)


def pool_windows(x):
    """Every pool window of x [n, h, w, c], as [n, rows, columns, c, 9], row-major."""
    window = (POOL_WINDOW, POOL_WINDOW)
    views = windows(pad_same(x, window, POOL_STRIDE, -np.inf), window, POOL_STRIDE)
    return views.reshape(*views.shape[:4], -1)


def lrn(x, radius=LRN_RADIUS, bias=LRN_BIAS, alpha=LRN_ALPHA, beta=LRN_BETA):
    """Local response normalization over the channels of x [n, h, w, c]."""
    return x * (bias + alpha * channel_window_sum(x**2, radius)) ** -beta


def lrn_backward(x, d_outputs, radius=LRN_RADIUS, bias=LRN_BIAS, alpha=LRN_ALPHA, beta=LRN_BETA):
    """Gradient for the input of `lrn`; x and d_outputs [n, h, w, c]."""
    scale = bias + alpha * channel_window_sum(x**2, radius)
    # Channel j is in the window of channel i exactly when i is in that of j, so the sum over the
    # outputs that an input reaches is the same window sum.
    through_scale = channel_window_sum(d_outputs * x * scale ** (-beta - 1), radius)
    return d_outputs * scale**-beta - 2 * alpha * beta * x * through_scale


def channel_window_sum(x, radius):
    """For each channel of x [n, h, w, c], the sum over the channels at most `radius` away."""
    padded = np.pad(x, ((0, 0), (0, 0), (0, 0), (radius, radius)))
    views = np.lib.stride_tricks.sliding_window_view(padded, 2 * radius + 1, axis=3)
    return views.sum(axis=-1)


def average_over_towers(tower_gradients: list[Arrays]) -> Arrays:
    """Mean of each gradient over the towers; a list of dicts with the same names -> one dict."""
    names = tower_gradients[0].keys()
    if any(gradients.keys() != names for gradients in tower_gradients):
        raise ValueError("the towers have gradients for different weights")
    return {
        name: np.mean([gradients[name] for gradients in tower_gradients], axis=0) for name in names
    }


def sgd_momentum_update(weight, gradient, velocity, learning_rate, momentum, nesterov):
    """Keras's SGD: the new (weight, velocity), each of the weight's shape."""
    step = learning_rate * gradient
    velocity = momentum * velocity - step
    if nesterov:
        return weight + momentum * velocity - step, velocity
    return weight + velocity, velocity


def adamw_update(
    weight,
    gradient,
    first_moment,
    second_moment,
    iteration,
    learning_rate,
    weight_decay,
    beta_1=0.9,
    beta_2=0.999,
    epsilon=1e-7,
):
    """Keras's AdamW: the new (weight, first_moment, second_moment), each of the weight's shape.

    `iteration` is the number of updates made before this one, so 0 for the first.
    """
    decayed = weight * (1 - learning_rate * weight_decay)
    first_moment = beta_1 * first_moment + (1 - beta_1) * gradient
    second_moment = beta_2 * second_moment + (1 - beta_2) * gradient**2

    updates = iteration + 1
    correction = np.sqrt(1 - beta_2**updates) / (1 - beta_1**updates)
    # Epsilon joins the uncorrected second moment, as in Keras and unlike the paper's Algorithm 1.
    step = learning_rate * correction * first_moment / (np.sqrt(second_moment) + epsilon)
    return decayed - step, first_moment, second_moment


def moving_average(average, value, decay, step):
    """The average after `value` joins it, with the decay held lower in the first steps."""
    decay = min(decay, (1 + step) / (10 + step))
    return decay * average + (1 - decay) * value
