# %% [markdown]
# # Try it: which of the four replicas is the final model?
# > After synchronous training my k models differ. Which is the final one?
#
# [The lesson](../lessons/batch_norm.md) compares the accuracies that a residual network has with
# each tower's statistics. Here you train four replicas yourself, look for what differs between
# them, and put the final model together.
#
# ## Begin
# On a CPU, each tower is a logical device. TensorFlow creates these only once, before its first
# computation. If the next cell prints a device twice, TensorFlow had started before: restart the
# kernel and run that cell first.

# %%
import towers  # before TensorFlow: it sets it up

devices = towers.devices.choose(4)
print(devices)

# %% [markdown]
# Four replicas of a small network with two batch-norm layers. All start with the same weights.

# %%
import keras
import numpy as np
import tensorflow as tf

from input_pipeline import shapes

images, labels = shapes.make("train")
test_images, test_labels = shapes.make("test")
images, test_images = images.astype("float32") / 255, test_images.astype("float32") / 255


def network():
    keras.utils.set_random_seed(0)
    with keras.device("cpu:0"):
        return keras.Sequential(
            [
                keras.Input((32, 32, 3)),
                keras.layers.AveragePooling2D(2),
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


replicas = [network() for _ in range(4)]
optimizers = [keras.optimizers.SGD(0.05, momentum=0.9) for _ in replicas]
for replica, optimizer in zip(replicas, optimizers, strict=True):
    optimizer.build(replica.trainable_variables)

# %% [markdown]
# In each step, every replica computes the gradient of its own 16 images. The four gradients are
# averaged, and every replica updates its own weights with the average. Nothing is done about batch
# norm: each replica keeps its own moving averages of the means and variances that it sees.


# %%
def gradient(replica, images, labels):
    with tf.GradientTape() as tape:
        logits = replica(images, training=True)
        loss = tf.reduce_mean(
            keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        )
    return tape.gradient(loss, [weight.value for weight in replica.trainable_variables])


@tf.function(autograph=False)
def train_step(images, labels):
    parts = zip(replicas, tf.split(images, 4), tf.split(labels, 4), strict=True)
    gradients = [gradient(*part) for part in parts]
    average = [tf.add_n(of_replicas) / 4 for of_replicas in zip(*gradients, strict=True)]
    for replica, optimizer in zip(replicas, optimizers, strict=True):
        optimizer.apply(average, replica.trainable_variables)


choices = np.random.default_rng(0).integers(len(images), size=(150, 64))
batches = [(images[ids], labels[ids]) for ids in choices]
for step, batch in enumerate(batches):
    for optimizer in optimizers:
        optimizer.learning_rate = 0.05 * (1 - step / len(batches))  # it falls to 0
    train_step(*batch)

# %% [markdown]
# ## Predict, then look
# 1. How far apart are the *weights* of the replicas: exactly 0, about 1e-7, or more than 1e-3?
# 2. How far apart are their *moving means*, in standard deviations of the feature: exactly 0, about
#    1e-7, or more than 1e-3?
# 3. You give replica 1 the statistics of replica 0. On how many of the 1,000 test images do their
#    predictions still differ: on none, on fewer than before, or on as many as before?
#
# Write your answers down, then run the cell.


# %%
def weights(model):
    return [variable.numpy() for variable in model.trainable_variables]


def statistics(model):
    """The first batch-norm layer's moving mean and variance, then the second's."""
    return [variable.numpy() for variable in model.non_trainable_variables]


def with_statistics(replica, values):
    """A new model with the weights of a replica and these statistics."""
    model = network()
    for variable, value in zip(model.trainable_variables, weights(replica), strict=True):
        variable.assign(value)
    for variable, value in zip(model.non_trainable_variables, values, strict=True):
        variable.assign(value)
    return model


def predictions(model):
    return model(test_images, training=False).numpy().argmax(axis=1)


def apart(some, others):
    """The largest difference between two lists of arrays."""
    return max(np.abs(one - other).max() for one, other in zip(some, others, strict=True))


def distance(some, others):
    """Between moving means, in standard deviations, as a root mean square over the features."""
    pairs = zip(some[0::2], others[0::2], others[1::2], strict=True)
    squares = [(one - other) ** 2 / variance for one, other, variance in pairs]
    return np.sqrt(np.mean(np.concatenate(squares)))


first = replicas[0]
print("replica  weights apart  moving means apart  test accuracy")
for index, replica in enumerate(replicas):
    print(
        f"{index:7}  {apart(weights(replica), weights(first)):13.1e}"
        f"  {distance(statistics(replica), statistics(first)):18.1e}"
        f"  {np.mean(predictions(replica) == test_labels):13.1%}"
    )
before = np.sum(predictions(replicas[1]) != predictions(first))
same_statistics = with_statistics(replicas[1], statistics(first))
after = np.sum(predictions(same_statistics) != predictions(first))
print(f"replicas 0 and 1: {before} predictions differ; with the same statistics: {after}")

# %% [markdown]
# <details><summary>Answers</summary>
#
# 1. Exactly 0. Equal weights minus the same step are equal weights, in every step. The statistics
#    cannot disturb this, because training normalizes by the batch's own mean and variance and does
#    not read the moving averages.
# 2. More than 1e-3. The moving averages are not trained: they have no gradient that could be
#    averaged. Each replica averages over its own images.
# 3. On none. The replicas differ in nothing but their statistics, so with the same statistics they
#    are the same model.
#
# </details>
#
# ## Exercise 1: the final model
# Which statistics should the final model have? The cell takes those of replica 0. Combine the four
# sets into better ones. The cell prints how far they are from a reference: statistics re-estimated
# from 2,000 images at once, with the final weights.


# %%
def reestimated(count):
    model = with_statistics(first, statistics(first))
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum = 0.0  # it keeps the statistics of the last batch alone
    model(images[:count], training=True)
    return statistics(model)


reference = reestimated(2_000)
sets = [statistics(replica) for replica in replicas]
final = sets[0]  # change this
print(
    "the replicas:",
    *(f"{distance(of_one, reference):.4f}" for of_one in sets),
    "from the reference",
)
print(f"the final model: {distance(final, reference):.4f}")

# %% tags=["hide-cell"]
# A solution: the mean of the four sets. Whatever the reference is, the mean's distance from it is
# at most the mean of the four distances, because the errors of the four partly cancel.
final = [np.mean(values, axis=0) for values in zip(*sets, strict=True)]
print(f"the final model: {distance(final, reference):.4f}")
assert distance(final, reference) < np.mean([distance(of_one, reference) for of_one in sets])

# %% [markdown]
# ## Exercise 2: what the mean of the variances leaves out
# The cell computes the features of the first convolution on 64 images, 16 for each tower. For every
# feature, the mean of the four variances is smaller than the variance over all 64 images. Correct
# `variance`, using only the towers' `means` and `variances`.

# %%
x = first.layers[1](first.layers[0](images[:64])).numpy().astype(np.float64)
whole = x.reshape(-1, 32).var(axis=0)  # [32 features], over all images and places
of_towers = x.reshape(4, -1, 32)
means, variances = of_towers.mean(axis=1), of_towers.var(axis=1)  # [4 towers, 32 features]

variance = variances.mean(axis=0)  # change this
print("divided by the variance over all 64:", np.round((variance / whole)[:5], 4), "...")

# %% tags=["hide-cell"]
# A solution: the variance over all is the mean of the variances plus the variance of the means. A
# moving average of variances contains only the first part.
variance = variances.mean(axis=0) + means.var(axis=0)
assert np.allclose(variance, whole, rtol=1e-12, atol=0)
assert np.all(variances.mean(axis=0) < whole)

# %% [markdown]
# ## The same with the package
# Keras's `fit` on four towers has one set of weights, and its statistics are the mean of the
# towers'. The cell makes one step, then computes what each tower has seen in it.

# %%
model = towers.distribute(network(), devices, microbatch_size=16)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss)
model.train_on_batch(*batches[0])

sets = []
for part in np.split(batches[0][0], 4):
    replica = network()
    replica(part, training=True)
    sets.append(statistics(replica))
mean = [np.mean(values, axis=0) for values in zip(*sets, strict=True)]
own = ", ".join(f"{distance(of_one, statistics(model)):.1e}" for of_one in sets)
print(f"moving means: each tower's {own} apart; their mean {distance(mean, statistics(model)):.1e}")
assert apart(mean, statistics(model)) < 1e-5
assert min(apart(of_one, statistics(model)) for of_one in sets) > 1e-3
