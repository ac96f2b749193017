"""The accuracy of each of the 64 architectures, and functions that compare a search with them.

python -m experiments.nas.digits.table      trains all of them, and writes table.json: two minutes

Each architecture is trained as by `nas/digits`, with its own initial weights and order of batches.
All architectures are paths through one model with choices, so that the model is traced only once
instead of 128 times.
"""

import functools
import itertools
import json
import pathlib
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from experiments.nas.digits import configs, model, task
from official_lite import nas
from official_lite.core import base_trainer, trainer_factory

__all__ = ["SEEDS", "accuracies", "architectures", "compute", "kendall_tau", "rank_of"]

SEEDS = (0, 1)
_PATH = pathlib.Path(__file__).with_name("table.json")


def architectures() -> list[dict[str, str]]:
    """Return all architectures of the space."""
    labels = [f"layer{number}" for number in range(configs.CellsConfig().num_choices)]
    paths = itertools.product(model.OPERATIONS, repeat=len(labels))
    return [dict(zip(labels, path, strict=True)) for path in paths]


@functools.cache
def accuracies() -> dict[str, list[float]]:
    """Return validation accuracies, one per seed, by architecture name: `conv3-zero-…`."""
    found: dict[str, list[float]] = json.loads(_PATH.read_text())["accuracies"]
    return found


def name_of(arch: Mapping[str, str]) -> str:
    """Return the names of the chosen options, from the first layer to the last."""
    return "-".join(arch[label] for label in sorted(arch))


def rank_of(arch: Mapping[str, str]) -> int:
    """Return the rank among the 64 architectures by mean accuracy over the seeds; 1 is the best."""
    means = {name: statistics.mean(values) for name, values in accuracies().items()}
    return 1 + sum(mean > means[name_of(arch)] for mean in means.values())


def kendall_tau(one: Sequence[float], other: Sequence[float]) -> float:
    """Return Kendall's tau-b, the agreement of two rankings with ties, from -1 to 1."""
    pairs = list(itertools.combinations(range(len(one)), 2))
    signs = [(np.sign(one[i] - one[j]), np.sign(other[i] - other[j])) for i, j in pairs]
    total = sum(a * b for a, b in signs)
    sizes = [sum(s[side] != 0 for s in signs) for side in (0, 1)]
    return float(total / max(1.0, np.sqrt(sizes[0] * sizes[1])))


def compute(seeds: Sequence[int] = SEEDS) -> dict[str, list[float]]:
    """Train every architecture once per seed and return validation accuracies by name."""
    found: dict[str, list[float]] = {name_of(arch): [] for arch in architectures()}
    for seed in seeds:
        params = configs.nas_digits()
        params.override({"runtime": {"seed": seed}})
        keras.utils.set_random_seed(seed)
        digits = task.NasDigitsTask(params.task)
        choices = digits.build_model()
        index = tf.Variable([0] * digits.task_config.model.num_choices)
        # `type[Choice]` would exclude the abstract base class, which represents all choices here.
        makers: dict[Any, Any] = {nas.Choice: functools.partial(_Path, index)}
        nas.resolve_choices(choices, makers)
        optimizer = trainer_factory.create_optimizer(digits, params)
        trainer = base_trainer.Trainer(params, digits, choices, optimizer)
        for arch in architectures():
            accuracy = _train(trainer, index, arch, params.trainer.train_steps)
            found[name_of(arch)].append(round(accuracy, 4))
    return found


class _Path:
    """A resolver that computes the option whose index is stored in a variable."""

    def __init__(self, index: tf.Variable, choice: Any) -> None:
        self._index = index
        self._place = int(choice.label.removeprefix("layer"))

    def __call__(self, choice: Any, inputs: Any, training: Any) -> Any:
        branches = [
            functools.partial(choice.branch, number, inputs)
            for number in range(len(choice.options))
        ]
        return tf.switch_case(self._index[self._place], branches)


def _train(
    trainer: base_trainer.Trainer, index: tf.Variable, arch: Mapping[str, str], num_steps: int
) -> float:
    """Train an architecture from new weights, and return its validation accuracy.

    The dataset iterator is not restarted, so each training has its own order of examples.
    """
    index.assign([model.OPERATIONS.index(arch[label]) for label in sorted(arch)])
    fresh = keras.models.clone_model(trainer.model)
    for variable, value in zip(trainer.model.variables, fresh.variables, strict=True):
        variable.assign(value)
    rate = trainer.optimizer.learning_rate
    for variable in trainer.optimizer.variables:
        if variable is not rate:
            variable.assign(tf.zeros(variable.shape, variable.dtype))
    trainer.train(tf.constant(num_steps))
    logs = trainer.evaluate(tf.constant(-1))
    return float(logs["accuracy"]) if logs else 0.0


def _write() -> None:
    began = time.monotonic()
    found = compute()
    content = {
        "made_by": "python -m experiments.nas.digits.table",
        "experiment": "nas/digits",
        "train_steps": configs.nas_digits().trainer.train_steps,
        "seeds": list(SEEDS),
        "seconds": round(time.monotonic() - began),
        "versions": {"tensorflow": tf.__version__, "keras": keras.__version__},
        "accuracies": found,
    }
    _PATH.write_text(json.dumps(content, indent=1) + "\n")
    means = sorted(((statistics.mean(v), n) for n, v in found.items()), reverse=True)
    spread = statistics.mean(max(v) - min(v) for v in found.values())
    print(f"best {means[0]}, median {means[len(means) // 2]}, worst {means[-1]}")
    print(f"mean difference between seeds {spread:.3f}")


if __name__ == "__main__":
    _write()
