"""A benchmark of start-up times in new processes.

python -m benchmarks.start_up
"""

import argparse
import functools
import os
import pathlib
import statistics
import string
import subprocess
import tempfile
from collections.abc import Mapping, Sequence

from benchmarks import environments, machine, paired, report, turns

_EXPERIMENT = ("--experiment=vision/digits_mlp", "--mode=train")
# Experiments whose first step is also measured with XLA programs that an earlier run compiled.
_STARTED_TWICE = ("vision/digits_mlp", "vision/digits_cnn", "language/char_gpt")
_ONE_STEP_A_LOOP = "trainer.steps_per_loop=1"
_HOOK = 'trainer.hooks=["benchmarks.start_up.first_step:EndAtFirstStep"]'
_TYPO = "trainer.train_stepz=10"

# Expected exit codes of commands that may not exit with 0. After printing help, absl exits with 1.
_EXIT_CODES = {"help": (0, 1), "a mistake in the config": (1, 2)}
# Text that a command must print, as evidence that the intended event was measured.
_EVIDENCE = {
    "help": "--",
    "a mistake in the config": "train_stepz",
    "the first step": "first step",
}


def create_commands(own: str, tfm: str | None, directory: str) -> Mapping[str, Sequence[str]]:
    """Return the commands to measure, by name.

    Args:
        own: The interpreter that has official_lite.
        tfm: The interpreter that has the Model Garden; None omits its commands.
        directory: The directory for the training text and for compiled programs.
    """
    train = [own, "train.py", *_EXPERIMENT]
    commands: dict[str, Sequence[str]] = {
        "python": [own, "-c", ""],
        "import tensorflow": _importing(own, "tensorflow"),
        "import keras": _importing(own, "keras"),
        "import official_lite.core.train_lib": _importing(own, "official_lite.core.train_lib"),
        "help": [own, "train.py", "--help"],
        "a mistake in the config": [*train, f"--set={_TYPO}"],
        "the first step": [*train, f"--set={_ONE_STEP_A_LOOP}", f"--set={_HOOK}"],
    }
    text = pathlib.Path(directory, "text.txt")
    text.write_text(string.printable[:65] * 10_000)
    for experiment in _STARTED_TWICE:
        command = [own, "train.py", f"--experiment={experiment}", "--mode=train"]
        command += [f"--set={_ONE_STEP_A_LOOP}", f"--set={_HOOK}"]
        if experiment.startswith("language/"):
            command.append(f"--set=task.input_path={text}")
        # The warm-up call compiles the programs that the counted calls load.
        cached = f"--set=runtime.xla_cache_dir={directory}/xla"
        commands |= {
            f"{experiment}: first start": command,
            f"{experiment}: second start": [*command, cached],
        }
    if tfm:
        train = [tfm, "-m", "benchmarks.start_up.tfm_train", *_EXPERIMENT]
        commands |= {
            "tfm: import tensorflow": _importing(tfm, "tensorflow"),
            "tfm: import official.core.train_lib": _importing(tfm, "official.core.train_lib"),
            "tfm: help": [tfm, "-m", "benchmarks.start_up.tfm_train", "--help"],
            "tfm: a mistake in the config": [*train, f"--params_override={_TYPO}"],
            "tfm: the first step": [*train, f"--params_override={_ONE_STEP_A_LOOP}"],
        }
    return commands


def _importing(python: str, module: str) -> Sequence[str]:
    # The shutdown of TensorFlow takes most of a second, but users do not wait for it.
    return [python, "-c", f"import os, {module}; os._exit(0)"]


def run(name: str, command: Sequence[str]) -> None:
    """Run a command to its end.

    Raises:
        RuntimeError: If the command fails or lacks the expected output.
    """
    trains = any(word.startswith("--experiment") for word in command)
    with tempfile.TemporaryDirectory() as model_dir:
        finished = subprocess.run(
            [*command, f"--model_dir={model_dir}"] if trains else command,
            cwd=turns.REPOSITORY,
            capture_output=True,
            text=True,
            env=_environment(),
        )
    what = "the first step" if name.endswith(" start") else name.removeprefix("tfm: ")
    if finished.returncode not in _EXIT_CODES.get(what, (0,)) or _EVIDENCE.get(what, "") not in (
        finished.stdout + finished.stderr
    ):
        raise RuntimeError(
            f"`{name}` ended with exit code {finished.returncode} or without the expected output:\n"
            f"{finished.stderr[-2000:]}"
        )


def _environment() -> dict[str, str]:
    # pip compiles installed packages to bytecode. For a fair comparison, official_lite must have
    # bytecode as well.
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {"TF_CPP_MIN_LOG_LEVEL": "3", **kept}


def tabulate(seconds: Mapping[str, list[float]]) -> report.Table:
    """Return a table of medians, in the order of the commands."""
    baseline = "import tensorflow"
    rows = [
        (
            name,
            statistics.median(times),
            min(times),
            paired.ratio(seconds, name, baseline),
        )
        for name, times in seconds.items()
    ]
    return report.Table(
        title="Seconds in a new process",
        columns=("", "s", "fastest", f"× {baseline}"),
        rows=rows,
        note="The first step: the time from the command to the end of the first training step of "
        "`vision/digits_mlp`, which was also written for the Model Garden.",
    )


def tabulate_starts(seconds: Mapping[str, list[float]]) -> report.Table:
    """Return a table of the seconds to the first step, minus those for importing TensorFlow."""
    rows = []
    for experiment in _STARTED_TWICE:
        first, second = (
            statistics.median(
                _difference(seconds[f"{experiment}: {which} start"], seconds["import tensorflow"])
            )
            for which in ("first", "second")
        )
        rows.append((experiment, first, second))
    return report.Table(
        title="The first step, less `import tensorflow`",
        columns=("", "s of the first start", "s of the second start"),
        rows=rows,
        note="The second start has a new model directory, but finds the programs that the first "
        "one compiled in `runtime.xla_cache_dir`.",
    )


def tabulate_beside_tfm(seconds: Mapping[str, list[float]]) -> report.Table:
    """Return a table of the times of both frameworks and of their ratios."""
    pairs = {
        "import of `core.train_lib`": (
            seconds["import official_lite.core.train_lib"],
            seconds["tfm: import official.core.train_lib"],
        ),
        **{
            name: (seconds[name], seconds[f"tfm: {name}"])
            for name in ("help", "a mistake in the config", "the first step")
        },
        "the first step, less `import tensorflow`": (
            _difference(seconds["the first step"], seconds["import tensorflow"]),
            _difference(seconds["tfm: the first step"], seconds["tfm: import tensorflow"]),
        ),
    }
    rows = [
        (
            name,
            statistics.median(own),
            statistics.median(tfm),
            statistics.median(b / a for a, b in zip(own, tfm, strict=True)),
        )
        for name, (own, tfm) in pairs.items()
    ]
    return report.Table(
        title="Compared with the Model Garden",
        columns=("", "s here", "s there", "times sooner"),
        rows=rows,
        note="Each framework uses the TensorFlow of its own environment.",
    )


def _difference(times: Sequence[float], others: Sequence[float]) -> list[float]:
    return [one - other for one, other in zip(times, others, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--no_tfm", action="store_true", help="Skip the Model Garden.")
    environments.add_arguments(parser)
    report.add_arguments(parser)
    args = parser.parse_args()
    names = ["tensorflow"] if args.no_tfm else ["tensorflow", "tfm"]
    pythons = {
        name: environments.find_python(name, env_dir=args.env_dir, pythons=dict(args.python))
        for name in names
    }
    with tempfile.TemporaryDirectory() as directory:
        commands = create_commands(pythons["tensorflow"], pythons.get("tfm"), directory)
        variants = {
            name: functools.partial(run, name, command) for name, command in commands.items()
        }
        # The first call of each command is not counted, because later calls find files in memory.
        seconds = paired.time_in_turn(variants, args.rounds, warmup=1)
    report.Report(
        benchmark="start_up",
        command=report.command_line("start_up"),
        tables=[
            tabulate(seconds),
            tabulate_starts(seconds),
            *([] if args.no_tfm else [tabulate_beside_tfm(seconds)]),
        ],
        environments=machine.versions_in(pythons),
        measurements=seconds,
    ).publish(args.results_dir)


if __name__ == "__main__":
    main()
