import math
import pathlib

import pytest

from official_lite.common import errors
from official_lite.run import run_reading
from official_lite.tools import run_queries
from official_lite.tools.run_queries import Facts
from tests import made_runs


@pytest.fixture
def runs(tmp_path: pathlib.Path) -> list[Facts]:
    """Of the three, c has no metrics and failed."""
    made_runs.make_run(tmp_path / "a", offset=0.0)
    made_runs.make_run(tmp_path / "b", offset=0.05, record={"seed": 1})
    directory = made_runs.make_run(tmp_path / "c", record={"status": "failed"})
    made_runs.write_metrics(directory, [])
    return [run_queries.facts_of(run) for run in run_reading.read_runs(str(tmp_path))]


def _names(runs: list[Facts]) -> list[str]:
    return [facts.run.name for facts in runs]


def test_facts_are_fields_metrics_and_config(runs: list[Facts]) -> None:
    facts = runs[1]
    assert (facts.get("seed"), facts.get("best_step")) == (1, 800)
    assert facts.get("best/accuracy") == pytest.approx(0.95)
    assert facts.get("task.model.units") == [64, 64]
    assert facts.get("nothing") is None


def test_short_name_is_that_of_validation_first(runs: list[Facts]) -> None:
    assert run_queries.resolve("accuracy", runs) == "validation/accuracy"
    assert run_queries.resolve("training_loss", runs) == "train/training_loss"
    assert run_queries.resolve("model.units", runs) == "task.model.units"
    with pytest.raises(errors.UnknownNameError, match="Did you mean `accuracy`"):
        run_queries.resolve("acuracy", runs)


def test_short_name_of_several_config_fields_is_refused(runs: list[Facts]) -> None:
    fields = {"a.rate": 1, "b.rate": 2}
    facts = Facts(run=runs[0].run, fields={}, metrics={}, config=fields)
    with pytest.raises(errors.UnknownNameError, match=r"`a\.rate` or `b\.rate`"):
        run_queries.resolve("rate", [facts])


@pytest.mark.parametrize(
    ("conditions", "names"),
    [
        (["status=done"], ["a", "b"]),
        (["status!=done"], ["c"]),
        (["accuracy>0.9"], ["b"]),
        (["accuracy <= 0.9"], ["a"]),
        (["accuracy!=3"], ["a", "b", "c"]),
        (["name~[ab]", "seed=1"], ["b"]),
        (["experiment~digits"], ["a", "b", "c"]),
        (["global_batch_size>=64", "seed=0"], ["a", "c"]),
        (["global_batch_size=none"], []),
    ],
)
def test_runs_are_kept_for_which_all_conditions_hold(
    runs: list[Facts], conditions: list[str], names: list[str]
) -> None:
    assert _names(run_queries.select(runs, conditions)) == names


@pytest.mark.parametrize("condition", ["status", "status>1", "nothing=1"])
def test_condition_that_makes_no_sense_is_refused(runs: list[Facts], condition: str) -> None:
    with pytest.raises(errors.ConfigError, match=r"condition|No run has"):
        run_queries.select(runs, [condition])


def test_runs_without_the_value_come_last_whatever_the_order(runs: list[Facts]) -> None:
    assert _names(run_queries.sort(runs, "accuracy")) == ["a", "b", "c"]
    assert _names(run_queries.sort(runs, "accuracy", descending=True)) == ["b", "a", "c"]
    assert _names(run_queries.sort(runs, "status", descending=True)) == ["c", "a", "b"]
    assert math.isclose(runs[0].get("steps_per_second"), 101.5)
