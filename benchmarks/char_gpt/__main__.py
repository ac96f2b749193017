"""A benchmark of `language/char_gpt` against the same recipe in hand-written PyTorch.

python -m benchmarks.char_gpt --input_path=/data/tinyshakespeare.txt
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks import environments, machine, report, turns

BASELINE = "torch"

Answer = dict[str, float]


def run_own(input_path: pathlib.Path, overrides: Sequence[str] = ()) -> Answer:
    """Train with `train.py`, and evaluate during training and at the end.

    Args:
        input_path: The text.
        overrides: `path=value` assignments that change the recipe's config.
    """
    with tempfile.TemporaryDirectory() as model_dir:
        seconds, _ = _timed(
            [
                sys.executable,
                "train.py",
                "--experiment=language/char_gpt",
                "--mode=train_and_eval",
                f"--model_dir={model_dir}",
                f"--set=task.input_path={input_path}",
                *(f"--set={override}" for override in overrides),
            ]
        )
        lines = (pathlib.Path(model_dir) / "metrics.json").read_text().splitlines()
    last = [record for record in map(json.loads, lines) if record["split"] == "validation"][-1]
    return {"seconds": seconds, "loss": last["validation_loss"]}


def run_torch(python: str, input_path: pathlib.Path) -> Answer:
    """Train with the hand-written loop, and evaluate as nanoGPT does."""
    module = "benchmarks.char_gpt.torch_train"
    seconds, output = _timed([python, "-m", module, f"--input_path={input_path}"])
    answer = json.loads(output.splitlines()[-1])
    return {"seconds": seconds - answer["uncounted_seconds"], "loss": answer["loss"]}


def tabulate(answers: Mapping[str, Sequence[Answer]]) -> report.Table:
    """Return a table of medians, and of medians of the ratios of paired rounds."""
    rows = []
    for name, found in answers.items():
        pairs = zip(found, answers[BASELINE], strict=True)
        rows.append(
            (
                name,
                statistics.median(one["seconds"] for one in found),
                min(one["seconds"] for one in found),
                statistics.median(one["seconds"] / other["seconds"] for one, other in pairs),
                f"{found[-1]['loss']:.4f}",
            )
        )
    return report.Table(
        title="The whole command, 2000 steps",
        columns=("", "s", "fastest", f"× {BASELINE}", "validation loss"),
        rows=rows,
        note="The loss is that of the whole validation part.",
    )


def _timed(command: Sequence[str]) -> tuple[float, str]:
    began = time.perf_counter()
    finished = subprocess.run(command, cwd=turns.REPOSITORY, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    if finished.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{finished.stderr[-2000:]}")
    return seconds, finished.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input_path", type=pathlib.Path, required=True, help="A text file.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], help="path=value, for train.py")
    environments.add_arguments(parser)
    report.add_arguments(parser)
    args = parser.parse_args()
    pythons = {
        "torch": environments.find_python("torch", env_dir=args.env_dir, pythons=dict(args.python))
    }
    path = args.input_path.resolve()
    contestants: Mapping[str, Callable[[], Answer]] = {
        "official_lite": lambda: run_own(path, args.set),
        "torch": lambda: run_torch(pythons["torch"], path),
    }
    answers: dict[str, list[Any]] = {name: [] for name in contestants}
    for index in range(args.rounds):
        for name in list(contestants)[:: -1 if index % 2 else 1]:
            answer = contestants[name]()
            answers[name].append(answer)
            print(f"{name:14} {answer['seconds']:6.1f} s  loss {answer['loss']:.4f}", flush=True)
    report.Report(
        benchmark="char_gpt",
        command=report.command_line("char_gpt"),
        tables=[tabulate(answers)],
        environments=machine.versions_in(pythons),
        measurements=answers,
    ).publish(args.results_dir)


if __name__ == "__main__":
    main()
