"""A benchmark of an architecture search against random architectures of the same size.

python -m benchmarks.nas_random nas/fashion_mnist --seeds 3 --data_dir /data/fashion-mnist

With each seed, `<experiment>_<trainer>` searches, and `<experiment>` trains the architecture that
was found. Random search then gets the same time: it trains random architectures whose number of
parameters differs by at most 10 %, with the same recipe.
"""

import argparse
import dataclasses
import itertools
import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import yaml
from absl import logging

import registry_imports  # noqa: F401  (imported for its registrations)
from benchmarks import report
from official_lite import nas
from official_lite.config import epochs
from official_lite.core import config_definitions as cfg
from official_lite.core import exp_factory, task_factory, trainer_factory
from official_lite.modeling import hyperparams
from official_lite.nas import probes, resolution
from official_lite.run import runtime

__all__ = [
    "Comparison",
    "Search",
    "Training",
    "compare",
    "configure",
    "random_architectures",
    "search",
    "tabulate",
    "train",
]

# The largest relative difference between the numbers of parameters.
TOLERANCE = 0.1

_MAX_DRAWS = 20_000

Overrides = Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Search:
    """A finished search: its trainer, the architecture that it found, and the seconds it took."""

    trainer: Any
    arch: dict[str, Any]
    seconds: float


@dataclasses.dataclass(frozen=True)
class Training:
    """The training of one architecture: its final accuracy, its size and the seconds it took."""

    arch: dict[str, Any]
    accuracy: float
    num_parameters: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The found architecture and random architectures of its size, for one seed."""

    seed: int
    search_seconds: float
    found: Training
    randoms: Sequence[Training]

    @property
    def median(self) -> float:
        """The median accuracy of the random architectures."""
        return statistics.median(random.accuracy for random in self.randoms)

    @property
    def points(self) -> float:
        """The percentage points by which the found architecture exceeds the median."""
        return 100 * (self.found.accuracy - self.median)


def search(experiment: str, seed: int, overrides: Overrides | None = None) -> Search:
    """Run a search without files."""
    began = time.perf_counter()
    trainer, _ = _run(configure(experiment, seed, overrides or {}))
    arch = trainer.export()
    return Search(trainer, arch, time.perf_counter() - began)


def train(
    experiment: str, arch: Mapping[str, Any], seed: int, overrides: Overrides | None = None
) -> Training:
    """Train one architecture without files, and evaluate it at the end."""
    began = time.perf_counter()
    trainer, strategy = _run(configure(experiment, seed, overrides or {}, arch))
    with strategy.scope():
        logs = trainer.evaluate(tf.constant(-1))
    seconds = time.perf_counter() - began
    return Training(dict(arch), float(logs["accuracy"]), trainer.model.count_params(), seconds)


def configure(
    experiment: str, seed: int, overrides: Overrides, arch: Mapping[str, Any] | None = None
) -> cfg.ExperimentConfig:
    """Return the config of an experiment with other values.

    Args:
        experiment: The name of the experiment.
        seed: The seed.
        overrides: Values by path in the config.
        arch: The architecture to train; None leaves the choices open.
    """
    params = exp_factory.get_exp_config(experiment)
    params.override({"runtime": {"seed": seed}})
    if arch is not None:
        params.override({"task": {"arch": dict(arch)}})
    for path, value in overrides.items():
        hyperparams.override_by_path(params, path, yaml.safe_load(value))
    return params


def _run(params: cfg.ExperimentConfig) -> tuple[Any, tf.distribute.Strategy]:
    params = epochs.resolve(params)
    strategy = runtime.build_strategy(params.runtime)
    with strategy.scope(), runtime.seed_and_precision(params.runtime):
        task = task_factory.get_task(params.task)
        trainer = trainer_factory.create_trainer(params, task, train=True, evaluate=True)
        trainer.train(tf.constant(params.trainer.train_steps))
    return trainer, strategy


def random_architectures(
    trainer: Any, found: Mapping[str, Any], num_parameters: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Yield different random architectures of about the size of the one that was found.

    Each option of a label is equally probable. Iteration ends after many draws.

    Args:
        trainer: The trainer of the search.
        found: The architecture that was found; it is not yielded.
        num_parameters: The number of its parameters.
        seed: The seed.
    """
    generator = np.random.default_rng(seed)
    count = probes.Penalty(trainer.model, nas.PenaltyConfig(weight=1.0, unit=1.0))
    others = num_parameters - count.of(resolution.decided_by(trainer.model, found))
    yielded = [dict(found)]
    for _ in range(_MAX_DRAWS):
        picks = {
            label: int(generator.integers(len(options))) for label, options in trainer.space.items()
        }
        arch = trainer.describe(picks)
        is_of_size = abs(others + count.of(picks) - num_parameters) <= TOLERANCE * num_parameters
        if is_of_size and arch not in yielded:
            yielded.append(arch)
            yield arch


def compare(
    experiment: str,
    trainer_name: str,
    seed: int,
    *,
    overrides: Overrides,
    search_overrides: Overrides,
    num_random: int | None = None,
) -> Comparison:
    """Search, train what was found, and train random architectures of its size.

    Args:
        experiment: The experiment that trains an architecture.
        trainer_name: The suffix of the experiment that searches.
        seed: The seed.
        overrides: Values by path in the config, for all trainings.
        search_overrides: Further values for the search.
        num_random: The number of random architectures. With None, they are trained until they took
            at least as many seconds as the search and the training of what it found.

    Raises:
        RuntimeError: If there are no other architectures of this size.
    """
    searched = search(f"{experiment}_{trainer_name}", seed, {**overrides, **search_overrides})
    _print(seed, "search", arch=searched.arch, seconds=searched.seconds)
    found = train(experiment, searched.arch, seed, overrides)
    _print(seed, "found", **dataclasses.asdict(found))
    remaining = searched.seconds + found.seconds
    archs = random_architectures(searched.trainer, found.arch, found.num_parameters, seed)
    randoms: list[Training] = []
    for arch in itertools.islice(archs, num_random):
        if num_random is None and remaining <= 0:
            break
        randoms.append(train(experiment, arch, seed, overrides))
        _print(seed, "random", **dataclasses.asdict(randoms[-1]))
        remaining -= randoms[-1].seconds
    if num_random is None and remaining > 0:
        print(f"Too few architectures of this size: {remaining:.0f} s less of random search.")
    if not randoms:
        raise RuntimeError(
            f"{experiment} has no other architecture with {found.num_parameters} parameters, "
            f"± {TOLERANCE:.0%}. Try another seed."
        )
    return Comparison(seed, searched.seconds, found, randoms)


def _print(seed: int, kind: str, **facts: Any) -> None:
    print(json.dumps({"seed": seed, "kind": kind, **facts}), flush=True)


def tabulate(experiment: str, found: Sequence[Comparison]) -> list[report.Table]:
    """Return a table of accuracies and a table of the architectures that were found."""
    return [
        report.Table(
            title=f"{experiment}: the architecture found and random ones of its size",
            columns=(
                "seed",
                "found",
                "random: median",
                "lowest",
                "highest",
                "number",
                "points over the median",
                "s to search and train",
                "s of random search",
            ),
            rows=[_row(one) for one in found],
            note="The median difference is "
            f"{statistics.median(one.points for one in found):.2f} points. The highest accuracy is "
            "an upper bound for random search, which would have to choose before it is tested.",
        ),
        report.Table(
            title="The architectures found",
            columns=("seed", "parameters", "choices"),
            rows=[
                [
                    str(one.seed),
                    f"{one.found.num_parameters:,}",
                    " ".join(map(str, one.found.arch.values())),
                ]
                for one in found
            ],
        ),
    ]


def _row(one: Comparison) -> list[report.Cell]:
    accuracies = [random.accuracy for random in one.randoms]
    values = (one.found.accuracy, one.median, min(accuracies), max(accuracies))
    return [
        str(one.seed),
        *(f"{value:.4f}" for value in values),
        len(accuracies),
        f"{one.points:.2f}",
        round(one.search_seconds + one.found.seconds),
        round(sum(random.seconds for random in one.randoms)),
    ]


def _pair(text: str) -> tuple[str, str]:
    path, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not PATH=VALUE")
    return path, value


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", help="The experiment that trains an architecture.")
    parser.add_argument("--trainer", default="spos", help="The suffix of the one that searches.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first_seed", type=int, default=0)
    parser.add_argument(
        "--random",
        type=int,
        help="The number of random architectures; by default, as many as take the time of the "
        "search and of training what it found.",
    )
    parser.add_argument("--data_dir", help="The directory of the data, for `task.input_path`.")
    parser.add_argument(
        "--set", type=_pair, action="append", default=[], help="PATH=VALUE, for all trainings"
    )
    parser.add_argument(
        "--set_search", type=_pair, action="append", default=[], help="PATH=VALUE, for the search"
    )
    report.add_arguments(parser)
    args = parser.parse_args(argv)
    if args.random is not None and args.random < 1:
        parser.error(f"--random={args.random} is not positive; expected a number of architectures.")
    logging.set_verbosity(logging.ERROR)
    data = {"task.input_path": args.data_dir} if args.data_dir else {}
    found = [
        compare(
            args.experiment,
            args.trainer,
            seed,
            overrides={**data, **dict(args.set)},
            search_overrides=dict(args.set_search),
            num_random=args.random,
        )
        for seed in range(args.first_seed, args.first_seed + args.seeds)
    ]
    report.Report(
        benchmark="nas_random",
        command=report.command_line("nas_random"),
        tables=tabulate(args.experiment, found),
        measurements=[dataclasses.asdict(one) for one in found],
    ).publish(args.results_dir)


if __name__ == "__main__":
    main()
