"""The recipe of `sequence/mnist1d` in PyTorch.

python benchmarks/records/references/mnist1d_torch.py --data_dir=/tmp/mnist1d_data --seed=0
"""

import time

_BEGIN = time.perf_counter()

import argparse
import json
import math
import pathlib

import numpy as np
import torch
from torch import nn

EPOCHS = 20
EPOCHS_PER_EVALUATION = 5
BATCH_SIZE = 100
WARMUP_STEPS = 100
LEARNING_RATE = 3e-3


class Convolution(nn.Sequential):
    """A convolution and its batch normalization."""

    def __init__(self, channels: int, filters: int, kernel_size: int, stride: int) -> None:
        convolution = nn.Conv1d(
            channels, filters, kernel_size, stride, padding=kernel_size // 2, bias=False
        )
        nn.init.kaiming_normal_(convolution.weight, nonlinearity="linear")
        with torch.no_grad():
            convolution.weight *= math.sqrt(2)
        super().__init__(convolution, nn.BatchNorm1d(filters, eps=1e-5, momentum=0.1))


class Block(nn.Module):
    """Two convolutions with a shortcut."""

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.first = Convolution(channels, filters, 5, stride)
        self.second = Convolution(filters, filters, 5, 1)
        self.shortcut = Convolution(channels, filters, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(torch.relu(self.first(x)))
        return torch.relu(self.shortcut(x) + y)


class Network(nn.Module):
    """Three blocks, the mean over the points, and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(1, 32, 1), Block(32, 64, 2), Block(64, 128, 2))
        self.dropout = nn.Dropout(0.2)
        self.logits = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits(self.dropout(self.blocks(x).mean(-1)))


def change_at_random(curves: torch.Tensor) -> torch.Tensor:
    """Shift, scale and shear the curves of a batch, and add noise."""
    count, _, length = curves.shape
    shifts = torch.randint(-3, 4, (count, 1, 1))
    curves = curves.gather(-1, (torch.arange(length) - shifts) % length)
    curves = curves * (1 + 0.1 * (2 * torch.rand(count, 1, 1) - 1))
    slope = 2 * torch.rand(count, 1, 1) - 1
    curves = curves + 0.5 * slope * torch.linspace(-0.5, 0.5, length)
    return curves + 0.05 * torch.randn(curves.shape)


def evaluate(network: nn.Module, curves: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the accuracy."""
    network.eval()
    with torch.inference_mode():
        outputs = torch.cat([network(part) for part in curves.split(500)])
    network.train()
    return float((outputs.argmax(-1) == labels).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data_dir", type=pathlib.Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max_epochs", type=int, default=EPOCHS)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    with np.load(args.data_dir / "mnist1d.npz") as file:
        train, test = (
            (torch.tensor(file[x], dtype=torch.float32)[:, None], torch.tensor(file[y]))
            for x, y in (("x", "y"), ("x_test", "y_test"))
        )
    network = Network()
    optimizer = torch.optim.AdamW(
        network.parameters(), LEARNING_RATE, eps=1e-7, weight_decay=0.01, foreach=True
    )
    train_steps = EPOCHS * len(train[1]) // BATCH_SIZE

    def factor(step: int) -> float:
        return min(step / WARMUP_STEPS, 0.5 + 0.5 * math.cos(math.pi * step / train_steps))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    for epoch in range(1, min(args.max_epochs, EPOCHS) + 1):
        for rows in torch.randperm(len(train[1])).split(BATCH_SIZE):
            outputs = network(change_at_random(train[0][rows]))
            loss = nn.functional.cross_entropy(outputs, train[1][rows])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
        if epoch % EPOCHS_PER_EVALUATION == 0 or epoch == args.max_epochs:
            accuracy = evaluate(network, *test)
            seconds = time.perf_counter() - _BEGIN
            print(json.dumps({"seconds": seconds, "accuracy": accuracy}), flush=True)


if __name__ == "__main__":
    main()
