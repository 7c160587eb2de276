"""MobileNetV3Small with Keras's ImageNet weights, for pictures of your own.

    python train.py --dataset=folder --data_dir=pictures --model=examples.fine_tune:mobilenet \
        --preprocessing=random_resized_crop --augment=trivial_augment --optimizer=adamw \
        --learning_rate=0.0003 --train_epochs=10 --train_dir=runs/fine_tuned

The first time, Keras downloads the weights into ~/.keras.
"""

import keras

from input_pipeline import preprocess


def mobilenet(image_shape: tuple[int, int, int], num_classes: int) -> keras.Model:
    """A network of images from `random_resized_crop` to logits; all of it is trained."""
    trained = keras.applications.MobileNetV3Small(
        image_shape,
        include_top=False,
        weights="imagenet",
        pooling="avg",
        include_preprocessing=False,
    )
    # Its weights want pixels from -1 to 1, and images come scaled by ImageNet's colours.
    scales = [deviation / 127.5 for deviation in preprocess.COLOUR_DEVIATIONS]
    offsets = [mean / 127.5 - 1 for mean in preprocess.COLOUR_MEANS]
    images = keras.Input(image_shape)
    features = trained(keras.layers.Rescaling(scales, offsets)(images))  # [n, 576]
    features = keras.layers.Dropout(0.2)(features)
    return keras.Model(images, keras.layers.Dense(num_classes)(features))
