"""A benchmark of a study with pruning against the study without it and against Optuna alone.

python -m benchmarks.records.study --data fashion-mnist=/data/fashion-mnist

The studies search settings of `vision/fashion_mnist` as its `search.yaml` describes. Each runs to
its end in new processes, in turn: ours with pruning, ours without, and Optuna with Keras `fit`,
which prunes no trial either. All have the same search space, number of trials, steps per trial and
seeds. The objective is the accuracy on held-out training images.
"""

import argparse
import dataclasses
import math
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence

import yaml
from optuna.trial import TrialState

from benchmarks import report, turns
from benchmarks.records import programs
from benchmarks.records.known_numbers import find_records
from official_lite.common import errors
from official_lite.search import results, storage

__all__ = ["Study", "measure", "run_ours", "run_reference", "tabulate"]

EXPERIMENT = "vision/fashion_mnist"
CONFIG_FILE = turns.REPOSITORY / "experiments" / EXPERIMENT / "search.yaml"

PRUNED, UNPRUNED, REFERENCE = "ours with pruning", "ours without pruning", "Optuna, Keras `fit`"

# The allowed time of the study with pruning, as a fraction of the time without it.
BAR = 0.6
# Accuracies that differ by less count as the same value.
TOLERANCE = 0.002


@dataclasses.dataclass(frozen=True)
class Study:
    """What a study did.

    Attributes:
        seconds: The seconds from the start of the process to its end.
        values: The value of each trial that was trained to its end, and the seconds from the start
            of the process to the end of the trial.
        num_pruned: The number of trials that the pruner ended.
    """

    seconds: float
    values: Sequence[tuple[float, float]]
    num_pruned: int = 0

    @property
    def best(self) -> float:
        """The best value of a trial; not a number if no trial was trained to its end."""
        return max((value for value, _ in self.values), default=math.nan)

    def seconds_to(self, target: float) -> float | None:
        """Return the seconds to the first trial with this value; None if no trial has it."""
        return min((when for value, when in self.values if value >= target), default=None)


def run_ours(
    config_file: pathlib.Path, data_dir: pathlib.Path, seed: int, *, prunes: bool
) -> Study:
    """Run the study with `train.py`."""
    with tempfile.TemporaryDirectory() as study_dir:
        command = [
            sys.executable,
            "train.py",
            f"--experiment={EXPERIMENT}",
            f"--config_file={config_file}",
            "--mode=search",
            f"--model_dir={study_dir}",
            f"--set=task.input_path={data_dir}",
            f"--set=search.seed={seed}",
            f"--set=runtime.seed={seed}",
            *([] if prunes else ["--set=search.pruner=none"]),
        ]
        began = time.time()
        seconds, _ = programs.run_to_end(command)
        study = storage.open_study(storage.read_config(study_dir), study_dir)
        pruned = study.get_trials(deepcopy=False, states=(TrialState.PRUNED,))
        values = [
            (trial.values[0], trial.datetime_complete.timestamp() - began)
            for trial in results.best_trials(study)
            if trial.datetime_complete
        ]
    return Study(seconds, values, len(pruned))


def run_reference(config_file: pathlib.Path, data_dir: pathlib.Path, seed: int) -> Study:
    """Run the reference with the budget of the config file."""
    config = yaml.safe_load(config_file.read_text())
    interval = config["trainer"]["validation_interval"]
    command = [
        sys.executable,
        str(programs.REFERENCES / "fashion_mnist_optuna.py"),
        f"--data_dir={data_dir}",
        f"--seed={seed}",
        f"--num_trials={config['search']['num_trials']}",
        f"--max_epochs={config['trainer']['train_steps'] // interval}",
        f"--steps_per_epoch={interval}",
        f"--num_held_out={config['task']['num_held_out']}",
    ]
    seconds, output = programs.run_to_end(command)
    # The last evaluation of a trial replaces the earlier ones.
    values = {
        line["trial"]: (line["accuracy"], line["seconds"]) for line in programs.read_lines(output)
    }
    return Study(seconds, list(values.values()))


def measure(
    config_file: pathlib.Path, data_dir: pathlib.Path, seeds: Sequence[int]
) -> dict[str, list[Study]]:
    """Run the three studies in turn with each seed."""
    found: dict[str, list[Study]] = {PRUNED: [], UNPRUNED: [], REFERENCE: []}
    for seed in seeds:
        for name in found:
            if name == REFERENCE:
                study = run_reference(config_file, data_dir, seed)
            else:
                study = run_ours(config_file, data_dir, seed, prunes=name == PRUNED)
            found[name].append(study)
            print(
                f"seed {seed} {name}: best accuracy {study.best:.4f}, {len(study.values)} trials "
                f"trained to their end, {study.num_pruned} pruned, {study.seconds:.1f} s",
                flush=True,
            )
    return found


def tabulate(found: Mapping[str, Sequence[Study]]) -> report.Table:
    """Return a table with a row for each study."""
    targets = [study.best - TOLERANCE for study in found[UNPRUNED]]
    rows: list[list[report.Cell]] = []
    for name, studies in found.items():
        times = [study.seconds_to(target) for study, target in zip(studies, targets, strict=True)]
        reached = [seconds for seconds in times if seconds is not None]
        pairs = zip(studies, found[UNPRUNED], strict=True)
        bests = [study.best for study in studies]
        rows.append(
            [
                name,
                statistics.median(study.seconds for study in studies),
                statistics.median(study.seconds / other.seconds for study, other in pairs),
                BAR if name == PRUNED else None,
                f"{statistics.median(bests):.4f}",
                f"{min(bests):.4f} to {max(bests):.4f}",
                statistics.median(study.num_pruned for study in studies),
                f"{len(reached)} of {len(times)}",
                statistics.median(reached) if reached else None,
            ]
        )
    return report.Table(
        title="Studies of Fashion-MNIST",
        columns=(
            "",
            "s",
            "× without pruning",
            "at most",
            "best accuracy",
            "spread",
            "pruned",
            "same value",
            "s to it",
        ),
        rows=rows,
        note=(
            "Medians over the seeds, from the start of the process, on held-out training images. "
            f"The same value: at most {100 * TOLERANCE:g} points below the best of the study "
            "without pruning."
        ),
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1, help="The number of seeds.")
    parser.add_argument(
        "--config_file",
        type=lambda text: pathlib.Path(text).resolve(),
        default=CONFIG_FILE,
        help="The study. The reference takes only its budget from this file.",
    )
    programs.add_data_argument(parser)
    report.add_arguments(parser)
    args = parser.parse_args(argv)
    data = dict(args.data)
    (record,) = find_records([EXPERIMENT])
    try:
        programs.check_data([record], data)
    except errors.ConfigError as error:
        parser.error(str(error))
    found = measure(args.config_file, data[record.data], range(1, args.seeds + 1))
    report.Report(
        benchmark="study",
        command=report.command_line("records.study"),
        tables=[tabulate(found)],
        measurements={name: [*map(dataclasses.asdict, runs)] for name, runs in found.items()},
    ).publish(args.results_dir)


if __name__ == "__main__":
    main()
