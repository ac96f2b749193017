"""The recipe of `language/char_gpt` in hand-written eager PyTorch, as nanoGPT trains it on a CPU.

The interpreter of an environment with PyTorch runs this module, which does not import
official_lite.

python -m benchmarks.char_gpt.torch_train --input_path=/data/tinyshakespeare.txt
"""

import argparse
import json
import math
import pathlib
import tempfile
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

LAYERS, HEADS, WIDTH, LENGTH, BATCH = 4, 4, 128, 64, 12
LEARNING_RATE, LEAST_LEARNING_RATE, WARMUP = 1e-3, 1e-4, 100
EVAL_INTERVAL, EVAL_BATCHES = 250, 20


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (WIDTH,), self.weight, None, 1e-5)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = Norm(), Norm()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.project = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.gelu = nn.GELU()
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.project(self.attend(self.qkv(self.norm_1(x))))
        return x + self.down(self.gelu(self.up(self.norm_2(x))))

    def attend(self, qkv: torch.Tensor) -> torch.Tensor:
        batch, length, _ = qkv.shape
        shape = (batch, length, HEADS, WIDTH // HEADS)
        query, key, value = (part.view(shape).transpose(1, 2) for part in qkv.split(WIDTH, 2))
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return attended.transpose(1, 2).contiguous().view(batch, length, WIDTH)


class Gpt(nn.Module):
    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = Norm()
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                ends_a_part = name.endswith(("project.weight", "down.weight"))
                scale = (2 * LAYERS) ** -0.5 if ends_a_part else 1.0
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


def random_batch(text: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    begins = torch.randint(len(text) - LENGTH, (BATCH,))
    ids = torch.stack([torch.from_numpy(text[i : i + LENGTH].astype(np.int64)) for i in begins])
    labels = [torch.from_numpy(text[i + 1 : i + 1 + LENGTH].astype(np.int64)) for i in begins]
    return ids, torch.stack(labels)


@torch.no_grad()
def estimate_loss(model: Gpt, text: np.ndarray) -> float:
    losses = [model(*random_batch(text)).item() for _ in range(EVAL_BATCHES)]
    return sum(losses) / len(losses)


@torch.no_grad()
def whole_loss(model: Gpt, text: np.ndarray) -> float:
    """Return the loss on a whole text, cut into sequences."""
    rows = (len(text) - 1) // LENGTH
    ids = torch.from_numpy(text[: rows * LENGTH].astype(np.int64)).view(rows, LENGTH)
    labels = torch.from_numpy(text[1 : rows * LENGTH + 1].astype(np.int64)).view(rows, LENGTH)
    pairs = zip(ids.split(100), labels.split(100), strict=True)
    return sum(model(*pair).item() * len(pair[0]) for pair in pairs) / rows


def train(train_text: np.ndarray, validation_text: np.ndarray, vocab_size: int, steps: int) -> Gpt:
    model = Gpt(vocab_size)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.99))
    best = math.inf
    with tempfile.TemporaryDirectory() as directory:
        for step in range(steps + 1):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, steps)
            if step % EVAL_INTERVAL == 0:
                estimate_loss(model, train_text)
                loss = estimate_loss(model, validation_text)
                if loss < best and step:
                    best = loss
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    torch.save(state, pathlib.Path(directory) / "checkpoint.pt")
            loss = model(*random_batch(train_text))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            loss.item()
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input_path", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1337)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    characters, text = np.unique(
        np.array(list(args.input_path.read_text(encoding="utf-8"))), return_inverse=True
    )
    text = text.astype(np.uint16)
    num_train = int(0.9 * len(text))
    began = time.perf_counter()
    model = train(text[:num_train], text[num_train:], len(characters), args.steps)
    seconds = time.perf_counter() - began
    began = time.perf_counter()
    loss = whole_loss(model, text[num_train:])
    # The last evaluation is not part of the recipe.
    uncounted = time.perf_counter() - began
    print(json.dumps({"loss": loss, "training_seconds": seconds, "uncounted_seconds": uncounted}))


if __name__ == "__main__":
    main()
