"""A benchmark of seconds per step on two replicas, against a hand-written `tf.distribute` loop.

python -m benchmarks.strategies
"""

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence

from benchmarks import report, turns
from benchmarks.steps import models
from benchmarks.strategies import worker

BASELINE = "by_hand"
LOOPS: Mapping[str, Sequence[str]] = {
    "by_hand": ("--loop=by_hand",),
    "official_lite": ("--loop=official_lite",),
    "official_lite_graph": ("--loop=official_lite", "--set=runtime.execution=graph"),
}


def measure(model: str, strategy: str, args: argparse.Namespace) -> turns.Answers:
    """Return the counted rounds of all processes."""
    steps = args.steps or models.MODELS[model].steps
    commands = {
        name: [
            *(sys.executable, "-m", "benchmarks.strategies.worker", *arguments),
            *(f"--model={model}", f"--strategy={strategy}", f"--steps={steps}"),
            f"--rounds={args.rounds + args.warmup}",
        ]
        for name, arguments in LOOPS.items()
    }
    answers: turns.Answers = {name: [] for name in LOOPS}
    for _ in range(args.processes):
        with turns.Workers(commands) as workers:
            counted, _ = workers.run(args.rounds, args.warmup)
        for name, found in counted.items():
            answers[name] += found
    return answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["tiny_mlp", "convnet"])
    parser.add_argument("--strategies", nargs="+", default=list(worker.STRATEGIES))
    parser.add_argument("--steps", type=int, default=0, help="Steps in a round.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2, help="Rounds that are not counted.")
    parser.add_argument(
        "--processes", type=int, default=3, help="The number per loop, run in turn."
    )
    report.add_arguments(parser)
    args = parser.parse_args()
    rows, measurements = [], {}
    for strategy in args.strategies:
        for model in args.models:
            answers = measure(model, strategy, args)
            measurements[f"{strategy}/{model}"] = answers
            for name, found in answers.items():
                microseconds = 1e6 * statistics.median(one["seconds_per_step"] for one in found)
                ratio = turns.ratio_to(answers, name, BASELINE, "seconds_per_step")
                rows.append(
                    (strategy, model, name, microseconds, ratio, f"{found[-1]['loss']:.4f}")
                )
    table = report.Table(
        title="Two replicas: two logical devices, or two processes",
        columns=("", "model", "loop", "µs/step", f"× {BASELINE}", "loss"),
        rows=rows,
        note="Each replica has its own batch, of the size given in the README.",
    )
    report.Report(
        benchmark="strategies",
        command=report.command_line("strategies"),
        tables=[table],
        measurements=measurements,
    ).publish(args.results_dir)


if __name__ == "__main__":
    main()
