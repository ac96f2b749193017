"""First-order DARTS and single-path one-shot on the `nas/digits` model, in hand-written PyTorch.

The interpreter of an environment with PyTorch runs this module, which does not import
official_lite. It reads lines `<algorithm> <steps>` and answers each with the elapsed seconds.
"""

import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

FILTERS, NUM_CHOICES, BATCH = 8, 3, 64


class Zero(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 0.0


class Supernet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, FILTERS, 1)
        self.choices = nn.ModuleList(
            nn.ModuleList(
                [
                    nn.Conv2d(FILTERS, FILTERS, 3, padding=1),
                    nn.Conv2d(FILTERS, FILTERS, 1),
                    nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False),
                    Zero(),
                ]
            )
            for _ in range(NUM_CHOICES)
        )
        self.head = nn.Linear(FILTERS, 10)
        self.alphas = nn.ParameterList(
            nn.Parameter(1e-3 * torch.randn(4)) for _ in range(NUM_CHOICES)
        )

    def forward(self, x: torch.Tensor, path: list[int] | None = None) -> torch.Tensor:
        x = self.stem(x)
        for number, ops in enumerate(self.choices):
            if path is None:
                shares = F.softmax(self.alphas[number], -1)
                out = sum(share * op(x) for share, op in zip(shares, ops, strict=True))
            else:
                out = ops[path[number]](x)
            x = F.relu(x + out)
        return self.head(x.mean((2, 3)))


class Search:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Supernet()
        alphas = list(self.model.alphas)
        weights = [p for p in self.model.parameters() if all(p is not a for a in alphas)]
        self.weights = torch.optim.Adam(weights, 3e-3)
        self.arch = torch.optim.Adam(alphas, 5e-3, betas=(0.5, 0.999), weight_decay=1e-3)
        # Two sets of random images, as large as the halves of the digits that train the weights and
        # the architecture.
        self.x = torch.rand(2, 718, 1, 8, 8)
        self.y = torch.randint(10, (2, 718))

    def batch(self, part: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.randint(718, (BATCH,))
        return self.x[part][rows], self.y[part][rows]

    def darts(self) -> None:
        for part, optimizer in ((1, self.arch), (0, self.weights)):
            x, y = self.batch(part)
            self.arch.zero_grad()
            self.weights.zero_grad()
            F.cross_entropy(self.model(x), y).backward()
            optimizer.step()

    def spos(self) -> None:
        x, y = self.batch(0)
        self.weights.zero_grad()
        path = torch.randint(4, (NUM_CHOICES,)).tolist()
        F.cross_entropy(self.model(x, path), y).backward()
        self.weights.step()


def main() -> None:
    torch.set_num_threads(int(sys.argv[1]))
    search = Search()
    for line in sys.stdin:
        algorithm, num_steps = line.split()
        step = getattr(search, algorithm)
        began = time.perf_counter()
        for _ in range(int(num_steps)):
            step()
        print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    main()
