# %% [markdown]
# # Try it: what does training keep in memory?
# > Why does training need so much more memory than evaluation? Why not use the mean activation?
#
# [The lesson](../lessons/memory.md) counts and measures the memory of a convolutional network. Here
# the two passes are a few lines of NumPy, in which you see what is kept and what for. You measure
# their memory, lower it, and work out what a mean activation loses.
#
# ## Begin

# %%
import towers  # before TensorFlow: it sets it up

print(towers.__version__)

# %% [markdown]
# 1,000 images, equally many of each class, in grey and at half their size; and the weights of a
# network with hidden layers of 128 units, in float64 (8 bytes a number) and without biases.

# %%
import tracemalloc

import numpy as np

from input_pipeline import shapes

images, labels = shapes.make("test")
grey = images.reshape(1000, 16, 2, 16, 2, 3).mean(axis=(2, 4, 5)).reshape(1000, 256) / 255


def new_weights(hidden_layers):
    rng = np.random.default_rng(0)
    sizes = [256, *[128] * hidden_layers, 10]
    return [
        rng.normal(0, np.sqrt(2 / inputs), (inputs, outputs))
        for inputs, outputs in zip(sizes, sizes[1:], strict=False)
    ]


# %% [markdown]
# Evaluation needs nothing but the logits. Training keeps the input `x` of every layer, because the
# backward pass reads it twice: the gradient of the layer's weights is `x.T @ errors`, and errors go
# back through the ReLU that computed `x` only where `x` is positive.


# %%
def evaluation(x, weights):
    """The logits."""
    for weight in weights[:-1]:
        x = np.maximum(x @ weight, 0)
    return x @ weights[-1]


def forward(x, weights):
    """The logits, and every layer's input."""
    kept = [x]
    for weight in weights[:-1]:
        kept.append(np.maximum(kept[-1] @ weight, 0))
    return kept[-1] @ weights[-1], kept


def errors_of(logits, labels):
    """The derivative of each image's cross entropy by its logits."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True) - np.eye(10)[labels]


def training(x, labels, weights):
    """The gradient of the mean cross entropy, layer by layer."""
    logits, kept = forward(x, weights)
    errors = errors_of(logits, labels) / len(x)
    gradients = []
    for weight in reversed(weights):
        x = kept.pop()  # read for the last time: its memory is free afterwards
        gradients.insert(0, x.T @ errors)
        if kept:  # the images need no gradient
            errors = (errors @ weight.T) * (x > 0)
    return gradients


def peak(function, *arguments):
    """The most memory that NumPy had at any one time during the call, in MB of 10^6 bytes."""
    tracemalloc.start()
    function(*arguments)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most / 1e6


# %% [markdown]
# ## Predict, then look
# 1. A network has 8 hidden layers. How many bytes of their outputs does training keep for each
#    image: none, 1,024 (one layer), or 8,192 (all of them)?
# 2. The batch grows from 500 to 1,000 images. Which peak of memory about doubles: that of training,
#    that of evaluation, or both?
# 3. The network grows from 8 to 16 hidden layers. Which peak about doubles now?
#
# Write your answers down, then run the cell.

# %%
_, kept = forward(grey, new_weights(8))
print("kept for each image:", sum(x.nbytes for x in kept[1:]) // len(grey), "bytes")
print("layers  batch  evaluation, MB  training, MB")
for layers, batch in ((8, 500), (8, 1000), (16, 1000)):
    weights = new_weights(layers)
    of_evaluation = peak(evaluation, grey[:batch], weights)
    of_training = peak(training, grey[:batch], labels[:batch], weights)
    print(f"{layers:6}  {batch:5}  {of_evaluation:14.1f}  {of_training:12.1f}")

# %% [markdown]
# <details><summary>Answers</summary>
#
# 1. 8,192, all of them. The backward pass comes to the first layers last, so their outputs have to
#    stay until then.
# 2. Both. Each pass computes a row of every array for each image, even if evaluation soon frees it.
# 3. Only that of training. Evaluation frees a layer's input once it has the output, so it never has
#    more than one layer's arrays in memory.
#
# </details>
#
# ## Exercise 1: one part after the other
# Compute the same gradient with less memory: from ten parts of 100 images, one after the other, so
# that only one part's activations are in memory at a time.

# %%
weights = new_weights(8)
whole = training(grey, labels, weights)


def accumulated(x, labels, weights, parts):
    return training(x, labels, weights)  # change this


print(f"whole: {peak(training, grey, labels, weights):.1f} MB", end=", ")
print(f"in parts: {peak(accumulated, grey, labels, weights, 10):.1f} MB")


# %% tags=["hide-cell"]
# A solution: gradient accumulation. The gradient of the batch is the mean of the gradients of equal
# parts, and one part can be forgotten before the next is computed.
def accumulated(x, labels, weights, parts):
    """The mean of the parts' gradients."""
    total = [np.zeros_like(weight) for weight in weights]
    for own_x, own_labels in zip(np.split(x, parts), np.split(labels, parts), strict=True):
        for so_far, gradient in zip(total, training(own_x, own_labels, weights), strict=True):
            so_far += gradient / parts
    return total


in_parts = accumulated(grey, labels, weights, 10)
print(f"whole: {peak(training, grey, labels, weights):.1f} MB", end=", ")
print(f"in parts: {peak(accumulated, grey, labels, weights, 10):.1f} MB")
for one, other in zip(in_parts, whole, strict=True):
    assert np.linalg.norm(one - other) < 1e-12 * np.linalg.norm(other)
_, kept_of_part = forward(grey[:100], weights)
_, kept_of_all = forward(grey, weights)
assert 10 * sum(x.nbytes for x in kept_of_part) == sum(x.nbytes for x in kept_of_all)

# %% [markdown]
# ## Exercise 2: what the means lose
# The gradient of the last layer is a mean over the images: each image contributes the product of
# its input and its errors. If training kept only the mean input and the mean errors, it could
# compute no more than `at_means`, the product of the means. Write `lost`, the difference between
# the two, as a formula of `x` and `errors`. And why is nothing left at the means if the last layer
# is all zeros?

# %%
x = forward(grey, weights)[1][-1]
last_layers = {"random": weights[-1], "zeros": np.zeros((128, 10))}


def both_gradients(last):
    errors = errors_of(x @ last, labels)
    at_means = np.outer(x.mean(axis=0), errors.mean(axis=0))
    return errors, x.T @ errors / len(x), at_means


def lost(x, errors):
    return np.zeros((128, 10))  # change this


def show():
    print("last layer  gradient  at the means    lost")
    for name, last in last_layers.items():
        errors, *gradients = both_gradients(last)
        norms = [np.linalg.norm(values) for values in (*gradients, lost(x, errors))]
        print(f"{name:10}  {norms[0]:8.4f}  {norms[1]:12.4f}  {norms[2]:6.4f}")


show()


# %% tags=["hide-cell"]
# A solution: the covariance of inputs and errors, that is, which image had which error. The means
# keep only the errors that all images share, which random weights make large. With a last layer of
# zeros there are none: every class has the probability 0.1 and a tenth of the images.
def lost(x, errors):
    return (x - x.mean(axis=0)).T @ (errors - errors.mean(axis=0)) / len(x)


show()
for last in last_layers.values():
    errors, gradient, at_means = both_gradients(last)
    assert np.allclose(at_means + lost(x, errors), gradient, rtol=0, atol=1e-12)
assert np.allclose(at_means, 0, rtol=0, atol=1e-12)  # of the zeros, which came last

# %% [markdown]
# ## The same with the package
# Towers cut the batch into microbatches. With `accumulate_gradients` a tower computes them one
# after the other; the weights are the same, to the last bit. A peak is the most that TensorFlow's
# allocator hands out in a step; of four steps, the cell shows the smallest.

# %%
import keras
import tensorflow as tf

images, labels = shapes.make("train")
images, labels = images[:1024].astype("float32") / 255, labels[:1024]


def trained(**options):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    (device,) = towers.devices.choose(1)
    towers.distribute(model, [device], **options)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05), loss)
    model.train_on_batch(images, labels)  # builds the graph
    allocator, name, peaks = tf.config.experimental, device.strip("/"), []
    print(options, end=": ")
    try:
        for _ in range(4):
            allocator.reset_memory_stats(name)
            model.train_on_batch(images, labels)
            peaks.append(allocator.get_memory_info(name)["peak"])
        print(f"{min(peaks) / 1e6:.0f} MB")
    except ValueError:
        print("this allocator does not count")
    return model.get_weights()


in_turn = trained(microbatch_size=128, accumulate_gradients=True)
side_by_side = trained(microbatch_size=128)
trained(microbatch_size=1024)
assert all(np.array_equal(one, other) for one, other in zip(side_by_side, in_turn, strict=True))
