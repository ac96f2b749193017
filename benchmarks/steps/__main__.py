"""A benchmark of seconds per step of all contestants, in paired rounds.

For its whole lifetime, one process may be a third slower than another with the same code, depending
on its memory layout. To measure ratios of a few percent, use several processes of each.

python -m benchmarks.steps
python -m benchmarks.steps --models convnet --contestants official_lite tf_graph --processes 7
python -m benchmarks.steps --models tiny_mlp --contestants official_lite tfm --rounds 31
"""

import argparse
import dataclasses
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence

from benchmarks import environments, machine, report, turns
from benchmarks.steps import models

BASELINE = "official_lite"


@dataclasses.dataclass(frozen=True)
class Contestant:
    """A program that trains the models.

    Attributes:
        environment: Its environment; see `environments.REQUIREMENTS`.
        module: The worker.
        arguments: Arguments of the worker besides model and rounds.
        models: The models that it trains by default; others may take a second per step.
    """

    environment: str
    module: str
    arguments: Sequence[str] = ()
    models: Sequence[str] = tuple(models.MODELS)


# On a CPU, a convolution inside an XLA loop takes a hundred times as long.
_WITHOUT_CONVNET = ("tiny_mlp", "transformer", "ctr")

CONTESTANTS: Mapping[str, Contestant] = {
    "official_lite": Contestant("tensorflow", "official_lite_worker"),
    "official_lite_graph": Contestant(
        "tensorflow", "official_lite_worker", ("--set=runtime.execution=graph",)
    ),
    "official_lite_xla": Contestant(
        "tensorflow", "official_lite_worker", ("--set=runtime.execution=xla",)
    ),
    "official_lite_xla_loop": Contestant(
        "tensorflow",
        "official_lite_worker",
        ("--set=runtime.execution=xla_loop",),
        models=("tiny_mlp",),
    ),
    "tf_graph": Contestant("tensorflow", "tf_worker", ("--execution=graph",)),
    "tf_xla": Contestant("tensorflow", "tf_worker", ("--execution=xla",)),
    "tf_xla_loop": Contestant(
        "tensorflow", "tf_worker", ("--execution=xla_loop",), models=("tiny_mlp",)
    ),
    "jax_scan": Contestant("jax", "jax_worker", ("--execution=scan",), models=_WITHOUT_CONVNET),
    "jax_step": Contestant("jax", "jax_worker", ("--execution=step",)),
    "keras_fit": Contestant("tensorflow", "keras_worker", ("--steps_per_execution=1",)),
    "keras_fit_1000": Contestant("tensorflow", "keras_worker", ("--steps_per_execution=1000",)),
    "keras_fit_1000_no_jit": Contestant(
        "tensorflow", "keras_worker", ("--steps_per_execution=1000", "--jit_compile=off")
    ),
    "tfm": Contestant("tfm", "tfm_worker"),
    "torch": Contestant("torch", "torch_worker"),
    "lightning": Contestant("torch", "lightning_worker"),
}


def measure(
    model: models.Model, names: Sequence[str], pythons: Mapping[str, str], args: argparse.Namespace
) -> tuple[turns.Answers, turns.Answers]:
    """Let all contestants train a model; return the answers of the counted and the warm-up rounds.

    A contestant is left out if one of its processes fails.
    """
    rounds = args.rounds + args.warmup
    commands = {
        name: [
            pythons[CONTESTANTS[name].environment],
            "-m",
            f"benchmarks.steps.{CONTESTANTS[name].module}",
            f"--model={model.name}",
            f"--steps={args.steps or model.steps}",
            f"--rounds={rounds}",
            *CONTESTANTS[name].arguments,
        ]
        for name in names
    }
    all_answers, all_warmups = [], []
    for _ in range(args.processes):
        with turns.Workers(commands) as workers:
            answers, warmups = workers.run(args.rounds, args.warmup)
        all_answers.append(answers)
        all_warmups.append(warmups)
        commands = {name: commands[name] for name in answers}
    return _joined(all_answers, commands), _joined(all_warmups, commands)


def _joined(of_processes: Sequence[turns.Answers], names: Iterable[str]) -> turns.Answers:
    return {name: [one for answers in of_processes for one in answers[name]] for name in names}


def tabulate(
    model: models.Model,
    answers: turns.Answers,
    warmups: turns.Answers,
    steps: int,
    processes: int,
) -> report.Table:
    """Return a table of medians, fastest first."""
    seconds = turns.medians(answers, "seconds_per_step")
    rows = []
    for name in sorted(answers, key=lambda name: seconds[name]):
        found = answers[name]
        times = [one["seconds_per_step"] for one in found]
        rows.append(
            (
                name,
                1e6 * seconds[name],
                1e6 * min(times),
                _spread(times),
                turns.ratio_to(answers, name, BASELINE, "seconds_per_step"),
                warmups[name][0]["seconds"] if warmups[name] else None,
                max(one["peak_memory_mb"] for one in found),
                f"{found[-1]['loss']:.4f}",
                f"{found[-1]['metric']:.4f}",
            )
        )
    return report.Table(
        title=f"{model.name}, {steps} steps per round, processes per contestant: {processes}",
        columns=(
            "",
            "µs/step",
            "fastest",
            "spread",
            f"× {BASELINE}",
            "first round s",
            "peak MB",
            "loss",
            model.metric,
        ),
        rows=rows,
        note=" ".join(_disagreements(answers)),
    )


def _spread(times: Sequence[float]) -> str:
    """Return half the interquartile range of the rounds, as a percentage of the median."""
    if len(times) < 2:
        return "–"
    low, median, high = statistics.quantiles(times, n=4)
    return f"±{50 * (high - low) / median:.0f} %"


def _disagreements(answers: turns.Answers, tolerance: float = 0.02) -> Iterator[str]:
    """Yield a note on each contestant whose loss differs from the median of all losses."""
    if not answers:
        return
    losses = {name: found[-1]["loss"] for name, found in answers.items()}
    common = statistics.median(losses.values())
    for name, loss in losses.items():
        if abs(loss - common) > tolerance * max(abs(common), 0.01):
            yield f"{name} ends with a loss of {loss:.4g}, others with {common:.4g}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=list(models.MODELS))
    parser.add_argument("--contestants", nargs="+", choices=list(CONTESTANTS))
    parser.add_argument("--steps", type=int, default=0, help="Steps in a round.")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--warmup", type=int, default=2, help="Rounds that are not counted.")
    parser.add_argument(
        "--processes", type=int, default=1, help="The number per contestant, run in turn."
    )
    environments.add_arguments(parser)
    report.add_arguments(parser)
    args = parser.parse_args()
    names = args.contestants or list(CONTESTANTS)
    pythons = {
        name: environments.find_python(name, env_dir=args.env_dir, pythons=dict(args.python))
        for name in {CONTESTANTS[name].environment: None for name in names}
    }
    tables, measurements = [], {}
    for model_name in args.models or list(models.MODELS):
        model = models.MODELS[model_name]
        wanted = [
            name for name in names if args.contestants or model_name in CONTESTANTS[name].models
        ]
        answers, warmups = measure(model, wanted, pythons, args)
        steps = args.steps or model.steps
        tables.append(tabulate(model, answers, warmups, steps, args.processes))
        measurements[model_name] = {"rounds": answers, "warmup": warmups}
    report.Report(
        benchmark="steps",
        command=report.command_line("steps"),
        tables=tables,
        environments=machine.versions_in(pythons),
        measurements=measurements,
    ).publish(args.results_dir)


if __name__ == "__main__":
    main()
