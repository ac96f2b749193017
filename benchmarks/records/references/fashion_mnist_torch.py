"""The recipes of `vision/fashion_mnist` and `vision/fashion_mnist_best` in eager PyTorch.

The network, its initial weights, the optimizer, the learning rates and the random changes of images
are the same, with two small differences: a convolution with a stride of two pads both sides, and
PyTorch's momentum does not contain the learning rate. Images are changed batch by batch as tensors,
without a `DataLoader`, and convolutions run with `channels_last`.

python fashion_mnist_torch.py --data_dir=/data/fashion-mnist
"""

import time

# The clock is read before the imports below, because these take seconds.
_BEGAN = time.perf_counter()

import argparse
import dataclasses
import gzip
import json
import math
import pathlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

MEAN, DEVIATION = 72.94, 90.02
BATCH, EVAL_BATCH = 128, 500
LEARNING_RATE, WARMUP, MOMENTUM, WEIGHT_DECAY, SMOOTHING = 0.1, 0.1, 0.9, 5e-4, 0.1
# The standard deviation of a unit normal distribution that is truncated at two standard deviations.
TRUNCATED = 0.87962566103423978


@dataclasses.dataclass(frozen=True)
class Recipe:
    filters: tuple[int, ...]
    blocks: int
    epochs: int
    stem_strides: int = 2
    dropout: float = 0.0
    max_shift: int = 0
    erase_size: int = 0


RECIPES = {
    "fashion_mnist": Recipe(filters=(16, 32, 64), blocks=2, epochs=12),
    "fashion_mnist_best": Recipe(
        filters=(32, 64, 128),
        blocks=1,
        epochs=24,
        stem_strides=1,
        max_shift=2,
        erase_size=8,
    ),
}


def convolve(inputs: int, filters: int, stride: int, kernel: int = 3) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, filters, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(filters, eps=1e-5, momentum=0.1),
    )


class Block(nn.Module):
    def __init__(self, inputs: int, filters: int, stride: int) -> None:
        super().__init__()
        self.first = convolve(inputs, filters, stride)
        self.second = convolve(filters, filters, 1)
        self.shortcut = convolve(inputs, filters, stride, 1) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(F.relu(self.first(x), inplace=True))
        return F.relu(y + self.shortcut(x), inplace=True)


class Net(nn.Module):
    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        first = recipe.filters[0]
        self.stem = nn.Sequential(convolve(1, first, recipe.stem_strides), nn.ReLU(inplace=True))
        blocks, inputs = [], first
        for size, filters in enumerate(recipe.filters):
            for block in range(recipe.blocks):
                is_smaller = size > 0 and block == 0
                blocks.append(Block(inputs, filters, 2 if is_smaller else 1))
                inputs = filters
        self.blocks = nn.Sequential(*blocks)
        self.dropout = nn.Dropout(recipe.dropout)
        self.logits = nn.Linear(recipe.filters[-1], 10)
        for weight in self.parameters():
            if weight.dim() > 1:
                deviation = math.sqrt(2 / weight[0].numel()) / TRUNCATED
                nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)
        nn.init.zeros_(self.logits.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits(self.dropout(self.blocks(self.stem(x)).mean((2, 3))))


def read_idx(path: pathlib.Path) -> torch.Tensor:
    content = gzip.decompress(path.read_bytes())
    shape = np.frombuffer(content, ">u4", content[3], 4).astype(int)
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(shape)
    return torch.from_numpy(values.copy())


def change(images: torch.Tensor, recipe: Recipe) -> torch.Tensor:
    """Randomly shift and flip images of shape (batch, 28, 28), and erase a square of each."""
    count, size = len(images), images.shape[1]
    line = torch.arange(size)
    if recipe.max_shift:
        padded = F.pad(images, [recipe.max_shift] * 4)
        begin = torch.randint(2 * recipe.max_shift + 1, (2, count, 1))
        rows, columns = begin[0] + line, begin[1] + line
        images = padded[torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None]]
    images = torch.where(torch.rand(count, 1, 1) < 0.5, images.flip(2), images)
    if recipe.erase_size:
        begin = torch.randint(size, (2, count, 1)) - recipe.erase_size // 2
        rows, columns = (line >= begin) & (line < begin + recipe.erase_size)
        images = images.masked_fill(rows[:, :, None] & columns[:, None], 0)
    return images


def normalize(images: torch.Tensor) -> torch.Tensor:
    images = (images[:, None].float() - MEAN) / DEVIATION
    return images.contiguous(memory_format=torch.channels_last)


def learning_rate(step: int, num_steps: int) -> float:
    warmup = int(WARMUP * num_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * max(step, warmup) / num_steps))
    return LEARNING_RATE * cosine * min(1.0, step / warmup if warmup else 1.0)


@torch.inference_mode()
def accuracy(model: Net, images: torch.Tensor, labels: torch.Tensor) -> float:
    model.eval()
    batches = zip(images.split(EVAL_BATCH), labels.split(EVAL_BATCH), strict=True)
    correct = sum(int((model(normalize(x)).argmax(1) == y).sum()) for x, y in batches)
    model.train()
    return correct / len(labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data_dir", type=pathlib.Path, required=True)
    parser.add_argument("--recipe", choices=RECIPES, default="fashion_mnist")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--max_epochs", type=int, help="Stop early; the learning rates stay.")
    args = parser.parse_args()
    recipe = RECIPES[args.recipe]
    torch.manual_seed(args.seed)
    images, labels, test_images, test_labels = (
        read_idx(args.data_dir / f"{split}-{kind}-ubyte.gz")
        for split in ("train", "t10k")
        for kind in ("images-idx3", "labels-idx1")
    )
    labels, test_labels = labels.long(), test_labels.long()
    model = Net(recipe).to(memory_format=torch.channels_last)
    kernels = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [
        {"params": kernels, "weight_decay": WEIGHT_DECAY},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.SGD(
        groups, lr=LEARNING_RATE, momentum=MOMENTUM, nesterov=True, foreach=True
    )
    per_epoch = len(images) // BATCH
    num_steps, step = recipe.epochs * per_epoch, 0
    for epoch in range(min(recipe.epochs, args.max_epochs or recipe.epochs)):
        for rows in torch.randperm(len(images))[: per_epoch * BATCH].split(BATCH):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, num_steps)
            x = normalize(change(images[rows], recipe))
            loss = F.cross_entropy(model(x), labels[rows], label_smoothing=SMOOTHING)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        value = accuracy(model, test_images, test_labels)
        seconds = time.perf_counter() - _BEGAN
        print(json.dumps({"seconds": seconds, "accuracy": value, "epoch": epoch + 1}), flush=True)


if __name__ == "__main__":
    main()
