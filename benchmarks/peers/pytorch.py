"""The same network in PyTorch, on one batch in memory: no input pipeline, no logging.

    python -m benchmarks.peers.pytorch [--compile] [--bfloat16]

bfloat16 is autocast with tensors in channels-last order, which is the fast form on a CPU.
"""

import argparse
import contextlib

import torch
from torch import nn

from benchmarks import turns

BATCH = 128


def network() -> nn.Module:
    """The tutorial's network for images [n, 3, 24, 24]."""

    def normalize():
        # PyTorch divides alpha by the window's size, 2 * radius + 1 = 9.
        return nn.LocalResponseNorm(9, alpha=0.001, beta=0.75, k=1.0)

    def pool():
        return nn.MaxPool2d(3, 2, padding=1)

    return nn.Sequential(
        nn.Conv2d(3, 64, 5, padding=2), nn.ReLU(), pool(), normalize(),
        nn.Conv2d(64, 64, 5, padding=2), nn.ReLU(), normalize(), pool(),
        nn.Flatten(), nn.Linear(2304, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(),
        nn.Linear(192, 10),
    )  # fmt: skip


def main():
    """Trains until nobody listens."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--bfloat16", action="store_true")
    options = parser.parse_args()
    counter = turns.Turns()
    torch.manual_seed(0)
    model, images = network(), torch.randn(BATCH, 3, 24, 24)
    labels = torch.randint(0, 10, [BATCH])
    narrow = contextlib.nullcontext()
    if options.bfloat16:
        model = model.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
        narrow = torch.autocast("cpu", torch.bfloat16)
    decayed = [layer.weight for layer in model if isinstance(layer, nn.Linear)][:2]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def loss_of(images, labels):
        with narrow:
            logits = model(images)
        decay = sum(weight.square().sum() for weight in decayed) * 0.002
        return nn.functional.cross_entropy(logits.float(), labels) + decay

    if options.compile:
        loss_of = torch.compile(loss_of)
    while True:
        optimizer.zero_grad()
        loss = loss_of(images, labels)
        loss.backward()
        optimizer.step()
        loss.item()
        counter.step_done(BATCH)


if __name__ == "__main__":
    main()
