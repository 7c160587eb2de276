"""A model for use: raw images in, classes and probabilities out.

A network is trained on prepared images, and whoever uses it later has raw ones. `classifier` puts
the preparation before the network, in Keras's own operations: the saved file is all that is needed.
"""

from collections.abc import Callable, Sequence

import keras
from keras import ops


def classifier(
    network: keras.Model,
    *,
    image_shape: Sequence[int],
    class_names: Sequence[str],
    prepare: Callable[[keras.KerasTensor], keras.KerasTensor] | None = None,
    gives_logits: bool = True,
) -> keras.Model:
    """A model of raw images around a network, whose weights it shares.

    An image of another size is cropped at the middle to the ratio of `image_shape`, and resized to
    it with an antialiasing filter; one of that size stays as it is.

    Args:
      network: of prepared images, float32, to [n, classes].
      image_shape: (height, width, channels) of the images that it was trained on, before they were
        prepared.
      class_names: of its outputs, in their order; where two are the same, each gets its number.
      prepare: from images, float32 [n, height, width, channels] in [0, 255], to what the network
        takes, in Keras's operations or layers; None where it takes just these.
      gives_logits: whether the network's outputs are logits, and not probabilities.

    Returns:
      A model of uint8 [n, any height, any width, channels] that gives a dict: `probabilities`,
      float32 [n, classes], and `class_name`, strings [n], of the most probable class.

    Raises:
      ValueError: the names are not as many as the network's outputs.
    """
    height, width, channels = image_shape
    images = keras.Input((None, None, channels), dtype="uint8", name="images")
    resized = ops.image.resize(
        ops.cast(images, "float32"), (height, width), antialias=True, crop_to_aspect_ratio=True
    )
    outputs = ops.cast(network(prepare(resized) if prepare else resized), "float32")
    if len(class_names) != outputs.shape[-1]:
        raise ValueError(
            f"class_names has {len(class_names)} names: must be {outputs.shape[-1]}, of the outputs"
        )
    probabilities = ops.softmax(outputs) if gives_logits else outputs
    names = list(class_names)
    if len({*names, "", "[UNK]"}) < len(names) + 2:  # names that Keras has for no class
        names = [f"{name} ({number})" for number, name in enumerate(names)]
    name_of = keras.layers.StringLookup(
        vocabulary=names, num_oov_indices=0, invert=True, name="class_name"
    )
    return keras.Model(
        images,
        {"probabilities": probabilities, "class_name": name_of(ops.argmax(outputs, axis=-1))},
    )
