"""The networks of `tasks` in JAX, by Flax and Optax, on one batch in memory.

    python -m benchmarks.peers.jax_tasks TASK COMPUTE_DTYPE [--batch=N]

XLA compiles a whole step, in which new weights take the memory of the old ones. Weights are
float32; layers compute in the given type. On a GPU, where there is one, each step copies its batch
to it.
"""

import argparse
import functools

import jax
import numpy as np
import optax
from flax import linen as nn
from jax import numpy as jnp

from benchmarks.peers import counter
from benchmarks.peers import task_sizes as sizes


class _Network(nn.Module):
    """Layers that compute in one type.

    Attributes:
      dtype: the type.
    """

    dtype: jnp.dtype

    def convolution(self, x, channels: int, size: int, stride: int = 1, groups: int = 1):
        """A convolution and its batch norm, with the padding of PyTorch."""
        padding = [(size // 2, size // 2)] * 2
        x = nn.Conv(
            channels, (size, size), stride, padding, feature_group_count=groups,
            use_bias=False, dtype=self.dtype,
        )(x)  # fmt: skip
        return self.norm(x)

    def norm(self, x):
        """Batch norm in training."""
        return nn.BatchNorm(use_running_average=False, momentum=0.9, dtype=self.dtype)(x)

    def dense(self, x, units: int, use_bias: bool = True):
        """A dense layer."""
        return nn.Dense(units, use_bias=use_bias, dtype=self.dtype)(x)

    def residual(self, x, channels: tuple[int, ...], kernels: tuple[int, ...], stride: int):
        """Convolutions, the first of the largest kernels with the stride, beside a shortcut."""
        shortcut, strided = x, kernels.index(max(kernels))
        if stride > 1 or x.shape[-1] != channels[-1]:
            shortcut = self.convolution(x, channels[-1], 1, stride)
        for place, (filters, size) in enumerate(zip(channels, kernels, strict=True)):
            x = x if place == 0 else nn.relu(x)
            x = self.convolution(x, filters, size, stride if place == strided else 1)
        return nn.relu(x + shortcut)


class Cifarnet(_Network):
    """The tutorial's, for images [n, 24, 24, 3]."""

    @nn.compact
    def __call__(self, x):
        """Logits [n, CLASSES]."""

        def pool(x):
            return nn.max_pool(x, (3, 3), (2, 2), "SAME")

        def normalized(x):
            index = np.arange(x.shape[-1])
            near = np.abs(index[:, None] - index) <= 4
            wide = x.astype(jnp.float32)
            sums = jnp.square(wide) @ jnp.asarray(near * 0.001 / 9, jnp.float32)
            return (wide * (1 + sums) ** -0.75).astype(x.dtype)

        convolution = functools.partial(nn.Conv, 64, (5, 5), dtype=self.dtype)
        x = normalized(nn.relu(pool(convolution()(x))))
        x = pool(normalized(nn.relu(convolution()(x))))
        x = x.reshape(len(x), -1)
        for units in (384, 192):
            x = nn.relu(self.dense(x, units))
        return self.dense(x, sizes.CLASSES)


class Resnet(_Network):
    """20 layers, for images [n, 32, 32, 3]."""

    @nn.compact
    def __call__(self, x):
        """Logits [n, CLASSES]."""
        x = nn.relu(self.convolution(x, 16, 3))
        for channels in (16, 32, 64):
            for block in range(3):
                stride = 2 if channels > 16 and block == 0 else 1
                x = self.residual(x, (channels, channels), (3, 3), stride)
        return self.dense(x.mean((1, 2)), sizes.CLASSES)


class Resnet50(_Network):
    """v1.5, for images [n, 224, 224, 3]."""

    @nn.compact
    def __call__(self, x):
        """Logits [n, CLASSES]."""
        x = nn.relu(self.convolution(x, 64, 7, 2))
        x = nn.max_pool(x, (3, 3), (2, 2), [(1, 1), (1, 1)])
        for stage, (blocks, channels) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
            for block in range(blocks):
                stride = 2 if stage and block == 0 else 1
                x = self.residual(x, (channels, channels, 4 * channels), (1, 3, 1), stride)
        return self.dense(x.mean((1, 2)), sizes.CLASSES)


class Fastnet(_Network):
    """airbench94's, for images [n, 32, 32, 3], its whitening fixed at random."""

    @nn.compact
    def __call__(self, x):
        """Logits [n, CLASSES]."""
        whitening = jax.random.normal(jax.random.key(0), (2, 2, 3, 24), self.dtype)
        layout = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(
            x.astype(self.dtype), whitening, (1, 1), "VALID", dimension_numbers=layout
        )
        x = nn.gelu(x, approximate=False)
        for channels in (64, 256, 256):
            for part in range(2):
                x = nn.Conv(channels, (3, 3), use_bias=False, dtype=self.dtype)(x)
                x = nn.max_pool(x, (2, 2), (2, 2)) if part == 0 else x
                x = nn.gelu(self.norm(x), approximate=False)
        return self.dense(x.max((1, 2)), sizes.CLASSES, use_bias=False)


class Mobilenet(_Network):
    """MobileNetV2 with 0.35 of its channels, for images [n, 96, 96, 3]."""

    @nn.compact
    def __call__(self, x):
        """Logits [n, CLASSES]."""

        def scaled(channels):
            rounded = max(8, int(channels * 0.35 + 4) // 8 * 8)
            return rounded + 8 if rounded < 0.9 * channels * 0.35 else rounded

        x = nn.relu6(self.convolution(x, scaled(32), 3, 2))
        for expansion, channels, blocks, first_stride in (
            (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2),
            (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
        ):  # fmt: skip
            for block in range(blocks):
                stride, before = first_stride if block == 0 else 1, x
                wide = expansion * x.shape[-1]
                if expansion > 1:
                    x = nn.relu6(self.convolution(x, wide, 1))
                x = nn.relu6(self.convolution(x, wide, 3, stride, groups=wide))
                x = self.convolution(x, scaled(channels), 1)
                x = x + before if x.shape == before.shape else x
        x = nn.relu6(self.convolution(x, 1280, 1))
        return self.dense(x.mean((1, 2)), sizes.CLASSES)


class Transformer(_Network):
    """An encoder of Flax's own layers, for tokens [n, TOKENS]."""

    @nn.compact
    def __call__(self, tokens):
        """Logits [n, CLASSES]."""
        x = nn.Embed(sizes.VOCABULARY, sizes.WIDTH, dtype=self.dtype)(tokens)
        for _ in range(sizes.BLOCKS):
            y = nn.LayerNorm(dtype=self.dtype)(x)
            x = x + nn.MultiHeadDotProductAttention(sizes.HEADS, dtype=self.dtype)(y)
            y = self.dense(nn.LayerNorm(dtype=self.dtype)(x), 4 * sizes.WIDTH)
            x = x + self.dense(nn.gelu(y, approximate=False), sizes.WIDTH)
        return self.dense(nn.LayerNorm(dtype=self.dtype)(x).mean(1), sizes.CLASSES)


class Lstm(_Network):
    """One LSTM over embedded tokens, [n, TOKENS]."""

    @nn.compact
    def __call__(self, tokens):
        """Logits [n, CLASSES], of the last token's output."""
        x = nn.Embed(sizes.VOCABULARY, sizes.UNITS, dtype=self.dtype)(tokens)
        outputs = nn.RNN(nn.OptimizedLSTMCell(sizes.UNITS, dtype=self.dtype))(x)
        return self.dense(outputs[:, -1], sizes.CLASSES)


NETWORKS = {
    "cifarnet": Cifarnet,
    "resnet": Resnet,
    "fastnet": Fastnet,
    "resnet50": Resnet50,
    "mobilenet": Mobilenet,
    "transformer": Transformer,
    "lstm": Lstm,
}


def batch_of(task: str, examples: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs, float32 images or int32 tokens, and classes."""
    rng, shape = np.random.default_rng(0), (examples, *sizes.SHAPES[task])
    labels = rng.integers(0, sizes.CLASSES, examples, np.int32)
    if len(shape) == 2:
        return rng.integers(0, sizes.VOCABULARY, shape, np.int32), labels
    return rng.standard_normal(shape, np.float32), labels


def initial(model: nn.Module, inputs: np.ndarray) -> tuple[dict, dict]:
    """Weights, and all else that the model keeps."""
    variables = jax.jit(model.init)(jax.random.key(0), inputs)
    return variables.pop("params"), variables


def step_of(model: nn.Module, optimizer: optax.GradientTransformation):
    """(weights, statistics, optimizer's state, inputs, labels) to the new three and the loss."""

    @functools.partial(jax.jit, donate_argnums=(0, 1, 2))
    def step(weights, statistics, slots, inputs, labels):
        def loss_of(weights):
            given = {"params": weights, **statistics}
            logits, updated = model.apply(given, inputs, mutable=list(statistics))
            losses = optax.softmax_cross_entropy_with_integer_labels(
                logits.astype(jnp.float32), labels
            )
            return losses.mean(), updated

        (loss, updated), gradients = jax.value_and_grad(loss_of, has_aux=True)(weights)
        changes, slots = optimizer.update(gradients, slots)
        return optax.apply_updates(weights, changes), updated, slots, loss

    return step


def main():
    """Trains until nobody listens."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=list(NETWORKS))
    parser.add_argument("compute_dtype", choices=("float32", "bfloat16"))
    parser.add_argument("--batch", type=int, help="default: the task's own")
    options = parser.parse_args()
    turn = counter.Counter()
    batch = options.batch or sizes.BATCHES[options.task]
    inputs, labels = batch_of(options.task, batch)
    model = NETWORKS[options.task](jnp.dtype(options.compute_dtype))
    optimizer = optax.sgd(0.01, momentum=0.9)
    weights, statistics = initial(model, inputs)
    slots, step = optimizer.init(weights), step_of(model, optimizer)
    if jax.default_backend() == "cpu":
        inputs, labels = jax.device_put((inputs, labels))
    while True:
        weights, statistics, slots, loss = step(weights, statistics, slots, inputs, labels)
        loss.item()
        turn.step_done(batch)


if __name__ == "__main__":
    main()
