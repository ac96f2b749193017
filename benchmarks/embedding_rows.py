"""A benchmark of step time by the number of embedding rows, with a fixed number of lookups.

One table in front of a small network trains in the loop that `train.py` runs. Tables of all sizes
take turns, one round each.

python -m benchmarks.embedding_rows --rows 10000 100000 1000000 10000000
"""

import argparse
import contextlib
import functools
import gc
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import keras
import numpy as np
from absl import logging

from benchmarks import checkpoint_stall, paired, report, toy_runs
from official_lite.core import train_lib

WIDTH = 16
BATCH_SIZE = 512
NUM_BATCHES = 50


class Variant(NamedTuple):
    """An optimizer to measure.

    Attributes:
        optimizer: The type of the optimizer.
        lazy_rows: Whether `lazy_rows` is set.
        most_rows: The maximum number of rows; larger tables would take too long.
    """

    optimizer: str
    lazy_rows: bool = False
    most_rows: int = 10**9


VARIANTS: Mapping[str, Variant] = {
    "sgd": Variant("sgd"),
    "adagrad": Variant("adagrad"),
    "adam, lazy rows": Variant("adam", lazy_rows=True),
    "adamw, lazy rows": Variant("adamw", lazy_rows=True),
    "adam": Variant("adam", most_rows=10**6),
}


def build_model(rows: int, ids_per_example: int) -> keras.Model:
    """Build a model that maps ids of embedding rows to a number."""
    ids = keras.Input((ids_per_example,), dtype="int32")
    x = keras.layers.Flatten()(keras.layers.Embedding(rows, WIDTH)(ids))
    for units in (256, 128):
        x = keras.layers.Dense(units, activation="relu")(x)
    return keras.Model(ids, keras.layers.Dense(1)(x))


def make_batches(rows: int, ids_per_example: int) -> tuple[np.ndarray, np.ndarray]:
    """Return batches whose ids are all different and spread over the table."""
    rng = np.random.default_rng(0)
    count = BATCH_SIZE * ids_per_example
    # The table is divided into as many sections as a batch has ids, and each id is drawn from its
    # own section.
    stretch = rows / count
    firsts = np.arange(count) * stretch
    ids = [
        rng.permutation(firsts + rng.random(count) * (stretch - 1)).reshape(BATCH_SIZE, -1)
        for _ in range(NUM_BATCHES)
    ]
    labels = rng.normal(size=(NUM_BATCHES, BATCH_SIZE, 1)).astype(np.float32)
    return np.array(ids).astype(np.int32), labels


@contextlib.contextmanager
def open_run(
    variant: Variant, rows: int, ids_per_example: int, saving: checkpoint_stall.SaveOnce
) -> Iterator[train_lib.OrbitExperimentRunner]:
    task = toy_runs.ToyTask(
        functools.partial(build_model, rows, ids_per_example), make_batches(rows, ids_per_example)
    )
    optimizer = f"trainer.optimizer_config.optimizer.{variant.optimizer}"
    assignments = ["runtime.execution=graph", "runtime.distribution_strategy=off"]
    if variant.optimizer == "adamw":
        assignments.append(f"{optimizer}.weight_decay_rate=0.01")
    if variant.lazy_rows:
        assignments.append(f"{optimizer}.lazy_rows=true")
    params = toy_runs.create_params(variant.optimizer, assignments)
    with (
        tempfile.TemporaryDirectory() as directory,
        toy_runs.open_run(task, params, hooks=[saving]) as run,
    ):
        saving.open(run, directory)
        yield run


def measure(
    variant: Variant, sizes: Sequence[int], ids_per_example: int, args: argparse.Namespace
) -> tuple[dict[int, list[float]], list[tuple[report.Cell, ...]]]:
    """Return milliseconds per step by number of rows, and other measurements of each table."""
    runs: dict[int, train_lib.OrbitExperimentRunner] = {}
    savings: dict[int, checkpoint_stall.SaveOnce] = {}
    facts = []
    with contextlib.ExitStack() as stack:
        for rows in sizes:
            start = time.perf_counter()
            saving = savings[rows] = checkpoint_stall.SaveOnce()
            runs[rows] = stack.enter_context(open_run(variant, rows, ids_per_example, saving))
            built = time.perf_counter() - start
            start = time.perf_counter()
            toy_runs.train_further(runs[rows].controller, 1)
            facts.append((rows, built, time.perf_counter() - start))
        trainings = {
            str(rows): functools.partial(toy_runs.train_further, run.controller, args.steps)
            for rows, run in runs.items()
        }
        seconds = paired.time_in_turn(trainings, args.rounds)
        saved = {rows: save(run, savings[rows], args.steps) for rows, run in runs.items()}
    milliseconds = {
        int(rows): [1e3 * s / args.steps for s in found] for rows, found in seconds.items()
    }
    return milliseconds, [(*fact, saved[fact[0]]) for fact in facts]


def save(
    run: train_lib.OrbitExperimentRunner, saving: checkpoint_stall.SaveOnce, steps: int
) -> float:
    """Return the seconds for which saving a checkpoint pauses training.

    The second save is measured, because the first one creates objects that later saves reuse.
    """
    saving.way = "controller.save_checkpoint"
    for _ in range(2):
        saving.step = run.controller.step + 1
        toy_runs.train_further(run.controller, steps)
    return saving.seconds[saving.way][-1]


def tabulate(
    found: Mapping[str, Mapping[int, list[float]]], sizes: Sequence[int], num_ids: int
) -> report.Table:
    rows = []
    for name, measured in found.items():
        smallest, largest = min(measured), max(measured)
        medians = [statistics.median(measured[n]) if n in measured else None for n in sizes]
        ratios = (a / b for a, b in zip(measured[largest], measured[smallest], strict=True))
        best = min(measured[largest]) / min(measured[smallest])
        rows.append((name, *medians, statistics.median(ratios), best))
    return report.Table(
        title=f"ms/step by rows of a table of width {WIDTH}, of which {num_ids:,} are looked up",
        columns=("optimizer", *(f"{n:,}" for n in sizes), "largest / smallest", "of the best"),
        rows=rows,
        note="All rows of a batch are different and randomly distributed over the table. Ratios "
        "are medians of paired rounds, and of the best round of each.",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[10**4, 10**5, 10**6, 10**7])
    parser.add_argument("--optimizers", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--ids", type=int, nargs="+", default=[1, 8], help="The ids per example.")
    parser.add_argument("--steps", type=int, default=100, help="The steps per round.")
    parser.add_argument("--rounds", type=int, default=15)
    report.add_arguments(parser)
    args = parser.parse_args()
    logging.set_verbosity(logging.ERROR)
    tables: list[report.Table] = []
    facts: list[tuple[report.Cell, ...]] = []
    measurements: dict[int, dict[str, dict[int, list[float]]]] = {}
    for ids_per_example in args.ids:
        found = measurements[ids_per_example] = {}
        facts = []
        for name in args.optimizers:
            variant = VARIANTS[name]
            sizes = [rows for rows in args.rows if rows <= variant.most_rows]
            found[name], built = measure(variant, sizes, ids_per_example, args)
            facts.extend((name, f"{rows:,}", *fact) for rows, *fact in built)
            gc.collect()
        tables.append(tabulate(found, args.rows, BATCH_SIZE * ids_per_example))
    once = report.Table(
        title="Once in a run",
        columns=("optimizer", "rows", "build s", "first step s", "save s"),
        rows=facts,
        note="A checkpoint pauses the training for `save s` and is then written while the training "
        "continues.",
    )
    report.Report(
        benchmark="embedding_rows",
        command=report.command_line("embedding_rows"),
        tables=[*tables, once],
        measurements=measurements,
    ).publish(args.results_dir)


if __name__ == "__main__":
    main()
