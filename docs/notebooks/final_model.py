# %% [markdown]
# # Try it: why does each node report a different accuracy?
# > Each node reports a different validation accuracy
#
# [The lesson](../lessons/final_model.md) shows how far apart the nodes' accuracies are, and how far
# apart chance alone puts them. Here you deal out the test images yourself, fix nodes that count
# images twice, and check the formula for chance by trying every way to draw a sample.
#
# ## Begin

# %%
import towers  # before TensorFlow: it sets it up

print(towers.__version__)

# %% [markdown]
# A small network, trained so briefly that it gets many test images wrong.

# %%
import itertools

import keras
import numpy as np

from input_pipeline import shapes

images, labels = shapes.make("train")
test_images, test_labels = shapes.make("test")


def network():
    keras.utils.set_random_seed(0)
    with keras.device("cpu:0"):
        return keras.Sequential(
            [
                keras.Input((32, 32, 3)),
                keras.layers.Rescaling(1 / 255),
                keras.layers.Conv2D(16, 5, strides=2, activation="relu"),
                keras.layers.MaxPooling2D(2),
                keras.layers.Conv2D(32, 3, activation="relu"),
                keras.layers.Flatten(),
                keras.layers.Dense(10),
            ]
        )


model = towers.distribute(network(), 1)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(3e-3), loss)
choices = np.random.default_rng(0).integers(len(images), size=(200, 64))
for ids in choices:
    model.train_on_batch(images[ids], labels[ids])

# %% [markdown]
# After synchronous training all nodes have the same weights, so each of eight nodes has a copy of
# the model. Each evaluates its own 125 of the 1,000 test images, which are dealt out at random.

# %%
nodes = []
for _ in range(8):
    node = network()
    node.set_weights(model.get_weights())
    nodes.append(node)
dealt = np.random.default_rng(0).permutation(1000)
shares = np.split(dealt, 8)  # the images of each node


def right(model, ids):
    """Whether the model gets each of these test images right."""
    logits = model(test_images[ids].astype("float32"), training=False).numpy()
    return logits.argmax(axis=1) == test_labels[ids]


# %% [markdown]
# ## Predict, then look
# 1. How far is the highest of the eight accuracies above the lowest: 0, less than 1 point, or more
#    than 3 points?
# 2. You evaluate the model of the node with the highest accuracy on all 1,000 images. Is its
#    accuracy above that of all nodes together, equal to it, or below it?
# 3. Now the images are not dealt out at random, but sorted by class: the first node has the first
#    125, and so on. Are the accuracies closer together, about as far apart, or farther apart?
#
# Write your answers down, then run the cell.

# %%
right_of_nodes = [right(node, ids) for node, ids in zip(nodes, shares, strict=True)]
accuracies = [of_node.mean() for of_node in right_of_nodes]
all_right = np.concatenate(right_of_nodes)
best = nodes[np.argmax(accuracies)]
of_best = np.concatenate([right(best, ids) for ids in shares])
by_class = np.split(np.argsort(test_labels, kind="stable"), 8)
of_sorted = [right(node, ids).mean() for node, ids in zip(nodes, by_class, strict=True)]
print("each node:         ", *(f"{accuracy:.1%}" for accuracy in accuracies))
print(f"all nodes together: {all_right.mean():.1%}")
print(f"the best node's model on all images: {of_best.mean():.1%}")
print("sorted by class:   ", *(f"{accuracy:.1%}" for accuracy in of_sorted))

# %% [markdown]
# <details><summary>Answers</summary>
#
# 1. More than 3 points. Near 50 % or 60 %, an accuracy on 125 of the 1,000 images has a standard
#    deviation of about 4 points, and the highest and the lowest of eight are farther apart.
# 2. Equal to it. All nodes have the same model; the best node's share happens to have more of the
#    images that this model gets right.
# 3. Farther apart. Each node now has images of one or two classes, and the model is better at some
#    classes than at others. That is not chance.
#
# </details>
#
# ## Exercise 1: full batches only
# Three nodes have 334, 333 and 333 images, and evaluate only full batches of 128. Each fills up its
# last batch by starting over, and counts those images twice. Change one line so that the nodes
# count every image once.

# %%
thirds = np.array_split(np.arange(1000), 3)


def report(own):
    """A node's number of answers, and of right answers."""
    filled = np.resize(own, 3 * 128)  # it starts over after the last image
    counted = np.full(len(filled), True)  # change this
    return counted.sum(), (all_right[filled] & counted).sum()


answers, right_answers = np.sum([report(own) for own in thirds], axis=0)
print(f"{right_answers} of {answers} answers are right: {right_answers / answers:.2%}")


# %% tags=["hide-cell"]
# A solution: a mask leaves out what only fills up the last batch. The sums over the nodes are then
# those over all images, however many nodes there are.
def report(own):
    filled = np.resize(own, 3 * 128)
    counted = np.arange(len(filled)) < len(own)
    return counted.sum(), (all_right[filled] & counted).sum()


answers, right_answers = np.sum([report(own) for own in thirds], axis=0)
print(f"{right_answers} of {answers} answers are right: {right_answers / answers:.2%}")
assert answers == 1000
assert right_answers == all_right.sum()

# %% [markdown]
# ## Exercise 2: how far apart by chance?
# A model gets 6 of 10 images right, and a node evaluates 5 of the 10. There are 252 ways to draw 5
# images, few enough to try them all. The standard deviation of the node's accuracy over all these
# ways is smaller than the textbook's `sqrt(p (1 - p) / n)`. Correct `by_chance`. A hint: if the
# node draws all 10 images, there is only one way.

# %%
ten = np.array([1, 1, 1, 1, 1, 1, 0, 0, 0, 0])


def over_all_ways(n):
    """The standard deviation of a node's accuracy over all ways to draw n of the images."""
    return np.std([np.mean(drawn) for drawn in itertools.combinations(ten, n)])


def by_chance(p, n, whole):
    return np.sqrt(p * (1 - p) / n)  # change this


print(f"over all ways: {over_all_ways(5):.4f}, by the formula: {by_chance(0.6, 5, 10):.4f}")


# %% tags=["hide-cell"]
# A solution: the finite-population correction. The node draws no image twice, so the more of the
# images it has, the less its accuracy can vary.
def by_chance(p, n, whole):
    """The standard deviation of the accuracy on n of `whole` images, p of which are right."""
    return np.sqrt(p * (1 - p) / n * (whole - n) / (whole - 1))


for n in range(1, 11):
    assert np.isclose(by_chance(0.6, n, 10), over_all_ways(n), rtol=1e-9, atol=1e-15)

deals = [np.split(np.random.default_rng(seed).permutation(all_right), 8) for seed in range(1000)]
print(f"eight nodes, dealt out 1,000 times: {np.std(np.mean(deals, axis=2)):.2%}")
print(f"by the formula: {by_chance(all_right.mean(), 125, 1000):.2%}")

# %% [markdown]
# ## The same with Keras
# Keras's accuracy holds two counts: right answers, and answers. Three nodes evaluate a third of the
# images each: the mean of their accuracies is not quite the accuracy of the model, because one has
# an image more. But their counts add up to those of all images.

# %%
accuracy = keras.metrics.SparseCategoricalAccuracy()
model.compile(loss=loss, metrics=[accuracy])


def counts(ids):
    model.evaluate(test_images[ids], test_labels[ids], verbose=0)
    return np.array([variable.numpy() for variable in accuracy.variables])


whole, of_nodes = counts(np.arange(1000)), [counts(own) for own in thirds]
together = np.sum(of_nodes, axis=0)
print("images of each node:", *(int(answers) for _, answers in of_nodes))
print(f"mean of the accuracies: {np.mean([right / answers for right, answers in of_nodes]):.3%}")
print(f"right answers / answers: {together[0] / together[1]:.3%}")
assert np.array_equal(together, whole)
assert whole[0] == all_right.sum()
