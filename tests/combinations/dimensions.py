"""The combined features, the combinations that are refused, and the rows of the suite."""

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from allpairspy import AllPairs

from tests import rounding

# The value of each dimension.
Row: TypeAlias = dict[str, Any]

# The values of each dimension, the usual one first, each with its description in test names.
DIMENSIONS: dict[str, dict[Any, str]] = {
    "replicas": {1: "one replica", 2: "two replicas"},
    "virtual": {0: "no virtual replicas", 2: "two virtual replicas"},
    "execution": {
        "graph": "steps in a graph",
        "eager": "eager steps",
        "xla": "steps compiled by XLA",
        "xla_loop": "loop compiled by XLA",
    },
    "accumulation": {1: "whole batches", 2: "two micro-batches"},
    "average": {
        "none": "no moving average",
        "ours": "moving average",
        "all": "moving average of all weights",
        "keras": "use_ema of Keras",
    },
    "loss": {
        "of the task": "loss of the task",
        "compiled": "compiled loss",
        "masked": "mean over tokens",
        "weighted": "sample weights",
    },
    "clipping": {"none": "no clipping", "norm": "clipnorm", "global norm": "global_clipnorm"},
    "precision": {"float32": "float32", "bfloat16": "bfloat16", "float16": "float16"},
    "best": {
        "exporter": "best checkpoint of the config",
        "hook": "best checkpoint by a hook",
        "callback": "best weights by ModelCheckpoint",
    },
    "data": {
        "arrays": "arrays",
        "records": "records",
        "mixed records": "two mixed sources",
        "generator": "generator",
        "uneven": "incomplete last batch",
        "None": "None in the batch",
    },
    "metrics": {
        "named": "named metric",
        "unnamed": "unnamed metric",
        "lazy": "F1Score",
        "dictionary": "metric that returns a dictionary",
        "vector": "metric that returns a vector",
    },
    "model": {
        "dense": "dense layers",
        "batch norm": "batch normalization",
        "dropout": "dropout",
        "own statistics": "layer that updates its own weight",
        "embedding": "embedding",
        "frozen": "frozen layer",
    },
    "trainer": {
        "single": "trainer of one task",
        "two optimizers": "two optimizers and two batches a step",
        "joint": "two tasks trained jointly",
        "interleaving": "two tasks trained in turn",
    },
    "evaluation": {
        "metrics": "evaluation by metrics",
        "aggregate_logs": "evaluation by aggregate_logs",
        "both": "evaluation by both",
    },
    "stop": {
        "never": "never stopped",
        "SIGKILL": "killed",
        "SIGTERM": "terminated",
        "evaluation": "killed in an evaluation",
    },
    "schedule": {"steps": "schedule in steps", "ratios": "in ratios", "epochs": "in epochs"},
}

# The dimensions for which the sample contains all pairs of values.
MAIN = ("replicas", "execution", "accumulation", "average", "loss")


@dataclasses.dataclass(frozen=True)
class Refusal:
    """A combination that is refused before training.

    Attributes:
        values: The values that cannot be combined.
        words: A part of the error message.
        why: The reason, for the documentation page.
    """

    values: Mapping[str, Any]
    words: str
    why: str


def _refusals() -> Iterator[Refusal]:
    yield Refusal(
        {"execution": "xla_loop", "replicas": 2},
        "XLA can't exchange gradients between replicas within a program",
        "A compiled loop is one XLA program, which can't exchange gradients between replicas.",
    )
    yield Refusal(
        {"execution": "xla_loop", "data": "uneven"},
        "`runtime.execution` is xla_loop, but",
        "An XLA program takes batches of one size.",
    )
    yield Refusal(
        {"execution": "xla_loop", "trainer": "two optimizers"},
        "The step fetches more than 1 batches, the number for which XLA compiled it",
        "A compiled loop stacks one batch for each step.",
    )
    yield Refusal(
        {"execution": "xla_loop", "trainer": "interleaving"},
        "a step of the interleaving trainer reads the data of one task only",
        "A compiled loop reads a batch of every task in each step.",
    )
    for execution in ("eager", "xla_loop"):
        yield Refusal(
            {"virtual": 2, "execution": execution},
            "Use `graph` or `xla`",
            "Virtual replicas are computed by a compiled function for each step.",
        )
    yield Refusal(
        {"virtual": 2, "trainer": "two optimizers"},
        "overrides `train_step`",
        "Virtual replicas are a part of the step that such a trainer replaces.",
    )
    yield Refusal(
        {"accumulation": 2, "trainer": "two optimizers"},
        "overrides `train_step`",
        "Accumulation is a part of the step that such a trainer replaces.",
    )
    for trainer in ("joint", "interleaving"):
        yield Refusal(
            {"virtual": 2, "trainer": trainer},
            "this field supports only experiments with one task",
            "`trainer.virtual_replicas` supports one task.",
        )
        yield Refusal(
            {"accumulation": 2, "trainer": trainer},
            "gradient accumulation is not supported with several tasks",
            "Accumulation supports one task.",
        )
        yield Refusal(
            {"model": "frozen", "trainer": trainer},
            "this field supports only experiments with one task",
            "`trainer.freeze` supports one task.",
        )
        yield Refusal(
            {"best": "callback", "trainer": trainer},
            "requires a Keras model",
            "The models of several tasks are no Keras model, which a callback of Keras needs.",
        )


REFUSALS = tuple(_refusals())


# A dimension that joins two others, so that its pairs with a third dimension are triples.
_BOTH = "replicas_and_stop"


def usual_row(**values: Any) -> Row:
    """Return a row with the given values, and the usual values of all other dimensions."""
    return {name: next(iter(each)) for name, each in DIMENSIONS.items()} | values


def refusal_of(row: Mapping[str, Any]) -> Refusal | None:
    """Return the refusal that applies to a complete or partial row; None if the row must work."""
    for refusal in REFUSALS:
        if all(row.get(name) == value for name, value in refusal.values.items()):
            return refusal
    return None


def name_of(row: Row) -> str:
    """Describe the values of a row that differ from the usual values."""
    usual = usual_row()
    words = [DIMENSIONS[name][value] for name, value in row.items() if value != usual[name]]
    return ", ".join(words) or "the usual values"


def sample() -> list[Row]:
    """Return few rows with all pairs of the main dimensions and many pairs of the others.

    Only the rows of `complete` have stops, which require separate processes.
    """
    values = {name: list(each) for name, each in DIMENSIONS.items() if name != "stop"}
    wanted = _accepted_pairs(values)
    rows = []
    for row in _pairs({name: values[name] for name in MAIN}):
        row = _filled(row, values, wanted)
        wanted -= _pairs_of(row)
        rows.append(usual_row() | row)
    return _in_order(rows)


def complete() -> list[Row]:
    """Return rows with all pairs of values, and all triples of replicas, stop and another value."""
    values: dict[str, Any] = {_BOTH: list(itertools.product((1, 2), DIMENSIONS["stop"]))}
    values |= {k: list(v) for k, v in DIMENSIONS.items() if k not in ("replicas", "stop")}
    rows = []
    for row in _pairs(values):
        row["replicas"], row["stop"] = row.pop(_BOTH)
        rows.append(row)
    return _in_order(rows)


def _pairs(values: Mapping[str, Sequence[Any]]) -> list[Row]:
    """Return rows that together contain all pairs of values that are not refused."""
    # Choose the values of dimensions with refusals first, and fit the other values to them.
    refused = collections.Counter(name for refusal in REFUSALS for name in refusal.values)
    names = sorted(values, key=lambda name: -refused[name])
    options = collections.OrderedDict((name, list(values[name])) for name in names)

    def may_stay(chosen: Sequence[Any]) -> bool:
        return _is_accepted(dict(zip(names, chosen, strict=False)))

    rows = [row._asdict() for row in AllPairs(options, filter_func=may_stay)]
    # Because of refused combinations, `allpairspy` omits some accepted pairs, so add rows for them.
    wanted = _accepted_pairs(values)
    for row in rows:
        wanted -= _pairs_of(row)
    while wanted:
        first = min(wanted, key=lambda pair: sorted(map(str, pair)))
        rows.append(_filled(dict(first), {name: values[name] for name in names}, wanted))
        wanted -= _pairs_of(rows[-1])
    return rows


def _filled(row: Row, values: Mapping[str, Sequence[Any]], wanted: set[frozenset[Any]]) -> Row:
    """Choose the missing values of a row so that it contains many of the wanted pairs."""
    for name in values:
        if name not in row:
            choices = [{**row, name: value} for value in values[name]]
            accepted = filter(_is_accepted, choices)
            row = max(accepted, key=lambda choice: len(_pairs_of(choice) & wanted))
    return row


def _accepted_pairs(values: Mapping[str, Sequence[Any]]) -> set[frozenset[Any]]:
    pairs = (
        {one: x, other: y}
        for one, other in itertools.combinations(values, 2)
        for x in values[one]
        for y in values[other]
    )
    return {frozenset(pair.items()) for pair in pairs if _is_accepted(pair)}


def _is_accepted(row: Row) -> bool:
    replicas, stop = row.get(_BOTH, (None, None))
    return refusal_of({"replicas": replicas, "stop": stop, **row}) is None


def _pairs_of(row: Row) -> set[frozenset[Any]]:
    return {frozenset(pair) for pair in itertools.combinations(row.items(), 2)}


def _in_order(rows: list[Row]) -> list[Row]:
    return [{name: row[name] for name in DIMENSIONS} for row in rows]


def roundings(row: Row, steps: int = 6) -> int:
    """Return the length of the longest chain of roundings in a run; see `tests.rounding`.

    Each step runs two layers and a function between them, forward and backward. Matrix products in
    low precision add in float32 and round once; those in float32 round for each of the 24 terms of
    the longest sum.
    """
    terms = 24 if row["precision"] == "float32" else 1
    return steps * 3 * 2 * terms


# The compared results, and what each is compared with.
COMPARISONS = (
    (
        "final weights, training reports, evaluations",
        "a handwritten loop in float64: its own momentum, clipping, moving averages, accumulation, "
        "masks and weights, from the same initial weights and the same batches",
    ),
    (
        "the same, of one replica, whole batches, a compiled loss and float32",
        "`fit` of Keras with `validation_data`",
    ),
    (
        "final weights with dropout",
        "the run in a graph, because no reference draws the same random numbers",
    ),
    ("a run that was stopped", "the uninterrupted run, bit for bit"),
    ("the state that is kept as the best", "the evaluation that found it the best"),
)


def page() -> str:
    """Return the text of docs/combinations.md."""
    tolerances = [
        (dtype, f"{rounding.tolerance(dtype, roundings=roundings({'precision': dtype})):.1g}")
        for dtype in DIMENSIONS["precision"]
    ]
    refusals = [
        (" with ".join(DIMENSIONS[k][v] for k, v in one.values.items()), one.words, one.why)
        for one in REFUSALS
    ]
    features = [(name, "; ".join(words.values())) for name, words in DIMENSIONS.items()]
    parts = {
        "features": _table(("feature", "values"), features),
        "comparisons": _table(("compared", "with"), COMPARISONS),
        "tolerances": _table(("precision", "tolerance"), tolerances),
        "refusals": _table(("together", "a part of the error", "why"), refusals),
        "complete": len(complete()),
        "sample": len(sample()),
        "main": ", ".join(f"*{name}*" for name in MAIN),
    }
    return _PAGE.format(**parts)


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


_PAGE = """\
# Combinations

This page lists which features are tested together, with what their results are compared, and which
combinations are refused. It is generated from the tables in `tests/combinations/dimensions.py`.

## Features

{features}

The complete suite has {complete} runs. Every pair of values meets in at least one of them, unless
the pair is refused, and so does every triple of a number of replicas, a stop, and any other value.
A sample of {sample} runs is tested with every change. The values of the other features take turns
in it, but all pairs of these features meet: {main}.

Each run trains a tiny model for 6 steps, with two reports and two evaluations, by
`train_lib.run_experiment` with a registered task and overrides of its config. A run that is stopped
is a process that ends at a step or in the middle of an evaluation, and is started again until it is
done.

## Comparisons

{comparisons}

A batch is divided among replicas and micro-batches. The handwritten loop defines what that means:

* Micro-batches weigh by their numbers of examples. Replicas weigh equally, as in `fit` of Keras, so
  an incomplete last batch depends on how it is divided among them.
* A mean over tokens is taken in each part. The parts weigh by their numbers of examples.
* Batch normalization normalizes each part by itself. Statistics that a layer updates are averaged
  over the replicas after each step.

Results may differ by rounding only. The tolerance is relative to the largest change of a weight in
the training, or to 1 for a report.

{tolerances}

## Refused combinations

These combinations end with an error before the first step. All other combinations must work.

{refusals}
"""


if __name__ == "__main__":
    print(page(), end="")
