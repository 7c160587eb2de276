# %% [markdown]
# # Try it: does the lower loss go with the higher accuracy?
# > Should the lower loss go with the higher accuracy?
#
# [The lesson](../lessons/train_and_test_loss.md) compares four ways of training on CIFAR-10. Here
# you train in two of these ways within seconds, split a loss that training shows into its parts,
# and lower a test loss without changing a single prediction.
#
# ## Begin

# %%
import towers  # before TensorFlow: it sets it up

print(towers.__version__)

# %% [markdown]
# 500 training images of the embedded data set at half their size, few enough for a network to
# memorize. Distorted images are mirrored at random along both axes, shifted by up to one pixel, and
# noisy, so that the network never sees the same image twice.

# %%
import keras
import numpy as np
import tensorflow as tf

from input_pipeline import shapes


def halved(images):
    """From 0 to 1; each pixel is the mean of 2x2."""
    return images.reshape(-1, 16, 2, 16, 2, 3).mean(axis=(2, 4), dtype=np.float32) / 255


images, labels = shapes.make("train")
images, labels = halved(images[:500]), labels[:500]
test_images, test_labels = shapes.make("test")
test_images = halved(test_images)


def distorted(images, rng):
    coins = rng.random((2, len(images), 1, 1, 1)) < 0.5
    images = np.where(coins[0], images[:, ::-1], images)
    images = np.where(coins[1], images[:, :, ::-1], images)
    shifts = rng.integers(-1, 2, size=(len(images), 2))
    shifted = [np.roll(*pair, axis=(0, 1)) for pair in zip(images, shifts, strict=True)]
    return shifted + rng.normal(0, 0.05, images.shape).astype(np.float32)


# %% [markdown]
# A small network. Its total loss is the mean cross entropy of the batch plus the weight decay: half
# the coefficient times the sum of the squares of all kernels.


# %%
def network():
    keras.utils.set_random_seed(0)
    with keras.device("cpu:0"):
        return keras.Sequential(
            [
                keras.Input((16, 16, 3)),
                keras.layers.Conv2D(32, 3, use_bias=False),
                keras.layers.BatchNormalization(momentum=0.9),
                keras.layers.ReLU(),
                keras.layers.MaxPooling2D(2),
                keras.layers.Conv2D(32, 3, use_bias=False),
                keras.layers.BatchNormalization(momentum=0.9),
                keras.layers.ReLU(),
                keras.layers.Flatten(),
                keras.layers.Dense(10),
            ]
        )


def kernels(model):
    return [weight for weight in model.trainable_variables if weight.path.endswith("kernel")]


def cross_entropy(model, images, labels, training=False):
    logits = model(images, training=training)
    return tf.reduce_mean(
        keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    )


def total_loss(model, images, labels, coefficient, training=False):
    squares = tf.add_n([tf.reduce_sum(kernel.value**2) for kernel in kernels(model)])
    return cross_entropy(model, images, labels, training) + coefficient / 2 * squares


def train(distort, coefficient, epochs=30, rate=0.05):
    """The model, and the loss shown: the mean total loss over the steps of the last epoch."""
    model, optimizer = network(), keras.optimizers.SGD(rate, momentum=0.9)
    optimizer.build(model.trainable_variables)

    @tf.function(autograph=False)
    def train_step(images, labels):
        with tf.GradientTape() as tape:
            loss = total_loss(model, images, labels, coefficient, training=True)
        weights = model.trainable_variables
        optimizer.apply(tape.gradient(loss, [weight.value for weight in weights]), weights)
        return loss

    rng = np.random.default_rng(0)
    for epoch in range(epochs):
        optimizer.learning_rate = rate * (1 - epoch / epochs)
        of_steps = []
        for ids in rng.permutation(500).reshape(10, 50):
            batch = distorted(images[ids], rng) if distort else images[ids]
            of_steps.append(float(train_step(batch, labels[ids])))
    return model, np.mean(of_steps)


# %% [markdown]
# ## Predict, then look
# `plain` trains on the images as they are, without weight decay. `both` trains on distorted images,
# with weight decay. Both begin with the same weights and follow the same learning rate.
#
# 1. Which of the two shows the lower loss at the end: `plain` or `both`?
# 2. Which of the two gets more of the 1,000 test images right?
# 3. After training, you evaluate the cross entropy of `both` on its training images without
#    distortions. Is it much lower than the loss shown, about as high, or much higher?
#
# Write your answers down, then run the cell.

# %%
COEFFICIENT = 0.005


def accuracy(model):
    return np.mean(model(test_images).numpy().argmax(axis=1) == test_labels)


plain, plain_shown = train(distort=False, coefficient=0.0)
both, both_shown = train(distort=True, coefficient=COEFFICIENT)
print("       loss   cross entropy of           test")
print("       shown  training images    test    accuracy")
for name, model, shown in (("plain", plain, plain_shown), ("both", both, both_shown)):
    of_train = float(cross_entropy(model, images, labels))
    of_test = float(cross_entropy(model, test_images, test_labels))
    print(f"{name:5}  {shown:5.2f}  {of_train:15.2f}  {of_test:6.2f}  {accuracy(model):10.1%}")

# %% [markdown]
# <details><summary>Answers</summary>
#
# 1. `plain`, by far. It sees the same 500 images in every epoch and memorizes them.
# 2. `both`. It never sees the same image twice, so memorizing helps it little. It has to learn what
#    the distorted images of a class have in common, and the test images have that too.
# 3. Much lower. The loss shown is of distorted images, and it contains the weight decay.
#
# So the lower training loss belongs to the worse model: the two losses shown do not measure the
# same thing. The cross entropy of the test images ranks the two models as their accuracies do.
#
# </details>
#
# ## Exercise 1: the parts of the loss
# With the final weights, the total loss of `both` has three parts: the cross entropy of the images
# as they are, what the distortions add to it, and the weight decay. Compute the third part. (The
# loss shown is not exactly this total: it is a mean over the steps of the last epoch, in which the
# weights still changed and batch norm used the statistics of each batch.)

# %%
of_distorted = distorted(images, np.random.default_rng(1))
total = float(total_loss(both, of_distorted, labels, COEFFICIENT))
as_they_are = float(cross_entropy(both, images, labels))
of_distortions = float(cross_entropy(both, of_distorted, labels)) - as_they_are
of_decay = 0.0  # change this
print(f"{total:.4f}, and the parts: {as_they_are:.4f} + {of_distortions:.4f} + {of_decay:.4f}")

# %% tags=["hide-cell"]
# A solution: the weight decay depends on the kernels alone, and not on any image.
of_decay = COEFFICIENT / 2 * sum(np.sum(kernel.numpy() ** 2) for kernel in kernels(both))
print(f"{total:.4f}, and the parts: {as_they_are:.4f} + {of_distortions:.4f} + {of_decay:.4f}")
assert np.isclose(total, as_they_are + of_distortions + of_decay, rtol=1e-5, atol=0)

# %% [markdown]
# ## Exercise 2: a lower loss, the same predictions
# `plain` is confident even where it is wrong, and a confident mistake costs much. Find the factor
# for its logits that makes the test loss as low as possible. How many predictions change?

# %%
logits = plain(test_images).numpy().astype(np.float64)


def loss_with(factor):
    """The test loss if all logits are multiplied by the factor."""
    return np.mean(
        keras.losses.sparse_categorical_crossentropy(test_labels, logits * factor, from_logits=True)
    )


factor = 1.0  # change this
print(f"times {factor:.2f}: loss {loss_with(factor):.2f}")

# %% tags=["hide-cell"]
# A solution: try many factors. None of them changes a prediction, because the largest logit stays
# the largest; so the accuracy stays the same too. (This is temperature scaling. In practice, one
# finds the factor on images that are not the test images.)
factors = np.arange(1, 101) / 100
factor = min(factors, key=loss_with)
print(f"times {factor:.2f}: loss {loss_with(factor):.2f}")
assert loss_with(factor) < loss_with(1.0)
assert np.array_equal((logits * factor).argmax(axis=1), logits.argmax(axis=1))

# %% [markdown]
# ## The same with the package
# Keras shows both: `loss` has the decay of its regularizers, and a metric has the cross entropy
# alone.

# %%
for kernel in kernels(both):
    kernel.regularizer = keras.regularizers.L2(COEFFICIENT / 2)
towers.distribute(both, 1)
entropy = keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="cross_entropy")
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
both.compile(loss=loss, metrics=[entropy])
shown = both.evaluate(test_images, test_labels, return_dict=True, verbose=0)
print({name: round(value, 4) for name, value in shown.items()})
of_test = cross_entropy(both, test_images, test_labels)
assert np.isclose(shown["cross_entropy"], of_test, rtol=1e-5, atol=0)
assert np.isclose(shown["loss"], of_test + of_decay, rtol=1e-5, atol=0)
