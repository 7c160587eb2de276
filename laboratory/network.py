"""A real network's gradients, with weights as one flat array. See problems.Problem."""

from collections.abc import Callable

import towers  # noqa: F401  before Keras: it sets TensorFlow up
from input_pipeline import batches, preprocess
from laboratory import data, problems, race
from towers import microbatch

import keras  # isort: skip
import numpy as np  # isort: skip
import tensorflow as tf  # isort: skip

MODELS = {
    "two_convolutions": race.network,
    "cifarnet": data.small_cifarnet,  # the tutorial's, with a quarter of its filters
}


class Network:
    """A network on images, with the package's gradient of a tower. See problems.Problem."""

    def __init__(
        self,
        build: Callable[[], keras.Model],
        images: data.Images,
        batch: int,
        seed: int = 0,
        test_batches: int = 4,
    ):
        """
        Args:
          build: makes the model, which keeps no statistics such as batch norm's.
          images: preprocessed without distortions.
          batch: examples of a gradient.
          seed: of the order of the examples.
          test_batches: of 500 images each that an evaluation takes.

        Raises:
          ValueError: the model keeps statistics, and each worker would have its own.
        """
        self.model = build()
        data.compile_classifier(self.model, keras.optimizers.SGD())
        kept = [v.path for v in self.model.non_trainable_variables if v.dtype.startswith("float")]
        if kept:
            raise ValueError(f"{self.model.name} keeps {kept[0]}: workers share only weights here")
        self.batch = batch
        self._shapes = [tuple(v.shape) for v in self.model.trainable_variables]
        self.initial = np.concatenate(
            [v.numpy().ravel() for v in self.model.trainable_variables]
        )  # [weights]
        self._pass = microbatch.Microbatch(self.model, training=True, jit_compile=False)
        self._seed = seed
        self._images = tf.constant(images.train.images)
        self._labels = tf.constant(images.train.labels, tf.int32)
        self._preprocess = preprocess.for_images(
            data.PREPROCESSING, images.train.images.shape[1:]
        ).evaluate
        self._test = list(images.test_batches().take(test_batches))
        self._gradient = tf.function(self._build_gradient, autograph=False)
        self._sums = tf.function(self._build_sums, autograph=False)

    def gradient(self, weights: np.ndarray, number: int) -> np.ndarray:
        """Of batch `number` of the one sequence that all workers draw from, [weights]."""
        return self._gradient(tf.constant(weights), tf.constant(number, tf.int64)).numpy()

    def _build_gradient(self, weights: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        ids = batches.example_ids(
            number, num_examples=len(self._labels), global_batch_size=self.batch, seed=self._seed
        )
        images, labels = tf.gather(self._images, ids), tf.gather(self._labels, ids)
        return self.gradient_of(weights, self._preprocess(images), labels, number)

    def gradient_of(
        self, weights: tf.Tensor, images: tf.Tensor, labels: tf.Tensor, number: tf.Tensor
    ) -> tf.Tensor:
        """A tower's gradient as a graph, [weights].

        Args:
          weights: float32 [weights].
          images: float32 [batch, ...], preprocessed.
          labels: int32 [batch].
          number: int64 [], from which random layers derive their draws.
        """
        inputs = self._in_layers(weights), self._state(), number, (images, labels), None
        return tf.concat([tf.reshape(g, [-1]) for g in self._pass.backward(*inputs).gradients], 0)

    def evaluate(self, weights: np.ndarray) -> problems.Measured:
        """On the first test images, by default 2,000."""
        flat = tf.constant(weights)
        sums = [self._sums(flat, *batch) for batch in self._test]
        loss, correct, count = (float(sum(s.numpy() for s in of)) for of in zip(*sums, strict=True))
        return problems.Measured(loss / count, correct / count)

    def _build_sums(self, weights, images, labels):
        inputs = self._in_layers(weights), self._state(), images
        logits, _ = self.model.stateless_call(*inputs, training=False)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        right = tf.argmax(logits, axis=1, output_type=labels.dtype) == labels
        of_each = (losses, right, tf.ones_like(losses))
        return [tf.reduce_sum(tf.cast(v, tf.float32)) for v in of_each]

    def _state(self) -> list[tf.Tensor]:
        return [tf.convert_to_tensor(v.value) for v in self.model.non_trainable_variables]

    def _in_layers(self, weights: tf.Tensor) -> list[tf.Tensor]:
        """The flat array as the model's weights."""
        parts = tf.split(weights, [int(np.prod(shape)) for shape in self._shapes])
        return [tf.reshape(part, shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def assign(self, weights: np.ndarray) -> keras.Model:
        """The model with these weights."""
        values = self._in_layers(tf.constant(weights))
        for variable, value in zip(self.model.trainable_variables, values, strict=True):
            variable.assign(value)
        return self.model
