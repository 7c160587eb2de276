"""Random numbers in a model: drawn by what a call is given, or refused."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import toys
from keras.src.backend.common import global_state

L = keras.layers
IMAGES = {"value_range": (-1, 1)}
KERAS_S = {
    "flip": lambda: L.RandomFlip("horizontal", seed=1),
    "rand_augment": lambda: L.RandAugment(**IMAGES, seed=1),
    "rotation": lambda: L.RandomRotation(0.1, seed=1),
    "translation": lambda: L.RandomTranslation(0.1, 0.1, seed=1),
    "zoom": lambda: L.RandomZoom(0.2, seed=1),
    "crop": lambda: L.RandomCrop(6, 6, seed=1),
    "shear": lambda: L.RandomShear(0.1, 0.1, seed=1),
    "perspective": lambda: L.RandomPerspective(seed=1),
    "elastic": lambda: L.RandomElasticTransform(**IMAGES, seed=1),
    "erasing": lambda: L.RandomErasing(**IMAGES, seed=1),
    "brightness": lambda: L.RandomBrightness(0.2, **IMAGES, seed=1),
    "contrast": lambda: L.RandomContrast(0.2, seed=1),
    "colour": lambda: L.RandomColorJitter(**IMAGES, brightness_factor=0.2, hue_factor=0.1, seed=1),
    "hue": lambda: L.RandomHue(0.1, **IMAGES, seed=1),
    "saturation": lambda: L.RandomSaturation(0.2, **IMAGES, seed=1),
    "sharpness": lambda: L.RandomSharpness(0.2, **IMAGES, seed=1),
    "blur": lambda: L.RandomGaussianBlur(**IMAGES, seed=1),
    "invert": lambda: L.RandomInvert(**IMAGES, seed=1),
    "grey": lambda: L.RandomGrayscale(seed=1),
    "posterization": lambda: L.RandomPosterization(4, **IMAGES, seed=1),
    "noise": lambda: L.GaussianNoise(0.1, seed=1),
}
FEW = ("flip", "rotation")  # the others are long


def with_layer(layer, shape=(8, 8, 3)):
    kernels = keras.initializers.GlorotUniform(seed=2)
    dense = L.Dense(toys.CLASSES, kernel_initializer=kernels)
    return toys.on_cpu(lambda: keras.Sequential([keras.Input(shape), layer(), L.Flatten(), dense]))


def trained(layer, num_towers, rate=0.1):
    """(hash of the state, losses) of three steps on one batch."""
    made = toys.trainer(
        with_layer(layer),
        keras.optimizers.SGD(rate),
        num_towers=num_towers,
        global_batch_size=8,
        num_microbatches=4,
    )
    images, labels = toys.batch(8)
    images = np.tanh(images)
    losses = made.fit([(images, labels)] * 3)
    return made.state.sha256(), losses


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in FEW else pytest.mark.long) for n in KERAS_S]
)
def test_an_augmentation_layer_of_keras_draws_again_and_the_same_on_any_number_of_towers(name):
    runs = [trained(KERAS_S[name], num_towers) for num_towers in (1, 3)]
    assert runs[0] == runs[1]
    _, losses = trained(KERAS_S[name], 2, rate=0.0)
    assert len(set(losses)) > 1


def drawing(draw):
    """A layer that adds what `draw(layer, x)` gives."""

    class Drawing(L.Layer):
        def __init__(self):
            super().__init__(name="drawing")
            self.generator = keras.random.SeedGenerator(5)

        def call(self, x, training=None):
            return x + draw(self, x) if training else x

    return Drawing


def normal(x, **arguments):
    return keras.random.normal(x.shape[1:], **arguments)


def test_a_generator_of_the_layer_draws_again_and_the_same_on_any_number_of_towers():
    layer = drawing(lambda layer, x: normal(x, seed=layer.generator))
    assert trained(layer, 1) == trained(layer, 3)
    assert len(set(trained(layer, 2, rate=0.0)[1])) == 3


@functools.cache
def outside():
    return keras.random.SeedGenerator(3)


@pytest.mark.parametrize(
    "layer, message",
    [
        (lambda: L.AugMix(**IMAGES), "is an AugMix, which draws its operations once"),
        (drawing(lambda _, x: normal(x)), "with a generator that none of its layers has"),
        (drawing(lambda _, x: normal(x, seed=outside())), "generator that none of its layers has"),
        (drawing(lambda _, x: tf.random.normal(tf.shape(x))), "RandomStandardNormal .*drawing"),
        (drawing(lambda _, x: tf.random.shuffle(x)), "RandomShuffle .*so on the number of towers"),
        (
            drawing(lambda _, x: tf.map_fn(lambda y: y * tf.random.uniform([]), x)),
            "with RandomUniform ",
        ),
        (
            drawing(lambda _, x: tf.random.get_global_generator().normal(tf.shape(x))),
            "with RngReadAndSkip ",
        ),
    ],
    ids=["aug_mix", "keras", "outside", "tensorflow", "shuffle", "in_a_loop", "generator"],
)
def test_draws_that_depend_on_more_than_the_call_is_given_are_refused(layer, message):
    tf.random.get_global_generator()  # is made before the graph
    with pytest.raises(ValueError, match=message):
        trained(layer, 1)


@pytest.mark.parametrize("there", [True, False])
def test_keras_s_own_generator_is_noticed_where_it_is_there_and_where_it_is_new(there):
    global_state.set_global_attribute("global_seed_generator", None)
    if there:
        keras.random.normal(())
    with pytest.raises(ValueError, match="each step would draw the same: let the layer keep a"):
        trained(drawing(lambda _, x: normal(x)), 1)
