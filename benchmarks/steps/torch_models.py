"""The four models in PyTorch with loss and metric, for the plain loop and for Lightning."""

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.steps import models

__all__ = ["Score", "build", "create_optimizer", "load_batches", "mean_loss"]


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(models.MLP_UNITS, models.MLP_UNITS)
        self.logits = nn.Linear(models.MLP_UNITS, models.MLP_CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits(F.relu(self.hidden(x)))


class SamePadConv(nn.Conv2d):
    """A convolution that pads as TensorFlow does: at the end first, if the stride is two."""

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__(channels, filters, 3, stride, padding=1 if stride == 1 else 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(F.pad(x, (0, 1, 0, 1)) if self.stride[0] == 2 else x)


class Convnet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        channels = models.CONVNET_IMAGE[-1]
        for index, filters in enumerate(models.CONVNET_FILTERS):
            conv = SamePadConv(channels, filters, 1 if index == 0 else 2)
            self.add_module(f"conv_{index}", conv)
            channels = filters
        self.logits = nn.Linear(channels, models.CONVNET_CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index in range(len(models.CONVNET_FILTERS)):
            x = F.relu(self.get_submodule(f"conv_{index}")(x))
        return self.logits(x.mean((2, 3)))


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(models.LENGTH, models.D_MODEL))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        size = models.D_MODEL
        self.tokens = nn.Embedding(models.VOCABULARY, size)
        self.positions = Positions()
        for index in range(models.NUM_BLOCKS):
            for name, layer in (
                ("norm_1", nn.LayerNorm(size, models.LAYER_NORM_EPSILON)),
                ("qkv", nn.Linear(size, 3 * size)),
                ("project", nn.Linear(size, size)),
                ("norm_2", nn.LayerNorm(size, models.LAYER_NORM_EPSILON)),
                ("up", nn.Linear(size, models.D_FEEDFORWARD)),
                ("down", nn.Linear(models.D_FEEDFORWARD, size)),
            ):
                self.add_module(f"block_{index}_{name}", layer)
        self.norm = nn.LayerNorm(size, models.LAYER_NORM_EPSILON)
        self.logits = nn.Linear(size, models.VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.positions(self.tokens(tokens))
        for index in range(models.NUM_BLOCKS):
            layer = {
                name: self.get_submodule(f"block_{index}_{name}")
                for name in ("norm_1", "qkv", "project", "norm_2", "up", "down")
            }
            x = x + layer["project"](attention(layer["qkv"](layer["norm_1"](x))))
            x = x + layer["down"](F.relu(layer["up"](layer["norm_2"](x))))
        return self.logits(self.norm(x))


def attention(qkv: torch.Tensor) -> torch.Tensor:
    batch, length, _ = qkv.shape
    heads = qkv.view(batch, length, 3, models.NUM_HEADS, -1).permute(2, 0, 3, 1, 4)
    query, key, value = heads.unbind()
    attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    return attended.transpose(1, 2).reshape(batch, length, -1)


class Ctr(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for index in range(models.NUM_TABLES):
            table = nn.Embedding(models.TABLE_ROWS, models.D_EMBEDDING, sparse=True)
            self.add_module(f"table_{index}", table)
        size = models.NUM_DENSE + models.NUM_TABLES * models.D_EMBEDDING
        for index, units in enumerate(models.CTR_UNITS):
            self.add_module(f"dense_{index}", nn.Linear(size, units))
            size = units
        self.logits = nn.Linear(size, 1)

    def forward(self, x: torch.Tensor, categorical: torch.Tensor) -> torch.Tensor:
        embedded = [
            self.get_submodule(f"table_{index}")(categorical[:, index])
            for index in range(models.NUM_TABLES)
        ]
        x = torch.cat([x, *embedded], -1)
        for index in range(len(models.CTR_UNITS)):
            x = F.relu(self.get_submodule(f"dense_{index}")(x))
        return self.logits(x).squeeze(-1)


def build(model: models.Model) -> nn.Module:
    """Build the model with its initial weights."""
    classes: dict[str, type[nn.Module]] = {
        "tiny_mlp": Mlp,
        "convnet": Convnet,
        "transformer": Transformer,
        "ctr": Ctr,
    }
    built = classes[model.name]()
    for name, weights in models.layers(model.make_parameters()):
        for parameter, weight in zip(built.get_submodule(name).parameters(), weights, strict=True):
            is_kernel = weight.ndim > 1 and not isinstance(
                built.get_submodule(name), nn.Embedding | Positions
            )
            # Both kinds of kernels have their outputs first in PyTorch, and last in TensorFlow.
            axes = (*range(weight.ndim - 1, weight.ndim - 3, -1), *range(weight.ndim - 2))
            parameter.data.copy_(torch.tensor(weight.transpose(axes) if is_kernel else weight))
    return built


def create_optimizer(model: models.Model, built: nn.Module) -> torch.optim.Optimizer:
    if model.optimizer == "adagrad":
        return torch.optim.Adagrad(
            built.parameters(),
            lr=models.LEARNING_RATE,
            initial_accumulator_value=models.INITIAL_ACCUMULATOR,
            eps=models.EPSILON,
        )
    return torch.optim.AdamW(
        built.parameters(),
        lr=models.LEARNING_RATE,
        weight_decay=models.WEIGHT_DECAY,
        eps=models.EPSILON,
    )


def load_batches(model: models.Model) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """Load the data, with channels first and with the integer type that PyTorch requires."""
    features, labels = model.make_batches()
    return tuple(_tensor(part) for part in features), _tensor(labels)


def mean_loss(model: models.Model, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if model.metric == "auc":
        return F.binary_cross_entropy_with_logits(logits, labels.float())
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten())


class Score:
    """The metric, accumulated in tensors until it is requested."""

    def __init__(self, model: models.Model) -> None:
        self._is_auc = model.metric == "auc"
        self.counts = torch.zeros(2, models.NUM_BINS if self._is_auc else 1)

    @torch.no_grad()
    def update(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        if not self._is_auc:
            hits = (logits.argmax(-1) == labels).sum()
            self.counts[0] += hits
            self.counts[1] += labels.numel() - hits
            return
        bins = (logits.sigmoid() * (models.NUM_BINS - 1e-3)).long()
        positive = labels.float()
        self.counts[0].index_add_(0, bins, positive)
        self.counts[1].index_add_(0, bins, 1 - positive)

    def result(self) -> float:
        first, second = self.counts.numpy()
        return models.auc(first, second) if self._is_auc else float(first[0] / sum(self.counts))


def _tensor(array: np.ndarray) -> Any:
    if array.ndim == 5:
        array = np.ascontiguousarray(np.moveaxis(array, -1, 2))
    return torch.tensor(array.astype(np.int64) if array.dtype == np.int32 else array)
