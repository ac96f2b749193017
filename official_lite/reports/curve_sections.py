"""Sections that show the metrics of runs, as curves and as tables of values."""

import dataclasses
import math
from collections.abc import Container, Iterator, Sequence

from official_lite.reports import charts, layout
from official_lite.reports.markup import Child, Markup, tag
from official_lite.run.run_reading import Run, Series

__all__ = ["curves", "throughput"]

_TEXT_COLOUR = 6
_ZOOM_HINT = tag(
    "p",
    "Drag over a range of a chart to zoom in, and double-click to see all of it. "
    "With the keyboard: arrow keys, + and −, Escape.",
    class_="dim hint",
)
_SPEED = ("per_second", "seconds_per", "_secs", "input_wait")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Curve:
    """A metric of one split of one run.

    Attributes:
        run: Index of the run.
        split: The split.
        quantity: The measured quantity: `loss` for both `training_loss` and `validation_loss`.
        points: Steps and values.
        minutes: Time of each point in minutes since the run started; empty if unknown.
    """

    run: int
    split: str
    quantity: str
    points: list[tuple[int, float]]
    minutes: list[float]


def curves(runs: Sequence[Run]) -> layout.Section:
    """Build the section with all metrics; training and validation share a chart per metric."""
    found = [curve for curve in _curves(runs) if not _is_speed(curve.quantity)]
    content: Child = layout.note("No metrics were recorded.")
    if found:
        content = [_switches(runs, found), _ZOOM_HINT, _grid(runs, found), _values(runs, found)]
    return layout.Section(name="curves", title="Curves", content=content)


def throughput(runs: Sequence[Run]) -> layout.Section | None:
    """Build the section about speed; return None if nothing is known about it."""
    found = [curve for curve in _curves(runs) if _is_speed(curve.quantity)]
    rows = [
        layout.Row(
            head=run.name,
            cells=[
                run.steps_per_second,
                run.examples_per_second,
                layout.duration(run.seconds),
                run.execution.describe() if run.execution else None,
            ],
        )
        for run in runs
    ]
    if not found and all(run.seconds is None for run in runs):
        return None
    columns = ["run", "steps per second", "examples per second", "duration", "execution mode"]
    caption = "Medians over all training reports"
    table = layout.table(layout.Table(caption=caption, columns=columns, rows=rows))
    content = [table, _grid(runs, found)]
    return layout.Section(name="throughput", title="Throughput", content=content)


def _curves(runs: Sequence[Run]) -> Iterator[_Curve]:
    for number, run in enumerate(runs):
        for split, named in run.series.items():
            for name, series in named.items():
                # The curve itself shows its best value so far.
                if name.startswith("best_") and name.removeprefix("best_") in named:
                    continue
                yield _Curve(
                    run=number,
                    split=split,
                    quantity=_quantity(split, name, named),
                    points=list(zip(series.steps, series.values, strict=True)),
                    minutes=_minutes(run, series),
                )


def _minutes(run: Run, series: Series) -> list[float]:
    times = [time for time in series.wall_times if time is not None]
    if len(times) < len(series.wall_times):
        return []
    reported = [one.wall_times[0] for named in run.series.values() for one in named.values()]
    began = [time for time in (*reported, run.start_time) if time is not None]
    return [(time - min(began)) / 60 for time in times]


def _quantity(split: str, name: str, others: Container[str]) -> str:
    """Return the name without `training_` or `validation_`, so that splits share a chart.

    A metric that has the short name already, beside the loss of the trainer, is told apart.
    """
    prefix = {"train": "training_", "validation": "validation_"}.get(split, "")
    if prefix and f"{prefix}{name}" in others:
        return f"{name} (metric)"
    return name.removeprefix(prefix) or name


def _is_speed(quantity: str) -> bool:
    return any(word in quantity for word in _SPEED)


def _grid(runs: Sequence[Run], found: Sequence[_Curve]) -> Markup:
    return charts.grid([_chart(runs, quantity, found) for quantity in _quantities(found)])


def _quantities(found: Sequence[_Curve]) -> list[str]:
    """Return the quantities measured in several splits first, and losses before others."""
    splits: dict[str, set[str]] = {}
    for curve in found:
        splits.setdefault(curve.quantity, set()).add(curve.split)
    return sorted(splits, key=lambda name: (len(splits[name]) == 1, not name.endswith("loss")))


def _chart(runs: Sequence[Run], quantity: str, found: Sequence[_Curve]) -> charts.Chart:
    own = [curve for curve in found if curve.quantity == quantity]
    return charts.Chart(
        title=quantity,
        series=[_series(runs, curve, own) for curve in own],
        is_smoothed=True,
    )


def _series(runs: Sequence[Run], curve: _Curve, others: Sequence[_Curve]) -> charts.Series:
    is_alone = all(other.split == curve.split for other in others)
    stands_back = len(runs) > 1 and curve.split == "train" and not is_alone
    return charts.Series(
        name=curve.split if len(runs) == 1 else f"{runs[curve.run].name}, {curve.split}",
        points=curve.points,
        minutes=curve.minutes,
        colour=_colour(runs, curve.run, curve.split),
        look="dashed" if stands_back else "solid",
        run=curve.run,
        split=curve.split,
    )


def _colour(runs: Sequence[Run], number: int, split: str) -> int:
    """Return the color index: one per run, or, for a single run, one per split."""
    return number if len(runs) > 1 else list(runs[0].series).index(split)


def _switches(runs: Sequence[Run], found: Sequence[_Curve]) -> Markup:
    slider = tag("input", type="range", min=0, max=0.99, step=0.01, value=0, data_smoothing=True)
    smoothing = tag("label", "Smoothing ", slider, tag("output", "0.00"))
    shown: Child = [
        smoothing,
        _clock() if all(curve.minutes for curve in found) else None,
        _run_switches(runs),
        _split_switches(runs, found),
    ]
    return tag("div", shown, class_="switches", role="group", aria_label="What the curves show")


def _clock() -> Markup:
    box = tag("input", type="checkbox", autocomplete="off", data_clock=True)
    return tag("label", box, "over time")


def _run_switches(runs: Sequence[Run]) -> Child:
    if len(runs) == 1:
        return None
    return [
        _switch(run.name, charts.Series(name="", points=(), colour=number), run=number)
        for number, run in enumerate(runs)
    ]


def _split_switches(runs: Sequence[Run], found: Sequence[_Curve]) -> Child:
    splits = dict.fromkeys(curve.split for curve in found)
    return [
        _switch(
            split,
            charts.Series(
                name="",
                points=(),
                # With several runs, use the text color, since the other colors identify the runs.
                colour=_colour(runs, 0, split) if len(runs) == 1 else _TEXT_COLOUR,
                look="dashed" if len(runs) > 1 and split == "train" else "solid",
            ),
            split=split,
        )
        for split in splits
    ]


def _switch(
    name: str, sample: charts.Series, *, run: int | None = None, split: str | None = None
) -> Markup:
    box = tag("input", type="checkbox", checked=True, data_run=run, data_split=split)
    return tag("label", box, charts.swatch(sample), tag("span", name))


def _values(runs: Sequence[Run], found: Sequence[_Curve]) -> Markup:
    if len(runs) > 1:
        return _values_by_run(runs, found)
    rows = [
        layout.Row(head=f"{curve.split}/{curve.quantity}", cells=_extremes(curve))
        for curve in found
    ]
    columns = ["metric", "last", "at step", "least", "at step", "greatest", "at step"]
    return layout.table(
        layout.Table(
            caption="Finite values",
            columns=[*columns, "non-finite values"],
            rows=rows,
        )
    )


def _extremes(curve: _Curve) -> list[float | None]:
    finite = [(value, step) for step, value in curve.points if math.isfinite(value)]
    number = len(curve.points) - len(finite)
    if not finite:
        return [*[None] * 6, number]
    return [*finite[-1], *min(finite), *max(finite), number or None]


def _values_by_run(runs: Sequence[Run], found: Sequence[_Curve]) -> Markup:
    names = [(curve.split, curve.quantity) for curve in found]
    names = sorted(dict.fromkeys(names), key=lambda name: name[0] == "train")
    last = {(c.run, c.split, c.quantity): c.points[-1][1] for c in found}
    rows = [
        layout.Row(head=run.name, cells=[last.get((number, *name)) for name in names])
        for number, run in enumerate(runs)
    ]
    return layout.table(
        layout.Table(
            caption="Last values",
            columns=["run", *(f"{split}/{quantity}" for split, quantity in names)],
            rows=rows,
            is_sortable=True,
        )
    )
