"""airbench94 in PyTorch: its network and its update, on one batch in memory, in bfloat16.

    python -m benchmarks.peers.airbench [--compile]

Network and sizes are those of Jordan 2024 (arXiv:2404.00498), which reaches 94 % on
CIFAR-10 in 9.9 epochs. Weights are bfloat16 and in channels-last order, batch norm is float32: the
published form, with bfloat16 for float16. Its whitening is fixed here at random. Its lookahead (an
average every fifth step), its scale of the logits and its input pipeline are left out.
"""

import argparse

import torch
from torch import nn

from benchmarks.peers import counter

BATCH = 1024
LABEL_SMOOTHING = 0.2


def network() -> nn.Module:
    """The network for images [n, 3, 32, 32]."""

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


def main():
    """Trains until nobody listens."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    turn = counter.Counter()
    torch.manual_seed(0)
    model = network().to(torch.bfloat16, memory_format=torch.channels_last)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.float()
    images = torch.randn(BATCH, 3, 32, 32, dtype=torch.bfloat16)
    images = images.to(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, [BATCH])
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.01, momentum=0.85, nesterov=True, weight_decay=0.01)

    def loss_of(images, labels):
        logits = model(images)
        return nn.functional.cross_entropy(logits, labels, label_smoothing=LABEL_SMOOTHING)

    if options.compile:
        loss_of = torch.compile(loss_of)
    while True:
        optimizer.zero_grad()
        loss = loss_of(images, labels)
        loss.backward()
        optimizer.step()
        loss.item()
        turn.step_done(BATCH)


if __name__ == "__main__":
    main()
