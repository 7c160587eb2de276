"""A model for use says of raw images what the network says of prepared ones."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from input_pipeline import preprocess, raw_images

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(256, size=(7, 32, 32, 3), dtype=np.uint8)
IMAGES[3] = 90  # of one colour: its deviation is 0
NAMES = ("cat", "dog", "newt")


def network(shape=(32, 32, 3), classes=3, **arguments):
    layers = [keras.Input(shape), keras.layers.Flatten(), keras.layers.Dense(classes, **arguments)]
    return keras.Sequential(layers)


def classifier(of, shape=(32, 32, 3), names=NAMES, **arguments):
    return raw_images.classifier(of, image_shape=shape, class_names=names, **arguments)


@pytest.mark.parametrize(
    ("name", "channels"),
    [("crop_flip_colour", 3), ("pad_crop_flip", 1), ("shift_alternating_flip", 3)],
)
def test_prepares_images_as_an_evaluation_does(name, channels, tmp_path):
    images = IMAGES[..., :channels]
    prepared = preprocess.for_images(name, images.shape[1:])
    of = network(prepared.output_shape)
    expected = tf.nn.softmax(of(prepared.evaluate(images))).numpy()
    names = [NAMES[place].encode() for place in expected.argmax(axis=1)]
    model = classifier(of, images.shape[1:], prepare=prepared.evaluate)
    model.save(tmp_path / "model.keras")
    for one in (model, keras.saving.load_model(tmp_path / "model.keras")):
        result = one.predict(images, verbose=0)
        np.testing.assert_allclose(result["probabilities"], expected, atol=1e-5)
        assert list(result["class_name"]) == names


def test_leaves_an_image_of_the_size_as_it_is_and_resizes_the_middle_of_others():
    class Seen(keras.layers.Layer):
        def call(self, x):
            seen.append(x)
            return x[:, 0, 0, :]

    seen = []
    model = classifier(keras.Sequential([keras.Input((32, 32, 3)), Seen()]))
    model(IMAGES)
    np.testing.assert_array_equal(seen[-1], IMAGES)
    for size, middle in (
        ((64, 100), np.s_[:, :, 18:82]),
        ((200, 50), np.s_[:, 75:125]),
        ((20, 20), np.s_[:]),
    ):
        larger = RNG.integers(256, size=(2, *size, 3), dtype=np.uint8)
        model(larger)
        expected = tf.image.resize(larger[middle], (32, 32), antialias=True)
        np.testing.assert_allclose(seen[-1], expected, atol=1e-3)


def test_takes_images_as_they_are_and_probabilities():
    of = network(activation="softmax", kernel_initializer="zeros")
    [result] = classifier(of, gives_logits=False)(IMAGES[:1])["probabilities"].numpy()
    np.testing.assert_allclose(result, [1 / 3] * 3)


def test_has_the_weights_of_the_network():
    of = network(kernel_initializer="zeros")
    model = classifier(of)
    of.layers[-1].bias.assign([0.0, 0.0, 9.0])
    assert model(IMAGES[:1])["class_name"].numpy() == [b"newt"]
    assert {id(weight) for weight in of.weights} <= {id(weight) for weight in model.weights}


def test_tells_classes_of_one_name_apart():
    of = network(classes=6, kernel_initializer="zeros")
    model = classifier(of, names=("crane", "crane", "", "[UNK]", "dog", "crane (1)"))
    assert model.get_layer("class_name").get_vocabulary() == [
        "crane (0)", "crane (1)", " (2)", "[UNK] (3)", "dog (4)", "crane (1) (5)",
    ]  # fmt: skip


def test_another_number_of_names_is_refused():
    with pytest.raises(ValueError, match="class_names has 2 names, but the network 3 outputs"):
        classifier(network(), names=NAMES[:2])
