"""The networks of `tasks` in PyTorch, on one batch in memory: no input pipeline, no logging.

    python -m benchmarks.peers.pytorch_tasks TASK COMPUTE_DTYPE [--compile]

Images are in channels-last order, the fast form on a CPU, and on a GPU in bfloat16; bfloat16 is
autocast. On a GPU, where there is one, float32 products may use TF32, as in TensorFlow, and each
step copies the batch from pinned memory.
"""

import argparse
import contextlib

import torch
from torch import nn

from benchmarks.peers import counter
from benchmarks.peers import task_sizes as sizes


def cifarnet() -> nn.Module:
    """The tutorial's network, for images [n, 3, 24, 24]."""

    def normalize():
        # PyTorch divides alpha by the window's size, 2 * radius + 1 = 9.
        return nn.LocalResponseNorm(9, alpha=0.001, beta=0.75, k=1.0)

    def pool():
        return nn.MaxPool2d(3, 2, ceil_mode=True)  # TensorFlow's "SAME" for even sizes

    return nn.Sequential(
        nn.Conv2d(3, 64, 5, padding=2), nn.ReLU(), pool(), normalize(),
        nn.Conv2d(64, 64, 5, padding=2), nn.ReLU(), normalize(), pool(),
        nn.Flatten(), nn.Linear(2304, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(),
        nn.Linear(192, 10),
    )  # fmt: skip


def fastnet() -> nn.Module:
    """That of airbench94 (Jordan 2024, arXiv:2404.00498), for images [n, 3, 32, 32]."""

    def norm(channels):
        layer = nn.BatchNorm2d(channels, eps=1e-12, momentum=0.4)
        layer.weight.requires_grad_(False)
        return layer

    def block(before, channels):
        return nn.Sequential(
            nn.Conv2d(before, channels, 3, padding="same", bias=False), nn.MaxPool2d(2),
            norm(channels), nn.GELU(),
            nn.Conv2d(channels, channels, 3, padding="same", bias=False),
            norm(channels), nn.GELU(),
        )  # fmt: skip

    whitening = nn.Conv2d(3, 24, 2)
    whitening.weight.requires_grad_(False)
    return nn.Sequential(
        whitening, nn.GELU(), block(24, 64), block(64, 256), block(256, 256),
        nn.MaxPool2d(3), nn.Flatten(), nn.Linear(256, 10, bias=False),
    )  # fmt: skip


def convolution(before: int, channels: int, size: int, stride: int = 1, groups: int = 1):
    """A convolution and its batch norm."""
    return nn.Sequential(
        nn.Conv2d(
            before, channels, size, stride, padding=size // 2, groups=groups, bias=False
        ),
        nn.BatchNorm2d(channels),
    )  # fmt: skip


class Residual(nn.Module):
    """Some layers beside a shortcut; a ReLU of their sum where `ends` is true."""

    def __init__(self, layers: nn.Module, shortcut: nn.Module | None = None, ends: bool = True):
        super().__init__()
        self.layers, self.shortcut, self.ends = layers, shortcut or nn.Identity(), ends

    def forward(self, x):
        """The sum."""
        x = self.layers(x) + self.shortcut(x)
        return nn.functional.relu(x) if self.ends else x


def resnet() -> nn.Module:
    """20 layers for images [n, 3, 32, 32]."""
    layers, before = [convolution(3, 16, 3), nn.ReLU()], 16
    for channels in (16, 32, 64):
        for block in range(3):
            stride = 2 if channels > 16 and block == 0 else 1
            layers.append(
                Residual(
                    nn.Sequential(
                        convolution(before, channels, 3, stride), nn.ReLU(),
                        convolution(channels, channels, 3),
                    ),
                    convolution(before, channels, 1, stride) if stride > 1 else None,
                )
            )  # fmt: skip
            before = channels
    return nn.Sequential(*layers, *_head(before))


def resnet50() -> nn.Module:
    """v1.5, for images [n, 3, 224, 224]."""
    layers, before = [convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)], 64
    for stage, (blocks, channels) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
        for block in range(blocks):
            stride = 2 if stage and block == 0 else 1
            layers.append(
                Residual(
                    nn.Sequential(
                        convolution(before, channels, 1), nn.ReLU(),
                        convolution(channels, channels, 3, stride), nn.ReLU(),
                        convolution(channels, 4 * channels, 1),
                    ),
                    convolution(before, 4 * channels, 1, stride) if block == 0 else None,
                )
            )  # fmt: skip
            before = 4 * channels
    return nn.Sequential(*layers, *_head(before))


def mobilenet() -> nn.Module:
    """MobileNetV2 with 0.35 of its channels, for images [n, 3, 96, 96]."""

    def scaled(channels):
        rounded = max(8, int(channels * 0.35 + 4) // 8 * 8)
        return rounded + 8 if rounded < 0.9 * channels * 0.35 else rounded

    before = scaled(32)
    layers = [convolution(3, before, 3, 2), nn.ReLU6()]
    for expansion, channels, blocks, first_stride in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2),
        (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        for block in range(blocks):
            stride, wide = first_stride if block == 0 else 1, expansion * before
            expand = [convolution(before, wide, 1), nn.ReLU6()] if expansion > 1 else []
            made = nn.Sequential(
                *expand, convolution(wide, wide, 3, stride, groups=wide), nn.ReLU6(),
                convolution(wide, scaled(channels), 1),
            )  # fmt: skip
            is_residual = stride == 1 and before == scaled(channels)
            layers.append(Residual(made, ends=False) if is_residual else made)
            before = scaled(channels)
    return nn.Sequential(*layers, convolution(before, 1280, 1), nn.ReLU6(), *_head(1280))


def _head(channels: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, sizes.CLASSES)]


class Transformer(nn.Module):
    """An encoder of PyTorch's own layers, for tokens [n, TOKENS]."""

    def __init__(self):
        super().__init__()
        width = sizes.WIDTH
        self.embedding = nn.Embedding(sizes.VOCABULARY, width)
        layer = nn.TransformerEncoderLayer(
            width, sizes.HEADS, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(
            layer, sizes.BLOCKS, nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.logits = nn.Linear(width, sizes.CLASSES)

    def forward(self, tokens):
        """Logits [n, CLASSES]."""
        return self.logits(self.encoder(self.embedding(tokens)).mean(1))


class Lstm(nn.Module):
    """One LSTM over embedded tokens, [n, TOKENS]."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(sizes.VOCABULARY, sizes.UNITS)
        self.lstm = nn.LSTM(sizes.UNITS, sizes.UNITS, batch_first=True)
        self.logits = nn.Linear(sizes.UNITS, sizes.CLASSES)

    def forward(self, tokens):
        """Logits [n, CLASSES], of the last token's output."""
        return self.logits(self.lstm(self.embedding(tokens))[0][:, -1])


NETWORKS = {
    "cifarnet": cifarnet,
    "resnet": resnet,
    "fastnet": fastnet,
    "resnet50": resnet50,
    "mobilenet": mobilenet,
    "transformer": Transformer,
    "lstm": Lstm,
}


def main():
    """Trains until nobody listens."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=list(NETWORKS))
    parser.add_argument("compute_dtype", choices=("float32", "bfloat16"))
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--batch", type=int, help="default: the task's own")
    options = parser.parse_args()
    turn = counter.Counter()
    torch.manual_seed(0)
    batch, shape = options.batch or sizes.BATCHES[options.task], sizes.SHAPES[options.task]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = NETWORKS[options.task]()
    if len(shape) == 1:
        inputs = torch.randint(0, sizes.VOCABULARY, (batch, *shape))
    else:
        model = model.to(memory_format=torch.channels_last)
        height, width, channels = shape
        inputs = torch.randn(batch, channels, height, width)
        inputs = inputs.to(memory_format=torch.channels_last)
    labels = torch.randint(0, sizes.CLASSES, [batch])
    narrow = contextlib.nullcontext()
    if options.compute_dtype == "bfloat16":
        narrow = torch.autocast(device, torch.bfloat16)
    if device == "cuda":
        torch.set_float32_matmul_precision("high")
        model, inputs, labels = model.to(device), inputs.pin_memory(), labels.pin_memory()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.01, momentum=0.9)

    def loss_of(inputs, labels):
        with narrow:
            outputs = model(inputs)
        return nn.functional.cross_entropy(outputs.float(), labels)

    if options.compile:
        loss_of = torch.compile(loss_of)
    while True:
        optimizer.zero_grad()
        loss = loss_of(*(given.to(device, non_blocking=True) for given in (inputs, labels)))
        loss.backward()
        optimizer.step()
        loss.item()
        turn.step_done(batch)


if __name__ == "__main__":
    main()
