"""A benchmark of seconds per step of all contestants, in paired rounds.

For its whole lifetime, one process may be a third slower than another with the same code, depending
on its memory layout. To measure ratios of a few percent, use several processes of each.

python -m benchmarks.steps
python -m benchmarks.steps --models convnet --contestants official_lite tf_graph --processes 7
python -m benchmarks.steps --models tiny_mlp --contestants official_lite tfm --rounds 31
python -m benchmarks.steps --contestants official_lite keras_fit_1000_no_jit torch_compile
"""

import argparse
import dataclasses
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks import environments, machine, report, turns
from benchmarks.steps import models

BASELINE = "official_lite"


@dataclasses.dataclass(frozen=True)
class Contestant:
    """A program that trains the models.

    Attributes:
        environment: Its environment; see `environments.REQUIREMENTS`.
        module: The worker.
        given: What it was given, in one line, for readers of the tables.
        arguments: Arguments of the worker besides model and rounds.
        variables: Environment variables, such as `KERAS_BACKEND=jax`.
        models: The models that it trains by default; others may take a second per step.
    """

    environment: str
    module: str
    given: str
    arguments: Sequence[str] = ()
    variables: Sequence[str] = ()
    models: Sequence[str] = tuple(models.MODELS)


# On a CPU, a convolution inside an XLA loop takes a hundred times as long.
_WITHOUT_CONVNET = ("tiny_mlp", "transformer", "ctr")


def _ours(given: str, *arguments: str, **fields: Any) -> Contestant:
    return Contestant("tensorflow", "official_lite_worker", given, arguments, **fields)


def _by_hand(given: str, execution: str, **fields: Any) -> Contestant:
    return Contestant("tensorflow", "tf_worker", given, (f"--execution={execution}",), **fields)


def _keras(given: str, *arguments: str) -> Contestant:
    return Contestant(
        "tensorflow", "keras_worker", f"Keras `fit` on TensorFlow; {given}", arguments
    )


def _keras_on_jax(given: str, *arguments: str) -> Contestant:
    given = f"Keras `fit` on JAX; {given}; batches from a generator of JAX arrays"
    return Contestant("jax", "keras_worker", given, arguments, variables=("KERAS_BACKEND=jax",))


_ONE, _MANY = "--steps_per_execution=1", f"--steps_per_execution={models.STEPS_PER_REPORT}"
_ALL_STEPS = "`steps_per_execution` is 1,000, or the whole round if it is shorter"

CONTESTANTS: Mapping[str, Contestant] = {
    "official_lite": _ours(
        "the runner of `train.py` with controller, writers and the default config; "
        "`runtime.execution=auto` benchmarks the execution modes in the first round"
    ),
    "official_lite_graph": _ours(
        "as `official_lite`, with `runtime.execution=graph`", "--set=runtime.execution=graph"
    ),
    "official_lite_xla": _ours(
        "as `official_lite`, with `runtime.execution=xla`", "--set=runtime.execution=xla"
    ),
    "official_lite_xla_loop": _ours(
        "as `official_lite`, with `runtime.execution=xla_loop`",
        "--set=runtime.execution=xla_loop",
        models=("tiny_mlp",),
    ),
    "official_lite_trainer": _ours(
        "`create_trainer`, `trainer.choose_execution()` and `trainer.train`, without runner, "
        "controller and writers",
        "--trainer_only",
    ),
    "tf_graph": _by_hand("a hand-written `tf.function` that loops over a dataset", "graph"),
    "tf_xla": _by_hand("as `tf_graph`, with an XLA-compiled step", "xla"),
    "tf_xla_loop": _by_hand(
        "as `tf_graph`, with XLA-compiled loops of 100 steps", "xla_loop", models=("tiny_mlp",)
    ),
    "jax_scan": Contestant(
        "jax",
        "jax_worker",
        "hand-written JAX; all steps up to the next report in one `lax.scan`",
        ("--execution=scan",),
        models=_WITHOUT_CONVNET,
    ),
    "jax_step": Contestant(
        "jax", "jax_worker", "hand-written JAX; a jitted step per call", ("--execution=step",)
    ),
    "keras_fit": _keras('the defaults, so `jit_compile="auto"`, which is XLA here', _ONE),
    "keras_fit_no_jit": _keras("`jit_compile=False`", _ONE, "--jit_compile=off"),
    "keras_fit_1000": _keras(f'`jit_compile="auto"`; {_ALL_STEPS}', _MANY),
    "keras_fit_1000_no_jit": _keras(
        f"`jit_compile=False`; {_ALL_STEPS}", _MANY, "--jit_compile=off"
    ),
    "keras_jax_fit": _keras_on_jax('the defaults, so `jit_compile="auto"`', _ONE),
    "keras_jax_fit_1000": _keras_on_jax(f'`jit_compile="auto"`; {_ALL_STEPS}', _MANY),
    "tfm": Contestant(
        "tfm",
        "tfm_worker",
        "the Model Garden's runner, controller and writers with the default config",
    ),
    "tfm_trainer": Contestant(
        "tfm",
        "tfm_worker",
        "the Model Garden's `create_trainer` and `trainer.train`, without runner, controller and "
        "writers",
        ("--trainer_only",),
    ),
    "torch": Contestant("torch", "torch_worker", "a hand-written eager PyTorch loop"),
    "torch_compile": Contestant(
        "torch",
        "torch_worker",
        "as `torch`, with model, loss, metric and the step of AdamW in `torch.compile`",
        ("--compile",),
    ),
    "torch_loader": Contestant(
        "torch",
        "torch_worker",
        "as `torch`, with whole batches from a `DataLoader` with `num_workers=2`, "
        "`persistent_workers=True` and `pin_memory=False`; peak MB excludes its workers",
        ("--num_workers=2",),
    ),
    "lightning": Contestant(
        "torch",
        "lightning_worker",
        "`Trainer.fit` without logger, checkpoints, progress bar, model summary and sanity "
        "validation; `self.log` averages the loss of each epoch",
    ),
    "lightning_barebones": Contestant(
        "torch",
        "lightning_worker",
        "as `lightning`, with `barebones=True`, so also without `self.log`",
        ("--barebones",),
    ),
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
            "env",
            *CONTESTANTS[name].variables,
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


def describe(names: Iterable[str]) -> str:
    """Return a list of what each contestant was given, in Markdown."""
    lines = [f"* `{name}`: {CONTESTANTS[name].given}." for name in names]
    return "\n".join(["What each contestant was given:", "", *lines])


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
    tables[-1] = dataclasses.replace(
        tables[-1], note="\n\n".join(filter(None, [tables[-1].note, describe(names)]))
    )
    report.Report(
        benchmark="steps",
        command=report.command_line("steps"),
        tables=tables,
        environments=machine.versions_in(pythons),
        measurements=measurements,
    ).publish(args.results_dir)


if __name__ == "__main__":
    main()
