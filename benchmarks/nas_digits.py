"""A benchmark of every search trainer on the 64 architectures of digits, against their full table.

python -m benchmarks.nas_digits --trainers darts,spos --seeds 3
"""

import argparse
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import yaml

from experiments.nas.digits import configs, table, task
from official_lite.core import exp_factory, trainer_factory
from official_lite.modeling import hyperparams
from official_lite.run import runtime

__all__ = ["TRAINERS", "retrain", "search"]

TRAINERS = ("darts", "darts_second_order", "gumbel", "proxyless", "enas", "spos")


def search(name: str, seed: int, overrides: Mapping[str, str] | None = None) -> tuple[Any, float]:
    """Run a search without files, and return the trainer and the elapsed seconds."""
    params = exp_factory.get_exp_config(f"nas/digits_{name}")
    params.override({"runtime": {"seed": seed}})
    for path, value in (overrides or {}).items():
        hyperparams.override_by_path(params, path, yaml.safe_load(value))
    began = time.perf_counter()
    strategy = runtime.build_strategy(params.runtime)
    with strategy.scope(), runtime.seed_and_precision(params.runtime):
        digits = task.NasDigitsTask(params.task)
        trainer = trainer_factory.create_trainer(params, digits, train=True, evaluate=True)
        trainer.train(tf.constant(params.trainer.train_steps))
    return trainer, time.perf_counter() - began


def retrain(arch: dict[str, str], seed: int) -> tuple[float, int]:
    """Train one architecture, and return its validation accuracy and its number of parameters."""
    params = configs.nas_digits()
    params.override({"runtime": {"seed": seed}, "task": {"arch": arch}})
    strategy = runtime.build_strategy(params.runtime)
    with strategy.scope(), runtime.seed_and_precision(params.runtime):
        digits = task.NasDigitsTask(params.task)
        trainer = trainer_factory.create_trainer(params, digits, train=True, evaluate=True)
        trainer.train(tf.constant(params.trainer.train_steps))
        logs = trainer.evaluate(tf.constant(-1))
    return float(logs["accuracy"]), trainer.model.count_params()


def tau_of(trainer: Any) -> float:
    """Return Kendall's tau between the ranking by shared weights and that of the table."""
    alone = {name: float(np.mean(values)) for name, values in table.accuracies().items()}
    ranking = trainer.rank()
    return table.kendall_tau(
        [score for score, _ in ranking], [alone[table.name_of(arch)] for _, arch in ranking]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trainers", default=",".join(TRAINERS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first_seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], help="path=value, for experiments")
    parser.add_argument("--retrain", action="store_true", help="train the found architecture alone")
    options = parser.parse_args()
    overrides = dict(one.split("=", 1) for one in options.set)
    for name in options.trainers.split(","):
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            _report(name, seed, overrides, options.retrain)


def _report(name: str, seed: int, overrides: dict[str, str], retrains: bool) -> None:
    trainer, seconds = search(name, seed, overrides)
    arch = trainer.export()
    line = f"{name:20} seed {seed}  {table.name_of(arch):24} rank {table.rank_of(arch):2} of 64"
    line += f"  {seconds:6.1f} s"
    if name == "spos":
        line += f"  Kendall tau {tau_of(trainer):.2f}"
    if retrains:
        accuracy, count = retrain(arch, seed)
        known = table.accuracies()[table.name_of(arch)]
        line += f"  alone {accuracy:.3f} (table {known}), {count} parameters"
    print(line, flush=True)


if __name__ == "__main__":
    main()
