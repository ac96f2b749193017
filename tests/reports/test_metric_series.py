import json
import math
import tracemalloc
from collections.abc import Iterator

from official_lite.reports import metric_series


def _text(*lines: object) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)


def _line(step: int, split: str = "train", **values: object) -> dict[str, object]:
    return {"step": step, "split": split, "wall_time": 100.0 + step, **values}


def test_each_metric_of_a_split_is_a_series() -> None:
    text = _text(_line(1, loss=0.5), _line(2, loss=None, a=1), _line(2, "validation", loss=0.25))
    series, problems = metric_series.parse(text.splitlines(keepends=True))
    assert problems == []
    loss = series["train"]["loss"]
    assert (loss.steps, loss.wall_times, loss.finite()) == ((1, 2), (101.0, 102.0), [0.5])
    assert math.isnan(loss.last)
    assert series["validation"]["loss"].values == (0.25,)
    assert series["train"]["a"].steps == (2,)


def test_what_was_reported_twice_counts_as_the_later_start_says() -> None:
    first = [_line(step, loss=float(step)) for step in (10, 20, 30)]
    again = [_line(step, loss=step + 0.5) for step in (20, 25)]
    series, _ = metric_series.parse(_text(*first, *again).splitlines(keepends=True))
    loss = series["train"]["loss"]
    assert (loss.steps, loss.values) == ((10, 20, 25), (10.0, 20.5, 25.5))


def test_torn_last_line_is_no_problem_and_another_one_is() -> None:
    text = '{"split": "train"}\n' + _text(_line(1, loss="high"), _line(2, loss=1.0)) + '{"step": 3'
    series, problems = metric_series.parse(text.splitlines(keepends=True))
    assert series["train"]["loss"].steps == (2,)
    assert [problem.partition(" can't")[0] for problem in problems] == ["line 1", "line 2"]


def test_file_of_an_older_version_has_no_times() -> None:
    series, _ = metric_series.parse(['{"step": 1, "split": "train", "loss": 0.5}\n'])
    assert series["train"]["loss"].wall_times == (None,)


def test_memory_is_that_of_the_series_not_of_the_text() -> None:
    def lines() -> Iterator[str]:
        for step in range(20_000):
            yield f'{{"step": {step}, "split": "train", "loss": 0.5, "note": null}}\n'

    tracemalloc.start()
    try:
        series, _ = metric_series.parse(lines())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(series["train"]["loss"].steps) == 20_000
    assert peak < 20_000 * 200
