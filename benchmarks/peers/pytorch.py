"""The same network in PyTorch, on one batch in memory: no input pipeline, no logging.

    python -m benchmarks.peers.pytorch [--compile] [--bfloat16]

Compiled, tensors are in channels-last order, the fast form on a CPU; bfloat16 is autocast.
"""

import argparse
import contextlib

import torch
from torch import nn
from torch.optim import swa_utils

from benchmarks.peers import counter

BATCH = 128


def network() -> nn.Module:
    """The tutorial's network for images [n, 3, 24, 24]."""

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


def decay(model: nn.Module) -> torch.Tensor:
    """0.004 times half the squares of the hidden dense layers' weights."""
    hidden = [layer.weight for layer in model if isinstance(layer, nn.Linear)][:2]
    return sum(weight.square().sum() for weight in hidden) * 0.002


def main():
    """Trains until nobody listens."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--bfloat16", action="store_true")
    options = parser.parse_args()
    turn = counter.Counter()
    torch.manual_seed(0)
    model, images = network(), torch.randn(BATCH, 3, 24, 24)
    labels = torch.randint(0, 10, [BATCH])
    narrow = contextlib.nullcontext()
    if options.compile:
        model = model.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
    if options.bfloat16:
        narrow = torch.autocast("cpu", torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    averages = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9999))

    def loss_of(images, labels):
        with narrow:
            logits = model(images)
        return nn.functional.cross_entropy(logits.float(), labels) + decay(model)

    if options.compile:
        loss_of = torch.compile(loss_of)
    while True:
        optimizer.zero_grad()
        loss = loss_of(images, labels)
        loss.backward()
        optimizer.step()
        averages.update_parameters(model)
        loss.item()
        turn.step_done(BATCH)


if __name__ == "__main__":
    main()
