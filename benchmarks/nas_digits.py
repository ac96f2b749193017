"""A benchmark of every search trainer on the 64 architectures of digits, against their full table.

python -m benchmarks.nas_digits --trainers darts,spos --seeds 3
"""

import argparse
from typing import Any

import numpy as np

from benchmarks import nas_random
from experiments.nas.digits import table

__all__ = ["TRAINERS", "tau_of"]

TRAINERS = ("darts", "darts_second_order", "gumbel", "proxyless", "enas", "spos")


def tau_of(trainer: Any) -> float:
    """Return Kendall's tau between the rankings by shared weights and by the table."""
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
    searched = nas_random.search(f"nas/digits_{name}", seed, overrides)
    arch = searched.arch
    line = f"{name:20} seed {seed}  {table.name_of(arch):24} rank {table.rank_of(arch):2} of 64"
    line += f"  {searched.seconds:6.1f} s"
    if name == "spos":
        line += f"  Kendall tau {tau_of(searched.trainer):.2f}"
    if retrains:
        alone = nas_random.train("nas/digits", arch, seed)
        known = table.accuracies()[table.name_of(arch)]
        line += f"  alone {alone.accuracy:.3f} (table {known}), {alone.num_parameters} parameters"
    print(line, flush=True)


if __name__ == "__main__":
    main()
