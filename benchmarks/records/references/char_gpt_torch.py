"""The recipes of `language/char_gpt` in hand-written eager PyTorch, following nanoGPT.

Positions are learned, as in nanoGPT. Each evaluation reads the whole validation part.

python char_gpt_torch.py --data_dir=/data --recipe=char_gpt
"""

import time

# The clock is read before the imports below, because these take seconds.
_BEGAN = time.perf_counter()

import argparse
import dataclasses
import json
import math
import pathlib
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

LEARNING_RATE, LEAST_LEARNING_RATE, WARMUP = 1e-3, 1e-4, 100
EVAL_INTERVAL, EVAL_TOKENS = 250, 6400


@dataclasses.dataclass(frozen=True)
class Recipe:
    layers: int
    heads: int
    width: int
    length: int
    batch: int
    steps: int


RECIPES = {
    "char_gpt": Recipe(layers=4, heads=4, width=128, length=64, batch=12, steps=2000),
    "char_gpt_large": Recipe(layers=6, heads=6, width=192, length=128, batch=16, steps=4000),
}


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, None, 1e-5)


class Block(nn.Module):
    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        width = recipe.width
        self.heads = recipe.heads
        self.norm_1, self.norm_2 = Norm(width), Norm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.project = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.gelu = nn.GELU()
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.project(self.attend(self.qkv(self.norm_1(x))))
        return x + self.down(self.gelu(self.up(self.norm_2(x))))

    def attend(self, qkv: torch.Tensor) -> torch.Tensor:
        batch, length, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
        shape = (batch, length, self.heads, width // self.heads)
        query, key, value = (part.view(shape).transpose(1, 2) for part in qkv.split(width, 2))
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return attended.transpose(1, 2).contiguous().view(batch, length, width)


class Gpt(nn.Module):
    def __init__(self, vocab_size: int, recipe: Recipe) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, recipe.width)
        self.positions = nn.Embedding(recipe.length, recipe.width)
        self.blocks = nn.ModuleList(Block(recipe) for _ in range(recipe.layers))
        self.norm = Norm(recipe.width)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                ends_a_part = name.endswith(("project.weight", "down.weight"))
                scale = (2 * recipe.layers) ** -0.5 if ends_a_part else 1.0
                nn.init.normal_(weight, std=0.02 * scale)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.reshape(-1))


def learning_rate(step: int, num_steps: int) -> float:
    if step < WARMUP:
        return LEARNING_RATE * (step + 1) / (WARMUP + 1)
    share = (step - WARMUP) / max(1, num_steps - WARMUP)
    cosine = 0.5 * (1.0 + math.cos(math.pi * share))
    return LEAST_LEARNING_RATE + cosine * (LEARNING_RATE - LEAST_LEARNING_RATE)


def random_batch(text: np.ndarray, recipe: Recipe) -> tuple[torch.Tensor, torch.Tensor]:
    length = recipe.length
    begins = torch.randint(len(text) - length, (recipe.batch,))
    ids = torch.stack([torch.from_numpy(text[i : i + length].astype(np.int64)) for i in begins])
    labels = [torch.from_numpy(text[i + 1 : i + 1 + length].astype(np.int64)) for i in begins]
    return ids, torch.stack(labels)


@torch.no_grad()
def whole_loss(model: Gpt, text: np.ndarray, length: int) -> float:
    """Return the mean loss over all sequences of a text."""
    rows = (len(text) - 1) // length
    ids = torch.from_numpy(text[: rows * length].astype(np.int64)).view(rows, length)
    labels = torch.from_numpy(text[1 : rows * length + 1].astype(np.int64)).view(rows, length)
    size = max(1, EVAL_TOKENS // length)
    pairs = zip(ids.split(size), labels.split(size), strict=True)
    return sum(model(*pair).item() * len(pair[0]) for pair in pairs) / rows


def train(
    train_text: np.ndarray, validation_text: np.ndarray, vocab_size: int, recipe: Recipe
) -> Iterator[float]:
    """Train, and yield the validation loss at every interval and at the end."""
    model = Gpt(vocab_size, recipe)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.99))
    for step in range(recipe.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, recipe.steps)
        loss = model(*random_batch(train_text, recipe))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        if (step + 1) % EVAL_INTERVAL == 0 or step + 1 == recipe.steps:
            yield whole_loss(model, validation_text, recipe.length)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data_dir", type=pathlib.Path, required=True)
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument(
        "--max_epochs", type=float, default=math.inf, help="The maximum number of epochs."
    )
    parser.add_argument("--recipe", choices=RECIPES, default="char_gpt")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    path = args.data_dir / "tinyshakespeare.txt"
    characters, text = np.unique(
        np.array(list(path.read_text(encoding="utf-8"))), return_inverse=True
    )
    text = text.astype(np.uint16)
    num_train = int(0.9 * len(text))
    recipe = RECIPES[args.recipe]
    steps_per_epoch = num_train / (recipe.length * recipe.batch)
    steps = math.ceil(min(args.max_epochs * steps_per_epoch, recipe.steps))
    recipe = dataclasses.replace(recipe, steps=steps)
    for loss in train(text[:num_train], text[num_train:], len(characters), recipe):
        seconds = time.perf_counter() - _BEGAN
        print(json.dumps({"seconds": seconds, "validation_loss": loss}), flush=True)


if __name__ == "__main__":
    main()
