"""Images as a network takes them: distorted as tf.image does; or by the model that is exported."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from input_pipeline import batches, preprocess, raw_images


def draws(count):
    """What the images of a batch are distorted by; the first half of them is mirrored."""
    seed = tf.constant([3, 4], tf.int64)
    return batches.Draws(seed, tf.range(count) < count // 2, count)


def random_images(count, height=32, width=32):
    return np.random.default_rng(0).integers(0, 256, (count, height, width, 3), np.uint8)


@pytest.mark.parametrize(
    ("name", "shape", "margin", "mode"),
    [
        ("crop_flip_colour", (24, 21), 0, "constant"),
        ("pad_crop_flip", (32, 28), 4, "constant"),
        ("shift_alternating_flip", (32, 28), 2, "reflect"),
    ],
)
def test_images_are_distorted_as_tf_image_does_it_with_each(name, shape, margin, mode):
    images = random_images(12, 32, 28)
    result = preprocess.for_images(name, (32, 28, 3)).train(images, draws(12))
    padded = np.pad(images, [(0, 0), (margin, margin), (margin, margin), (0, 0)], mode)
    most = np.subtract(padded.shape[1:3], shape).tolist()
    top, left, flip = preprocess.draw_placement(draws(12), *most)
    brightness, contrast = preprocess.draw_colour(draws(12))
    if name == "shift_alternating_flip":
        flip = draws(12).mirrored
    assert {*flip.numpy()} == {True, False} and len({*left.numpy()}) > 2
    for n, image in enumerate(padded.astype(np.float32)):
        image = tf.image.crop_to_bounding_box(image, top[n], left[n], *shape)
        image = tf.image.flip_left_right(image) if flip[n] else image
        if name == "crop_flip_colour":
            image = tf.image.adjust_brightness(image, brightness[n])
            image = tf.image.adjust_contrast(image, contrast[n])
        if name == "shift_alternating_flip":
            expected = (image - 120.7) / 64.2
        else:
            expected = tf.image.per_image_standardization(image)
        np.testing.assert_allclose(result[n], expected, atol=2e-5)


def test_evaluation_is_of_the_middle():
    images = random_images(3, 32, 28)
    images[1] = 255  # of one colour: finite
    result = preprocess.for_images("crop_flip_colour", (32, 28, 3)).evaluate(images)
    middle = tf.cast(images[:, 4:28, 3:24], tf.float32)
    np.testing.assert_allclose(result, tf.image.per_image_standardization(middle), atol=2e-5)
    np.testing.assert_array_equal(result[1], np.zeros((24, 21, 3)))
    pictures = preprocess.for_images("random_resized_crop", (224, 224, 3))
    assert pictures.raw_shape == (256, 256, 3)  # of which `evaluate` takes the middle


def test_colours_are_scaled_as_torchvision_does():
    pixels = random_images(2, 5, 5)
    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    expected = (pixels / 255 - mean) / deviation
    np.testing.assert_allclose(preprocess.scale_colours(pixels), expected, atol=1e-5)


def test_draws_reach_their_ranges_and_are_independent():
    top, left, flip = preprocess.draw_placement(draws(20_000), max_top=8, max_left=7)
    assert {*top.numpy()} == set(range(9))
    assert {*left.numpy()} == set(range(8))
    assert np.mean(flip) == pytest.approx(0.5, abs=0.02)
    brightness, contrast = preprocess.draw_colour(draws(20_000))
    assert -63 <= np.min(brightness) < -62.9 and 62.9 < np.max(brightness) <= 63
    assert 0.2 <= np.min(contrast) < 0.201 and 1.799 < np.max(contrast) <= 1.8
    drawn = [np.asarray(draw, float) for draw in (top, left, flip, brightness, contrast)]
    assert np.abs(np.corrcoef(drawn) - np.eye(5)).max() < 0.04


@pytest.mark.pitfall(16)
@pytest.mark.parametrize("name", ["crop_flip_colour", "pad_crop_flip", "shift_alternating_flip"])
def test_images_of_a_batch_are_distorted_each_in_its_own_way_at_once(name):
    chosen = preprocess.for_images(name, (32, 32, 3))
    same = np.repeat(random_images(1), 32, axis=0)
    distorted = chosen.train(same, draws(32)).numpy()
    assert len(np.unique(distorted.reshape(32, -1), axis=0)) > 16  # the third has 50 ways
    assert not chosen.augmentation.erasing
    operations = []
    for count in (2, 64):

        def train(images, seed, mirrored, count=count):
            return chosen.train(images, batches.Draws(seed, mirrored, count))

        images = tf.TensorSpec([count, 32, 32, 3], tf.uint8)
        drawn = tf.TensorSpec([2], tf.int64), tf.TensorSpec([count], tf.bool)
        graph = tf.function(train).get_concrete_function(images, *drawn).graph
        operations.append([op.type for op in graph.get_operations()])
    assert operations[0] == operations[1]
    assert not {"Unpack", "While", "StatelessWhile", "MapDefun"} & {*operations[0]}


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (("mixup", (8, 8, 3)), "'mixup': must be one of crop_flip_colour, pad_crop_fl"),
        (("pad_crop_flip", (8, 8, 3), "mixup"), "augmentation='mixup'"),
        (("pad_crop_flip", (8, 8, 3), "none", 1.5), "random_erasing=1.5"),
        (("pad_crop_flip", (8, 8, 1), "rand_augment"), "rand_augment takes images of 3 channels"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, names):
    with pytest.raises(ValueError, match=names):
        preprocess.for_images(*arguments)


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
    with pytest.raises(ValueError, match="class_names has 2 .* 3"):
        classifier(network(), names=NAMES[:2])
