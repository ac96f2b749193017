"""The parts that all workers share: their arguments, and the answer after a round."""

import argparse
from collections.abc import Callable, Mapping

from benchmarks import turns
from benchmarks.steps import models

__all__ = ["parse_args", "run_rounds"]


def parse_args(parser: argparse.ArgumentParser | None = None) -> argparse.Namespace:
    """Return a worker's arguments: `model` as a `models.Model`, `steps`, and `turns.Rounds`."""
    parser = parser or argparse.ArgumentParser()
    parser.add_argument("--model", choices=list(models.MODELS), required=True)
    parser.add_argument("--steps", type=int, default=0, help="Steps in a round.")
    turns.add_arguments(parser)
    args = parser.parse_args()
    args.model = models.MODELS[args.model]
    args.steps = args.steps or args.model.steps
    args.rounds = turns.Rounds.from_args(args)
    return args


def run_rounds(args: argparse.Namespace, train: Callable[[int], Mapping[str, float]]) -> None:
    """Train in each round, and answer with the report of its last interval.

    Args:
        args: The result of `parse_args`.
        train: A function that trains a number of steps, and returns their mean `loss` and the
            metric as numbers.
    """
    for measured in args.rounds:
        with measured:
            for num_steps in models.intervals(args.steps):
                report = train(num_steps)
            measured.note(steps=args.steps, **report)
