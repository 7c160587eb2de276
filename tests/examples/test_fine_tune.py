"""The example that fine-tunes MobileNetV3Small, with weights made here in place of a download."""

import keras
import numpy as np
import photos
import pytest
import scripts

SIZE = 32


@pytest.mark.long
def test_is_one_command(tmp_path, monkeypatch):
    """Of a network as Keras makes it, which scales raw pixels itself and downloads its weights."""
    from keras.src.applications import mobilenet_v3

    keras.utils.set_random_seed(5)
    network = keras.applications.MobileNetV3Small(
        (SIZE, SIZE, 3), include_top=False, weights=None, pooling="avg"
    )
    for layer in network.layers:  # normalized as trained ones are: else the features are nothing
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum = 0.0
    network(np.random.default_rng(1).integers(0, 256, (64, SIZE, SIZE, 3)), training=True)
    path = str(tmp_path / "imagenet.weights.h5")
    network.save_weights(path)
    monkeypatch.setattr(mobilenet_v3.file_utils, "get_file", lambda *_, **__: path)

    folder = photos.folder(tmp_path / "pictures", 6)
    done = scripts.run(
        "train", f"--train_dir={tmp_path / 'run'}", "--dataset=folder", f"--data_dir={folder}",
        "--model=examples.fine_tune:mobilenet", f"--image_size={SIZE}",
        "--preprocessing=random_resized_crop", "--augment=trivial_augment", "--optimizer=adamw",
        "--learning_rate=1e-6", "--weight_decay=0", "--global_batch_size=6", "--max_steps=1",
        "--num_towers=2", "--microbatch_size=3", "--summary_every_steps=0",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    trained = keras.saving.load_model(tmp_path / "run" / "final_model.keras")
    layers = {layer.name: layer for layer in trained._flatten_layers() if layer.weights}
    for layer in network.layers:
        if isinstance(layer, (keras.layers.Conv2D, keras.layers.DepthwiseConv2D)):
            near = zip(layers[layer.name].get_weights(), layer.get_weights(), strict=True)
            for mine, expected in near:  # one small step from where they were
                np.testing.assert_allclose(mine, expected, rtol=0, atol=2e-6)
