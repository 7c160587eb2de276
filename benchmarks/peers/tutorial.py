"""The tutorial as it was: a graph under TensorFlow's v1 compatibility, fed by queues.

    python -m benchmarks.peers.tutorial FOLDER_OF_BINARY_BATCHES TRAIN_DIR

Rewritten for this comparison from the description of tensorflow/models
`tutorials/image/cifar10` (cifar10.py, cifar10_input.py, cifar10_train.py): one reader of binary
records, distortions of single images in 16 threads, a shuffling queue of 20,000 images,
MonitoredTrainingSession with its summaries and a loss logged every ten steps.
"""

import sys
from pathlib import Path

import tensorflow as tf

from benchmarks.peers import counter

v1 = tf.compat.v1

BATCH = 128
CROP = 24
EXAMPLES = 50_000
RECORD_BYTES = 1 + 32 * 32 * 3


def distorted_inputs(paths: list[str]) -> tuple[tf.Tensor, tf.Tensor]:
    """Images float32 [128, 24, 24, 3] and labels int32 [128] from queues."""
    reader = v1.FixedLengthRecordReader(record_bytes=RECORD_BYTES)
    _, value = reader.read(v1.train.string_input_producer(paths))
    record = tf.io.decode_raw(value, tf.uint8)
    label = tf.cast(record[0], tf.int32)
    planes = tf.reshape(record[1:RECORD_BYTES], [3, 32, 32])
    image = tf.cast(tf.transpose(planes, [1, 2, 0]), tf.float32)
    image = v1.random_crop(image, [CROP, CROP, 3])
    image = tf.image.random_flip_left_right(image)
    image = tf.image.random_brightness(image, max_delta=63)
    image = tf.image.random_contrast(image, lower=0.2, upper=1.8)
    image = tf.image.per_image_standardization(image)
    image.set_shape([CROP, CROP, 3])
    waiting = int(EXAMPLES * 0.4)
    images, labels = v1.train.shuffle_batch(
        [image, label],
        batch_size=BATCH,
        num_threads=16,
        capacity=waiting + 3 * BATCH,
        min_after_dequeue=waiting,
    )
    v1.summary.image("images", images)
    return images, labels


def weight(name: str, shape: list[int], stddev: float, decay: float = 0.0) -> tf.Tensor:
    """A variable, with its decay among the losses."""
    variable = v1.get_variable(
        name, shape, initializer=v1.truncated_normal_initializer(stddev=stddev)
    )
    if decay:
        v1.add_to_collection("losses", decay * tf.nn.l2_loss(variable))
    return variable


def bias(size: int, value: float) -> tf.Tensor:
    """A vector that starts at `value`."""
    return v1.get_variable("biases", [size], initializer=v1.constant_initializer(value))


def watched(activation: tf.Tensor) -> tf.Tensor:
    """The same, with the tutorial's two summaries of it."""
    v1.summary.histogram(activation.op.name + "/activations", activation)
    v1.summary.scalar(activation.op.name + "/sparsity", tf.nn.zero_fraction(activation))
    return activation


def inference(images: tf.Tensor) -> tf.Tensor:
    """Logits [128, 10]."""

    def convolution(x, channels, start):
        kernel = weight("weights", [5, 5, channels, 64], 5e-2)
        x = tf.nn.conv2d(x, kernel, [1, 1, 1, 1], "SAME")
        return watched(tf.nn.relu(tf.nn.bias_add(x, bias(64, start))))

    def pool(x):
        return tf.nn.max_pool2d(x, 3, 2, "SAME")

    def normalize(x):
        return tf.nn.lrn(x, 4, bias=1.0, alpha=0.001 / 9.0, beta=0.75)

    with v1.variable_scope("conv1"):
        x = normalize(pool(convolution(images, 3, 0.0)))
    with v1.variable_scope("conv2"):
        x = pool(normalize(convolution(x, 64, 0.1)))
    x = tf.reshape(x, [BATCH, -1])
    with v1.variable_scope("local3"):
        kernel = weight("weights", [x.shape[1], 384], 0.04, 0.004)
        x = watched(tf.nn.relu(tf.matmul(x, kernel) + bias(384, 0.1)))
    with v1.variable_scope("local4"):
        kernel = weight("weights", [384, 192], 0.04, 0.004)
        x = watched(tf.nn.relu(tf.matmul(x, kernel) + bias(192, 0.1)))
    with v1.variable_scope("softmax_linear"):
        return watched(tf.matmul(x, weight("weights", [192, 10], 1 / 192.0)) + bias(10, 0.0))


def total_loss(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Cross entropy and decay, with the tutorial's moving averages of each term."""
    entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    v1.add_to_collection("losses", tf.reduce_mean(entropy))
    terms = v1.get_collection("losses")
    total = tf.add_n(terms)
    averages = tf.train.ExponentialMovingAverage(0.9)
    update = averages.apply([*terms, total])
    for term in [*terms, total]:
        v1.summary.scalar(term.op.name + "_raw", term)
        v1.summary.scalar(term.op.name, averages.average(term))
    with tf.control_dependencies([update]):
        return tf.identity(total)


def train_operation(loss: tf.Tensor) -> tf.Operation:
    """One update of weights and of their moving averages."""
    step = v1.train.get_or_create_global_step()
    rate = v1.train.exponential_decay(0.1, step, EXAMPLES * 350 // BATCH, 0.1, staircase=True)
    v1.summary.scalar("learning_rate", rate)
    optimizer = v1.train.GradientDescentOptimizer(rate)
    gradients = optimizer.compute_gradients(loss)
    apply = optimizer.apply_gradients(gradients, global_step=step)
    for gradient, variable in gradients:
        v1.summary.histogram(variable.op.name, variable)
        v1.summary.histogram(variable.op.name + "/gradients", gradient)
    averages = tf.train.ExponentialMovingAverage(0.9999, step)
    with tf.control_dependencies([apply]):
        return averages.apply(v1.trainable_variables())


class LogLoss(v1.train.SessionRunHook):
    """Asks for the loss with every step, and prints it every ten."""

    def begin(self):
        """Before the session."""
        self._step = -1

    def before_run(self, run_context):
        """Before each step."""
        self._step += 1
        return v1.train.SessionRunArgs(v1.get_collection("total_loss")[0])

    def after_run(self, run_context, run_values):
        """After each step."""
        if self._step % 10 == 0:
            print(f"step {self._step}, loss = {run_values.results:.2f}")


def main():
    """Trains until nobody listens."""
    data_dir, train_dir = sys.argv[1:]
    turn = counter.Counter()
    v1.disable_eager_execution()
    with tf.Graph().as_default():
        v1.train.get_or_create_global_step()
        with tf.device("/cpu:0"):
            images, labels = distorted_inputs(sorted(map(str, Path(data_dir).glob("*.bin"))))
        loss = total_loss(inference(images), labels)
        v1.add_to_collection("total_loss", loss)
        operation = train_operation(loss)
        hooks = [v1.train.NanTensorHook(loss), LogLoss()]
        with v1.train.MonitoredTrainingSession(checkpoint_dir=train_dir, hooks=hooks) as session:
            while True:
                session.run(operation)
                turn.step_done(BATCH)


if __name__ == "__main__":
    main()
